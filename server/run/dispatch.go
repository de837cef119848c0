package run

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/span"
	"agentd/store"
)

// A task is a call that is ready to be made. The run's goroutine prepares it, since the workers must not read what
// commits change.
type task struct {
	Job
	call    store.Call
	kid     *Run       // the child that was decided on; nil: look it up or make it
	parent  *store.Run // the row of the run when the calls were dispatched
	waited  bool       // it was made before the run became dormant
	altered error      // why it must not be made: what is stored of it was changed
}

// work is what became of a dispatched call.
type work struct {
	task
	res   Settled
	left  bool // the child is to be taken up by the next start
	began time.Time
	took  time.Duration
	moved chan error // of a call that begins or ends to wait for its tool's limit: takes the outcome of the commit; else nil
}

// Dispatch makes calls, at most parallel of them at once (8 when 0): the sequential ones one by one, then the others side
// by side. It settles each but the last as soon as it ends; [Run.Report] settles the last together with all events.
func (r *Run) Dispatch(calls []store.Call, parallel int) error {
	var first, rest []task
	parent := r.Row
	for _, c := range calls {
		delete(r.claimed, c.Index) // from here on, it may have had its effect
		t := task{call: c, parent: &parent, kid: r.decided[c.Index]}
		delete(r.decided, c.Index)
		args, err := r.Record.Bound(&c)
		if t.altered = err; err != nil && c.Child == "" {
			r.e.alarm(r.Log(), r.Row.ID, err)
		}
		if t.altered == nil || c.Child != "" {
			if t.Job, err = r.caller().Job(r, c, args); err != nil {
				return err
			}
		}
		_, t.waited = r.waits[c.Index]
		delete(r.waits, c.Index)
		if c.Child != "" && r.inbox == nil {
			r.inbox = make(chan forwarded, maxInbox)
		}
		if t.Sequential {
			first = append(first, t)
		} else {
			rest = append(rest, t)
		}
	}
	if len(calls) == 0 {
		return nil
	}
	var late <-chan time.Time
	var wanted <-chan struct{}
	if r.kept != nil {
		late, wanted = time.After(holdFor), r.hold.wanted
	}
	results := make(chan work)
	var workers sync.WaitGroup
	workers.Go(func() {
		defer close(results)
		r.work(first, rest, cmp.Or(parallel, maxParallel), results)
	})
	defer workers.Wait()
	var failed error
	for {
		select {
		case f := <-r.inbox:
			if failed == nil {
				failed = r.relay(f)
			}
		case <-late:
			failed = cmp.Or(failed, r.flush())
		case <-wanted:
			failed = cmp.Or(failed, r.flush())
		case w, more := <-results:
			if !more {
				if failed == nil && len(r.waits) > 0 {
					failed = r.sleep()
				}
				return failed
			}
			if failed == nil && w.moved != nil {
				failed = r.turn(&w)
			} else if failed == nil {
				failed = r.take(&w, len(calls) == 1)
			}
			if w.moved != nil {
				w.moved <- failed
			}
		}
		if failed != nil {
			r.free()
		}
	}
}

// work makes calls and sends what became of each.
func (r *Run) work(first, rest []task, parallel int, results chan<- work) {
	execute := func(t task) {
		w := work{task: t, began: time.Now()}
		switch {
		case t.call.Child != "":
			r.runChild(&w)
		case t.altered != nil:
			w.res.Outcome = *alteredOutcome(&t.call)
		default:
			r.make(&w, results)
		}
		if o := &w.res.Outcome; t.waited && t.call.Child == "" {
			w.began = time.UnixMilli(t.call.Claimed)
			o.DurationMS = time.Since(w.began).Milliseconds()
		}
		w.took = time.Since(w.began)
		results <- w
	}
	for _, t := range first {
		execute(t)
	}
	var inner sync.WaitGroup
	places := make(chan struct{}, parallel)
	for _, t := range rest {
		places <- struct{}{}
		inner.Go(func() {
			defer func() { <-places }()
			execute(t)
		})
	}
	inner.Wait()
}

