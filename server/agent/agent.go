package agent

import (
	"context"
	"encoding/json"

	"agentd/server/event"
	"agentd/server/message"
	"agentd/server/run"
)

// An Agent answers an input. Run blocks until it has the answer or ctx is done; it may be called concurrently, once
// per run. ctx ends with the run's abort (its cause tells why), never because the caller of the API went away.
//
// An error that is, or wraps, a *fault.Error gives the failed run its code; any other error gives it the code
// unknown.
type Agent interface {
	ID() string
	Run(ctx context.Context, in Input) (Result, error)
}

// A Streamer is an Agent that reports while it works. When an agent has Stream, Run is not called.
type Streamer interface {
	Agent
	Stream(ctx context.Context, in Input, out Sink) (Result, error)
}

// A Resumer is a Streamer that can go on from a state it gave to [Sink.Checkpoint], also in another process.
type Resumer interface {
	Streamer
	Resume(ctx context.Context, in Input, from Resumption, out Sink) (Result, error)
}

// Input is what a run is started with.
type Input struct {
	RunID     string
	AgentID   string
	SessionID string          // empty when the run belongs to no session
	UserID    string          // empty when not given
	Payer     string          // who uses up what is scarce: the principal that started the run, else the agent
	Input     json.RawMessage // as the caller gave it; `""` when absent

	// Messages reads the session's transcript so far, oldest first, cut to a window; without Input. Nil: there is none.
	Messages func() ([]message.Message, error)
}

// Text is the input as text: a JSON string's value, or the JSON text of anything else.
func (in Input) Text() string {
	var s string
	if json.Unmarshal(in.Input, &s) == nil {
		return s
	}
	return string(in.Input)
}

// Result is an agent's answer. Output is anything that encodes as JSON.
type Result struct {
	Output any
	Usage  message.Usage
}

// A Sink takes what an agent reports. Its methods are called from one goroutine at a time; each returns an error
// when the run can no longer be recorded, and the agent should then return.
type Sink interface {
	// Emit publishes an event. A durable event is on disk when Emit returns; a transient one (see
	// event.Transient) is only on its way. agent.start, agent.end and agent.error are the engine's own: it ignores
	// them.
	Emit(event.Event) error
	// Checkpoint stores the agent's opaque state, at most 1 MiB of JSON, replacing the one before. It is on disk
	// when Checkpoint returns.
	Checkpoint(state json.RawMessage) error
	// RequestApproval asks a person to allow what the agent wants to do. Only a [Resumer] may ask. Having asked, it
	// returns an empty Result: the run waits, and goes on with Resume when all is decided. A request becomes durable
	// with the Checkpoint that follows it, or with the agent's return; a run that is interrupted before that goes on
	// from the checkpoint before, and asks again. The error is agent-protocol when the request cannot be made.
	RequestApproval(ApprovalRequest) error
}

// An ApprovalRequest is a call that an agent wants to make itself and that a person must allow. At most 100 can wait
// in a run at once, their arguments and reasons together at most 1 MiB.
type ApprovalRequest struct {
	ToolCallID string          // 1 to 256 bytes, used for nothing else in the run
	ToolName   string          // 1 to 256 bytes
	Args       json.RawMessage // any JSON: what the person decides on
	Reason     string          // why a person is asked; may be empty
}

// Resumption is where a run goes on from.
//
// A grant is handed over once. When the process ends after that and before the agent's next Checkpoint or return,
// nobody knows whether the agent has acted on it: the run waits again, with the reason outcome-unknown, and a person
// decides once more. Denials may be handed over again.
type Resumption struct {
	State     json.RawMessage // the last checkpoint; nil if there was none
	Approvals []run.Decision  // on what was asked for and is not acted upon yet, in the order of the requests
}
