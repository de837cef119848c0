package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/tool"
	"agentd/server/transcript"
	"agentd/store"
)

// The journal of tool calls. A call is claimed in the commit that holds the model's wish for it, dispatched after
// that commit, and settled in a commit that holds its outcome:
//
//	claim (dispatching) --> the tool runs --> settle (done) --> its event, in call order, when the step's calls are through
//
// A call that recovery finds claimed but not settled may have had its effect. It runs again only if that does no
// harm; otherwise its tool's policy decides (see tool.OnUnknown).

// claim commits the model's answer together with the journal rows of its calls.
func (a *LLM) claim(r *run, m *move, step store.Step, asked int, calls []wish) error {
	if max := a.Budget.ToolCalls; max > 0 && m.row.Calls+len(calls) > max {
		m.withoutCalls(asked)
		m.steps = append(m.steps, step)
		return r.finish(m, store.Failed, fault.New(fault.BudgetExceeded, "The run asked for more than its budget of %d tool calls.", max))
	}
	m.steps = append(m.steps, step)
	for _, w := range calls {
		c := w.ToolCall
		hash, canonical := digest(c.Args)
		row := store.Call{Index: m.row.Calls, Step: step.Number, Origin: step.Number, ID: c.ID, Name: c.Name, Phase: store.CallDispatching,
			ArgsHash: hash, Canonical: canonical, Asked: asked, Answered: -1, Attempts: 1, Claimed: m.at}
		place := m.row.Messages // reserved, so that outcomes lie in call order
		m.row.Calls++
		m.row.Messages++
		if w.refusal != nil {
			m.settle(&row, place, w.refusal)
		} else if w.gated {
			row.Phase, row.Attempts = store.CallAwaiting, 0
		}
		if row.Phase != store.CallDone {
			row.Child = a.childID(c.Name)
		}
		m.say(event.ToolStart, startedFields{callHead{c.ID, c.Name}, row.Child})
		m.calls = append(m.calls, row)
	}
	if err := r.commit(m); err != nil {
		return err
	}
	for _, c := range m.calls {
		r.fresh(c.Index)
	}
	return nil
}

// wish is a call that a model asks for, and what is to become of it.
type wish struct {
	message.ToolCall
	refusal *message.Outcome // its outcome, when it cannot be made
	gated   bool             // a person must allow it
}

// judge takes in a call. From here on its arguments are in their one canonical form: what the policy looks at is what a
// person is shown, what is hashed and kept, and what the tool gets.
func (a *LLM) judge(c message.ToolCall) wish {
	w := wish{ToolCall: c}
	if w.refusal = a.Tools.Check(&w.ToolCall); w.refusal != nil {
		return w
	}
	switch a.Policy.decide(w.Name, w.Args) {
	case refused:
		w.refusal = &message.Outcome{ToolCallID: c.ID, ToolName: c.Name, Kind: message.CapabilityBlocked,
			Message: "This agent may not make this call.", RecoveryHint: message.ReportToUser}
	case gated:
		w.gated = true
	}
	return w
}

// settle makes a call done, with its outcome at the given place in the transcript.
func (m *move) settle(c *store.Call, place int, o *message.Outcome) {
	m.progress()
	c.Phase, c.Answered, c.Settled, c.Reason = store.CallDone, place, m.at, ""
	msg := transcript.Answer(o)
	if args := readDecided(c).Args; args != nil {
		msg.Content.Text += "\n\n[A person allowed this call with other arguments: " + string(args) + "]"
		m.told(place, msg, o)
		return
	}
	m.messageAt(place, msg, o)
}

// place is the index that is reserved for a call's outcome.
func (rec *record) place(c *store.Call) int {
	place := c.Asked + 1
	for i := range rec.calls {
		if o := &rec.calls[i]; o.Asked == c.Asked && o.Index < c.Index {
			place++
		}
	}
	return place
}

// openCalls is the number of calls of a step whose outcome has not been told.
func (rec *record) openCalls(step int) int {
	n := 0
	for i := range rec.calls {
		if c := &rec.calls[i]; c.Step == step && !c.Reported {
			n++
		}
	}
	return n
}

