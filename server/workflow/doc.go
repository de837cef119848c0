// Package workflow runs workflows: durable graphs of steps that call tools, agents and other workflows, sleep, wait for
// answers and ask for approvals.
//
// A thread is one instance of a workflow, and a run one telling of it. The configuration declares a workflow as a graph of
// nodes; a Go program registers one as a [Definition]. Both are executed as tasks of the same threads:
//
//	Execute, Retry -> Begin: the first steps, in the transaction that makes the run
//	                    |
//	                    v
//	drive: advance what is ready -> commit -> launch calls and hosted runs -> listen
//	         ^                                                                  |
//	         +-- a result, a letter (answer, decision, due time), an abort <----+
//	                    |
//	                    +--> nothing happens by itself any more: rest (parked) or end
//
// One goroutine moves a thread, and only while something of it happens; a thread that waits is rows alone. Each commit holds
// all of what happened: the steps with what they wrote, the open tasks, the events, the timer, and the record of the request
// that caused it. A call that has an effect is durable as an intent before it is made. What is read after a crash is therefore
// what the goroutine had; a call that was in flight is made again where that does no harm, and a person decides otherwise.
package workflow
