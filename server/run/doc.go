// Package run is the durable kernel: it admits, commits, publishes, recovers and ends runs, whatever drives them.
//
// A run is a row of the store and, while it moves, one goroutine. What the goroutine does next follows from what is on
// disk, so a start, a resumption and a recovery after a crash all take the same way:
//
//	         +-----------------------------------------------------------+
//	         |                                                           v
//	Start -> running -- Drive: commit(rows, journal, events), publish --> completed | failed | aborted
//	  |        |  ^                                                            ^
//	  |        v  | a person decides; a timer is due                           |
//	  |      awaiting_approval, suspended -------------------- abort ----------+
//	  +-> pending (its session is busy; its turn comes when the run before it has ended)
//
// A [Driver] moves the runs of one owner: an agent, for instance. It builds a [Move] for each step and commits it. Each
// commit is one transaction that holds all of a move; its events are published after it. Transient events are not stored
// and are published at once. A crash loses only what lies between two commits.
//
// The journal holds the calls that a run makes:
//
//	claim (dispatching) --> the call is made --> settle (done) --> reported by an event, in call order
//	claim (awaiting)    --> a person grants it: dispatching; denies it: done
//
// A call that recovery finds dispatching may have had its effect. Its [Caller] says what becomes of it; see [Doubt].
//
// A call can be a run itself. Such a child has a row and a journal of its own, but it moves only as a part of its parent:
// dispatching the call makes the child or continues it, and the call is settled when the child has ended. A child's
// outcome is therefore never unknown. Approvals of a child are mirrored by all the runs above it.
//
// A call of a tool can also start a run that people reach by itself, of a workflow. A run whose open calls all wait for such
// runs has no goroutine, although it is running on disk: it is dormant, and their ends wake it.
//
// A run that fails or is aborted first ends its children and settles its calls. Where the outcome of a call is unknown,
// the run waits with its error shown, as awaiting_approval, until a person has decided on the call, and then ends.
package run
