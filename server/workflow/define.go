package workflow

import (
	"encoding/json"
	"time"
)

// Start and End stand in edges for the beginning and the end of a graph.
const (
	Start = "__start__"
	End   = "__end__"
)

// A Definition is a workflow written in Go: nodes that run in supersteps, and edges that say what follows what. All tasks
// of a superstep see the same state and end before the next superstep begins. Conditions of edges, reducers and Validate
// hold up the thread, also its abort, until they return: they must not wait for anything.
type Definition struct {
	ID          string // names the workflow in routes, scopes and the database
	Description string
	Version     string // the pin: a thread that began under another version asks before it continues
	Nodes       map[string]Node
	Edges       []Edge
	Channels    map[string]Channel // the keys of the state
	Initial     map[string]any     // what channels hold when a run begins, by name
	Input       json.RawMessage    // JSON Schema of the input; nil: any object whose keys are channels
	PauseAt     PauseAt
	Awaits      []string          // names of [Context.AwaitExternal]: the first answer to each is kept when it comes before the wait
	Validate    func(State) error // checks the state after each superstep; nil: nothing is checked

	NodeDefaults       NodeDefaults
	MaxSteps           int           // supersteps between two waits; 200 when 0
	MaxTotalSteps      int           // supersteps since the thread was executed, retries included; 0: no bound
	MaxConcurrentTasks int           // tasks of a superstep that run at once; 64 when 0
	MaxStateBytes      int           // of the state as JSON, and of what the nodes of a superstep write and dispatch; 4 MiB when 0
	KeepSteps          int           // supersteps of a thread that are kept one by one; 1000 when 0
	CancelGrace        time.Duration // how long tasks may take to return after an abort; 100 ms when 0
}

// A Node is a step of a graph. Run may be called by several goroutines, for different tasks. It runs again from its top
// after each of its pauses, after a failure that Retry covers, and after a crash: whatever must happen once belongs into
// [Context.Step], [Context.Tool] or [Context.Agent].
type Node struct {
	Run     func(ctx *Context, state State) (Result, error)
	Timeout time.Duration // of one attempt, pauses excluded; 0: the default of the definition
	Retry   Retry         // zero: the default of the definition
}

// Retry says how often a node that fails is tried. Pauses are no failures.
type Retry struct {
	MaxAttempts int           // 1 when 0
	Backoff     time.Duration // before the second attempt; doubles with each further one; 250 ms when 0
	MaxBackoff  time.Duration // 1 minute when 0
}

// NodeDefaults hold for nodes that do not say otherwise.
type NodeDefaults struct {
	Timeout time.Duration // 0: none
	Retry   Retry
}

// An Edge leads from a node that has completed to one that follows. When, which may be nil, decides on the state after
// the superstep; it must depend on nothing else.
type Edge struct {
	From, To string
	When     func(State) bool
}

// PauseAt names nodes before or after which a thread waits until it is resumed.
type PauseAt struct{ Before, After []string }

// Result is what a task of a node leaves: values for channels, and tasks for the next superstep.
type Result struct {
	Write    map[string]any
	Dispatch []Dispatch
}

// Dispatch schedules another task of a node, which finds Args with [Context.DispatchArgs]. Equal ones are separate tasks.
type Dispatch struct {
	Node string
	Args any
}
