package workflow

import (
	"context"
	"encoding/json"
	"fmt"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/run"
	"agentd/store"
)

// driver moves the runs of workflows.
type driver struct{ w *Workflows }

// Accept is a part of [run.Driver].
func (driver) Accept(json.RawMessage) (string, error) { return "json", nil }

// Open is a part of [run.Driver].
func (driver) Open(r *run.Run, m *run.Move) {}

// Resumable is a part of [run.Driver].
func (driver) Resumable(*run.Run) bool { return true }

// Begin is a part of [run.Recipient].
func (d driver) Begin(r *run.Run, m *run.Move, _ json.RawMessage) error {
	t, is := r.Carry.(*thread)
	if !is {
		return fault.New(fault.RunFailed, "A run of a workflow begins with its thread.")
	}
	t.r, t.m, t.first = r, m, true
	m.Say(event.WorkflowStart, map[string]string{"runId": r.ID(), "threadId": t.row.ID, "workflowId": t.row.Workflow})
	for _, id := range t.feedLater {
		k := t.tasks[id]
		if n := t.node(k); n.Timeout > 0 {
			k.Deadline = m.At + n.Timeout.Milliseconds()
		}
		if k.List != nil {
			t.feed(k)
			if t.arrived[k.ID] == len(k.List) { // what failed was to save them
				t.gather(k)
			}
		}
	}
	t.revive()
	t.advance()
	t.seal()
	return nil
}

// Drive is a part of [run.Driver].
func (d driver) Drive(r *run.Run) error {
	t, is := r.Carry.(*thread)
	switch {
	case is && t.first:
		t.committed(r.Row.N)
	case !is || t.r != r:
		var err error
		if t, err = d.take(r); fault.Is(err, fault.RouteHandlerMissing) {
			return d.block(r, err)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", run.ErrLeft, err)
		}
		t.revive()
	}
	return t.drive()
}

// take reads the thread of a run.
func (d driver) take(r *run.Run) (t *thread, err error) {
	err = d.w.runs.Snapshot(context.WithoutCancel(r.Context()), func(tx *store.Tx) error {
		row, err := d.w.threads.Number(tx, r.Row.Thread)
		if err == nil {
			t, err = d.w.load(tx, row)
		}
		return err
	})
	if err == nil {
		t.r, r.Carry = r, t
	}
	return t, err
}

// block parks the run of a thread whose graph is code that this process lacks. Nothing wakes it before [Workflows.Unblock].
func (d driver) block(r *run.Run, why error) error {
	r.Log().Warn("a thread rests until a program that registers its workflow starts", "run", r.ID(), "workflow", r.Row.Owner)
	for !r.Seal() {
		for _, l := range r.Letters() {
			if _, due := l.(*run.Due); !due {
				l.Refuse(why)
			}
		}
	}
	m := r.Move()
	m.Also(func(tx *store.Tx) error {
		row, err := d.w.threads.Number(tx, r.Row.Thread)
		if err != nil || row.Blocked == notRegistered && r.Row.Status.Parked() {
			return err
		}
		row.Blocked = notRegistered
		return d.w.threads.Apply(tx, &store.ThreadChange{Thread: row, Status: m.Run.Status, Was: r.Row.Status})
	})
	if r.Row.Status.Parked() {
		m.Due = new(int64)
		return r.Commit(m)
	}
	return r.Rest(m, r.Record.Pending, 0)
}

// Closing is a part of [run.Recipient].
func (d driver) Closing(r *run.Run, m *run.Move, status store.Status, cause error) error {
	t, is := r.Carry.(*thread)
	if !is || t.m != nil || t.dirty() { // what was not committed is lost
		var err error
		if t, err = d.take(r); err != nil {
			return err
		}
	}
	return t.closing(m)
}

