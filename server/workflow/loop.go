package workflow

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/run"
	"agentd/server/span"
	"agentd/server/tool"
	"agentd/store"
)

// A result is what became of a call, or of the start of a hosted run.
type result struct {
	task    int
	attempt int
	settled tool.Settled
	left    bool // the server stops: the call has not begun, or what it did is unknown
	host    *hosted
	ended   *ending  // of a node of a Go graph
	kept    *keeping // what such a node has done meanwhile

	admitted bool // the limits of the tool have room for the call, or refuse it
	release  func()
	refusal  *message.Outcome
}

// drive moves the thread until it has ended or waits.
func (t *thread) drive() error {
	defer t.quiet()
	for {
		if err := t.r.Context().Err(); err != nil {
			return t.stop()
		}
		t.advance()
		if t.failing == nil && !t.ended && len(t.ready) == 0 && len(t.claimed)+len(t.hosts)+len(t.aborts) == 0 && !t.busy() {
			if !t.r.Seal() {
				if err := t.open(); err != nil {
					return err
				}
				continue
			}
			return t.rest()
		}
		if t.ended || t.failing != nil && !t.busy() && len(t.claimed) == 0 {
			if !t.r.Seal() {
				if err := t.open(); err != nil {
					return err
				}
				continue
			}
			if t.ended {
				return t.end()
			}
			if t.dirty() {
				if err := t.commit(); err != nil {
					return err
				}
			}
			return t.failing.fault()
		}
		if t.unheard && !t.dirty() { // nothing has come of it
			t.touch()
		}
		if t.dirty() && t.pressing() {
			if err := t.commit(); err != nil {
				return err
			}
		}
		t.launch()
		if len(t.ready) > 0 {
			t.poll()
			continue
		}
		if err := t.listen(); err != nil {
			return err
		}
	}
}

// holdFor is how long the steps of calls that have no effect wait for others to be committed with.
const holdFor = 5 * time.Millisecond

// pressing reports whether what has happened is to be durable now, as the outcome of a call that has an effect is. Calls that
// have none are made without an intent: after a crash they are made again. A run that a crash has interrupted holds nothing
// back, so that the next crash shows how far it came.
func (t *thread) pressing() bool {
	switch {
	case t.p != nil, t.urgent, t.unheard, t.w.opts.AuditStarts, t.r.Row.Attempt > 1,
		len(t.ready)+len(t.hosts)+len(t.aborts)+len(t.also) > 0, len(t.inFlight)+len(t.claimed) == 0:
		return true
	}
	if slices.ContainsFunc(t.claimed, func(k *task) bool { return !t.free(k) }) {
		return true
	}
	if t.heldAt.IsZero() {
		t.heldAt = time.Now()
	}
	return time.Since(t.heldAt) >= holdFor
}

// busy reports whether something happens without anybody's doing.
func (t *thread) busy() bool {
	if len(t.inFlight) > 0 {
		return true
	}
	for _, k := range t.waits {
		if k.busy() {
			return true
		}
	}
	return false
}

// launch makes the calls that were claimed, starts hosted runs, and aborts those that are not wanted any more.
func (t *thread) launch() {
	for _, k := range t.claimed {
		n := t.node(k)
		ctx := t.depart(k, n.Timeout)
		call := tool.Call{RunID: t.r.ID(), AgentID: t.row.Workflow, SessionID: t.row.Session, UserID: t.row.User, Payer: t.r.Payer(),
			StepNumber: t.row.Step, ID: k.callID(), Key: k.Key, Args: k.Args}
		name, id, attempt, limit, release := n.Tool, k.ID, k.Attempt, n.Timeout, k.release
		k.release = nil
		t.r.Go(func() {
			if release != nil {
				defer release()
			}
			settled := t.w.tools.Execute(ctx, name, call)
			if o := &settled.Outcome; o.Kind == message.AbortedCall && context.Cause(ctx) == errNodeTime {
				o.Kind, o.Message = message.Timeout, fmt.Sprintf("The tool did not answer in the time of its node, %v.", limit)
			}
			t.results <- result{task: id, attempt: attempt, settled: settled, left: t.leftWith(&settled.Outcome)}
		})
	}
	t.claimed = nil
	t.launchNodes()
	t.launchHosts()
}

// leftWith reports whether an outcome says only that the server stops.
func (t *thread) leftWith(o *message.Outcome) bool {
	ctx := t.r.Context()
	return o != nil && o.Kind == message.AbortedCall && ctx.Err() != nil && !fault.Is(context.Cause(ctx), fault.RunAborted)
}

// depart notes that something of a task is in flight, and returns the context for it. Its time is over after a limit; 0: never.
func (t *thread) depart(k *task, limit time.Duration) context.Context {
	ctx, cancel := context.WithCancelCause(t.r.Within(span.OfRun, 0))
	t.inFlight[k.ID] = cancel
	if limit > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, limit, errNodeTime)
		context.AfterFunc(ctx, stop)
	}
	return ctx
}

