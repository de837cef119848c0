package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"agentd/server/event"
	"agentd/server/message"
	"agentd/server/tool"
	"agentd/store"
)

// A run that fails or is aborted settles everything below it first: its children end, its approvals are denied, its calls
// get an outcome. Only a person can settle a call that may have had its effect, so a run with such a call waits, with its
// error on show, and ends as it was going to once that is decided:
//
//	finish --> close: everything is settled ----------------------> failed | aborted
//	             |                                                     ^
//	             +--> awaiting_approval (outcome-unknown) -- conclude --+
//	                        a denied call is settled as unknown; a granted one is made again. No model is called.

// finish adds the end to a move and commits it: the status, the error and agent.end. A run that was ending already ends
// as it was going to.
func (r *run) finish(m *move, status store.Status, cause error) error {
	first := r.rec.ending == ""
	status = cmp.Or(r.rec.ending, status)
	if first && cause != nil {
		m.row.Error, _ = message.Encode(r.e.runError(cause))
	}
	var unknown []Approval
	if status != store.Completed {
		var err error
		if unknown, err = r.close(m, status, cause); err != nil {
			return err
		}
	}
	if first && status == store.Failed {
		m.say(event.AgentError, struct {
			Error json.RawMessage `json:"error"`
		}{m.row.Error})
	}
	if len(unknown) == 0 {
		m.row.Status, m.row.Finished = status, m.at
		return r.commitEnd(m, nil)
	}
	if first {
		kept, _ := message.Encode(status)
		m.slot(store.EndingSlot, kept)
	}
	if r.reg.LLM != nil && len(r.rec.steps) > 0 {
		if last := m.latestStep(r.rec.steps[len(r.rec.steps)-1]); last.Ended == 0 {
			m.closeStep(r, last)
		}
	}
	m.row.Status = store.Awaiting
	return r.commitEnd(m, unknown)
}

// latestStep is a step as the move leaves it.
func (m *move) latestStep(s store.Step) store.Step {
	for _, changed := range m.steps {
		if changed.Number == s.Number {
			s = changed
		}
	}
	return s
}

// drive moves a run that has begun.
func (r *run) drive() error {
	if r.rec.ending != "" {
		return r.conclude()
	}
	return r.reg.driver().drive(r)
}

// conclude makes the calls that a person wants to be made again, lets children do so, and ends the run.
func (r *run) conclude() error {
	var again []store.Call
	for _, c := range r.rec.calls {
		if c.Phase == store.CallDispatching && r.isFresh(c.Index) && !requested(c) {
			again = append(again, c)
		}
	}
	if len(again) > 0 {
		if err := r.caller().dispatch(r, again); err != nil {
			return err
		}
	}
	m := r.move()
	if r.last != nil {
		m, r.last = r.last, nil
	}
	return r.finish(m, r.rec.ending, nil)
}

// canRepeat reports whether a call of a run that is ending can be made again without the agent.
func (r *run) canRepeat(c *store.Call) bool {
	if r.reg.LLM == nil || requested(*c) {
		return false
	}
	_, known := r.reg.LLM.Tools.Get(c.Name)
	return known
}

var toolless = func() *LLM {
	none, err := tool.NewSet()
	if err != nil {
		panic(err) // of no tools none is wrong
	}
	return &LLM{Tools: none}
}()

// caller is the agent that made the run's calls, or one without tools where the agent is now of another kind or gone.
func (r *run) caller() *LLM {
	if r.reg.LLM == nil {
		r.reg = &Registration{ID: r.reg.ID, LLM: toolless}
	}
	return r.reg.LLM
}

const deniedByEnd = "denied automatically, because the run ended"

