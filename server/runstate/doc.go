// Package runstate reads and writes the JSON form of a run's state, `svc-run-state/1.2`.
//
// # Versions
//
// A label is `svc-run-state/<major>.<minor>`. [Read] accepts every minor version of the majors 0 and 1, including later
// ones, and refuses a greater major. Written states always have the label 1.2.
//
//	read           how it differs from 1.2                         how it is read
//	1.0 and older  no pendingApprovals, handoffs                   empty lists
//	               no usageByModel                                 one entry: the whole usage, by the agent's id
//	1.1 and older  bytes as an object with the keys "0", "1", ...  an envelope
//	               a URL as {}                                     nothing can repair it: it stays
//	1.3 and newer  members that 1.2 does not know                  kept
//
// A repair for one version applies to all of them. A minor version may only add members. This version does not know
// what they mean, but keeps them: [State.Extra] holds them, and the writer puts them back in their places, so that the
// snapshot of a newer server survives an older one.
//
// # Strictness
//
// The reader guesses nothing that a decision or a bill could depend on: a missing required member and a known member of
// the wrong type are malformed, and all problems are reported at once. The tags of the fields declare what is required,
// and with lenient the exceptions that older writers need. A member that is null counts as absent. An object with a repeated member is malformed at
// any depth, also in arguments: two readers could each use another one.
package runstate
