package agent

import (
	"cmp"
	"slices"

	"agentd/server/message"
	"agentd/server/runstate"
	"agentd/server/transcript"
	"agentd/store"
)

// build makes the move that writes the run of a state that was checked, and those of its children. parent is nil for a
// root.
func (t *takeover) build(st *runstate.State, parent *newcomer) (*newcomer, error) {
	live := suspended(st)
	if parent != nil {
		live = parent.live
	}
	orderSubRuns(st)
	l := layoutOf(st, live)
	if len(st.UsageByModel) == 0 {
		st.UsageByModel = nil
	}
	row := store.Run{ID: st.ID, Kind: "agent", Owner: st.AgentID, Current: st.CurrentAgentID, Session: st.SessionID, User: st.UserID,
		Status: store.Status(st.Status), Attempt: 1, Messages: l.size, Calls: len(l.journal), InputForm: "messages", Usage: zeroUsage, Models: noModels,
		Created: millis(st.StartedAt), Started: millis(st.StartedAt), Finished: millis(st.FinishedAt), StartedBy: t.by}
	n := &newcomer{run: t.e.newRun(row, &record{}, t.e.registration(st.AgentID)), st: st, live: live}
	n.move = n.run.move()
	m := n.move
	m.at = t.at
	var err error
	if m.row.Usage, err = message.Encode(st.Usage); err != nil {
		return nil, err
	}
	if st.UsageByModel != nil {
		if m.row.Models, err = message.Encode(st.UsageByModel); err != nil {
			return nil, err
		}
	}
	if st.Error != nil {
		if m.row.Error, err = message.Encode(st.Error); err != nil {
			return nil, err
		}
	}
	if err := n.addSteps(); err != nil {
		return nil, err
	}
	n.addCalls(l)
	n.addMessages(l)
	if err := n.addHandoffs(l); err != nil {
		return nil, err
	}
	n.after = n.rec.after(m)
	n.after.pending = st.PendingApprovals
	if len(st.PendingApprovals) > 0 {
		kept, err := message.Encode(st.PendingApprovals)
		if err != nil {
			return nil, err
		}
		m.slot(store.PendingSlot, kept)
	}
	if err := t.buildKids(n, l); err != nil {
		return nil, err
	}
	return n, n.keep(l)
}

// orderSubRuns brings the child runs into the order of their calls, in which they are shown.
func orderSubRuns(st *runstate.State) {
	rank := map[string]int{}
	for i, c := range layoutOf(st, false).journal {
		if c.sub >= 0 {
			rank[c.ID] = i
		}
	}
	slices.SortStableFunc(st.PendingSubRuns, func(a, b runstate.SubRun) int { return rank[a.ToolCallID] - rank[b.ToolCallID] })
}

func (n *newcomer) addSteps() error {
	for _, s := range n.st.Steps {
		row := store.Step{Number: s.StepNumber, Agent: s.AgentID, Started: millis(s.StartedAt), Ended: millis(s.EndedAt)}
		if s.ProviderResponse != nil {
			row.Model = s.ProviderResponse.ModelID
		}
		if s.Usage != nil {
			var err error
			if row.Usage, err = message.Encode(s.Usage); err != nil {
				return err
			}
		}
		n.move.steps = append(n.move.steps, row)
		n.move.row.Step = s.StepNumber
	}
	return nil
}

// addCalls adds the journal. Calls without an outcome were asked for in the last step that called a model: one that
// only made calls that were allowed has no usage.
func (n *newcomer) addCalls(l *layout) {
	m := n.move
	asked := m.row.Step
	for _, s := range slices.Backward(n.st.Steps) {
		if s.Usage != nil {
			asked = s.StepNumber
			break
		}
	}
	for i := range l.journal {
		c := &l.journal[i]
		hash, canonical := digest(c.Args)
		row := store.Call{Index: i, ID: c.ID, Name: c.Name, Phase: store.CallDone, ArgsHash: hash, Canonical: canonical, Asked: l.places[c.asked], Answered: -1,
			Attempts: 1, Claimed: m.at, Settled: m.at, Reported: true}
		switch {
		case c.sub >= 0:
			row.Child = n.st.PendingSubRuns[c.sub].State.ID
		case c.approval >= 0:
			row.Reason, row.Child = n.st.PendingApprovals[c.approval].Reason, n.reg.LLM.childID(c.Name)
		default:
			row.Answered = l.places[c.answered]
		}
		if c.waits() {
			row.Phase, row.Step, row.Origin, row.Settled, row.Reported = store.CallAwaiting, m.row.Step, asked, 0, false
			if row.Reason != OutcomeUnknown {
				row.Attempts = 0
			}
		}
		m.calls = append(m.calls, row)
	}
}

