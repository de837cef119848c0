package run

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/tracecontext"
	"agentd/store"
)

// A run that fails or is aborted settles everything below it first: its children end, its approvals are denied, its calls
// get an outcome. Only a person can settle a call that may have had its effect, so a run with such a call waits, with its
// error shown, and ends once that is decided:
//
//	End --> close: everything is settled ----------------------> failed | aborted
//	          |                                                     ^
//	          +--> awaiting_approval (outcome-unknown) -- driveEnding
//	                     a denied call is settled as unknown; a granted one is made again. The driver is not called.

// End adds the end to a move and commits it: the status, the error and the end event. A run that was ending already ends
// with the status that it began to end with.
func (r *Run) End(m *Move, status store.Status, cause error) error {
	return r.end(m, status, cause, nil)
}

// endFor is End for another reason than that the driver wants it.
func (r *Run) endFor(m *Move, status store.Status, cause error) error {
	return r.end(m, status, cause, r.recipient())
}

// end is End; a driver that closing is completes the move.
func (r *Run) end(m *Move, status store.Status, cause error, closing Recipient) error {
	first := r.Record.Ending == ""
	status = cmp.Or(r.Record.Ending, status)
	if first && cause != nil {
		m.Run.Error, _ = message.Encode(r.e.describe(cause))
	}
	var unknown []journal.Approval
	if status != store.Completed {
		var err error
		if unknown, err = r.close(m, status, cause); err != nil {
			return err
		}
	}
	if closing != nil {
		if err := closing.Closing(r, m, status, cause); err != nil {
			return fmt.Errorf("%w: %w", ErrLeft, err)
		}
	}
	if first && status == store.Failed {
		m.Emit(r.e.Form(&m.Run).Failed(&m.Run, r.Record), -1, nil)
	}
	if len(unknown) == 0 {
		m.Run.Status, m.Run.Finished = status, m.At
		return r.rest(m, nil)
	}
	if first {
		m.keep(store.EndingSlot, status)
	}
	if n := len(r.Record.Steps); n > 0 {
		last := r.Record.Steps[n-1]
		for _, changed := range m.Steps {
			if changed.Number == last.Number {
				last = changed
			}
		}
		if _, steps := r.owner.Driver.(Caller); steps && last.Ended == 0 {
			m.CloseStep(last)
		}
	}
	return r.Park(m, unknown)
}

// fail ends a run whose driver returned an error: as an abort asks for, else as failed. When the server stops, a run that
// can continue is left as it is on disk.
func (r *Run) fail(m *Move, err error) error {
	if opts := r.aborting(); opts != nil {
		return r.abort(m, opts)
	}
	switch cause := context.Cause(r.ctx); {
	case r.stopped() && r.Row.Status.Parked():
		return nil // it was taken up for a letter, and still waits
	case r.stopped() && (r.Record.Ending != "" || r.owner.Driver.Resumable(r)):
		return r.leave(m)
	case r.stopped():
		return r.endFor(m, store.Aborted, errShutdown)
	case r.ctx.Err() != nil && cause != nil:
		err = cause // a budget of time, for instance
	}
	return r.endFor(m, store.Failed, err)
}

// leave commits a move after which the next start of the server continues the run: on disk it stays running. A stop in
// good order is not the run's fault, so it does not count towards a crash loop.
func (r *Run) leave(m *Move) error {
	m.Run.Attempt = 0
	err := r.Commit(m)
	if err == nil {
		r.Log().Info("run left for the next start", "run", r.Row.ID, "step", r.Row.Step)
	}
	return err
}

// rest commits a move after which nothing moves the run: it has ended, or waits. The end event reports how it stands.
func (r *Run) rest(m *Move, pending []journal.Approval) error {
	if len(pending) > 0 || len(r.Record.Pending) > 0 {
		m.keep(store.PendingSlot, pending)
		if r.parent == nil && m.Run.Status == store.Awaiting {
			m.expire(pending)
		} else if r.parent == nil && m.Run.Status.Terminal() {
			m.expire(nil)
		}
	}
	if r.recipient() != nil && m.Run.Status.Terminal() && r.due != 0 { // one that was set since finds an ended run
		m.Due = new(int64)
	}
	after := r.Record.After(&m.Change, m.entries)
	if len(pending) == 0 {
		after.Parked = nil
	}
	if m.Run.Status.Terminal() {
		m.take(r)
		m.Done.End(after.Steps, cmp.Or(m.used, r.used).total)
	}
	if err := m.conclude(r.e, after); err != nil {
		return err
	}
	if err := r.Commit(m); err != nil {
		return err
	}
	r.endedAt = m.At
	return nil
}

