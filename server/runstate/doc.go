// Package runstate is the JSON form of a run's state, `svc-run-state/1.2`: its types, one reader and one writer.
//
// # Versions
//
// A label is `svc-run-state/<major>.<minor>`. [Read] takes every minor of the majors 0 and 1, those to come included;
// a greater major is refused. What is written is always labelled 1.2.
//
//	read           how it differs from 1.2                         what becomes of it
//	1.0 and older  no pendingApprovals, handoffs                   empty lists
//	               no usageByModel                                 one entry: the whole usage, by the agent's id
//	1.1 and older  bytes as an object with the keys "0", "1", ...  an envelope
//	               a URL as {}                                     nothing can repair it: it stays
//	1.3 and newer  members that 1.2 does not know                  kept
//
// What one version repairs is repaired in all of them. A minor may only add members. This version does not know what
// they mean, but it does not lose them: [State.Extra] holds them, and they are written back to where they were, so
// that the snapshot of a newer server survives an older one.
//
// # Strictness
//
// What a decision or a bill could hang on is not guessed: a required member that is missing and a known member of
// the wrong type are malformed, and all problems are told at once. The exceptions are those that older writers need;
// they stand at the functions that read them. A member that is null counts as absent. An object that has a member
// twice is malformed at any depth, in arguments too: two readers could each believe another one.
package runstate
