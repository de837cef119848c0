package run

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/store"
)

// Decision is a person's word on a call that waits. SubRunToolCallID is that of the pending approval, for calls of child
// runs.
type Decision struct {
	ToolCallID       string
	Granted          bool
	Reason           string // passed on to the run when the call is denied
	SubRunToolCallID string
	Again            bool // a grant makes the call once more, although it may have happened already
	// Args, where there are any, are the arguments that the call is to have instead; only of a grant of one approver, and
	// only where the [Caller] allows it.
	Args json.RawMessage
	// Result, where there is one, is what a call has given of which nobody knows what became of it: a person has found out.
	// Only of a denial, and only of a call of a workflow.
	Result json.RawMessage
}

func (d *Decision) of(a journal.Approval) bool {
	return d.ToolCallID == a.ToolCallID && d.SubRunToolCallID == a.SubRunToolCallID
}

// A Verdict is a decision that counts: for good, and not as the word of one approver of several.
type Verdict struct {
	RunID      string // that the call belongs to: the run that was resumed, or a child
	ToolCallID string
	ToolName   string
	ArgsDigest string
	Granted    bool
	Reason     string
}

// fits returns why decisions cannot be applied to what the run waits for; nil when they can. Approvals of children are
// among the run's own, so this is asked of a root only.
func (r *Run) fits(decisions []Decision) error {
	matched := false
	waiting, size := []waitingCall{}, 0
	for _, a := range r.Record.Pending {
		if size += len(a.ToolCallID) + len(a.SubRunToolCallID) + len(a.ToolName); size <= maxListed {
			waiting = append(waiting, waitingCall{a.ToolCallID, a.ToolName, a.SubRunToolCallID, a.Reason})
		}
		var word *Decision
		for i := range decisions {
			if decisions[i].of(a) {
				word = &decisions[i]
			}
		}
		if word == nil {
			continue
		}
		matched = true
		if !word.Granted {
			continue
		}
		if _, err := r.Record.Shown(a); err != nil {
			r.e.alarm(r.Log(), r.Row.ID, err)
			return err
		}
		if !word.Again && a.MayHaveHappened() {
			f := fault.New(fault.OutcomeUnknown, "The call %s of %s may already have taken effect. Nothing was decided.", a.ToolCallID, a.ToolName).
				With("toolCallId", a.ToolCallID).With("toolName", a.ToolName)
			if a.SubRunToolCallID != "" {
				f.With("subRunToolCallId", a.SubRunToolCallID)
			}
			return f
		}
	}
	if matched {
		return nil
	}
	f := fault.New(fault.ApprovalNotWaiting, "None of the decisions is for a call that run %s waits for.", r.Row.ID).With("runId", r.Row.ID)
	if omitted := len(r.Record.Pending) - len(waiting); omitted > 0 {
		f.With("waitingOmitted", omitted)
	}
	return f.With("waiting", waiting)
}

// maxListed is how many bytes the ids and names of calls may have in an error. They come from models and programs.
const maxListed = 16 << 10

// A waitingCall is a call that could have been decided on.
type waitingCall struct {
	ToolCallID       string `json:"toolCallId"`
	ToolName         string `json:"toolName"`
	SubRunToolCallID string `json:"subRunToolCallId,omitempty"`
	Reason           string `json:"reason,omitempty"`
}

// A ruling is what decisions do to a run and to those of its children that they concern.
type ruling struct {
	run       *Run
	by        Decider
	step      int // in which the calls are settled
	move      *Move
	pending   []journal.Approval
	unmatched []Decision
	granted   []journal.Approval // calls that the run's program makes itself
	verdicts  []Verdict          // here and in children
	children  []*ruling
	moves     bool  // a call was decided for good, here or in a child
	votes     bool  // an approval counts, but more are needed
	refused   error // somebody may not decide so; nothing may be applied
}