// driveEnding makes the calls that a person wants to be made again, lets children do so, and ends the run.
func (r *Run) driveEnding() error {
	var again []store.Call
	for _, c := range r.Record.Calls {
		if c.Phase == store.CallQueued || c.Phase == store.CallDispatching && r.claimed[c.Index] && !journal.Requested(c) {
			again = append(again, c)
		}
	}
	if err := r.Dispatch(again, 0); err != nil {
		return err
	}
	return r.End(r.begun(), r.Record.Ending, nil)
}

const deniedByEnd, deniedByAbort = "denied automatically, because the run ended", "denied automatically, because the run was aborted"

// close settles what is open of a run that ends, and ends its children. It returns the approvals that remain: of calls,
// here or below, whose outcome nobody knows.
func (r *Run) close(m *Move, status store.Status, cause error) (unknown []journal.Approval, err error) {
	why := deniedByEnd
	if r.aborting() != nil {
		why = deniedByAbort
	}
	for _, c := range slices.Clone(r.Record.Calls) {
		c = m.Call(c)
		if c.Reported {
			continue
		}
		if c.Phase == store.CallDispatching && c.Child == "" {
			r.dismiss(&c)
		}
		asked := slices.IndexFunc(r.Record.Pending, func(a journal.Approval) bool { return a.ToolCallID == c.ID && a.SubRunToolCallID == "" })
		switch {
		case c.Child != "" && c.Phase != store.CallDone:
			left, err := r.closeChild(m, &c, asked, status, cause, why)
			if err != nil {
				return nil, err
			}
			unknown = append(unknown, left...)
		case c.Phase == store.CallAwaiting && c.Reason != journal.OutcomeUnknown, journal.Requested(c) && c.Phase == store.CallDispatching && c.Attempts == 0:
			r.refuse(m, &c, asked, why)
		case c.Phase == store.CallQueued && (c.Attempts == 0 || !r.uncertain(m, &c, serverStopped)), c.Phase == store.CallDispatching && !r.doubtful(m, &c):
			m.settle(&c, r.Record.Place(&c), message.Fail(c.ID, c.Name, message.AbortedCall, "The run ended before this call did.", ""))
		}
		switch {
		case c.Phase == store.CallAwaiting && c.Child == "":
			a := r.asks(&c, r.Record.Call(&c).Args, m.At)
			if asked >= 0 {
				a = r.Record.Pending[asked]
			} else {
				m.SayRequested(a)
			}
			unknown = append(unknown, a)
		case c.Phase == store.CallDone && !c.Reported:
			m.report(r, &c)
		}
		m.setCall(c)
	}
	if len(r.Record.Granted) > 0 {
		m.keep(store.GrantedSlot, []journal.Approval(nil))
	}
	return unknown, nil
}

// doubtful reports whether nobody knows what became of a call that is dispatching, and makes it wait for a person unless
// its outcome is to be reported as failed.
func (r *Run) doubtful(m *Move, c *store.Call) bool {
	if r.claimed[c.Index] {
		return false // the run ends before its turn came
	}
	if journal.Requested(*c) {
		c.Attempts = 0
	} else if r.caller().Doubt(c) != Departed {
		return r.uncertain(m, c, serverStopped)
	}
	c.Phase, c.Reason = store.CallAwaiting, journal.OutcomeUnknown
	return true
}

// refuse settles a call that was not made and is not to be; asked is the index of its approval, -1 when nobody was asked.
func (r *Run) refuse(m *Move, c *store.Call, asked int, why string) {
	if asked >= 0 {
		m.SayDecided(c.ID, "", Decision{Reason: why}, "abort")
		m.Done.Decided(r.Record.Pending[asked], c.Step, journal.Decided{By: "abort", Reason: why})
	}
	if journal.Requested(*c) {
		*c = acknowledged(*c, m.At) // no message asked for it, so none answers
		return
	}
	m.settle(c, r.Record.Place(c), &message.Outcome{ToolCallID: c.ID, ToolName: c.Name, Kind: message.ApprovalDenied,
		Message: "Approval " + why + ".", RecoveryHint: message.ReportToUser})
	c.Reported = true
}

