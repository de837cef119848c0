package run

import (
	"context"
	"errors"
	"sync"
	"time"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/store"
)

// A run that waits for a time has a row in the table of timers: the time at which it is looked at next. The engine sleeps
// until the earliest of all, so that a run that waits takes neither memory nor a goroutine.
type timers struct {
	mu      sync.Mutex // guards the fields below
	timer   *time.Timer
	due     int64 // when it fires; 0: it does not
	stopped bool
}

const (
	// clockCheck bounds how late a timer fires when the clock was set forward: Go's timers do not follow the clock.
	clockCheck = 10 * time.Second
	// dueBatch is how many due timers are read at a time.
	dueBatch = 256
)

// start arms the earliest timer that an earlier process has left.
func (t *timers) start(ctx context.Context, e *Engine) error {
	first, err := e.opts.Runs.NextDue(ctx)
	if err == nil && first != 0 {
		t.arm(e, first)
	}
	return err
}

// arm makes the engine look at the timers at a time, if it would not before.
func (t *timers) arm(e *Engine, due int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped || t.due != 0 && t.due <= due {
		return
	}
	if t.timer != nil {
		t.timer.Stop()
	}
	t.due = due
	t.timer = time.AfterFunc(min(time.Until(time.UnixMilli(due)), clockCheck), func() { e.fire(due) })
}

func (t *timers) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped = true; t.timer != nil {
		t.timer.Stop()
	}
}

// fire handles the timers that are due, and arms the next one.
func (e *Engine) fire(due int64) {
	t := &e.timers
	t.mu.Lock()
	if t.stopped || t.due != due { // another one was armed meanwhile
		t.mu.Unlock()
		return
	}
	t.due = 0
	e.moving.Add(1)
	t.mu.Unlock()
	defer e.moving.Done()
	runs, next, err := e.opts.Runs.Due(e.ctx, now(), dueBatch)
	for _, id := range runs {
		if failed := e.expired(id); failed != nil {
			e.log.Error("a timer could not be handled; the server tries again", "run", id, "error", failed)
			err = failed
		}
	}
	if err != nil {
		next = max(next, now()+storeWait.Milliseconds())
	}
	if next != 0 {
		t.arm(e, next)
	}
}

// expired handles the timer of one run: approvals whose time is over are denied, and a run that sleeps moves again.
func (e *Engine) expired(runID string) error {
	row, rec, err := e.Read(e.ctx, runID)
	if err != nil {
		return ignore(err)
	}
	ctx := context.WithoutCancel(e.ctx)
	if row.Status == store.Suspended {
		return ignore(e.wake(ctx, row))
	}
	var over []Decision
	if row.Status == store.Awaiting {
		for _, a := range rec.Pending {
			if at := journal.Millis(a.ExpiresAt); at != 0 && at <= now() {
				over = append(over, Decision{ToolCallID: a.ToolCallID, SubRunToolCallID: a.SubRunToolCallID,
					Reason: "nobody decided before " + message.Millis(at)})
			}
		}
	}
	if len(over) == 0 { // the timer is one of before; what the run waits for says when it is looked at next
		next := &Move{}
		if row.Status == store.Awaiting {
			next.expire(rec.Pending)
		} else {
			next.expire(nil)
		}
		return e.opts.Runs.Update(ctx, func(tx *store.Tx) error { return e.opts.Runs.SetTimer(tx, row.N, *next.Due) })
	}
	_, _, err = e.Resume(ctx, runID, over, expiry, nil)
	return ignore(err)
}

// ignore drops the errors that say that somebody else has moved the run, or will.
func ignore(err error) error {
	if fault.Is(err, fault.RunNotFound) || fault.Is(err, fault.RunNotSuspended) || fault.Is(err, fault.ServerDraining) || errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// expiry is the principal that denies what nobody has decided in time.
const expiry = "expiry"

// expire sets the timer of a move to the first of its approvals that expires; none clears it.
func (m *Move) expire(pending []journal.Approval) {
	first := int64(0)
	for _, a := range pending {
		if at := journal.Millis(a.ExpiresAt); at != 0 && (first == 0 || at < first) {
			first = at
		}
	}
	m.Due = &first
}

// Sleep parks a run until a time, in milliseconds since 1970: it commits the move, and the driver then returns. The
// driver is called again when the time has come, in this process or in a later one.
func (r *Run) Sleep(m *Move, until int64) error {
	m.Run.Status, m.Due = store.Suspended, &until
	m.Progress()
	return r.rest(m, nil)
}

// wake moves a run that slept.
func (e *Engine) wake(ctx context.Context, row *store.Run) error {
	r, err := e.takeUp(ctx, row, false)
	if err != nil {
		return err
	}
	if r.Row.Status != store.Suspended {
		e.release(r)
		return nil
	}
	e.launch(r, func() error {
		m := r.Move()
		m.Run.Status, m.Due = store.Running, new(int64)
		m.Progress()
		m.Done.Resumed(r.Record.Pending, "timer")
		m.Say(event.AgentStart, startFields{r.Row.ID, r.Row.Owner})
		if err := r.Commit(m); err != nil {
			return err
		}
		return r.owner.Driver.Drive(r)
	})
	return nil
}