// decide prepares the moves that apply decisions. Of several for one call, the last counts.
func (r *Run) decide(decisions []Decision, by Decider) *ruling {
	d := &ruling{run: r, by: by, move: r.Move()}
	m := d.move
	m.Run.Status, m.Run.Finished, m.Run.Attempt = store.Running, 0, 1
	if r.Record.Ending == "" {
		m.Run.Error = nil
	}
	m.Say(event.AgentStart, startFields{r.Row.ID, r.Row.Owner})
	if !slices.ContainsFunc(r.Record.Calls, journal.OpenRequest) { // else its program counts its steps itself
		d.step = m.Run.Step + 1
		m.Run.Step = d.step
		m.Steps = append(m.Steps, store.Step{Number: d.step, Agent: m.Run.Owner, Started: m.At, Resumed: true})
	}
	m.Done.Resumed(r.Record.Pending, "decided", r.by)
	own, below := d.sort(decisions)
	for _, a := range r.Record.Pending {
		if a.SubRunToolCallID != "" {
			continue // its child decides
		}
		c := r.Record.CallByID(a.ToolCallID)
		word, decided := own[a.ToolCallID]
		if decided && c != nil {
			if err := d.changes(a, c, &word); err != nil {
				d.refused, decided = err, false
			} else if word.Granted {
				decided = !d.vote(&a)
			}
		}
		switch {
		case c == nil:
			d.pending = append(d.pending, a)
		case !decided:
			d.wait(*c, a)
		default:
			d.rule(*c, a, word)
		}
	}
	d.descend(below)
	for _, c := range m.Calls {
		if c.Phase == store.CallDispatching && c.Step == d.step && r.Record.Parked[c.Index] == nil && !journal.Requested(c) {
			m.Say(event.ToolStart, startedFields{journal.Head(c.ID, c.Name), c.Child})
		}
	}
	// Mirrored approvals keep their places in the order of requests.
	slices.SortStableFunc(d.pending, func(a, b journal.Approval) int { return strings.Compare(a.RequestedAt, b.RequestedAt) })
	m.keep(store.PendingSlot, d.pending)
	if len(d.granted) > 0 {
		m.keep(store.GrantedSlot, append(slices.Clip(r.Record.Granted), d.granted...))
	}
	return d
}

// sort tells the decisions for the run's own calls, the last for each, from those for its children, by the id of the
// call that leads there. What waits nowhere is unmatched.
func (d *ruling) sort(decisions []Decision) (own map[string]Decision, below map[string][]Decision) {
	own, below = map[string]Decision{}, map[string][]Decision{}
	for _, word := range decisions {
		switch head, rest, _ := strings.Cut(word.SubRunToolCallID, "/"); {
		case !slices.ContainsFunc(d.run.Record.Pending, word.of):
			d.unmatched = append(d.unmatched, word)
		case head == "":
			own[word.ToolCallID] = word
		default:
			word.SubRunToolCallID = rest
			below[head] = append(below[head], word)
		}
	}
	return own, below
}

// vote counts a grant and reports whether the call waits on: more are needed, or this one is refused.
func (d *ruling) vote(a *journal.Approval) (waits bool) {
	more, err := d.by.Vote(a)
	if err != nil {
		d.refused = err
	}
	d.votes = d.votes || more
	return more || err != nil
}

// changes returns why a decision may not give a call the arguments that it does; nil when it may, or gives none. It puts
// them into their canonical form, and drops those that the call has already.
func (d *ruling) changes(a journal.Approval, c *store.Call, word *Decision) error {
	if word.Args == nil {
		return nil
	}
	refuse := func(why string) error {
		return fault.New(fault.EditRefused, "The arguments of the call %s cannot be changed: %s", c.ID, why).With("toolCallId", c.ID).With("toolName", c.Name)
	}
	switch {
	case !word.Granted:
		return refuse("a denial changes nothing.")
	case journal.Requested(*c):
		return refuse(fmt.Sprintf("the tool %s does not have approval.edit.", c.Name))
	case a.ApproversNeeded > 1:
		return refuse(fmt.Sprintf("%d approvers are needed, and each must have seen the same.", a.ApproversNeeded))
	case a.MayHaveHappened():
		return refuse("it may have happened with those that it has.")
	}
	args, err := d.run.caller().Edit(c, word.Args)
	if err != nil {
		return refuse(err.Error())
	}
	if word.Args = args; journal.ArgsDigest(args) == hex.EncodeToString(c.ArgsHash) {
		word.Args = nil
	}
	return nil
}

