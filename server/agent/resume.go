package agent

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/store"
)

// Decision is a person's word on a tool call that waits. SubRunToolCallID is for calls of child runs; no run of this
// version has any.
type Decision struct {
	ToolCallID       string
	Granted          bool
	Reason           string // told to the model when the call is denied
	SubRunToolCallID string
}

// Decided is how a decision is kept in the journal.
type Decided struct {
	By         string `json:"by"` // the id of the token, or anonymous or cli
	At         string `json:"at"`
	Granted    bool   `json:"granted"`
	Reason     string `json:"reason,omitempty"`
	ArgsSHA256 string `json:"argsSha256"` // of the arguments that the decision was given for
}

// Resume applies decisions to a run that waits for them, and sets it going: granted calls run, denied ones are told to
// the model. Approvals that are not decided keep waiting; then the run waits again once the others are through.
// unmatched lists the decisions for calls that do not wait. Errors: run-not-found, run-not-suspended, agent-not-found,
// run-conflict, server-draining, storage-failed. Of several callers at once, one wins.
func (e *Engine) Resume(ctx context.Context, runID string, decisions []Decision, by string) (h *Handle, unmatched []Decision, err error) {
	row, err := e.Suspended(ctx, runID)
	if err != nil {
		return nil, nil, err
	}
	if e.opts.Agents.Agent(row.Owner) == nil {
		return nil, nil, fault.New(fault.AgentNotFound, "The agent %q is not registered any more.", row.Owner).With("runId", runID)
	}
	r, err := e.takeUp(ctx, row, false)
	if err != nil {
		return nil, nil, err
	}
	if r.row.Version != row.Version {
		e.release(r)
		return nil, nil, conflict(runID)
	}
	m, unmatched, pending := r.decide(decisions, by)
	if len(unmatched) == len(decisions) {
		e.release(r)
		return nil, unmatched, nil // nothing was decided, so nothing moves
	}
	r.rec.pending = pending
	var n int64
	err = e.opts.Runs.Update(ctx, func(tx *store.Tx) (err error) {
		n, err = e.opts.Runs.Apply(tx, m.change())
		return err
	})
	if err != nil {
		e.release(r)
		if errors.Is(err, store.ErrConflict) {
			err = conflict(runID)
		}
		return nil, nil, err
	}
	r.committed(m, n)
	for _, c := range m.calls {
		if c.Phase == store.CallDispatching {
			r.fresh(c.Index)
		}
	}
	e.launch(r, func() error { return r.reg.driver().drive(r) })
	return &Handle{ID: runID, number: n, status: store.Running, run: r}, unmatched, nil
}

func conflict(runID string) error {
	return fault.New(fault.RunConflict, "Somebody else has resumed or aborted the run.").With("runId", runID)
}

// Suspended returns the row of a run that waits for an approval, or held some when it was aborted.
func (e *Engine) Suspended(ctx context.Context, runID string) (*store.Run, error) {
	row, err := e.Find(ctx, runID)
	if err != nil {
		return nil, err
	}
	if row.Status == store.Awaiting {
		return row, nil
	}
	return nil, fault.New(fault.RunNotSuspended, "The run is %s.", row.Status).With("runId", runID).With("status", row.Status)
}

