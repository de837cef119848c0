package run

import (
	"time"

	"agentd/server/event"
)

// A claim of calls without an effect need not be durable before they are made: after a crash, the model is asked again.
// The run holds the move back while the calls run, and commits it together with their outcomes. A call that takes longer
// than holdFor, or that reports something meanwhile, has it committed at once, so that subscribers see what is going on. A
// run that a crash has interrupted holds nothing back: the next crash must find out how far it came.
// They see the events of a move in their order, and none before it is durable.
//
//	Claim --> keep --> Dispatch --> take --> keep --> Report: one commit
//	                       |
//	                       +--> holdFor, Transient: a commit of its own, as for all other calls

// holdFor is how long a move may be held back.
const holdFor = 5 * time.Millisecond

// hold is what others see of a move that is held back.
type hold struct {
	wanted chan struct{} // somebody waits for the commit
	done   chan struct{} // closed when nothing is held back any more
}

// keep holds a move back, or continues to. The record is that after the move, so that the calls can be made.
func (r *Run) keep(m *Move) {
	m.take(r)
	r.Record.Apply(&m.Change, m.entries)
	if r.kept = m; !m.held {
		m.held = true
		r.order.Lock()
		r.hold = &hold{make(chan struct{}, 1), make(chan struct{})}
		r.order.Unlock()
	}
}

// flush commits what is held back.
func (r *Run) flush() error {
	if r.kept == nil {
		return nil
	}
	return r.Commit(r.Move())
}

// freeLocked lets others publish again.
func (r *Run) freeLocked() {
	if r.hold != nil {
		close(r.hold.done)
		r.hold = nil
	}
}

// free gives up what is held back, where the run is left.
func (r *Run) free() {
	r.order.Lock()
	defer r.order.Unlock()
	r.freeLocked()
}

// unheld waits until nothing is held back, and returns with order locked. Who waits has the move committed.
func (r *Run) unheld() {
	for {
		r.order.Lock()
		h := r.hold
		if h == nil || r.ctx.Err() != nil {
			return
		}
		r.order.Unlock()
		select {
		case h.wanted <- struct{}{}:
		default:
		}
		select {
		case <-h.done:
		case <-r.ctx.Done():
		}
	}
}

// Transient publishes an event that is not stored. It may be called from any goroutine, but not by the one of a run that
// holds a move back.
func (r *Run) Transient(ev event.Event) {
	r.unheld()
	defer r.order.Unlock()
	r.sub++
	r.uncounted++
	if r.hold == nil { // else the run ends, and the next durable event counts it
		r.publishLocked(published{ev: ev}, 0)
	}
}
