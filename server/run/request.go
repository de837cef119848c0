package run

import (
	"cmp"
	"encoding/json"
	"slices"

	"agentd/server/journal"
	"agentd/server/message"
	"agentd/store"
)

// What the program of a run asks for itself is journalled like the calls that the server makes, as a row of which no
// message tells. The program makes the call, so the journal follows what the program was told instead:
//
//	request: awaiting -- decided --> dispatching ------------> done, with the program's next checkpoint, request or answer
//	            ^                       |
//	            +-- outcome-unknown ----+ it was granted and handed over (Attempts is 1) by a process that has ended
//
// The grant is marked as handed over in a commit before the program is called. Whoever drives the run and finds such a
// mark does not know what became of the call, and a person decides again.

func acknowledged(c store.Call, at int64) store.Call {
	c.Phase, c.Settled, c.Reason, c.Reported = store.CallDone, at, "", true
	return c
}

// Request adds calls that a run's program wants to make itself, and returns all that wait then.
func (m *Move) Request(r *Run, asked []journal.Approval) []journal.Approval {
	pending := slices.Clone(r.Record.Pending)
	for _, a := range asked {
		a.RequestedAt, a.RequestedBy, a.RequestedByAgent = message.Millis(m.At), cmp.Or(r.Row.StartedBy, Anonymous), r.Row.Owner
		hash, canonical := journal.Digest(a.Args)
		m.Calls = append(m.Calls, store.Call{Index: m.Run.Calls, ID: a.ToolCallID, Name: a.ToolName, Phase: store.CallAwaiting,
			ArgsHash: hash, Canonical: canonical, Asked: -1, Answered: -1, Claimed: m.At})
		m.Run.Calls++
		m.SayRequested(a)
		pending = append(pending, a)
	}
	m.keep(store.PendingSlot, pending)
	return pending
}

// Doubt makes the grants that were handed over by a process that has ended wait for a decision again, and returns all
// that waits then.
func (m *Move) Doubt(r *Run) (pending []journal.Approval) {
	pending = slices.Clone(r.Record.Pending)
	unknown := func(a journal.Approval) bool {
		c := r.Record.CallByID(a.ToolCallID)
		return c != nil && c.Phase == store.CallDispatching && c.Attempts > 0
	}
	for _, a := range r.Record.Granted {
		if !unknown(a) {
			continue
		}
		c := *r.Record.CallByID(a.ToolCallID)
		c.Phase, c.Reason, c.Attempts = store.CallAwaiting, journal.OutcomeUnknown, 0
		m.Calls = append(m.Calls, c)
		again := r.asks(&c, a.Args, m.At)
		m.SayRequested(again)
		pending = append(pending, again)
	}
	if len(m.Calls) > 0 {
		m.keep(store.GrantedSlot, slices.DeleteFunc(slices.Clone(r.Record.Granted), unknown))
	}
	return pending
}

// HandOver returns the decisions that the run's program is to learn now. The grants among them are marked as handed over,
// in a commit.
func (r *Run) HandOver() (decisions []Decision, err error) {
	if len(r.Record.Calls) == 0 {
		return nil, nil
	}
	m := r.Move()
	for _, c := range r.Record.Calls {
		if !journal.Requested(c) || c.Phase != store.CallDispatching {
			continue
		}
		var d journal.Decided
		if err := json.Unmarshal(c.Decision, &d); err != nil {
			return nil, err
		}
		word := Decision{ToolCallID: c.ID, Granted: d.Granted, Reason: d.Reason}
		switch {
		case d.Granted:
			c.Attempts, word.Reason = 1, ""
			m.Calls = append(m.Calls, c)
		case c.Reason == journal.OutcomeUnknown:
			word.Reason = denied(&c, d.Reason, serverStopped).Message
		}
		decisions = append(decisions, word)
	}
	if len(m.Calls) > 0 {
		err = r.Commit(m)
	}
	return decisions, err
}

// Acknowledge settles the decisions that the run's program was told: it has continued since.
func (m *Move) Acknowledge(r *Run) {
	for _, c := range r.Record.Calls {
		if journal.Requested(c) && c.Phase == store.CallDispatching {
			m.Calls = append(m.Calls, acknowledged(c, m.At))
		}
	}
	if len(r.Record.Granted) > 0 {
		m.keep(store.GrantedSlot, []journal.Approval(nil))
	}
}