// closeChild ends the child of a call in a commit of its own, and settles the call, or leaves it waiting with the child.
// Should a crash come between the two, the child is found ended, or waiting to.
func (r *Run) closeChild(m *Move, c *store.Call, asked int, status store.Status, cause error, why string) (unknown []journal.Approval, err error) {
	kid, err := r.childRun(c)
	if err != nil {
		return nil, err
	}
	label := r.caller().Label(c)
	if kid == nil {
		if c.Phase == store.CallAwaiting {
			r.refuse(m, c, asked, why)
		} else {
			m.settle(c, r.Record.Place(c), message.Fail(c.ID, c.Name, message.AbortedCall, label+" was not started, because the run ended.", ""))
		}
		return nil, nil
	}
	waited := kid.Row.Status == store.Awaiting
	if !kid.Row.Status.Terminal() {
		if err := r.endChild(kid, status, cause); err != nil {
			return nil, err
		}
	}
	if !kid.Row.Status.Terminal() {
		c.Phase = store.CallAwaiting
		r.Record.Park(c.Index, &journal.Child{Row: &kid.Row, Record: kid.Record})
		unknown = under(kid.Record.Pending, c.ID)
	}
	for _, a := range r.Record.Pending {
		if head, _, _ := strings.Cut(a.SubRunToolCallID, "/"); head == c.ID && !slices.ContainsFunc(unknown, a.Same) {
			m.SayDecided(a.ToolCallID, a.SubRunToolCallID, Decision{Reason: why}, "abort")
		}
	}
	for _, a := range unknown {
		if !slices.ContainsFunc(r.Record.Pending, a.Same) {
			m.SayRequested(a)
		}
	}
	if len(unknown) > 0 {
		return unknown, nil
	}
	res := r.childOutcome(kid, c)
	if waited && kid.Row.Status == store.Aborted {
		res.Outcome = *message.Fail(c.ID, c.Name, message.AbortedCall, label+" was aborted while it waited for an approval.", "")
		c.Reported = true
	}
	m.settle(c, r.Record.Place(c), &res.Outcome)
	return nil, m.finish(r, kid, res.Spill)
}

// endChild ends a child as its parent ends.
func (r *Run) endChild(kid *Run, status store.Status, cause error) (err error) {
	if opts := r.aborting(); opts != nil {
		kid.asked = opts
		err = kid.abort(kid.Move(), opts)
	} else {
		err = kid.End(kid.Move(), status, cause)
	}
	if err == nil && kid.Row.Status.Terminal() {
		kid.count()
	}
	return err
}

// AbortOptions say how a run is to be ended.
type AbortOptions struct {
	// Drain lets the current step finish; without it, what the run does is cancelled at once.
	Drain bool
	// OnPending is what becomes of approvals that wait: deny (default) answers each as denied, hold keeps them, fail
	// makes the run failed. Without any, the run ends as aborted whatever this says. A call of unknown outcome waits for a
	// person in any case, and the run ends when that is decided; hold acts as deny on the others then.
	OnPending string
	// Reason goes into the log.
	Reason string
	// NoWait returns as soon as the abort is asked for.
	NoWait bool
}

var errAborted = fault.New(fault.RunAborted, "The run was aborted.")

// Abort ends a run and returns its status: aborted, or what it had become before. Where its driver does not return in
// time, or has a step to drain, the status is still running; where nobody knows what became of a call, it is
// awaiting_approval until a person has decided. Errors: run-not-found, run-conflict, storage-failed.
func (e *Engine) Abort(ctx context.Context, runID string, opts AbortOptions) (store.Status, error) {
	if row, err := e.Find(ctx, runID); err == nil && row.Host != 0 {
		return row.Status, e.IsChild(ctx, row)
	}
	return e.abort(ctx, runID, opts)
}

// abort is Abort for whoever may reach the run.
func (e *Engine) abort(ctx context.Context, runID string, opts AbortOptions) (store.Status, error) {
	opts.OnPending = cmp.Or(opts.OnPending, "deny")
	if r := e.moved(runID); r != nil {
		tracecontext.Log(ctx, e.log).Info("abort", "run", runID, "drain", opts.Drain, "reason", opts.Reason)
		r.askAbort(opts)
		if opts.NoWait && !r.rests() {
			return store.Running, nil
		}
		r.wait(ctx, 2*Grace)
	}
	row, err := e.Find(ctx, runID)
	switch {
	case err != nil:
		return "", err
	case row.Status.Terminal() || row.Status == store.Running && !row.Dormant():
		return row.Status, nil
	case row.Parent != 0:
		return row.Status, e.IsChild(ctx, row)
	}
	status, err := e.abortParked(ctx, row, opts)
	if fault.Is(err, fault.RunConflict) && e.moved(runID) != nil {
		return e.abort(ctx, runID, opts) // a letter or a timer has taken it up meanwhile
	}
	return status, err
}

