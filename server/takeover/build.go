package takeover

import (
	"cmp"
	"errors"
	"slices"

	"agentd/server/agent"
	"agentd/server/id"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/run"
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
	for i := range st.PendingApprovals {
		st.PendingApprovals[i].ArgsDigest = journal.ArgsDigest(st.PendingApprovals[i].Args)
	}
	l := layoutOf(st, live)
	if len(st.UsageByModel) == 0 {
		st.UsageByModel = nil
	}
	row := store.Run{ID: st.ID, Kind: "agent", Owner: st.AgentID, Current: st.CurrentAgentID, Session: st.SessionID, User: st.UserID,
		Status: store.Status(st.Status), Attempt: 1, Messages: l.size, Calls: len(l.journal), InputForm: "messages",
		Created: journal.Millis(st.StartedAt), Started: journal.Millis(st.StartedAt), Finished: journal.Millis(st.FinishedAt), StartedBy: t.by}
	n := &newcomer{st: st, reg: t.e.Agents().Agent(st.AgentID), live: live}
	var err error
	n.Adoption, err = run.NewAdoption(row, t.at, func(m *run.Move) error {
		m.SetUsage(st.Usage, st.UsageByModel)
		if st.Error != nil {
			m.Run.Error, err = message.Encode(st.Error)
		}
		err = errors.Join(err, n.addSteps(m))
		n.addCalls(m, l)
		n.addMessages(m, l)
		return errors.Join(err, n.addHandoffs(m, l))
	})
	if err != nil {
		return nil, err
	}
	if len(st.PendingApprovals) > 0 {
		n.Keep(store.PendingSlot, st.PendingApprovals)
	}
	if err := t.buildKids(n, l); err != nil {
		return nil, err
	}
	return n, n.keep(t, l)
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

func (n *newcomer) addSteps(m *run.Move) error {
	for _, s := range n.st.Steps {
		row := store.Step{Number: s.StepNumber, Agent: s.AgentID, Started: journal.Millis(s.StartedAt), Ended: journal.Millis(s.EndedAt)}
		if s.ProviderResponse != nil {
			row.Model = s.ProviderResponse.ModelID
		}
		if s.Usage != nil {
			var err error
			if row.Usage, err = message.Encode(s.Usage); err != nil {
				return err
			}
		}
		m.Steps = append(m.Steps, row)
		m.Run.Step = s.StepNumber
	}
	return nil
}

// addCalls adds the journal. Calls without an outcome were asked for in the last step that called a model: one that
// only made calls that were allowed has no usage.
func (n *newcomer) addCalls(m *run.Move, l *layout) {
	asked := m.Run.Step
	for _, s := range slices.Backward(n.st.Steps) {
		if s.Usage != nil {
			asked = s.StepNumber
			break
		}
	}
	for i := range l.journal {
		c := &l.journal[i]
		hash, canonical := journal.Digest(c.Args)
		row := store.Call{Index: i, ID: c.ID, Name: c.Name, Phase: store.CallDone, ArgsHash: hash, Canonical: canonical, Asked: l.places[c.asked], Answered: -1,
			Attempts: 1, Claimed: m.At, Settled: m.At, Reported: true}
		switch {
		case c.sub >= 0:
			row.Child = n.st.PendingSubRuns[c.sub].State.ID
		case c.approval >= 0:
			row.Reason, row.Child = n.st.PendingApprovals[c.approval].Reason, childID(n.reg.LLM, c.Name)
		default:
			row.Answered = l.places[c.answered]
		}
		if c.waits() {
			row.Phase, row.Step, row.Origin, row.Settled, row.Reported = store.CallAwaiting, m.Run.Step, asked, 0, false
			if row.Reason != journal.OutcomeUnknown {
				row.Attempts = 0
			}
		}
		m.Calls = append(m.Calls, row)
	}
}

// addMessages adds the transcript. The outcome of a call is the one that a step tells, the latest call first: ids can
// repeat, and what comes before the run belongs to none of its steps.
func (n *newcomer) addMessages(m *run.Move, l *layout) {
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
		row := &m.Calls[at]
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
		m.MessageAt(l.places[i], msg, outcomes[i])
	}
}

// childID is the id of the run that a waiting call will be; empty where it is none.
func childID(a *agent.LLM, name string) string {
	if a.Callee(name) == "" {
		return ""
	}
	return id.New()
}

// addHandoffs adds the hand-offs, each with the index of the call that it was where that can be told; else with one that
// no call has.
func (n *newcomer) addHandoffs(m *run.Move, l *layout) error {
	all := n.st.Handoffs
	next, at := 0, int64(0)
	for i, h := range all {
		body, err := message.Encode(h)
		if err != nil {
			return err
		}
		at = max(at, min(cmp.Or(journal.Millis(h.At), m.Run.Created), m.At)) // they are shown in the order of their times
		row := store.Handoff{Index: maxRowIndex - len(all) + i, At: at, Body: body}
		for j := next; j < len(l.journal); j++ {
			if l.journal[j].Name == agent.HandoffPrefix+h.ToAgentID {
				row.Index = j
				break
			}
		}
		next = row.Index + 1
		m.Handoffs = append(m.Handoffs, row)
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
		n.Park(i, kid.Adoption)
	}
	return nil
}

// keep stores what no row holds, and reports how the run stands.
func (n *newcomer) keep(t *takeover, l *layout) error {
	row := &n.Move.Run
	now, err := agent.ResultAt(row, n.Record, journal.EndOf(row, n.Record, n.Move.At))
	if err != nil {
		return err
	}
	n.Keep(store.ImportedSlot, snapshot(n.st, &now.State, l.places))
	return n.Conclude(t.e.Engine)
}
