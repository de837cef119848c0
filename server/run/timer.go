package run

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/store"
)

// A run that waits for a time has a row in the table of timers: the time at which it is looked at next. The engine sleeps
// until the earliest of all, so that a run that waits takes neither memory nor a goroutine.
type timers struct {
	pass   sync.Mutex    // held by the one that reads what is due
	places chan struct{} // one token per timer that is being handled

	mu      sync.Mutex // guards the fields below
	timer   *time.Timer
	due     int64 // when it fires; 0: it does not
	stopped bool
	held    bool            // see hold
	busy    map[string]bool // the runs whose timers are being handled; true: one was read meanwhile and may be another
}

const (
	// clockCheck bounds how late a timer fires when the clock was set forward: Go's timers do not follow the clock.
	clockCheck = 10 * time.Second
	// dueBatch is how many due timers are read and handled at a time.
	dueBatch = 256
	// maxHandling is how many timers may be in hand, those included that could not be handled and are tried again.
	maxHandling = 16 * dueBatch
)

// hold lets no timer fire until start: runs that an earlier process left may not move yet.
func (t *timers) hold() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held = true
}

// start arms the earliest timer.
func (t *timers) start(ctx context.Context, e *Engine) error {
	t.mu.Lock()
	t.held = false
	t.mu.Unlock()
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
	if t.stopped || t.held || t.due != 0 && t.due <= due {
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

// fire handles the timers that are due, in their order and side by side, and arms the next one.
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
	t.pass.Lock()
	defer t.pass.Unlock()
	for {
		before := t.handling()
		if len(before) > maxHandling {
			t.arm(e, now()+storeWait.Milliseconds())
			return
		}
		list, next, err := e.opts.Runs.Due(e.ctx, now(), dueBatch+len(before))
		begun := false
		for _, timer := range list {
			again, free := t.begin(timer.RunID, before)
			if begun = begun || again || free; !free {
				continue
			}
			if !e.takePlace() {
				return
			}
			e.moving.Go(func() {
				failed := e.expired(timer)
				<-t.places
				if failed == nil {
					t.end(e, timer.RunID)
					return
				}
				e.log.Error("a timer could not be handled; the server tries again", "run", timer.RunID, "error", failed)
				time.AfterFunc(storeWait, func() { t.end(e, timer.RunID); t.arm(e, now()) })
			})
		}
		if err != nil {
			next = max(next, now()+storeWait.Milliseconds())
		}
		if !begun || err != nil {
			if next != 0 {
				t.arm(e, next)
			}
			return
		}
	}
}

// takePlace waits for one of the places of timers that are handled; false: the server stops.
func (e *Engine) takePlace() bool {
	select {
	case e.timers.places <- struct{}{}:
		return true
	case <-e.ctx.Done():
		return false
	}
}

// handling returns the runs whose timers are being handled.
func (t *timers) handling() map[string]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.busy)
}

// begin notes that the timer of a run is being handled. Where it was already when it was read, what was read may be over: it
// is not free, and is to be read again, now or when it was handled.
func (t *timers) begin(runID string, before map[string]bool) (again, free bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, was := before[runID]; was {
		_, is := t.busy[runID]
		if is {
			t.busy[runID] = true
		}
		return !is, false
	}
	if t.busy == nil {
		t.busy = map[string]bool{}
	}
	t.busy[runID] = false
	return false, true
}

// end notes that the timer of a run was handled. Where one was read meanwhile, it is read again.
func (t *timers) end(e *Engine, runID string) {
	t.mu.Lock()
	again := t.busy[runID]
	delete(t.busy, runID)
	t.mu.Unlock()
	if again {
		t.arm(e, now())
	}
}

// expired handles the timer of one run: approvals whose time is over are denied; a run that gets letters gets one.
func (e *Engine) expired(timer store.Timer) error {
	row, err := e.Find(e.ctx, timer.RunID)
	if err != nil {
		return ignore(err)
	}
	if _, is := e.owner(row).Driver.(Recipient); is && !row.Status.Terminal() {
		return ignore(e.postDue(row, timer.At))
	}
	if row.Dormant() {
		return ignore(e.rouse(row, timer.At))
	}
	row, rec, err := e.Read(e.ctx, timer.RunID)
	if err != nil {
		return ignore(err)
	}
	ctx := context.WithoutCancel(e.ctx)
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
		return ignore(e.opts.Runs.Update(ctx, func(tx *store.Tx) error {
			if last, err := e.opts.Runs.Number(tx, row.N); err != nil || last.Dormant() { // the timer is one that rouses it
				return err
			}
			return e.opts.Runs.SetTimer(tx, row.N, *next.Due)
		}))
	}
	_, _, err = e.resume(ctx, row, over, Expiry, nil) // also of a hosted run
	return ignore(err)
}

// postDue tells a run that its timer is due, and waits until that is handled.
func (e *Engine) postDue(row *store.Run, at int64) error {
	d := &Due{At: at, over: make(chan error, 1)}
	if err := e.Post(e.ctx, row.ID, d); err != nil {
		return err
	}
	select {
	case err := <-d.over:
		return err
	case <-e.ctx.Done():
		return nil
	}
}

// ignore drops the errors that say that somebody else has moved the run, or will.
func ignore(err error) error {
	if fault.Is(err, fault.RunNotFound) || fault.Is(err, fault.RunNotSuspended) || fault.Is(err, fault.ServerDraining) || errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// Expiry is the principal that denies what nobody has decided in time.
const Expiry = "expiry"

// expire sets the timer of a move to the first of its approvals that expires; none clears it.
func (m *Move) expire(pending []journal.Approval) {
	first := int64(0)
	if m.Due != nil && m.Run.Status.Parked() {
		first = *m.Due // what else it waits for
	}
	for _, a := range pending {
		if at := journal.Millis(a.ExpiresAt); at != 0 && (first == 0 || at < first) {
			first = at
		}
	}
	m.Due = &first
}

// retime lets a move replace the timer that its run knows of, and no other: one that was set since says that there is more
// to look at. What the driver was told of is over with the move.
func (r *Run) retime(m *Move) {
	if r.recipient() == nil || m.Run.Status.Terminal() {
		return
	}
	if m.Due == nil && len(r.dues) > 0 {
		m.Due = new(int64)
	}
	if m.Due != nil {
		m.DueWas = new(r.due)
	}
}