// settleCalls dispatches the open calls of a step, settles each as it ends, and tells of all when the last has.
func (a *LLM) settleCalls(r *run, step store.Step) error {
	dispatch, m, err := a.sort(r, step)
	if err != nil {
		return err
	}
	if m != nil { // recovery counts its attempts, and settles or parks what must not run again
		if err := r.commit(m); err != nil {
			return err
		}
	}
	if err := a.dispatch(r, dispatch); err != nil {
		return err
	}
	return a.report(r, step)
}

// sort tells the open calls that are to be dispatched from those that are done or wait. For calls that an earlier
// process left open, it prepares a move.
func (a *LLM) sort(r *run, step store.Step) (dispatch []store.Call, m *move, err error) {
	for i := range r.rec.calls {
		c := r.rec.calls[i]
		if c.Step != step.Number || c.Phase != store.CallDispatching {
			continue
		}
		if !r.isFresh(c.Index) {
			if m == nil {
				m = r.move()
			}
			if a.uncertain(r, m, &c, serverStopped) {
				m.calls = append(m.calls, c)
				continue
			}
			c.Attempts++
			m.calls = append(m.calls, c)
		}
		dispatch = append(dispatch, c)
	}
	return dispatch, m, nil
}

// uncertain deals with a call whose effect may have happened and must not happen twice, of which something is known;
// false: it may run again.
func (a *LLM) uncertain(r *run, m *move, c *store.Call, known string) bool {
	var spec tool.Spec
	if t, ok := a.Tools.Get(c.Name); ok {
		spec = t.Spec()
	}
	switch {
	case c.Child != "":
		return false // its child has a journal of its own
	case spec.Name == "":
		m.settle(c, r.rec.place(c), &message.Outcome{ToolCallID: c.ID, ToolName: c.Name, Kind: message.UnknownTool,
			Message:      "The server stopped during this call, and the tool no longer exists. Its effect may have happened.",
			RecoveryHint: message.ReportToUser})
	case spec.Repeatable() || spec.OnUnknownOutcome == tool.Retry && spec.Idempotent:
		return false
	case spec.OnUnknownOutcome == tool.ReportError:
		m.settle(c, r.rec.place(c), unknownOutcome(c, known))
	default:
		c.Phase, c.Reason = store.CallAwaiting, OutcomeUnknown
		r.known(c, known)
	}
	return true
}

// serverStopped is what is known of a call that a crash interrupted.
const serverStopped = "The server stopped during it."

// known notes what is known of a call until its approval says so.
func (r *run) known(c *store.Call, what string) {
	if r.unknown == nil {
		r.unknown = map[int]string{}
	}
	r.unknown[c.Index] = what
}

// unknownOutcome is the outcome of a call that is not made again, although nobody knows what it did.
func unknownOutcome(c *store.Call, known string) *message.Outcome {
	first, size := utf8.DecodeRuneInString(known)
	known = string(unicode.ToLower(first)) + strings.TrimSuffix(known[size:], ".")
	return &message.Outcome{ToolCallID: c.ID, ToolName: c.Name, Kind: message.ExecutionFailed,
		Message:      "The outcome of this call is unknown: " + known + ". Its effect may have happened.",
		RecoveryHint: message.ReportToUser}
}

// job is a call that is ready to be dispatched. It is prepared by the run's goroutine, since the workers must not read
// what commits change.
type job struct {
	call  store.Call
	make  tool.Call
	child *childJob // nil: it is a plain tool

	altered bool // what is stored of it was changed, so it is not made
}

