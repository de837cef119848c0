package run

import (
	"slices"
	"strings"
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
