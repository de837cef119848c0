// Package external hosts agents that live outside of the process: programs in any language and HTTP servers.
//
// A program gets its input on stdin and answers on stdout, as text or as JSON lines; a server gets a POST and answers JSON or a
// stream of server-sent events. Both use the same JSON: events of the catalogue, and a last object of type "result". Programs
// with JSON lines can also save checkpoints and ask for approvals.
//
// A failure of the program or server fails its run with one of these codes: agent-unreachable (it could not be started or
// dialled, or the connection broke), agent-timeout, agent-exited, agent-protocol and output-too-large. When the run's
// context ends first, the error is the context's cause.
package external

import (
	"encoding/json"
	"fmt"
	"time"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/message"
)

// maxFrame bounds one line of a program and the data of one server-sent event.
const maxFrame = 1 << 20

func timedOut(limit time.Duration) error {
	return fault.New(fault.AgentTimeout, "The agent took longer than %v.", limit)
}

func tooLarge(limit int64) error {
	return fault.New(fault.OutputTooLarge, "The agent wrote more than %d bytes.", limit)
}

// A request is what an agent gets: the body of a POST or, with a type, the first line to a program.
type request struct {
	Type      string            `json:"type,omitempty"`
	RunID     string            `json:"runId"`
	AgentID   string            `json:"agentId"`
	SessionID string            `json:"sessionId,omitempty"`
	UserID    string            `json:"userId,omitempty"`
	Input     json.RawMessage   `json:"input"`
	Messages  []message.Message `json:"messages"`
	*resumption
}

// A resumption is what a request to resume has in addition. State is null when the run never reached a checkpoint.
type resumption struct {
	State     json.RawMessage `json:"state"`
	Approvals []decision      `json:"approvals"`
}

// A decision is the answer to an approval.request.
type decision struct {
	ToolCallID string `json:"toolCallId"`
	Granted    bool   `json:"granted"`
	Reason     string `json:"reason,omitempty"` // of a denial
}

func requestOf(in agent.Input) (r request, err error) {
	r = request{RunID: in.RunID, AgentID: in.AgentID, SessionID: in.SessionID, UserID: in.UserID, Input: in.Input}
	if in.Messages != nil {
		r.Messages, err = in.Messages()
	}
	if len(r.Input) == 0 {
		r.Input = json.RawMessage(`""`)
	}
	if r.Messages == nil {
		r.Messages = []message.Message{}
	}
	return r, err
}

func (r request) encode() ([]byte, error) {
	b, err := message.Encode(r)
	if err != nil {
		return nil, fmt.Errorf("encoding the input for agent %s: %w", r.AgentID, err)
	}
	return b, nil
}

// discard is the sink of Run, which reports nothing.
type discard struct{}

func (discard) Emit(event.Event) error           { return nil }
func (discard) Checkpoint(json.RawMessage) error { return nil }
func (discard) RequestApproval(agent.ApprovalRequest) error {
	return fault.New(fault.AgentProtocol, "Approvals are not available while the agent runs outside of a server.")
}
