package agent

import (
	"encoding/json"

	"agentd/server/event"
	"agentd/server/message"
)

// The payloads of the events that the engine emits itself.

type startFields struct {
	RunID   string `json:"runId"`
	AgentID string `json:"agentId"`
}

type stepFields struct {
	StepNumber int            `json:"stepNumber"`
	Usage      *message.Usage `json:"usage,omitempty"`
}

type deltaFields struct {
	Delta string `json:"delta"`
}

// callHead is what every event about a tool call has, and all that is stored of those whose message tells the rest.
type callHead struct {
	ToolCallID string `json:"toolCallId"`
	ToolName   string `json:"toolName,omitempty"`
}

// startedFields is tool.execute.start.
type startedFields struct {
	callHead
	ChildRunID string `json:"childRunId,omitempty"` // the run that the call is
}

type approvalFields struct {
	ToolCallID       string `json:"toolCallId"`
	Reason           string `json:"reason,omitempty"`
	SubRunToolCallID string `json:"subRunToolCallId,omitempty"`
	By               string `json:"by,omitempty"` // of a decision
}

// requestFields is what tool.approval.requested shows: all that a person needs to decide.
type requestFields struct {
	approvalFields
	ToolName   string          `json:"toolName"`
	ArgsDigest string          `json:"argsDigest"`
	Args       json.RawMessage `json:"args"`
}

func (m *move) sayRequested(a Approval) {
	m.say(event.ApprovalRequested, requestFields{approvalFields{ToolCallID: a.ToolCallID, Reason: a.Reason, SubRunToolCallID: a.SubRunToolCallID}, a.ToolName, a.ArgsDigest, a.Args})
}

type cancelFields struct {
	RunID              string `json:"runId"`
	Drain              bool   `json:"drain"`
	OnPendingApprovals string `json:"onPendingApprovals"`
}

func textComplete(text string) event.Event {
	return event.New(event.TextComplete, struct {
		Text string `json:"text"`
	}{text})
}

func toolCallEnd(c message.ToolCall) event.Event {
	return event.New(event.ToolCallEnd, struct {
		ToolCallID string          `json:"toolCallId"`
		FinalArgs  json.RawMessage `json:"finalArgs"`
	}{c.ID, c.Args})
}

// toolSettled is tool.execute.end or tool.execute.error.
func toolSettled(o *message.Outcome) event.Event {
	if !o.Failed() {
		return event.New(event.ToolEnd, struct {
			callHead
			Result     json.RawMessage `json:"result"`
			DurationMS int64           `json:"durationMs"`
			Truncated  bool            `json:"bufferTruncated,omitempty"`
		}{callHead{o.ToolCallID, o.ToolName}, orNull(o.Output), o.DurationMS, o.Truncated})
	}
	return event.New(event.ToolError, struct {
		callHead
		Error CallError `json:"error"`
	}{callHead{o.ToolCallID, o.ToolName}, CallError{o.ToolCallID, o.ToolName, o.Kind, o.Message, o.Hint, o.Recoverable, o.RecoveryHint}})
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

func orNull(v json.RawMessage) json.RawMessage {
	if len(v) == 0 {
		return json.RawMessage("null")
	}
	return v
}
