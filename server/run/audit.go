package run

import (
	"cmp"
	"encoding/hex"
	"encoding/json"

	"agentd/server/event"
	"agentd/server/journal"
	"agentd/store"
)

// Happening is what somebody outside may want to keep a record of: that a call was begun, has ended, waits for an
// approval or was decided on. The record of those of a child names that run.
type Happening struct {
	Event                     string // type of the event that reports it
	RunID, SessionID, AgentID string
	ToolCallID, ToolName      string
	Step                      int
	By                        string   // who decided: token:<id>, anonymous, cli, expiry or abort; empty for what nobody decides
	GrantedBy                 []string // where several had to grant it: all who did, in order
	Reason                    string
	ArgsDigest                string // of the arguments that the call has, or is to have
	AskedDigest               string // of those that were asked for, where a decision gave it others
	ErrorKind                 string // of a call that failed
	Spilled                   int64  // bytes of a result that is kept beside the transcript
}

// record prepares the record of what a commit makes durable, and returns what writes it in the transaction.
func (e *Engine) record(list []Happening) (func(*store.Tx) error, error) {
	if e.opts.Audit == nil || len(list) == 0 {
		return func(*store.Tx) error { return nil }, nil
	}
	return e.opts.Audit(list)
}

// Audited reports whether somebody wants to know what moves make happen; see [Move.Happened].
func (r *Run) Audited() bool { return r.e.opts.Audit != nil || r.e.opts.Notify != nil }

// Happened adds what the move makes happen, for a driver that is a [Recipient]: the events of others say it. What the row of
// the run says may be left out.
func (m *Move) Happened(h Happening) {
	h.RunID, h.SessionID, h.AgentID = m.Run.ID, m.Run.Session, m.Run.Owner
	m.happened = append(m.happened, h)
}

// happenings are those that the events of a move report, or that its driver has added.
func (r *Run) happenings(m *Move) (list []Happening) {
	if !r.Audited() {
		return nil
	}
	if r.recipient() != nil {
		return m.happened
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
		h := Happening{Event: p.ev.Type, RunID: r.Row.ID, SessionID: r.Row.Session, AgentID: r.Row.Owner, ToolCallID: fields.ToolCallID,
			ToolName: fields.ToolName, Reason: fields.Reason, ErrorKind: fields.Error.Kind, Step: m.Run.Step}
		c := cmp.Or(m.call(func(c *store.Call) bool { return c.ID == fields.ToolCallID }), r.Record.CallByID(fields.ToolCallID))
		if c == nil {
			list = append(list, h)
			continue
		}
		h.ToolName, h.Step = c.Name, c.Step
		if c.Canonical {
			h.ArgsDigest = hex.EncodeToString(c.ArgsHash)
		}
		switch p.ev.Type {
		case event.ApprovalGranted, event.ApprovalDenied:
			word := journal.ReadDecided(c)
			if word.By == "" || word.Granted != (p.ev.Type == event.ApprovalGranted) {
				word = journal.Decided{By: "abort"} // no decision of an abort is kept, but one of before a crash may be
			}
			h.By, h.GrantedBy, h.Reason, h.AskedDigest = word.By, word.GrantedBy, cmp.Or(h.Reason, word.Reason), word.AskedSHA256
		case event.ToolEnd:
			if o := m.Outcome(r, c); o != nil && o.ResultHandle != nil {
				h.Spilled = o.ResultHandle.Bytes
			}
		}
		list = append(list, h)
	}
	return list
}
