package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/store"
)

// MaxDepth is how many runs may be above a run: those that call or host it, of agents and workflows alike.
const MaxDepth = 8

// runChild moves the child of a call until it has ended or waits.
func (r *Run) runChild(w *work) {
	c := &w.call
	kid, drive, err := r.openChild(&w.task)
	w.kid = kid
	if err != nil {
		w.left = errors.Is(err, ErrLeft)
		f := fault.Of(err)
		w.res.Outcome = *message.Fail(c.ID, c.Name, message.ExecutionFailed, r.caller().Label(c)+" failed: "+f.Message, f.NextStep())
		return
	}
	if drive != nil {
		r.attach(kid)
		kid.advance(drive)
		r.detach(kid)
		r.e.release(kid)
	}
	switch status := kid.Row.Status; {
	case status.Parked():
	case kid.Row.Dormant():
		w.res.Waits = kid.Row.ID
	case !status.Terminal():
		w.left = true
	default:
		w.res = r.childOutcome(kid, c)
	}
}

// openChild finds the child of a call, or makes it. drive is nil when there is nothing to move: it has ended or waits.
func (r *Run) openChild(t *task) (kid *Run, drive func() error, err error) {
	caughtUp := func(drive func() error) func() error {
		return func() error {
			if err := kid.catchUp(t.parent.N); err != nil {
				return err
			}
			return drive()
		}
	}
	if kid = t.kid; kid != nil { // decided on a moment ago
		r.e.admitChild(kid)
		return kid, caughtUp(kid.drive), nil
	}
	k, times, err := r.readChild(&t.call)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrLeft, err)
	}
	if k == nil {
		return r.makeChild(t)
	}
	kid = r.newChild(*k.Row, k.Record, t.call.ID)
	if k.Row.Status != store.Running {
		return kid, nil, nil
	}
	r.e.admitChild(kid)
	return kid, caughtUp(func() error {
		dormant := kid.Row.Dormant()
		if dormant {
			if err := kid.awake(nil); err != nil {
				return err
			}
		}
		switch {
		case kid.Record.Ending != "":
			return kid.driveEnding()
		case !r.caller().Known(&t.call):
			return fault.New(fault.ServerRestarted, "The server restarted during the run, and the agent %q no longer calls the agent %q.", r.Row.Owner, kid.Row.Owner)
		}
		if dormant {
			return kid.driveAwake()
		}
		if err := kid.verdict(times); err != nil {
			return err
		}
		return kid.reenter()
	}), nil
}

// makeChild writes the first move of a child.
func (r *Run) makeChild(t *task) (*Run, func() error, error) {
	if t.altered != nil {
		r.e.alarm(r.Log(), r.Row.ID, t.altered)
		return nil, nil, t.altered
	}
	spec := t.Child
	if !r.caller().Known(&t.call) {
		return nil, nil, fault.New(fault.AgentNotFound, "The agent %q can no longer be called.", spec.Owner)
	}
	kid := r.newChild(store.Run{ID: t.call.Child, Kind: t.parent.Kind, Owner: spec.Owner, Current: spec.Owner, Session: t.parent.Session, User: t.parent.User,
		InputForm: spec.Form, Usage: zeroUsage, Models: noModels, Created: now(), Parent: t.parent.N, ParentCall: t.call.Index, StartedBy: t.parent.StartedBy},
		&journal.Record{}, t.call.ID)
	if err := r.e.opts.Runs.View(context.WithoutCancel(r.ctx), func(tx *store.Tx) error { return r.e.tooDeep(tx, &kid.Row) }); err != nil {
		return nil, nil, err
	}
	if kid.owner.absent() {
		return nil, nil, fault.New(fault.AgentNotFound, "No agent %q is registered.", spec.Owner)
	}
	d := kid.owner.Driver
	if _, err := d.Accept(spec.Input); err != nil {
		return nil, nil, err
	}
	m, err := kid.start(spec.Input, store.Session{})
	if err != nil {
		return nil, nil, err
	}
	for slot, value := range spec.Slots {
		m.Slot(slot, value)
	}
	r.e.admitChild(kid)
	return kid, func() error {
		if err := kid.Commit(m); err != nil {
			return err
		}
		return d.Drive(kid)
	}, nil
}