// close settles what is open of a run that ends, and ends its children. It returns the approvals that remain: of calls,
// here or below, whose outcome nobody knows.
func (r *run) close(m *move, status store.Status, cause error) (unknown []Approval, err error) {
	why := deniedByEnd
	if r.aborting() != nil {
		why = deniedByAbort
	}
	for i := range r.rec.calls {
		c := r.rec.calls[i]
		if changed := m.callAt(c.Index); changed != nil {
			c = *changed
		}
		if c.Reported {
			continue
		}
		asked := slices.IndexFunc(r.rec.pending, func(a Approval) bool { return a.ToolCallID == c.ID && a.SubRunToolCallID == "" })
		switch {
		case c.Child != "" && c.Phase != store.CallDone:
			left, err := r.closeChild(m, &c, asked, status, cause, why)
			if err != nil {
				return nil, err
			}
			unknown = append(unknown, left...)
		case c.Phase == store.CallAwaiting && c.Reason == OutcomeUnknown && r.orphan():
			m.settle(&c, r.rec.place(&c), unknownOutcome(&c, serverStopped))
		case c.Phase == store.CallAwaiting && c.Reason != OutcomeUnknown, requested(c) && c.Phase == store.CallDispatching && c.Attempts == 0:
			r.refuse(m, &c, asked, why)
		case c.Phase == store.CallDispatching && !r.doubtful(m, &c):
			m.settle(&c, r.rec.place(&c), tool.Fail(c.ID, c.Name, message.AbortedCall, "The run ended before this call did.", ""))
		}
		switch c.Phase {
		case store.CallAwaiting:
			if c.Child != "" {
				break
			}
			a := r.asks(&c, r.rec.call(&c).Args, m.at)
			if asked >= 0 {
				a = r.rec.pending[asked]
			} else {
				m.sayRequested(a)
			}
			unknown = append(unknown, a)
		case store.CallDone:
			if c.Reported {
				break
			}
			if o := m.outcomeAt(r, c.Answered); o != nil {
				m.emit(toolSettled(o), c.Answered, callHead{c.ID, c.Name})
			}
			c.Reported = true
		}
		m.setCall(c)
	}
	if len(r.rec.granted) > 0 {
		m.keepGranted(nil)
	}
	return unknown, nil
}

// doubtful reports whether nobody knows what became of a call that is dispatching, and makes it wait for a person unless
// its tool wants to be reported as failed.
func (r *run) doubtful(m *move, c *store.Call) bool {
	if r.isFresh(c.Index) {
		return false // the run ends before its turn came
	}
	var spec tool.Spec
	if r.reg.LLM != nil {
		if t, ok := r.reg.LLM.Tools.Get(c.Name); ok {
			spec = t.Spec()
		}
	}
	switch {
	case spec.Repeatable():
		return false
	case requested(*c) && r.orphan():
		*c = acknowledged(*c, m.at)
	case spec.OnUnknownOutcome == tool.ReportError, r.orphan():
		m.settle(c, r.rec.place(c), unknownOutcome(c, serverStopped))
	default:
		c.Phase, c.Reason = store.CallAwaiting, OutcomeUnknown
		if requested(*c) {
			c.Attempts = 0
		}
	}
	return true
}

// orphan reports whether the run is the child of one that has ended, or is below such a child: nobody can be asked about
// its calls, since decisions are made on the root.
func (r *run) orphan() bool {
	for r.parent != nil {
		r = r.parent
	}
	return r.row.Parent != 0
}

// refuse settles a call that was not made and is not to be; asked is the index of its approval, -1 when nobody was asked.
func (r *run) refuse(m *move, c *store.Call, asked int, why string) {
	if asked >= 0 {
		m.say(event.ApprovalDenied, approvalFields{ToolCallID: c.ID, Reason: why, By: "abort"})
		m.spanApproval(r, r.rec.pending[asked], c.Step, Decided{By: "abort", Reason: why})
	}
	if requested(*c) {
		*c = acknowledged(*c, m.at) // no message asked for it, so none answers
		return
	}
	m.settle(c, r.rec.place(c), &message.Outcome{ToolCallID: c.ID, ToolName: c.Name, Kind: message.ApprovalDenied,
		Message: "Approval " + why + ".", RecoveryHint: message.ReportToUser})
	c.Reported = true
}