var errNodeTime = errors.New("the node reached its time limit")

// quiet waits until no call of this process is in flight.
func (t *thread) quiet() {
	for _, cancel := range t.inFlight {
		cancel(run.ErrLeft)
	}
	for len(t.inFlight) > 0 {
		res := <-t.results
		t.landed(res.task)
	}
}

func (t *thread) landed(id int) {
	if cancel := t.inFlight[id]; cancel != nil {
		cancel(nil)
	}
	delete(t.inFlight, id)
}

// stop ends what is in flight because the run is aborted or the server stops, keeps what is known of it, and returns why.
func (t *thread) stop() error {
	for len(t.inFlight) > 0 {
		res := <-t.results
		t.landed(res.task)
		if !res.left {
			t.take(res)
		}
	}
	if t.dirty() && t.r.Row.Status == store.Running {
		if err := t.commit(); err != nil {
			return err
		}
	}
	return context.Cause(t.r.Context())
}

// poll takes what has come, without waiting.
func (t *thread) poll() {
	for {
		select {
		case res := <-t.results:
			t.landed(res.task)
			t.take(res)
		default:
			return
		}
	}
}

// listen waits for something to happen.
func (t *thread) listen() error {
	var timer <-chan time.Time
	wait := time.Duration(-1)
	if due := t.due(); due != 0 {
		wait = max(0, time.Until(time.UnixMilli(due)))
	}
	if left := holdFor - time.Since(t.heldAt); t.dirty() && (wait < 0 || left < wait) {
		wait = max(0, left)
	}
	if wait >= 0 {
		timer = time.After(wait)
	}
	select {
	case res := <-t.results:
		t.landed(res.task)
		t.take(res)
		t.poll()
	case <-timer:
		t.elapse()
	case <-t.r.Mail():
		return t.open()
	case <-t.r.Context().Done():
	}
	return nil
}

// take notes what became of a call or a hosted run.
func (t *thread) take(res result) {
	if res.kept != nil {
		t.keep(res.kept)
		return
	}
	k := t.tasks[res.task]
	if k == nil || k.Attempt != res.attempt || res.admitted && k.Phase != ready {
		if res.release != nil {
			res.release()
		}
		return
	}
	if res.admitted {
		switch {
		case res.left: // the task is ready, also after the next start
		case res.refusal != nil:
			t.fail(k, problemOfOutcome(res.refusal))
		default:
			k.release = res.release
			t.claim(k)
		}
		return
	}
	if res.host != nil {
		t.hostChanged(k, res.host)
		t.lookFor(k) // it may have changed since it was read
		return
	}
	if res.ended != nil {
		if !res.left {
			t.returned(k, res.ended)
		}
		return
	}
	if k.Phase != calling || res.left {
		return
	}
	o := &res.settled.Outcome
	t.urgent = t.urgent || !t.free(k)
	t.happened(k, settledType(o), func(h *happening) { h.ErrorKind = string(o.Kind) })
	switch {
	case res.settled.Unknown:
		t.doubt(k, o.Message)
	case o.Failed():
		if !res.settled.Same {
			k.Key = ""
		}
		t.fail(k, problemOfOutcome(o))
	default:
		t.finish(k, o.Output)
	}
}

func settledType(o *message.Outcome) string {
	if o.Failed() {
		return event.ToolError
	}
	return event.ToolEnd
}

// doubt handles a call that may have had its effect: the tool says whether a person decides, it is made again, or its node
// fails.
func (t *thread) doubt(k *task, known string) {
	n := t.node(k)
	switch t.w.tools.Doubt(n.Tool) {
	case run.MakeAgain:
		t.dispatch(k) // under the same key
	case run.SettleFailed:
		t.fail(k, unknownOutcome(known))
	default:
		a := t.request(k, n.Tool, k.Args, journal.OutcomeUnknown)
		a.Previous = &message.Previous{Attempts: k.Attempt, BegunAt: message.Millis(k.Began), Known: known}
		t.wait(k, a)
	}
}

func unknownOutcome(known string) *problem {
	p := trouble(fault.OutcomeUnknown, "The outcome of the call is unknown: %s", known)
	p.Hint = "Find out whether the call has taken effect before you retry the thread."
	return p
}

// revive makes the thread what it is after a restart: calls that were in flight are made again or asked about.
func (t *thread) revive() {
	for _, id := range t.ids() {
		k := t.tasks[id]
		switch {
		case k == nil:
		case k.Phase == failed && k.Scope == 0:
			t.failing = k.Error
		case k.Phase == calling && t.inFlight[id] == nil:
			t.doubt(k, "The server stopped during it.")
		case k.Phase == running:
			t.enter(k, ready)
		case k.Phase == hosting && k.Status == "":
			t.hosts = append(t.hosts, k)
		}
	}
	t.look()
}
