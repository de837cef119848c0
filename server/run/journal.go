package run

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"agentd/server/event"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/transcript"
	"agentd/store"
)

// maxParallel is how many calls a run makes at once, where its driver says nothing.
const maxParallel = 8

// A Wish is a call that a run is to make. Its arguments are in canonical form, unless it is refused.
type Wish struct {
	message.ToolCall
	Refusal *message.Outcome // its outcome, when it cannot be made
	Gated   bool             // a person must allow it
	Free    bool             // it has no effect: after a crash it may be made again, or not at all
	Child   string           // id of the run that it will be; empty: it is none
}

// Claim adds calls to the journal, and commits the move before they are made, unless all of them are free. They belong to a
// step, and were asked for with the message at an index. Those that can be made are dispatching: [Run.Open] returns them.
func (r *Run) Claim(m *Move, step store.Step, asked int, calls []Wish) error {
	m.Steps = append(m.Steps, step)
	free, made := !r.e.opts.AuditStarts && r.trial == nil && r.ctx.Err() == nil, false
	for _, w := range calls {
		hash, canonical := journal.Digest(w.Args)
		c := store.Call{Index: m.Run.Calls, Step: step.Number, Origin: step.Number, ID: w.ID, Name: w.Name, Phase: store.CallDispatching,
			ArgsHash: hash, Canonical: canonical, Asked: asked, Answered: -1, Attempts: 1, Claimed: m.At}
		place := m.Run.Messages // reserved, so that outcomes lie in call order
		m.Run.Calls++
		m.Run.Messages++
		switch {
		case w.Refusal != nil:
			m.settle(&c, place, w.Refusal)
		case w.Gated:
			c.Phase, c.Attempts, c.Child = store.CallAwaiting, 0, w.Child
			free = false
		default:
			c.Child = w.Child
			free, made = free && w.Free && w.Child == "", true
		}
		m.Say(event.ToolStart, startedFields{journal.Head(c.ID, c.Name), c.Child})
		m.Calls = append(m.Calls, c)
	}
	for _, c := range m.Calls {
		r.fresh(c.Index)
	}
	if free && made {
		r.keep(m)
		return nil
	}
	return r.Commit(m)
}

// fresh notes that this process has claimed a call and not dispatched it yet, so that it had no effect.
func (r *Run) fresh(call int) {
	if r.claimed == nil {
		r.claimed = map[int]bool{}
	}
	r.claimed[call] = true
}

// settle makes a call done, with its outcome at the given place in the transcript.
func (m *Move) settle(c *store.Call, place int, o *message.Outcome) {
	m.Progress()
	c.Phase, c.Answered, c.Settled, c.Reason = store.CallDone, place, m.At, ""
	msg := transcript.Answer(o)
	if args := journal.ReadDecided(c).Args; args != nil {
		msg.Content.Text += "\n\n[A person allowed this call with other arguments: " + string(args) + "]"
		m.MessageAt(place, msg, o)
		return
	}
	body, err := message.Encode(o)
	m.put(place, msg, o, body, err)
}

// Open returns the calls of a step that are to be dispatched. What an earlier process has left open it counts, settles or
// parks first, in a commit.
func (r *Run) Open(step store.Step) (dispatch []store.Call, err error) {
	var m *Move
	calls := r.Record.Unreported()
	for i := range calls {
		if c := &calls[i]; c.Step != step.Number || c.Phase != store.CallDispatching && c.Phase != store.CallQueued {
			continue
		}
		c := calls[i]
		if !r.claimed[c.Index] && c.Phase != store.CallQueued {
			if m == nil {
				m = r.Move()
			}
			uncertain := r.uncertain(m, &c, serverStopped)
			if !uncertain {
				c.Attempts++
			}
			m.Calls = append(m.Calls, c)
			if uncertain {
				continue
			}
		}
		dispatch = append(dispatch, c)
	}
	if m != nil {
		err = r.Commit(m)
	}
	return dispatch, err
}

// uncertain settles or parks a call whose effect may have happened and must not happen twice; known is what is known of
// it. False: it may be made again.
func (r *Run) uncertain(m *Move, c *store.Call, known string) bool {
	if c.Child != "" {
		return false // its child has a journal of its own
	}
	switch r.caller().Doubt(c) {
	case MakeAgain:
		return false
	case Departed:
		m.settle(c, r.Record.Place(c), &message.Outcome{ToolCallID: c.ID, ToolName: c.Name, Kind: message.UnknownTool,
			Message:      "The server stopped during this call, and the tool no longer exists. Its effect may have happened.",
			RecoveryHint: message.ReportToUser})
	case SettleFailed:
		m.settle(c, r.Record.Place(c), unknownOutcome(c, known))
	default:
		c.Phase, c.Reason = store.CallAwaiting, journal.OutcomeUnknown
		if r.unknown == nil {
			r.unknown = map[int]string{}
		}
		r.unknown[c.Index] = known
	}
	return true
}