// make makes a call when it may begin. It is queued on disk as long as it waits.
func (r *Run) make(w *work, results chan<- work) {
	phase := func(p store.Phase, attempt int) error {
		w.call.Phase, w.call.Attempts = p, w.call.Attempts+attempt
		w.moved = make(chan error, 1)
		results <- *w
		err := <-w.moved
		w.moved = nil
		return err
	}
	queued := w.call.Phase == store.CallQueued
	if w.Admit != nil {
		release, refusal := w.Admit(r.ctx, func() error {
			if queued {
				return nil
			}
			queued = true
			return phase(store.CallQueued, -1)
		})
		if refusal != nil {
			before := w.call.Attempts
			if !queued {
				before--
			}
			w.res = Settled{Outcome: *refusal, Unknown: before > 0}
			return
		}
		defer release()
	}
	if queued {
		if err := phase(store.CallDispatching, 1); err != nil {
			return // the run is left
		}
	}
	w.began = time.Now()
	w.res = w.Do(r.Within(span.OfCall, w.call.Index))
}

// turn makes durable that a call waits for its tool's limit, or begins.
func (r *Run) turn(w *work) error {
	m := r.Move()
	m.setCall(w.call)
	return r.Commit(m)
}

// take settles a call that was made, or notes that it waits for its child. The only call of a step is settled by Report,
// unless the run is being aborted.
func (r *Run) take(w *work, only bool) error {
	if w.left {
		return fmt.Errorf("%w: its child is", ErrLeft)
	}
	if w.res.Waits != "" {
		return r.awaits(w)
	}
	m := r.Move()
	r.gather(m) // what the child reported before it ended
	c := w.call
	if w.kid != nil {
		m.Run.Current = r.Row.Owner
	}
	if w.kid != nil && w.kid.Row.Status.Parked() {
		c.Phase = store.CallAwaiting
		r.Record.Park(c.Index, &journal.Child{Row: &w.kid.Row, Record: w.kid.Record})
	} else {
		o := &w.res.Outcome
		status := "success"
		if o.Failed() {
			status = "error"
		}
		r.e.opts.Metrics.ToolCalls.With(c.Name, status).Inc()
		r.e.opts.Metrics.ToolLatency.Observe(w.took.Seconds())
		if o.Kind == message.AbortedCall && r.stopped() {
			return errShutdown // the call stays claimed: what it did is unknown
		}
		if o.Kind == message.AbortedCall && w.Child == nil {
			r.dismiss(&c)
		}
		if !w.res.Unknown || !r.uncertain(m, &c, o.Message) {
			m.settle(&c, r.Record.Place(&c), o)
		}
		callee := ""
		if w.Child != nil {
			callee = w.Child.Owner
		}
		m.Done.Call(w.Span, &c, o, callee, w.began, w.took)
		if err := m.finish(r, w.kid, w.res.Spill); err != nil {
			return err
		}
	}
	m.setCall(c)
	switch {
	case r.ctx.Err() != nil:
		return r.Commit(m)
	case m.held:
		r.keep(m)
	case only:
		r.last = m // Report commits it
	default:
		return r.Commit(m)
	}
	return nil
}

// finish adds what an ended child has used, and the result that is kept beside the transcript.
func (m *Move) finish(r *Run, kid *Run, spill *store.Spill) error {
	if spill != nil {
		m.Spills = append(m.Spills, *spill)
	}
	if kid == nil {
		return nil
	}
	var used message.Usage
	var models map[string]message.ModelUsage
	if err := errors.Join(json.Unmarshal(kid.Row.Usage, &used), json.Unmarshal(kid.Row.Models, &models)); err != nil {
		return err
	}
	if len(models) == 0 && used != (message.Usage{}) {
		models = map[string]message.ModelUsage{"sub-agent:" + kid.Row.Owner: {Usage: used}}
	}
	for model, mu := range models {
		m.Charge(r, model, mu.Usage)
	}
	return nil
}
