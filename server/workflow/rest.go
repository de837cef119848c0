package workflow

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/run"
	"agentd/store"
)

// pending is what people are to decide: approvals of the thread and of what it hosts.
func (t *thread) pending() (list []journal.Approval) {
	for _, k := range t.waiting() {
		if k.Phase == asking {
			list = append(list, *k.Approval)
		}
		list = append(list, k.Mirror...)
	}
	slices.SortStableFunc(list, func(a, b journal.Approval) int { return strings.Compare(a.RequestedAt, b.RequestedAt) })
	return list
}

// rest parks the run. Where nothing has changed, it is left as it is.
func (t *thread) rest() error {
	pending, due := t.pending(), t.due()
	if t.m == nil && !t.dirty() && t.r.Row.Status.Parked() { // nothing has changed but the timer
		if !t.unheard {
			return nil
		}
		m := t.r.Move()
		m.Due = &due
		return t.r.Commit(m)
	}
	m := t.seal()
	if m.Run.Status.Parked() { // it did not move
		m.Due = &due
		return t.r.Commit(m)
	}
	m.Show(t.report())
	if err := t.r.Rest(m, pending, due); err != nil {
		return err
	}
	t.committed(t.r.Row.N)
	return nil
}

// end ends the run as completed.
func (t *thread) end() error {
	m := t.seal()
	m.Slot(store.OutputSlot, t.output)
	m.Show(t.report())
	if err := t.r.End(m, store.Completed, nil); err != nil {
		return err
	}
	t.committed(t.r.Row.N)
	return nil
}

// report is what the event of an end or a wait shows besides the run.
func (t *thread) report() json.RawMessage {
	type report struct {
		Thread string `json:"threadId"`
		Step   int    `json:"stepNumber"`
		shownState
		Value json.RawMessage `json:"value,omitempty"`
	}
	rep := report{t.row.ID, t.row.Step, t.shown(), nil}
	if pauses := t.pauses(); len(pauses) > 0 {
		rep.Value, _ = json.Marshal(pauses[0])
	}
	b, err := json.Marshal(rep)
	if err != nil {
		return json.RawMessage("{}")
	}
	return b
}

// closing adds to a move what the end of the run as failed or aborted leaves behind.
func (t *thread) closing(m *run.Move) error {
	t.m, t.closes, t.row.Blocked = m, true, ""
	for _, id := range t.ids() {
		k := t.tasks[id]
		if k == nil {
			continue
		}
		switch k.Phase {
		case calling: // nobody knows what became of it: a retry asks
		case asking:
			if !k.doubtful() {
				m.SayDecided(k.Approval.ToolCallID, "", run.Decision{Reason: "denied automatically, because the run ended"}, "abort")
				t.takeBack(k)
			}
		case hosting:
			if _, err := t.w.kernel.AbortHosted(context.WithoutCancel(t.r.Context()), k.Child, run.AbortOptions{Reason: "its workflow ended"}); err != nil && !fault.Is(err, fault.RunNotFound) {
				return err
			}
			t.takeBack(k)
		case ready, retrying, sleeping, awaiting, running:
			t.takeBack(k)
		}
	}
	t.seal()
	m.Show(t.report())
	return nil
}