// closeChild ends the child of a call in a commit of its own, and settles the call, or leaves it waiting with the child.
// Should a crash come between the two, the child is found ended, or waiting to.
func (r *run) closeChild(m *move, c *store.Call, asked int, status store.Status, cause error, why string) (unknown []Approval, err error) {
	kid, err := r.childOf(c)
	if err != nil {
		return nil, err
	}
	t, _ := r.caller().callee(c)
	if kid == nil {
		if c.Phase == store.CallAwaiting {
			r.refuse(m, c, asked, why)
			return nil, nil
		}
		m.settle(c, r.rec.place(c), tool.Fail(c.ID, c.Name, message.AbortedCall, t.label()+" was not started, because the run ended.", ""))
		return nil, nil
	}
	waited := kid.row.Status == store.Awaiting
	if !kid.row.Status.Terminal() {
		if err := r.endChild(kid, status, cause); err != nil {
			return nil, err
		}
	}
	if !kid.row.Status.Terminal() {
		c.Phase = store.CallAwaiting
		r.rec.park(c.Index, &child{&kid.row, kid.rec})
		for _, a := range kid.rec.pending {
			unknown = append(unknown, a.Under(c.ID))
		}
	}
	for _, a := range r.rec.pending {
		head, _, _ := strings.Cut(a.SubRunToolCallID, "/")
		if head == c.ID && !slices.ContainsFunc(unknown, a.Same) {
			m.say(event.ApprovalDenied, approvalFields{a.ToolCallID, why, a.SubRunToolCallID, "abort"})
		}
	}
	for _, a := range unknown {
		if !slices.ContainsFunc(r.rec.pending, a.Same) {
			m.sayRequested(a)
		}
	}
	if len(unknown) > 0 {
		return unknown, nil
	}
	o := r.childOutcome(kid, t, *c, r.row.ID)
	if waited && kid.row.Status == store.Aborted {
		o.Outcome = *tool.Fail(c.ID, c.Name, message.AbortedCall, t.label()+" was aborted while it waited for an approval.", "")
		c.Reported = true
	}
	m.settle(c, r.rec.place(c), &o.Outcome)
	if b := o.Spill; b != nil {
		m.spills = append(m.spills, store.Spill{Name: b.Name, MediaType: b.MediaType, Data: b.Data})
	}
	return nil, m.fold(&kid.row)
}

// endChild ends a child as its parent ends.
func (r *run) endChild(kid *run, status store.Status, cause error) (err error) {
	if opts := r.aborting(); opts != nil {
		kid.abort = opts
		err = kid.settleAbort(kid.move(), opts)
	} else {
		err = kid.finish(kid.move(), status, cause)
	}
	if err == nil && kid.row.Status.Terminal() {
		kid.count()
	}
	return err
}

// childOf reads the child of a call that no goroutine moves; nil when it was never made.
func (r *run) childOf(c *store.Call) (*run, error) {
	k := r.rec.parked[c.Index]
	if k == nil {
		var err error
		if k, err = r.readChild(c); k == nil || err != nil {
			return nil, err
		}
	}
	return r.newChild(*k.row, k.rec, r.e.registration(k.row.Owner), c.ID), nil
}

// readChild reads the child of a call as it is on disk; nil when it was never made.
func (r *run) readChild(c *store.Call) (*child, error) {
	k := &child{}
	err := r.e.opts.Runs.Snapshot(context.WithoutCancel(r.ctx), func(tx *store.Tx) (err error) {
		if k.row, err = r.e.opts.Runs.Find(tx, c.Child); err == nil {
			k.rec, err = load(tx, r.e.opts.Runs, k.row)
		}
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	return k, err
}

// park notes the child that a call waits for.
func (rec *record) park(call int, k *child) {
	if rec.parked == nil {
		rec.parked = map[int]*child{}
	}
	rec.parked[call] = k
}

// callAt is a call as the move leaves it; nil when the move does not touch it.
func (m *move) callAt(index int) *store.Call {
	for i := range slices.Backward(m.calls) {
		if m.calls[i].Index == index {
			return &m.calls[i]
		}
	}
	return nil
}

// setCall puts a call into the move in place of an earlier form.
func (m *move) setCall(c store.Call) {
	if changed := m.callAt(c.Index); changed != nil {
		*changed = c
		return
	}
	m.calls = append(m.calls, c)
}

// outcomeAt is the outcome of a call that the move settles, or that was settled before.
func (m *move) outcomeAt(r *run, index int) *message.Outcome {
	if e := cmp.Or(m.entryAt(index), r.rec.at(index)); e != nil {
		return e.outcome
	}
	return nil
}