// wait keeps an approval waiting. Its call belongs to the new step, which ends when nothing of it waits any more.
func (d *ruling) wait(c store.Call, waiting ...journal.Approval) {
	d.pending = append(d.pending, waiting...)
	c.Step = d.step
	d.move.Calls = append(d.move.Calls, c)
}

// rule applies a final decision to a call of the run.
func (d *ruling) rule(c store.Call, a journal.Approval, word Decision) {
	r, m, known := d.run, d.move, ""
	if c.Reason == journal.OutcomeUnknown {
		if known = serverStopped; a.Previous != nil {
			known = cmp.Or(a.Previous.Known, serverStopped)
		}
	}
	ending := r.Record.Ending
	if ending != "" && word.Granted && (journal.Requested(c) || !r.caller().Known(&c)) {
		d.refused = fault.New(fault.RunEnding, "The run ends as %s, and agentd cannot make the call %s again.", ending, c.ID).
			With("runId", r.Row.ID).With("toolCallId", c.ID)
		return
	}
	if !c.Canonical && word.Granted { // an earlier version took it in; from here on it is what was granted
		c.ArgsHash, c.Canonical = journal.Digest(a.Args)
	}
	kept := journal.Decided{By: d.by.name, At: message.Millis(m.At), Granted: word.Granted, Reason: word.Reason, ArgsSHA256: hex.EncodeToString(c.ArgsHash)}
	if before := journal.ReadDecided(&c); before.Args != nil { // the call has been made with them
		kept.Args, kept.AskedSHA256 = before.Args, before.AskedSHA256
	}
	if word.Args != nil {
		kept.Args, kept.AskedSHA256 = word.Args, kept.ArgsSHA256
		c.ArgsHash, c.Canonical = journal.Digest(word.Args)
		kept.ArgsSHA256 = hex.EncodeToString(c.ArgsHash)
	}
	if a.ApproversNeeded > 1 {
		kept.GrantedBy = a.GrantedBy
	}
	c.Decision, _ = message.Encode(kept)
	m.Done.Decided(a, d.step, kept)
	c.Step = d.step
	d.moves = true
	d.verdicts = append(d.verdicts, Verdict{r.Row.ID, c.ID, c.Name, kept.ArgsSHA256, word.Granted, word.Reason})
	m.SayDecided(c.ID, "", word, d.by.name)
	switch {
	case journal.Requested(c) && ending != "":
		c = acknowledged(c, m.At) // its program is not called any more
	case journal.Requested(c): // its program learns the decision, whatever it is
		c.Phase = store.CallDispatching
		if word.Granted {
			d.granted = append(d.granted, a)
		}
	case word.Granted:
		c.Phase = store.CallDispatching
		if known == "" {
			c.Attempts = 0
		}
		c.Attempts++
	default:
		c.Reported = known == "" // else tool.execute.error shows what is known of the call
		m.settle(&c, r.Record.Place(&c), denied(&c, word.Reason, known))
	}
	m.Calls = append(m.Calls, c)
}

// SayDecided adds the event of a decision.
func (m *Move) SayDecided(callID, path string, word Decision, by string) {
	if word.Granted {
		m.Say(event.ApprovalGranted, approvalFields{ToolCallID: callID, SubRunToolCallID: path, By: by})
	} else {
		m.Say(event.ApprovalDenied, approvalFields{callID, word.Reason, path, by})
	}
}

// denied is the outcome of a call that a person refused; known is what is known of an earlier attempt, empty where there
// was none.
func denied(c *store.Call, reason, known string) *message.Outcome {
	if known != "" {
		o := unknownOutcome(c, known)
		if reason != "" {
			o.Message += " A person decided not to repeat it: " + reason
		}
		return o
	}
	text := "Approval was denied."
	if reason != "" {
		text = "Approval was denied: " + reason
	}
	return &message.Outcome{ToolCallID: c.ID, ToolName: c.Name, Kind: message.ApprovalDenied, Message: text, RecoveryHint: message.ReportToUser}
}

