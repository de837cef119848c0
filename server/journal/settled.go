package journal

import (
	"encoding/json"

	"agentd/server/event"
	"agentd/server/message"
)

// CallHead is what every event about a call has, and all that is stored of an event whose message holds the rest.
type CallHead struct {
	ToolCallID string `json:"toolCallId"`
	ToolName   string `json:"toolName,omitempty"`
}

// Head makes a CallHead.
func Head(id, name string) CallHead { return CallHead{id, name} }

// ToolSettled is tool.execute.end or tool.execute.error.
func ToolSettled(o *message.Outcome) event.Event {
	head := CallHead{o.ToolCallID, o.ToolName}
	if !o.Failed() {
		output := o.Output
		if len(output) == 0 {
			output = json.RawMessage("null")
		}
		return event.New(event.ToolEnd, struct {
			CallHead
			Result     json.RawMessage `json:"result"`
			DurationMS int64           `json:"durationMs"`
			Truncated  bool            `json:"bufferTruncated,omitempty"`
		}{head, output, o.DurationMS, o.Truncated})
	}
	return event.New(event.ToolError, struct {
		CallHead
		Error CallError `json:"error"`
	}{head, CallError{o.ToolCallID, o.ToolName, o.Kind, o.Message, o.Hint, o.Recoverable, o.RecoveryHint}})
}

// CallError is the error in a tool.execute.error event.
type CallError struct {
	ToolCallID   string               `json:"toolCallId"`
	ToolName     string               `json:"toolName"`
	Kind         message.ErrorKind    `json:"kind"`
	Message      string               `json:"message"`
	Hint         string               `json:"hint,omitempty"`
	Recoverable  bool                 `json:"recoverable"`
	RecoveryHint message.RecoveryHint `json:"recoveryHint,omitempty"`
}
