package agent

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"slices"

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
	ArgsDigest                string // of the arguments that the call has, or is to have
	AskedDigest               string // of those that were asked for, where a decision gave it others
	ErrorKind                 string // of a call that failed
	Void                      bool   // what was told before has not come to be
	Spilled                   int64  // bytes of a result that is kept beside the transcript
}

// foretell tells what moves are going to make durable. With an error, none of it may be.
func (e *Engine) foretell(ctx context.Context, list []Happening) error {
	if e.opts.Audit == nil || len(list) == 0 {
		return nil
	}
	return e.opts.Audit(ctx, list)
}

// void takes back what was told.
func (e *Engine) void(ctx context.Context, list []Happening) {
	for i := range list {
		list[i].Void = true
	}
	if err := e.foretell(context.WithoutCancel(ctx), list); err != nil {
		e.log.Error("what did not come to be stays recorded", "run", list[0].RunID, "event", list[0].Event, "error", err)
	}
}

// happenings are those that a move tells of.
func (r *run) happenings(m *move) (list []Happening) {
	if r.e.opts.Audit == nil {
		return nil
	}
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
			ToolName: fields.ToolName, Reason: fields.Reason, ErrorKind: fields.Error.Kind, Step: m.row.Step}
		if c := cmp.Or(m.callByID(fields.ToolCallID), r.rec.callByID(fields.ToolCallID)); c != nil {
			h.ToolName, h.Step = c.Name, c.Step
			if c.Canonical {
				h.ArgsDigest = hex.EncodeToString(c.ArgsHash)
			}
			if p.ev.Type == event.ApprovalGranted || p.ev.Type == event.ApprovalDenied {
				word := decided(c, p.ev.Type == event.ApprovalGranted)
				h.By, h.GrantedBy, h.Reason, h.AskedDigest = word.By, word.GrantedBy, cmp.Or(h.Reason, word.Reason), word.AskedSHA256
			}
			if e := cmp.Or(m.entryAt(c.Answered), r.rec.at(c.Answered)); p.ev.Type == event.ToolEnd && e != nil && e.outcome != nil && e.outcome.ResultHandle != nil {
				h.Spilled = e.outcome.ResultHandle.Bytes
			}
		}
		list = append(list, h)
	}
	return list
}

// callByID is a call as the move leaves it; nil when the move does not touch it.
func (m *move) callByID(id string) *store.Call {
	for i := range slices.Backward(m.calls) {
		if m.calls[i].ID == id {
			return &m.calls[i]
		}
	}
	return nil
}

// entryAt is a message that the move adds; nil when it does not add it.
func (m *move) entryAt(index int) *entry {
	for i := range m.entries {
		if m.entries[i].index == index {
			return &m.entries[i]
		}
	}
	return nil
}

// decided reads who decided on a call, for the audit entry of the event that reports it.
func decided(c *store.Call, granted bool) (word Decided) {
	if word = readDecided(c); word.By == "" || word.Granted != granted {
		return Decided{By: "abort"} // of what an abort denies no decision is kept, but one of before a crash may be
	}
	return word
}
