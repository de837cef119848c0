package agent

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/store"
)

// Decided is how a decision is kept in the journal.
type Decided struct {
	By         string   `json:"by"` // token:<id>, anonymous, cli or expiry
	At         string   `json:"at"`
	Granted    bool     `json:"granted"`
	Reason     string   `json:"reason,omitempty"`
	ArgsSHA256 string   `json:"argsSha256"`          // of the arguments that the decision was given for: those of the call
	GrantedBy  []string `json:"grantedBy,omitempty"` // where several were needed: all who granted it, in order

	// Where the decision changed the arguments: those that it gave the call, and the digest of those that were asked for.
	Args        json.RawMessage `json:"args,omitempty"`
	AskedSHA256 string          `json:"askedSha256,omitempty"`
}

// ruling is what decisions do to a run and to those of its children that they concern.
type ruling struct {
	run       *run
	move      *move
	pending   []Approval
	unmatched []Decision
	granted   []Approval // to an agent that asked for them itself, and not acted upon
	decided   []Verdict  // for good, here and in children
	children  []*ruling
	moves     bool  // a call was decided for good, here or in a child
	votes     bool  // an approval counts, but more are needed
	refused   error // somebody may not decide so; nothing may be applied
}

// decide prepares the moves that apply decisions. Of several for one call, the last counts.
func (r *run) decide(decisions []Decision, by decider) *ruling {
	d := &ruling{run: r, move: r.move()}
	m := d.move
	m.row.Status, m.row.Finished, m.row.Attempt = store.Running, 0, 1
	if r.rec.ending == "" {
		m.row.Error = nil
	}
	m.say(event.AgentStart, startFields{r.row.ID, r.row.Owner})
	var step store.Step // of an opaque agent, no step: it counts its own
	if !slices.ContainsFunc(r.rec.calls, openRequest) {
		step = store.Step{Number: m.row.Step + 1, Agent: m.row.Owner, Started: m.at, Resumed: true}
		m.row.Step = step.Number
		m.steps = append(m.steps, step)
	}
	m.spanResumed(r, "decided")
	last, below := d.sort(decisions)
	for _, a := range r.rec.pending {
		if a.SubRunToolCallID != "" {
			continue // its child decides
		}
		c := r.rec.callByID(a.ToolCallID)
		word, ok := last[a.ToolCallID]
		if !ok || c == nil {
			d.wait(a, c, step.Number)
			continue
		}
		if err := d.changes(a, *c, &word); err != nil {
			d.refused = err
			d.wait(a, c, step.Number)
			continue
		}
		if word.Granted && d.vote(&a, by) {
			d.wait(a, c, step.Number)
			continue
		}
		d.rule(*c, a, word, by.name, step.Number)
	}
	d.descend(below, by, step.Number)
	for _, c := range m.calls {
		if c.Phase == store.CallDispatching && c.Step == step.Number && !d.isParked(c.Index) && !requested(c) {
			m.say(event.ToolStart, startedFields{callHead{c.ID, c.Name}, c.Child})
		}
	}
	// Mirrored approvals keep their places in the order of requests.
	slices.SortStableFunc(d.pending, func(a, b Approval) int { return strings.Compare(a.RequestedAt, b.RequestedAt) })
	kept, _ := message.Encode(d.pending)
	m.slot(store.PendingSlot, kept)
	if len(d.granted) > 0 {
		m.keepGranted(append(slices.Clip(r.rec.granted), d.granted...))
	}
	return d
}

func (d *ruling) isParked(call int) bool { return d.run.rec.parked[call] != nil }