// addMessages adds the transcript. The outcome of a call is the one that a step tells, the latest call first: ids can
// repeat, and what comes before the run belongs to none of its steps.
func (n *newcomer) addMessages(l *layout) {
	m := n.move
	type told struct {
		step int
		*message.Outcome
	}
	steps := map[[2]string][]told{} // by id and tool
	for i := range n.st.Steps {
		s := &n.st.Steps[i]
		for j := range s.ToolCalls {
			c := &s.ToolCalls[j]
			key := [2]string{c.Call.ID, c.Call.Name}
			steps[key] = append(steps[key], told{s.StepNumber, &c.Outcome})
		}
	}
	outcomes := make([]*message.Outcome, len(n.st.Messages))
	for i, msg := range slices.Backward(n.st.Messages) {
		if msg.Role != message.Tool {
			continue
		}
		at, answers := l.answers[i]
		if !answers {
			outcomes[i] = transcript.Outcome(msg, "")
			continue
		}
		row := &m.calls[at]
		key := [2]string{row.ID, row.Name}
		if known := steps[key]; len(known) > 0 {
			last := known[len(known)-1]
			steps[key] = known[:len(known)-1]
			row.Step, row.Origin = last.step, last.step
			outcomes[i] = new(*last.Outcome)
			outcomes[i].ToolCallID = msg.ToolCallID
		} else {
			outcomes[i] = transcript.Outcome(msg, row.Name)
		}
	}
	for i, msg := range n.st.Messages {
		if o := outcomes[i]; o != nil {
			m.told(l.places[i], msg, o)
		} else {
			m.messageAt(l.places[i], msg, nil)
		}
	}
}

// addHandoffs adds the hand-offs, each with the index of the call that it was where that can be told; else with one that
// no call has.
func (n *newcomer) addHandoffs(l *layout) error {
	all := n.st.Handoffs
	next, at := 0, int64(0)
	for i, h := range all {
		body, err := message.Encode(h)
		if err != nil {
			return err
		}
		at = max(at, min(cmp.Or(millis(h.At), n.move.row.Created), n.move.at)) // they are shown in the order of their times
		row := store.Handoff{Index: maxRowIndex - len(all) + i, At: at, Body: body}
		for j := next; j < len(l.journal); j++ {
			if l.journal[j].Name == handoffPrefix+h.ToAgentID {
				row.Index = j
				break
			}
		}
		next = row.Index + 1
		n.move.handoffs = append(n.move.handoffs, row)
	}
	return nil
}

// maxRowIndex is the greatest index of a row of a run; see the migrations of the store.
const maxRowIndex = 1<<24 - 1

// buildKids builds the children that wait in calls of a run.
func (t *takeover) buildKids(n *newcomer, l *layout) error {
	for i, c := range l.journal {
		if c.sub < 0 {
			continue
		}
		kid, err := t.build(&n.st.PendingSubRuns[c.sub].State, n)
		if err != nil {
			return err
		}
		kid.move.row.ParentCall = i
		n.kids = append(n.kids, kid)
		if n.after.parked == nil {
			n.after.parked = map[int]*child{}
		}
		n.after.parked[i] = &child{&kid.move.row, kid.after}
	}
	return nil
}

// keep keeps what no row holds, and tells how the run stands.
func (n *newcomer) keep(l *layout) error {
	m := n.move
	now, err := result(&m.row, n.after, ending(&m.row, n.after, m.at))
	if err != nil {
		return err
	}
	n.after.imported = keepsake(n.st, &now.State, l.places)
	kept, err := message.Encode(n.after.imported)
	if err != nil {
		return err
	}
	m.slot(store.ImportedSlot, kept)
	return m.conclude(n.after)
}
