package workflow

import (
	"encoding/json"

	"agentd/server/graph"
	"agentd/server/journal"
	"agentd/server/run"
	"agentd/store"
)

// Info describes a workflow.
type Info struct {
	ID          string          `json:"id"`
	Description string          `json:"description,omitempty"`
	Version     string          `json:"version,omitempty" doc:"The pin: a thread that began under another version asks before it continues."`
	Declared    bool            `json:"declared" doc:"Whether the configuration declares it; else a Go program registered it."`
	Input       json.RawMessage `json:"input,omitempty" doc:"The JSON Schema of its input."`
	Graph       *graph.Drawing  `json:"graph,omitempty" doc:"Its nodes and what leads from one to another."`
}

// ExecuteRequest asks for a run of a workflow.
type ExecuteRequest struct {
	WorkflowID string
	ThreadID   string          // empty: one is minted
	Input      json.RawMessage // nil: {}
	SessionID  string          // empty: none. It links the thread; see [run.StartRequest].
	UserID     string
	By         string // the principal that asks; anonymous when empty
	Lineage    string // whom the principal counts as; By when empty
	MayJoin    bool   // it may link the thread to a session that another has made
	Detached   bool   // nobody waits for its end but who subscribes to its events
	Origin     string // as of [run.StartRequest]
	// Also is written in the transaction that begins the run; its error prevents the run.
	Also func(tx *store.Tx, s Started) error

	host int64 // of a hosted run: see store.Run
}

// ResumeRequest answers a wait of a thread, or moves on a thread that is blocked.
type ResumeRequest struct {
	WorkflowID, ThreadID string
	Name                 string          // of the wait; empty: the only one
	Value                json.RawMessage // nil: null
	AllowVersionMismatch bool            // the thread goes over to the workflow as it is now
	Update               map[string]any  // of a Go graph: writes channels before the thread continues
	Goto                 string          // of a Go graph: drops all pending work and continues with a node
	By                   string
	MayApprove           func() error                        // called before the answer decides an approval; its error refuses that. Nil: nobody may
	Also                 func(tx *store.Tx, s Started) error // written in the transaction that makes the answer count
}

// RetryRequest begins another run of a thread that failed or was aborted, from what failed or was withdrawn.
type RetryRequest struct {
	WorkflowID, ThreadID string
	AllowVersionMismatch bool
	By, Lineage          string
	Also                 func(tx *store.Tx, s Started) error // written in the transaction that begins the run

	host   int64 // as of [ExecuteRequest]
	origin string
}

// Started is what a request has set going.
type Started struct {
	WorkflowID string
	ThreadID   string
	RunID      string
	Status     store.Status
	Kept       bool          // the answer came before its wait, and is kept for it
	Decided    []run.Verdict // what the answer decided for good, where it was for an approval
}

// Pause is a wait of a thread.
type Pause struct {
	Node     string          `json:"nodeName"`
	Name     string          `json:"name,omitempty" doc:"What a resumption names it by."`
	Kind     string          `json:"kind" enum:"timer|awakeable|approval|child|retry|pause|static-before|static-after|outcome-unknown"`
	WakeAt   string          `json:"wakeAt,omitempty" doc:"When the thread moves by itself: the time of a timer or a retry, or the time-out of another wait."`
	Since    string          `json:"since"`
	Value    json.RawMessage `json:"value,omitempty" doc:"What the wait shows: the schema of an awaited value, or what an approval shows."`
	ChildRun string          `json:"childRunId,omitempty" doc:"The run of an agent or a workflow that waits."`
}

// Outcome is how a run of a workflow stands: at its end, or while it waits.
type Outcome struct {
	RunID            string             `json:"runId"`
	ThreadID         string             `json:"threadId"`
	WorkflowID       string             `json:"workflowId"`
	Status           store.Status       `json:"status" enum:"running|suspended|awaiting_approval|completed|failed|aborted"`
	StepNumber       int                `json:"stepNumber"`
	Output           json.RawMessage    `json:"output,omitempty" doc:"Of a completed run."`
	Error            *journal.Error     `json:"error,omitempty"`
	PendingPauses    []Pause            `json:"pendingPauses,omitempty"`
	PendingApprovals []journal.Approval `json:"pendingApprovals,omitempty"`
}

// ThreadState is a thread with its state.
type ThreadState struct {
	Outcome
	State        map[string]json.RawMessage `json:"state"`
	CheckpointID string                     `json:"checkpointId,omitempty" doc:"Of the latest checkpoint."`
	Version      string                     `json:"version,omitempty" doc:"The pin that the thread began with."`
	Blocked      string                     `json:"blocked,omitempty" doc:"The code of what keeps a due thread from moving."`
	SessionID    string                     `json:"sessionId,omitempty"`
	CreatedAt    string                     `json:"createdAt"`
	UpdatedAt    string                     `json:"updatedAt"`
	Active       []string                   `json:"active" doc:"The nodes that run or wait for their turn."`
}

// Checkpoint is one step of a thread, as it was made durable.
type Checkpoint struct {
	ID         string          `json:"id"`
	ThreadID   string          `json:"threadId"`
	RunID      string          `json:"runId"`
	StepNumber int             `json:"stepNumber"`
	Node       string          `json:"nodeName,omitempty" doc:"The node; of a superstep of a workflow in Go, all its nodes, with commas between them."`
	Status     string          `json:"status" enum:"completed|failed|paused|withdrawn"`
	Writes     json.RawMessage `json:"writes,omitempty" doc:"What the step wrote, by key of the state; of an appended list, what was added."`
	Error      *journal.Error  `json:"error,omitempty" doc:"Of a step that failed."`
	CreatedAt  string          `json:"createdAt"`
}

// ThreadSummary is a thread in a list.
type ThreadSummary struct {
	ThreadID   string         `json:"threadId"`
	WorkflowID string         `json:"workflowId"`
	RunID      string         `json:"runId"`
	Status     store.Status   `json:"status" enum:"running|suspended|awaiting_approval|completed|failed|aborted"`
	StepNumber int            `json:"stepNumber"`
	SessionID  string         `json:"sessionId,omitempty"`
	Blocked    string         `json:"blocked,omitempty"`
	Error      *journal.Error `json:"error,omitempty"`
	CreatedAt  string         `json:"createdAt"`
	UpdatedAt  string         `json:"updatedAt"`
}

// ThreadFilter selects threads of a workflow.
type ThreadFilter struct {
	Workflow  string
	Status    store.Status
	SessionID string
	Blocked   bool  // only those that are blocked
	Before    int64 // threads before this number, as a page returned it; 0: from the newest
	Limit     int   // at most 1000; 100 when 0
}