// descend lets the children that wait decide. A child that continues has its call dispatched again; the others wait.
func (d *ruling) descend(below map[string][]Decision) {
	r, m := d.run, d.move
	for i := range r.Record.Calls {
		c := r.Record.Calls[i]
		k := r.Record.Parked[c.Index]
		if k == nil {
			continue
		}
		words := below[c.ID]
		if len(words) == 0 {
			d.wait(c, under(k.Record.Pending, c.ID)...)
			continue
		}
		kid := r.newChild(*k.Row, k.Record, c.ID)
		if d.refused = cmp.Or(d.refused, r.unfitChild(kid, &c)); d.refused != nil {
			return
		}
		sub := kid.decide(words, d.by)
		d.refused = sub.refused
		for _, word := range words {
			what := journal.Approval{ToolCallID: word.ToolCallID, SubRunToolCallID: word.SubRunToolCallID}
			if !slices.ContainsFunc(sub.pending, what.Same) { // else more approvers are needed
				m.SayDecided(word.ToolCallID, what.Under(c.ID).SubRunToolCallID, word, d.by.name)
			}
		}
		d.moves, d.votes = d.moves || sub.moves, d.votes || sub.votes
		d.verdicts = append(d.verdicts, sub.verdicts...)
		if sub.moves || sub.votes {
			d.children = append(d.children, sub)
		}
		if sub.moves {
			c.Phase = store.CallDispatching
			c.Attempts++
		} else if sub.votes {
			sub.keepVotes()
		}
		d.wait(c, under(sub.pending, c.ID)...)
	}
}

// under lists the approvals of a child as its parent shows them.
func under(pending []journal.Approval, callID string) (list []journal.Approval) {
	for _, a := range pending {
		list = append(list, a.Under(callID))
	}
	return list
}

// unfitChild returns why a child that waits cannot continue; nil when it can.
func (r *Run) unfitChild(kid *Run, c *store.Call) error {
	if err := kid.unfit(); err != nil {
		return err
	}
	if kid.Record.Ending != "" || r.Record.Ending != "" || r.caller().Known(c) {
		return nil // with an ending, the call only has to be settled
	}
	return fault.New(fault.AgentChanged, "The agent %q no longer calls the agent %q.", r.Row.Owner, kid.Row.Owner).With("runId", kid.Row.ID)
}

// keepVotes turns a ruling that decides nothing for good into one that keeps the votes: the run continues to wait.
func (d *ruling) keepVotes() {
	m := d.run.Move()
	m.keep(store.PendingSlot, d.pending)
	d.move = m
}

// happenings are those of the moves of the run and its children.
func (d *ruling) happenings() (list []Happening) {
	for _, sub := range d.children {
		list = append(list, sub.happenings()...)
	}
	return append(list, d.run.happenings(d.move)...)
}

// apply writes the moves of the run and its children.
func (d *ruling) apply(tx *store.Tx, runs *store.Runs) error {
	for _, sub := range d.children {
		if err := sub.apply(tx, runs); err != nil {
			return err
		}
	}
	if err := d.move.encode(); err != nil {
		return err
	}
	if _, err := runs.Apply(tx, &d.move.Change); err != nil {
		return err
	}
	return d.run.e.wakeHost(tx, d.move, d.run.Row.Status)
}

// committed takes over what apply made durable. Children that continue wait for their call to be dispatched.
func (d *ruling) committed() {
	r := d.run
	for _, sub := range d.children {
		sub.committed()
		call := sub.run.Row.ParentCall
		if !sub.moves {
			r.Record.Parked[call].Row = &sub.run.Row
			continue
		}
		if r.decided == nil {
			r.decided = map[int]*Run{}
		}
		r.decided[call] = sub.run
	}
	r.committed(d.move, r.Row.N)
	for _, c := range d.move.Calls {
		if c.Phase == store.CallDispatching {
			r.fresh(c.Index)
			delete(r.Record.Parked, c.Index)
		}
	}
}
