package event

import (
	"encoding/json"
	"strings"

	"agentd/server/message"
)

// Reduced is a payload for a reader who may not read the run's agent: tool.approval.requested without arguments, agent.end
// with the answer of POST /agents/{id}/run to such a caller instead of the state, events of workflows without what is in the
// state, and the events of children likewise. Other payloads stay as they are. Of a payload that cannot be read, the type is left. Each of at most 16 levels is read anew and
// needs at most a hundred bytes of memory for each byte.
func Reduced(typ string, payload json.RawMessage) json.RawMessage { return reduced(typ, payload, 0) }

func reduced(typ string, payload json.RawMessage, depth int) json.RawMessage {
	bare := New(typ, nil).Payload
	var less any
	var err error
	if strings.HasPrefix(typ, "workflow.") {
		var shown struct {
			ThreadID   json.RawMessage `json:"threadId,omitempty"`
			WorkflowID json.RawMessage `json:"workflowId,omitempty"`
			RunID      json.RawMessage `json:"runId,omitempty"`
			StepNumber json.RawMessage `json:"stepNumber,omitempty"`
			TaskID     json.RawMessage `json:"taskId,omitempty"`
			NodeName   json.RawMessage `json:"nodeName,omitempty"`
			Status     json.RawMessage `json:"status,omitempty"`
			DurationMS json.RawMessage `json:"durationMs,omitempty"`
		}
		if json.Unmarshal(payload, &shown) != nil {
			return bare
		}
		return New(typ, shown).Payload
	}
	switch typ {
	case ApprovalRequested:
		var members map[string]json.RawMessage
		if json.Unmarshal(payload, &members) != nil {
			return bare
		}
		delete(members, "type")
		delete(members, "args")
		return New(typ, members).Payload
	case AgentEnd:
		less, err = reducedEnd(payload)
	case SubagentEvent:
		var child struct {
			Type       json.RawMessage `json:"type"`
			ToolCallID json.RawMessage `json:"toolCallId"`
			AgentName  json.RawMessage `json:"agentName"`
			Event      json.RawMessage `json:"event"`
		}
		if err = json.Unmarshal(payload, &child); err != nil || depth == maxNested {
			return bare
		}
		inner, parseErr := Parse(child.Event)
		if parseErr != nil {
			return bare
		}
		child.Event = reduced(inner.Type, inner.Payload, depth+1)
		less = child
	default:
		return payload
	}
	b, encodeErr := message.Encode(less)
	if err != nil || encodeErr != nil {
		return bare
	}
	return b
}

// A PendingCall is the part of a waiting call that a caller may see who may not read the run.
type PendingCall struct {
	ToolCallID string `json:"toolCallId"`
	ToolName   string `json:"toolName"`
}

func reducedEnd(payload json.RawMessage) (any, error) {
	type result struct {
		Output json.RawMessage `json:"output,omitempty"`
		Usage  json.RawMessage `json:"usage,omitempty"`
		Status json.RawMessage `json:"status,omitempty"`
		Error  json.RawMessage `json:"error,omitempty"`
	}
	var full struct {
		RunID  string `json:"runId"`
		Result struct {
			result
			State struct {
				PendingApprovals []PendingCall `json:"pendingApprovals"`
			} `json:"state"`
		} `json:"result"`
	}
	err := json.Unmarshal(payload, &full)
	if full.Result.State.PendingApprovals == nil {
		full.Result.State.PendingApprovals = []PendingCall{}
	}
	type shown struct {
		result
		PendingApprovals []PendingCall `json:"pendingApprovals"`
	}
	return struct {
		Type   string `json:"type"`
		RunID  string `json:"runId"`
		Result shown  `json:"result"`
	}{AgentEnd, full.RunID, shown{full.Result.result, full.Result.State.PendingApprovals}}, err
}