// decide prepares the move that applies decisions. Of several for one call, the last counts.
func (r *run) decide(decisions []Decision, by string) (m *move, unmatched []Decision, pending []Approval) {
	m = r.move()
	m.row.Status = store.Running
	m.say(event.AgentStart, startFields{r.row.ID, r.row.Owner})
	step := store.Step{Number: m.row.Step + 1, Agent: m.row.Current, Started: m.at, Resumed: true}
	last := map[string]Decision{}
	for _, d := range decisions {
		last[d.ToolCallID] = d
	}
	waiting := map[string]bool{}
	var granted []store.Call
	for _, a := range r.rec.pending {
		waiting[a.ToolCallID] = true
		d, ok := last[a.ToolCallID]
		c := r.rec.callByID(a.ToolCallID)
		if !ok || d.SubRunToolCallID != "" || c == nil {
			pending = append(pending, a)
			continue
		}
		call := *c
		call.Decision, _ = message.Encode(Decided{By: cmp.Or(by, "anonymous"), At: message.Millis(m.at), Granted: d.Granted, Reason: d.Reason,
			ArgsSHA256: hex.EncodeToString(c.ArgsHash)})
		call.Step = step.Number
		if d.Granted {
			m.say(event.ApprovalGranted, callHead{ToolCallID: call.ID})
			call.Phase = store.CallDispatching
			if call.Reason != outcomeUnknown {
				call.Attempts = 0
			}
			call.Attempts++
			granted = append(granted, call)
		} else {
			m.say(event.ApprovalDenied, struct {
				ToolCallID string `json:"toolCallId"`
				Reason     string `json:"reason,omitempty"`
			}{call.ID, d.Reason})
			m.settle(&call, r.rec.place(&call), denied(&call, d.Reason, c.Reason == outcomeUnknown))
			call.Reported = true
		}
		m.calls = append(m.calls, call)
	}
	for _, d := range decisions {
		if !waiting[d.ToolCallID] || d.SubRunToolCallID != "" {
			unmatched = append(unmatched, d)
		}
	}
	for _, c := range granted {
		m.say(event.ToolStart, callHead{c.ID, c.Name})
	}
	m.row.Step = step.Number
	m.steps = append(m.steps, step)
	kept, _ := message.Encode(pending)
	m.slot(store.PendingSlot, kept)
	// What still waits belongs to the same step, which ends when nothing does.
	for _, a := range pending {
		if c := r.rec.callByID(a.ToolCallID); c != nil {
			call := *c
			call.Step = step.Number
			m.calls = append(m.calls, call)
		}
	}
	return m, unmatched, pending
}

// denied is the outcome of a call that a person refused.
func denied(c *store.Call, reason string, unknown bool) *message.Outcome {
	if unknown {
		o := unknownOutcome(c)
		if reason != "" {
			o.Message += " A person decided not to repeat it: " + reason
		}
		return o
	}
	text := "Approval was denied."
	if reason != "" {
		text = "Approval was denied: " + reason
	}
	return &message.Outcome{ToolCallID: c.ID, ToolName: c.Name, Kind: message.ApprovalDenied, Message: text, RecoveryHint: message.ReportToUser}
}

func (rec *record) callByID(callID string) *store.Call {
	for i := range rec.calls {
		if rec.calls[i].ID == callID {
			return &rec.calls[i]
		}
	}
	return nil
}

// Waiting is an approval that waits, with the run that waits for it.
type Waiting struct {
	RunID     string `json:"runId"`
	AgentID   string `json:"agentId"`
	SessionID string `json:"sessionId,omitempty"`
	UserID    string `json:"userId,omitempty"`
	Approval
	ArgsSHA256 string `json:"argsSha256"`
}

// Approvals lists what waits for a decision, oldest run first, of at most 1000 runs; with owners, of those agents only.
func (e *Engine) Approvals(ctx context.Context, owners []string) ([]Waiting, error) {
	list := []Waiting{}
	err := e.opts.Runs.Snapshot(ctx, func(tx *store.Tx) error {
		rows, err := e.opts.Runs.Awaiting(tx, owners)
		if err != nil {
			return err
		}
		for _, row := range rows {
			kept, err := e.opts.Runs.Slot(tx, row.N, store.PendingSlot)
			if err != nil {
				return err
			}
			var pending []Approval
			if kept != nil {
				if err := json.Unmarshal(kept, &pending); err != nil {
					return err
				}
			}
			for _, a := range pending {
				list = append(list, Waiting{RunID: row.ID, AgentID: row.Owner, SessionID: row.Session, UserID: row.User, Approval: a, ArgsSHA256: argsHash(a.Args)})
			}
		}
		return nil
	})
	return list, err
}