// dispatch runs calls: the sequential ones one by one, then the others side by side. It settles each but the last
// as soon as it ends; report settles the last together with all events.
func (a *LLM) dispatch(r *run, calls []store.Call) error {
	if len(calls) == 0 {
		return nil
	}
	if err := a.handOver(r, calls); err != nil {
		return err
	}
	var first, rest []job
	for _, c := range calls {
		delete(r.claimed, c.Index) // from here on, it may have had its effect
		j := job{call: c}
		if t, ok := a.callee(&c); ok {
			var err error
			if j.child, err = a.prepareChild(r, t, c); err != nil {
				return err
			}
			if r.inbox == nil {
				r.inbox = make(chan forwarded, maxInbox)
			}
		} else {
			args, err := r.rec.bound(&c)
			if j.altered = err != nil; j.altered {
				r.e.alarm(r.row.ID, err)
			}
			j.make = r.prepare(c, args)
		}
		if t, ok := a.Tools.Get(c.Name); ok && t.Spec().Sequential {
			first = append(first, j)
		} else {
			rest = append(rest, j)
		}
	}
	results := make(chan work)
	var workers sync.WaitGroup
	workers.Go(func() {
		defer close(results)
		a.work(r, first, rest, results)
	})
	defer workers.Wait()
	var failed error
	for {
		select {
		case f := <-r.inbox:
			if failed == nil {
				failed = r.relay(f)
			}
		case w, more := <-results:
			if !more {
				return failed
			}
			if failed == nil {
				failed = r.take(&w, len(calls) == 1)
			}
		}
	}
}

// work executes jobs and sends what became of each.
func (a *LLM) work(r *run, first, rest []job, results chan<- work) {
	execute := func(j job) {
		if j.child != nil {
			results <- r.runChild(j.call, j.child)
			return
		}
		results <- a.timed(r, j)
	}
	for _, j := range first {
		execute(j)
	}
	var inner sync.WaitGroup
	places := make(chan struct{}, cmp.Or(a.MaxParallel, defaultParallel))
	for _, j := range rest {
		places <- struct{}{}
		inner.Go(func() {
			defer func() { <-places }()
			execute(j)
		})
	}
	inner.Wait()
}

// take settles a call that was dispatched, or notes that it waits for its child. The only call of a step is settled by
// report, unless the run is being aborted.
func (r *run) take(w *work, only bool) error {
	if w.left {
		return fmt.Errorf("%w: its child is", errLeft)
	}
	m := r.move()
	r.gather(m) // what the child told before it ended
	c := w.call
	if w.kid != nil {
		m.row.Current = r.row.Owner
	}
	if w.parked() {
		c.Phase = store.CallAwaiting
		r.rec.park(c.Index, &child{&w.kid.row, w.kid.rec})
	} else {
		o := &w.res.Outcome
		status := "success"
		if o.Failed() {
			status = "error"
		}
		r.e.opts.Metrics.ToolCalls.With(c.Name, status).Inc()
		if o.Kind == message.AbortedCall && errors.Is(context.Cause(r.ctx), errShutdown) {
			return errShutdown // the call stays claimed: what it did is unknown
		}
		if !w.res.Unknown || !r.reg.LLM.uncertain(r, m, &c, o.Message) {
			m.settle(&c, r.rec.place(&c), o)
		}
		t, _ := r.reg.LLM.callee(&c)
		m.spanCall(r, w, &c, t)
		if w.kid != nil {
			if err := m.fold(&w.kid.row); err != nil {
				return err
			}
		}
		if b := w.res.Spill; b != nil {
			m.spills = append(m.spills, store.Spill{Name: b.Name, MediaType: b.MediaType, Data: b.Data})
		}
	}
	m.calls = append(m.calls, c)
	if only && r.ctx.Err() == nil {
		r.last = m // report commits it
		return nil
	}
	return r.commit(m)
}

