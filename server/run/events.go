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

// startedFields is tool.execute.start.
type startedFields struct {
	journal.CallHead
	ChildRunID string `json:"childRunId,omitempty"` // the run that the call is
}

type approvalFields struct {
	ToolCallID       string `json:"toolCallId"`
	Reason           string `json:"reason,omitempty"`
	SubRunToolCallID string `json:"subRunToolCallId,omitempty"`
	By               string `json:"by,omitempty"` // of a decision
}

// SayRequested adds tool.approval.requested, which shows all that a person needs to decide.
func (m *Move) SayRequested(a journal.Approval) {
	m.Say(event.ApprovalRequested, struct {
		approvalFields
		ToolName   string          `json:"toolName"`
		ArgsDigest string          `json:"argsDigest"`
		Args       json.RawMessage `json:"args"`
	}{approvalFields{ToolCallID: a.ToolCallID, Reason: a.Reason, SubRunToolCallID: a.SubRunToolCallID}, a.ToolName, a.ArgsDigest, a.Args})
}