// serverStopped is what is known of a call that a crash interrupted.
const serverStopped = "The server stopped during it."

// unknownOutcome is the outcome of a call that is not made again, although nobody knows what it did.
func unknownOutcome(c *store.Call, known string) *message.Outcome {
	first, size := utf8.DecodeRuneInString(known)
	known = string(unicode.ToLower(first)) + strings.TrimSuffix(known[size:], ".")
	return &message.Outcome{ToolCallID: c.ID, ToolName: c.Name, Kind: message.ExecutionFailed,
		Message:      "The outcome of this call is unknown: " + known + ". Its effect may have happened.",
		RecoveryHint: message.ReportToUser}
}

// alteredOutcome settles a call that is not made.
func alteredOutcome(c *store.Call) *message.Outcome {
	return message.Fail(c.ID, c.Name, message.ExecutionFailed, "The call was not made: what the server has stored of it was changed.",
		"Do not ask for it again; report this to the user.")
}

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
			r.e.alarm(r.Row.ID, err)
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
	w.res = w.Do(r.ctx)
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

// begun returns the move that the outcome of a step's only call waits in, or a new one.
func (r *Run) begun() (m *Move) {
	if m, r.last = r.last, nil; m == nil {
		m = r.Move()
	}
	return m
}

// A Report is what became of the calls of a step.
type Report struct {
	*Move
	Ending error // why the run ends; nil: it continues
	doubts bool  // an outcome is unknown, and the end asks about it
}

// Report adds the outcomes of a step's calls to a move, in call order. Where some wait for a decision, it parks the run
// and parked is true: the driver returns err. Otherwise the driver completes the move and calls [Run.EndReport] or commits
// it itself.
func (r *Run) Report(step store.Step) (rep Report, parked bool, err error) {
	m := r.begun()
	rep = Report{Move: m}
	if r.aborting() != nil || !r.stopped() {
		rep.Ending = r.Stopping()
	}
	var pending []journal.Approval
	calls := r.Record.Unreported()
	for i := range calls {
		if calls[i].Step != step.Number {
			continue
		}
		switch c := m.Call(calls[i]); {
		case c.Reported:
		case c.Phase == store.CallDone:
			m.report(r, &c)
		case c.Phase == store.CallAwaiting && rep.Ending != nil && c.Reason == journal.OutcomeUnknown:
			rep.doubts = true // the end asks about it
		case c.Phase == store.CallAwaiting:
			for _, want := range r.wanted(&c, m.At) {
				if i := slices.IndexFunc(r.Record.Pending, want.Same); i >= 0 {
					want = r.Record.Pending[i] // asked for already
				} else {
					m.SayRequested(want)
				}
				pending = append(pending, want)
			}
		}
	}
	if len(pending) == 0 {
		return rep, false, nil
	}
	m.CloseStep(step)
	if err := r.Park(m, pending); err != nil || rep.Ending == nil || !rep.doubts && r.aborting() == nil {
		return rep, true, err
	}
	return rep, true, r.fail(r.Move(), rep.Ending)
}

// report adds the event of a call that is settled.
func (m *Move) report(r *Run, c *store.Call) {
	if o := m.Outcome(r, c); o != nil {
		m.Emit(journal.ToolSettled(o), c.Answered, journal.Head(c.ID, c.Name))
	}
	c.Reported = true
	m.setCall(*c)
}

// EndReport ends the step of a report, and the run where it is to end; ended tells whether it did.
func (r *Run) EndReport(rep Report, step store.Step) (ended bool, err error) {
	if !rep.doubts {
		rep.EndStep(step)
	}
	if rep.Ending == nil {
		return false, nil
	}
	return true, r.fail(rep.Move, rep.Ending)
}

// wanted lists the approvals that a waiting call needs: its own, or those of its child under the call's path.
func (r *Run) wanted(c *store.Call, at int64) (list []journal.Approval) {
	if k := r.Record.Parked[c.Index]; k != nil {
		for _, p := range k.Record.Pending {
			list = append(list, p.Under(c.ID))
		}
		return list
	}
	want := r.caller().Terms(r, r.asks(c, r.Record.Call(c).Args, at))
	if c.Reason == journal.OutcomeUnknown {
		want.ExpiresAt = "" // only a person settles what may have happened
	}
	return []journal.Approval{want}
}

// Park commits a move after which the run waits for approvals.
func (r *Run) Park(m *Move, pending []journal.Approval) error {
	m.Run.Status = store.Awaiting
	return r.rest(m, pending)
}