func (r *Run) newChild(row store.Run, rec *journal.Record, callID string) *Run {
	kid := r.e.newRun(row, rec)
	kid.cancel(nil)
	kid.ctx, kid.cancel = context.WithCancelCause(r.ctx)
	kid.parent, kid.callID, kid.trace, kid.by.Request = r, callID, r.trace, r.by.Request
	return kid
}

// childRun returns the child of a call that no goroutine moves; nil when it was never made.
func (r *Run) childRun(c *store.Call) (*Run, error) {
	k := r.Record.Parked[c.Index]
	if k == nil {
		var err error
		if k, _, err = r.readChild(c); k == nil || err != nil {
			return nil, err
		}
	}
	return r.newChild(*k.Row, k.Record, c.ID), nil
}

// ChildOf reads the child of a call as it is on disk; nil when it was never made.
func (r *Run) ChildOf(c *store.Call) (*journal.Child, error) {
	k, _, err := r.readChild(c)
	return k, err
}

// readChild reads the child of a call as it is on disk, and how often it was interrupted there; nil when it was never
// made.
func (r *Run) readChild(c *store.Call) (*journal.Child, int, error) {
	k, times := &journal.Child{}, 0
	err := r.e.opts.Runs.Snapshot(context.WithoutCancel(r.ctx), func(tx *store.Tx) (err error) {
		if k.Row, err = r.e.opts.Runs.Find(tx, c.Child); err == nil {
			k.Record, err = journal.Load(tx, r.e.opts.Runs, k.Row)
		}
		if err == nil {
			times, _, err = interruptions(tx, r.e.opts.Runs, k.Row)
		}
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil, 0, nil
	}
	return k, times, err
}

// admitChild counts a child among the moving runs. Its parent is one of them, so it is never refused.
func (e *Engine) admitChild(kid *Run) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.enterLocked(kid)
}

// attach lets a child's events through to its parent, and the parent's abort to the child.
func (r *Run) attach(kid *Run) {
	kid.order.Lock()
	kid.up = r
	kid.order.Unlock()
	r.mu.Lock()
	r.kids = append(r.kids, kid)
	abort := r.asked
	r.mu.Unlock()
	if abort != nil {
		kid.askAbort(*abort)
	}
}

func (r *Run) detach(kid *Run) {
	kid.order.Lock()
	kid.up = nil
	kid.order.Unlock()
	r.mu.Lock()
	r.kids = slices.DeleteFunc(r.kids, func(k *Run) bool { return k == kid })
	r.mu.Unlock()
}

// childOutcome is the outcome of a call whose child has ended.
func (r *Run) childOutcome(kid *Run, c *store.Call) (s Settled) {
	label := r.caller().Label(c)
	switch kid.Row.Status {
	case store.Completed:
		s = r.caller().Answer(r, c, journal.Output(&kid.Row, kid.Record))
	case store.Aborted:
		s.Outcome = *message.Fail(c.ID, c.Name, message.AbortedCall, label+" was aborted.", "")
	default:
		why := "it failed"
		if e := new(journal.Error); kid.Row.Error != nil && json.Unmarshal(kid.Row.Error, e) == nil {
			why = e.Message
		}
		s.Outcome = *message.Fail(c.ID, c.Name, message.ExecutionFailed, label+" failed: "+why, "")
	}
	s.Outcome.ToolCallID, s.Outcome.ToolName = c.ID, c.Name
	s.Outcome.DurationMS = max(0, kid.Row.Finished-kid.Row.Created)
	return s
}