// fits is why decisions cannot be applied to what the run waits for; nil when they can. Approvals of children are among
// the run's own, so this is asked of a root only.
func (r *run) fits(decisions []Decision) error {
	matched := false
	for _, a := range r.rec.pending {
		i := len(decisions) - 1
		for i >= 0 && (decisions[i].ToolCallID != a.ToolCallID || decisions[i].SubRunToolCallID != a.SubRunToolCallID) {
			i--
		}
		if i < 0 {
			continue
		}
		matched = true
		if decisions[i].Granted {
			if _, err := r.rec.shown(a); err != nil {
				r.e.alarm(r.row.ID, err)
				return err
			}
		}
		if word := decisions[i]; word.Granted && !word.Again && a.MayHaveHappened() {
			f := fault.New(fault.OutcomeUnknown, "The call %s of %s may have happened already, and nobody knows. Nothing was decided.", a.ToolCallID, a.ToolName).
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
	f := fault.New(fault.ApprovalNotWaiting, "None of the decisions is for a call that run %s waits for.", r.row.ID).With("runId", r.row.ID)
	waiting, size := []waitingCall{}, 0
	for _, a := range r.rec.pending {
		if size += len(a.ToolCallID) + len(a.SubRunToolCallID) + len(a.ToolName); size > maxListed {
			f.With("waitingOmitted", len(r.rec.pending)-len(waiting))
			break
		}
		waiting = append(waiting, waitingCall{a.ToolCallID, a.ToolName, a.SubRunToolCallID, a.Reason})
	}
	return f.With("waiting", waiting)
}

// maxListed is how many bytes the ids and names of calls may have in an error. They come from models and agents.
const maxListed = 16 << 10

// A waitingCall is a call that could have been decided on.
type waitingCall struct {
	ToolCallID       string `json:"toolCallId"`
	ToolName         string `json:"toolName"`
	SubRunToolCallID string `json:"subRunToolCallId,omitempty"`
	Reason           string `json:"reason,omitempty"`
}

// sort tells the decisions for the run's own calls, the last for each, from those for its children, by the id of the
// call that leads there. What waits nowhere is unmatched.
func (d *ruling) sort(decisions []Decision) (own map[string]Decision, below map[string][]Decision) {
	own, below = map[string]Decision{}, map[string][]Decision{}
	for _, word := range decisions {
		waits := slices.ContainsFunc(d.run.rec.pending, func(a Approval) bool {
			return a.ToolCallID == word.ToolCallID && a.SubRunToolCallID == word.SubRunToolCallID
		})
		switch head, rest, _ := strings.Cut(word.SubRunToolCallID, "/"); {
		case !waits:
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

// A decider is the principal that decides, and whom it and the others that count for a run count as.
type decider struct {
	name     string
	lineages map[string]string // by the names of principals
}

// decider finds out whom those count as that pending approvals name.
func (e *Engine) decider(ctx context.Context, name string, pending []Approval) (decider, error) {
	d := decider{name: name, lineages: map[string]string{}}
	if e.opts.Lineages == nil {
		return d, nil
	}
	names := []string{name}
	for _, a := range pending {
		names = append(append(names, a.GrantedBy...), a.NotBy)
	}
	lineages, err := e.opts.Lineages(ctx, names)
	for i, lineage := range lineages {
		d.lineages[names[i]] = lineage
	}
	return d, err
}

// is reports whether a principal counts as the one that decides.
func (d decider) is(name string) bool {
	return cmp.Or(d.lineages[name], name) == cmp.Or(d.lineages[d.name], d.name)
}

// vote counts a grant and reports whether more are needed.
func (d *ruling) vote(a *Approval, by decider) (more bool) {
	switch {
	case by.is(a.NotBy):
		d.refused = fault.New(fault.ApproverRefused, "The call %s must be granted by somebody else than %s, who started the run; %s counts as the same.",
			a.ToolCallID, a.NotBy, by.name).
			With("toolCallId", a.ToolCallID)
		return true
	case slices.ContainsFunc(a.GrantedBy, by.is):
		d.refused = fault.New(fault.ApproverRefused, "The principal %s, or one that counts as the same, has granted the call %s already; %d are needed.",
			by.name, a.ToolCallID, a.ApproversNeeded).
			With("toolCallId", a.ToolCallID)
		return true
	}
	a.GrantedBy = append(slices.Clip(a.GrantedBy), by.name)
	if len(a.GrantedBy) < a.ApproversNeeded {
		d.votes = true
		return true
	}
	return false
}

// changes is why a decision may not give a call the arguments that it does; nil when it may, or gives none. It puts them
// into their canonical form, and drops those that the call has already.
func (d *ruling) changes(a Approval, c store.Call, word *Decision) error {
	if word.Args == nil {
		return nil
	}
	llm := d.run.reg.LLM
	refuse := func(format string, args ...any) error {
		return fault.New(fault.EditRefused, "The arguments of the call %s cannot be changed: %s", c.ID, fmt.Sprintf(format, args...)).With("toolCallId", c.ID).With("toolName", c.Name)
	}
	switch {
	case !word.Granted:
		return refuse("a denial changes nothing.")
	case llm == nil || requested(c) || !llm.Policy.Tools[c.Name].Edit:
		return refuse("the tool %s does not say approval.edit.", c.Name)
	case a.ApproversNeeded > 1:
		return refuse("%d approvers are needed, and each must have seen the same.", a.ApproversNeeded)
	case a.MayHaveHappened():
		return refuse("it may have happened with those that it has.")
	}
	w := llm.judge(message.ToolCall{ID: c.ID, Name: c.Name, Args: word.Args})
	if w.refusal != nil {
		return refuse("%s", w.refusal.Message)
	}
	if word.Args = w.Args; ArgsDigest(w.Args) == hex.EncodeToString(c.ArgsHash) {
		word.Args = nil
	}
	return nil
}

// readDecided is the decision on a call; zero where there is none.
func readDecided(c *store.Call) (word Decided) {
	if c.Decision != nil {
		json.Unmarshal(c.Decision, &word) //nolint:errcheck // ours; one that is damaged changes no arguments, and bound finds others
	}
	return word
}

// wait keeps an approval waiting. Its call belongs to the new step, which ends when nothing of it waits any more.
func (d *ruling) wait(a Approval, c *store.Call, step int) {
	d.pending = append(d.pending, a)
	if c != nil {
		call := *c
		call.Step = step
		d.move.calls = append(d.move.calls, call)
	}
}

// rule applies a final decision to a call of the run.
func (d *ruling) rule(call store.Call, a Approval, word Decision, by string, step int) {
	m, known := d.move, ""
	if call.Reason == OutcomeUnknown {
		known = lastKnown(a)
	}
	ending := d.run.rec.ending
	if ending != "" && word.Granted && !d.run.canRepeat(&call) {
		d.refused = fault.New(fault.RunEnding, "The run ends as %s, and nothing is left that could make the call %s again.", ending, call.ID).
			With("runId", d.run.row.ID).With("toolCallId", call.ID)
		return
	}
	if !call.Canonical && word.Granted { // an earlier version took it in; from here on it is what was granted
		call.ArgsHash, call.Canonical = digest(a.Args)
	}
	kept := Decided{By: by, At: message.Millis(m.at), Granted: word.Granted, Reason: word.Reason, ArgsSHA256: hex.EncodeToString(call.ArgsHash)}
	if before := readDecided(&call); before.Args != nil { // the call has been made with them
		kept.Args, kept.AskedSHA256 = before.Args, before.AskedSHA256
	}
	if word.Args != nil {
		kept.Args, kept.AskedSHA256 = word.Args, kept.ArgsSHA256
		call.ArgsHash, call.Canonical = digest(word.Args)
		kept.ArgsSHA256 = hex.EncodeToString(call.ArgsHash)
	}
	if a.ApproversNeeded > 1 {
		kept.GrantedBy = a.GrantedBy
	}
	call.Decision, _ = message.Encode(kept)
	m.spanApproval(d.run, a, step, kept)
	call.Step = step
	d.moves = true
	d.decided = append(d.decided, Verdict{d.run.row.ID, call.ID, call.Name, kept.ArgsSHA256, word.Granted, word.Reason})
	if word.Granted {
		m.say(event.ApprovalGranted, approvalFields{ToolCallID: call.ID, By: by})
	} else {
		m.say(event.ApprovalDenied, approvalFields{ToolCallID: call.ID, Reason: word.Reason, By: by})
	}
	switch {
	case requested(call) && ending != "":
		call = acknowledged(call, m.at) // the agent is not called any more
	case requested(call): // the agent is told, whatever the word
		call.Phase = store.CallDispatching
		if word.Granted {
			d.granted = append(d.granted, a)
		}
	case word.Granted:
		call.Phase = store.CallDispatching
		if known == "" {
			call.Attempts = 0
		}
		call.Attempts++
	default:
		call.Reported = call.Reason != OutcomeUnknown // else tool.execute.error shows what is known of the call
		m.settle(&call, d.run.rec.place(&call), denied(&call, word.Reason, known))
	}
	m.calls = append(m.calls, call)
}

// descend lets the children that wait decide. A child that goes on has its call dispatched again; the others wait.
func (d *ruling) descend(below map[string][]Decision, by decider, step int) {
	r, m := d.run, d.move
	for i := range r.rec.calls {
		call := r.rec.calls[i]
		k := r.rec.parked[call.Index]
		if k == nil {
			continue
		}
		call.Step = step
		words := below[call.ID]
		if len(words) == 0 {
			for _, a := range k.rec.pending {
				d.pending = append(d.pending, a.Under(call.ID))
			}
			m.calls = append(m.calls, call)
			continue
		}
		reg := r.e.registration(k.row.Owner)
		kid := r.newChild(*k.row, k.rec, reg, call.ID)
		if err := r.unfitChild(kid, call); err != nil {
			d.refused = err
			return
		}
		sub := kid.decide(words, by)
		if sub.refused != nil && d.refused == nil {
			d.refused = sub.refused
		}
		for _, word := range words {
			what := Approval{ToolCallID: word.ToolCallID, SubRunToolCallID: word.SubRunToolCallID}
			path := what.Under(call.ID).SubRunToolCallID
			switch {
			case slices.ContainsFunc(sub.pending, what.Same): // more approvers are needed
			case word.Granted:
				m.say(event.ApprovalGranted, approvalFields{ToolCallID: word.ToolCallID, SubRunToolCallID: path, By: by.name})
			default:
				m.say(event.ApprovalDenied, approvalFields{word.ToolCallID, word.Reason, path, by.name})
			}
		}
		if sub.moves {
			d.moves = true
			call.Phase = store.CallDispatching
			call.Attempts++
		}
		d.votes = d.votes || sub.votes
		d.decided = append(d.decided, sub.decided...)
		if sub.moves || sub.votes {
			d.children = append(d.children, sub)
		}
		for _, a := range sub.pending {
			d.pending = append(d.pending, a.Under(call.ID))
		}
		if !sub.moves && sub.votes {
			sub.keep(kid)
		}
		m.calls = append(m.calls, call)
	}
}

// unfitChild is why a child that waits cannot go on; nil when it can.
func (r *run) unfitChild(kid *run, call store.Call) error {
	if err := kid.unfit(); err != nil {
		return err
	}
	if kid.rec.ending != "" || r.rec.ending != "" {
		return nil // the call only has to be settled
	}
	if _, ok := r.reg.LLM.agentTool(call.Name); !ok {
		return fault.New(fault.AgentChanged, "The agent %q does not call the agent %q any more.", r.row.Owner, kid.row.Owner).With("runId", kid.row.ID)
	}
	return nil
}

// keep turns a ruling that decides nothing for good into one that keeps the votes: the run goes on waiting.
func (d *ruling) keep(r *run) {
	kept, _ := message.Encode(d.pending)
	m := r.move()
	m.slot(store.PendingSlot, kept)
	d.move = m
}

// happenings are those that the moves of the run and its children tell of.
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
	_, err := runs.Apply(tx, d.move.change())
	return err
}

// committed takes over what apply made durable. Children that go on wait for their call to be dispatched.
func (d *ruling) committed(r *run) {
	for _, sub := range d.children {
		sub.committed(sub.run)
		if !sub.moves {
			r.rec.parked[sub.run.row.ParentCall].row = &sub.run.row
			continue
		}
		if r.decided == nil {
			r.decided = map[int]*run{}
		}
		r.decided[sub.run.row.ParentCall] = sub.run
	}
	r.rec.pending = d.pending
	r.committed(d.move, r.row.N)
	for _, c := range d.move.calls {
		if c.Phase == store.CallDispatching {
			r.fresh(c.Index)
			delete(r.rec.parked, c.Index)
		}
	}
}

// lastKnown is what is known of a call that may have happened.
func lastKnown(a Approval) string {
	if a.Previous != nil && a.Previous.Known != "" {
		return a.Previous.Known
	}
	return serverStopped
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