// askAbort asks a run that moves, and its children, to end. It never blocks.
func (r *Run) askAbort(opts AbortOptions) {
	r.mu.Lock()
	if r.asked == nil || r.asked.Drain && !opts.Drain {
		r.asked = &opts
	}
	kids := slices.Clone(r.kids)
	r.mu.Unlock()
	for _, kid := range kids {
		kid.askAbort(opts)
	}
	if !opts.Drain {
		r.cancel(errAborted)
	}
	r.ring()
}

// rests reports whether the run is about to be parked without having seen what was asked of it.
func (r *Run) rests() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.resting
}

// aborting returns the abort that was asked for; nil when there is none.
func (r *Run) aborting() *AbortOptions {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked
}

// abortParked ends a run that no goroutine moves.
func (e *Engine) abortParked(ctx context.Context, row *store.Run, opts AbortOptions) (store.Status, error) {
	r, err := e.takeUp(ctx, row, false)
	if err != nil {
		return row.Status, err
	}
	defer e.letGo(r)
	if r.Record.Ending != "" {
		return r.Row.Status, nil // it ends as soon as a person has decided
	}
	r.asked = &opts
	if err := r.abort(r.Move(), &opts); err != nil {
		if errors.Is(err, store.ErrConflict) {
			return row.Status, fault.New(fault.RunConflict, "The run has changed in the meantime.")
		}
		return row.Status, err
	}
	if r.Row.Status.Terminal() {
		r.count()
		e.next(r.Row.Session)
	}
	return r.Row.Status, nil
}

// abort adds the end that the run's abort asks for to a move, and commits it.
func (r *Run) abort(m *Move, opts *AbortOptions) error {
	if err := r.tellQueued(m); err != nil {
		return err
	}
	m.Emit(r.e.Form(&m.Run).Cancelling(&m.Run, r.Record, opts.Drain, opts.OnPending), -1, nil)
	pending := r.Record.Pending
	switch {
	case len(pending) == 0, opts.OnPending == "deny", opts.OnPending == "hold" && (r.doubts() || r.recipient() != nil):
		return r.endFor(m, store.Aborted, errAborted)
	case opts.OnPending == "fail":
		return r.endFor(m, store.Failed, fault.New(fault.RunAborted, "The run was aborted while %d approval(s) were pending.", len(pending)))
	}
	for _, k := range r.Record.Parked { // they are held with it
		kid := r.newChild(*k.Row, k.Record, "")
		if kid.Row.Status.Terminal() {
			continue
		}
		if err := r.endChild(kid, store.Aborted, errAborted); err != nil {
			return err
		}
		k.Row = &kid.Row
	}
	m.Run.Status, m.Run.Finished = store.Aborted, m.At
	return r.rest(m, pending)
}

// tellQueued shows the start of a run that never had its session's turn, and makes messages of its input: the session's
// transcript shows them.
func (r *Run) tellQueued(m *Move) error {
	if r.Row.Started != 0 {
		return nil
	}
	var input json.RawMessage
	err := r.e.opts.Runs.View(context.WithoutCancel(r.ctx), func(tx *store.Tx) (err error) {
		input, err = r.e.opts.Runs.Slot(tx, r.Row.N, store.InputSlot)
		return err
	})
	if err != nil {
		return err
	}
	m.Slot(store.InputSlot, []byte("null"))
	if err := r.tell(m, input); err != nil {
		return err
	}
	m.Say(event.AgentStart, startFields{r.Row.ID, r.Row.Owner})
	return nil
}

// doubts reports whether the outcome of a call is unknown, here or below.
func (r *Run) doubts() bool {
	return slices.ContainsFunc(r.Record.Pending, journal.Approval.MayHaveHappened) ||
		slices.ContainsFunc(r.Record.Calls, func(c store.Call) bool { return c.Phase == store.CallAwaiting && c.Reason == journal.OutcomeUnknown })
}
