package run

import (
	"encoding/json"

	"agentd/server/event"
	"agentd/server/journal"
	"agentd/server/message"
)

// The payloads of the events that the kernel emits itself.

type startFields struct {
	RunID   string `json:"runId"`
	AgentID string `json:"agentId"`
}

// StepFields is the payload of step.start and step.end.
type StepFields struct {
	StepNumber int            `json:"stepNumber"`
	Usage      *message.Usage `json:"usage,omitempty"`
}

// callHead is what every event about a call has, and all that is stored of those whose message holds the rest.
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

// sayRequested adds tool.approval.requested, which shows all that a person needs to decide.
func (m *Move) sayRequested(a journal.Approval) {
	m.Say(event.ApprovalRequested, struct {
		approvalFields
		ToolName   string          `json:"toolName"`
		ArgsDigest string          `json:"argsDigest"`
		Args       json.RawMessage `json:"args"`
	}{approvalFields{ToolCallID: a.ToolCallID, Reason: a.Reason, SubRunToolCallID: a.SubRunToolCallID}, a.ToolName, a.ArgsDigest, a.Args})
}

type cancelFields struct {
	RunID              string `json:"runId"`
	Drain              bool   `json:"drain"`
	OnPendingApprovals string `json:"onPendingApprovals"`
}

// ToolSettled is tool.execute.end or tool.execute.error.
func ToolSettled(o *message.Outcome) event.Event {
	head := callHead{o.ToolCallID, o.ToolName}
	if !o.Failed() {
		output := o.Output
		if len(output) == 0 {
			output = json.RawMessage("null")
		}
		return event.New(event.ToolEnd, struct {
			callHead
			Result     json.RawMessage `json:"result"`
			DurationMS int64           `json:"durationMs"`
			Truncated  bool            `json:"bufferTruncated,omitempty"`
		}{head, output, o.DurationMS, o.Truncated})
	}
	return event.New(event.ToolError, struct {
		callHead
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