// prepare makes the call of a tool. Live output and progress are published as they come, from any goroutine.
func (r *run) prepare(c store.Call, args json.RawMessage) tool.Call {
	chunks := 0
	var mu sync.Mutex // guards chunks: tools may report from several goroutines
	return tool.Call{
		RunID: r.row.ID, AgentID: r.row.Owner, SessionID: r.row.Session, UserID: r.row.User, Payer: r.payer(), StepNumber: c.Step, ID: c.ID,
		Key: r.row.ID + ":" + strconv.Itoa(c.Origin) + ":" + c.ID, Args: args,
		Progress: func(current, total float64, note string) {
			r.transient(event.New(event.ToolProgress, struct {
				ToolName   string  `json:"toolName"`
				ToolCallID string  `json:"toolCallId"`
				Current    float64 `json:"current"`
				Total      float64 `json:"total,omitempty"`
				Message    string  `json:"message,omitempty"`
				StepNumber int     `json:"stepNumber"`
				TS         int64   `json:"ts"`
			}{c.Name, c.ID, current, total, note, c.Step, now()}))
		},
		Stream: func(chunk tool.Chunk) {
			mu.Lock()
			defer mu.Unlock()
			r.transient(event.New(event.ToolPartial, chunkFields{c.Name, c.ID, wire(chunk), chunks, c.Step, now()}))
			chunks++
		},
	}
}

// report tells of the outcomes of a step's calls in call order, and ends the step or parks the run.
func (a *LLM) report(r *run, step store.Step) error {
	m := r.move()
	if r.last != nil {
		m, r.last = r.last, nil
	}
	latest := map[int]store.Call{}
	for _, c := range m.calls {
		latest[c.Index] = c
	}
	outcomes := map[int]*message.Outcome{}
	for _, e := range m.entries {
		outcomes[e.index] = e.outcome
	}
	var pending []Approval
	ending, doubts := r.stopping(), false
	if r.aborting() == nil && r.stopped() {
		ending = nil
	}
	m.calls = nil
	for i := range r.rec.calls {
		c := r.rec.calls[i]
		if l, ok := latest[c.Index]; ok {
			c = l
		}
		if c.Step != step.Number || c.Reported {
			continue
		}
		switch c.Phase {
		case store.CallDone:
			o := outcomes[c.Answered]
			if o == nil {
				o = r.rec.at(c.Answered).outcome
			}
			m.emit(toolSettled(o), c.Answered, callHead{c.ID, c.Name})
			c.Reported = true
			m.calls = append(m.calls, c)
		case store.CallAwaiting:
			if l, ok := latest[c.Index]; ok {
				m.calls = append(m.calls, l)
			}
			if ending != nil && c.Reason == OutcomeUnknown {
				doubts = true // the end asks about it
				continue
			}
			for _, want := range a.wanted(r, &c, m.at) {
				if i := slices.IndexFunc(r.rec.pending, want.Same); i >= 0 {
					want = r.rec.pending[i] // asked for already
				} else {
					m.sayRequested(want)
				}
				pending = append(pending, want)
			}
		}
	}
	if len(pending) > 0 {
		m.closeStep(r, step)
		m.row.Status = store.Awaiting
		if err := r.commitEnd(m, pending); err != nil {
			return err
		}
		if ending != nil && (doubts || r.aborting() != nil) {
			return r.cease(r.move(), ending)
		}
		return nil
	}
	var given *gift
	if ending == nil {
		var err error
		if given, err = a.given(r, m); err != nil {
			return err
		}
	}
	if given != nil {
		given.say(m)
	}
	if !doubts {
		m.endStep(r, step)
	}
	if ending != nil {
		return r.cease(m, ending)
	}
	if given != nil {
		return a.end(r, m, given)
	}
	if step.Number < a.maxSteps() {
		m.beginStep(r, step.Number+1)
	}
	return r.commit(m)
}

// wanted lists the approvals that a waiting call needs: its own, or those of its child under the call's path.
func (a *LLM) wanted(r *run, c *store.Call, at int64) []Approval {
	parked := r.rec.parked[c.Index]
	if parked == nil {
		want := r.asks(c, r.rec.call(c).Args, at)
		// By the clock, not the run's time: that stays ahead when the clock is set back.
		want = a.Policy.terms(want, now(), r.row.StartedBy)
		if c.Reason == OutcomeUnknown {
			want.ExpiresAt = "" // only a person settles what may have happened
		}
		return []Approval{want}
	}
	var list []Approval
	for _, p := range parked.rec.pending {
		list = append(list, p.Under(c.ID))
	}
	return list
}
