package agent

import (
	"encoding/json"

	"agentd/server/event"
	"agentd/store"
)

// Happening is what somebody outside may want to keep a record of: that a tool call was begun, has ended, waits for an
// approval or was decided on. Those of a child run are told of that run.
type Happening struct {
	Event                     string // type of the event that tells of it
	RunID, SessionID, AgentID string
	ToolCallID, ToolName      string
	Step                      int
	By                        string   // who decided: token:<id>, anonymous, cli, expiry or abort; empty for what nobody decides
	GrantedBy                 []string // where several had to grant it: all who did, in order
	Reason                    string
	ErrorKind                 string // of a call that failed
	Spilled                   int64  // bytes of a result that is kept beside the transcript
}

// happenings are those that a move tells of. The record has taken the move over.
func (r *run) happenings(m *move) (list []Happening) {
	for _, p := range m.events {
		switch p.ev.Type {
		case event.ToolStart, event.ToolEnd, event.ToolError, event.ApprovalRequested, event.ApprovalGranted, event.ApprovalDenied:
		default:
			continue
		}
		var fields struct {
			approvalFields
			ToolName string
			Error    struct{ Kind string }
		}
		if json.Unmarshal(p.ev.Payload, &fields) != nil || fields.SubRunToolCallID != "" {
			continue
		}
		h := Happening{Event: p.ev.Type, RunID: r.row.ID, SessionID: r.row.Session, AgentID: r.row.Owner, ToolCallID: fields.ToolCallID,
			ToolName: fields.ToolName, Reason: fields.Reason, ErrorKind: fields.Error.Kind, Step: r.row.Step}
		if c := r.rec.callByID(fields.ToolCallID); c != nil {
			h.ToolName, h.Step = c.Name, c.Step
			h.By, h.GrantedBy = decider(p.ev.Type, c)
			if e := r.rec.at(c.Answered); p.ev.Type == event.ToolEnd && e != nil && e.outcome != nil && e.outcome.ResultHandle != nil {
				h.Spilled = e.outcome.ResultHandle.Bytes
			}
		}
		list = append(list, h)
	}
	return list
}

func decider(typ string, c *store.Call) (by string, all []string) {
	switch typ {
	case event.ApprovalGranted, event.ApprovalDenied:
	default:
		return "", nil
	}
	var word Decided
	if json.Unmarshal(c.Decision, &word) != nil || word.By == "" || word.Granted != (typ == event.ApprovalGranted) {
		return "abort", nil // of what an abort denies no decision is kept, but one of before a crash may be
	}
	return word.By, word.GrantedBy
}