// Decide is a part of [run.Recipient].
func (d driver) Decide(ctx context.Context, e *run.Engine, row *store.Run, words []run.Decision, by string,
	also func(*store.Tx, []run.Verdict, []run.Decision) error) ([]run.Decision, error) {
	_, rec, err := e.Read(ctx, row.ID)
	if err != nil {
		return nil, err
	}
	who, err := e.Decider(ctx, by, rec.Pending)
	if err != nil {
		return nil, err
	}
	in := &decisions{words: words, by: who}
	var children map[string]string // by call id: the hosted run
	commit := func(tx *store.Tx) error {
		if also == nil || len(in.below) > 0 && len(in.made) == 0 {
			return nil
		}
		return also(tx, in.made, in.unmatched)
	}
	err = d.w.send(ctx, row.ID, newLetter("decided", commit, func(t *thread) error {
		err := t.decide(in)
		children = map[string]string{}
		for _, k := range t.waits {
			if in.below[k.callID()] != nil {
				children[k.callID()] = k.Child
			}
		}
		return err
	}))
	if err != nil {
		return nil, err
	}
	told := len(in.made) > 0
	for call, words := range in.below {
		forward := func(tx *store.Tx, made []run.Verdict, unmatched []run.Decision) error {
			if told || also == nil {
				return nil
			}
			return also(tx, made, append(in.unmatched, unmatched...))
		}
		if _, _, err := e.ResumeHosted(ctx, children[call], words, by, forward); err != nil {
			return nil, err
		}
		told = true
	}
	return in.unmatched, nil
}

// form shows the runs of workflows.
type form struct{ w *Workflows }

// Form returns what shows the runs of workflows.
func (w *Workflows) Form() journal.Form { return form{w} }

func (form) Input(string, json.RawMessage) ([]message.Message, error) { return nil, nil }

func (form) EndType(status store.Status) string {
	if status.Parked() {
		return event.WorkflowSuspended
	}
	return event.WorkflowEnd
}

func (form) Ends(typ string) bool { return typ == event.WorkflowSuspended || typ == event.WorkflowEnd }

func (form) End(row *store.Run, rec *journal.Record, at journal.End) (event.Event, error) {
	fields := map[string]json.RawMessage{}
	if at.Shown != nil {
		if err := json.Unmarshal(at.Shown, &fields); err != nil {
			return event.Event{}, store.Damaged(err)
		}
	}
	put := func(name string, v any) {
		if b, err := message.Encode(v); err == nil {
			fields[name] = b
		}
	}
	put("runId", row.ID)
	put("status", at.Status)
	if at.Error != nil {
		fields["error"] = at.Error
	}
	if len(at.Pending) > 0 {
		put("pendingApprovals", at.Pending)
	}
	if output := rec.Slots[store.OutputSlot]; at.Status == store.Completed && len(output) <= maxShown {
		fields["output"] = output
	}
	return event.New(form{}.EndType(at.Status), fields), nil
}

func (f form) Failed(row *store.Run, _ *journal.Record) event.Event {
	return event.New(event.WorkflowError, map[string]any{"threadId": f.w.threadID(row), "error": row.Error})
}

func (form) Cancelling(row *store.Run, _ *journal.Record, drain bool, onPending string) event.Event {
	return event.New(event.WorkflowCancelling, map[string]any{"runId": row.ID, "drain": drain, "onPendingApprovals": onPending})
}

func (form) Expand(_ *store.Run, _ *journal.Record, e store.Event) (event.Event, error) {
	return event.Event{Type: e.Type, Payload: e.Payload}, nil
}

// threadID is the id of the thread of a run; empty where it cannot be read.
func (w *Workflows) threadID(row *store.Run) (id string) {
	err := w.runs.View(context.Background(), func(tx *store.Tx) error {
		t, err := w.threads.Number(tx, row.Thread)
		id = t.ID
		return err
	})
	if err != nil {
		w.opts.Logger.Warn("a thread could not be read", "run", row.ID, "error", err)
	}
	return id
}
