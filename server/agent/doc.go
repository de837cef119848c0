// Package agent runs agents durably: registry, steps, the journal of tool calls, abort and recovery.
//
// A run is a row of the store and, while it moves, one goroutine. Whatever the goroutine does next follows from what
// is on disk, so a start, a resumption and a recovery after a crash all take the same way, advance:
//
//	         +-----------------------------------------------------------+
//	         |                                                           v
//	Start -> running -- step: commit(messages, journal, events), publish --> completed | failed | aborted
//	  |        |  ^                                                            ^
//	  |        v  | a person decides                                           |
//	  |      awaiting_approval ------------------------------- abort ----------+
//	  +-> pending (its session is busy; its turn comes when the run before it has ended)
//
// A run that fails or is aborted ends its children and settles its calls first. Where nobody knows what one of them did, it
// waits with its error as awaiting_approval until a person has decided, and then ends; see [Engine.Abort].
//
// Each commit is one transaction that holds all of a move. An event is published after the commit that holds it;
// deltas, which are not stored, are published at once. What lies between a model call and its commit, or between
// the claim of a tool call and its outcome, is all that a crash can take; see [Engine.Recover] for what becomes of it.
package agent
