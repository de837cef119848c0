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

// build makes the move that writes the run of a state that was checked, and those of its children. live says that a
// decision lets the run continue.
func (t *takeover) build(st *runstate.State, live bool) (*run.Adoption, error) {
	for i := range st.PendingApprovals {
		st.PendingApprovals[i].ArgsDigest = journal.ArgsDigest(st.PendingApprovals[i].Args)
	}
	l := layoutOf(st, live)
	l.orderSubRuns(st)
	if len(st.UsageByModel) == 0 {
		st.UsageByModel = nil
	}
	row := store.Run{ID: st.ID, Kind: "agent", Owner: st.AgentID, Current: st.CurrentAgentID, Session: st.SessionID, User: st.UserID,
		Status: store.Status(st.Status), Attempt: 1, Messages: l.size, Calls: len(l.journal), InputForm: "messages",
		Created: journal.Millis(st.StartedAt), Started: journal.Millis(st.StartedAt), Finished: journal.Millis(st.FinishedAt), StartedBy: t.by}
	a, err := run.NewAdoption(row, t.now, func(m *run.Move) (err error) {
		m.SetUsage(st.Usage, st.UsageByModel)
		if st.Error != nil {
			m.Run.Error, err = message.Encode(st.Error)
		}
		err = errors.Join(err, addSteps(m, st))
		t.addCalls(m, st, l)
		addMessages(m, st, l)
		return errors.Join(err, addHandoffs(m, st, l))
	})
	if err != nil {
		return nil, err
	}
	if len(st.PendingApprovals) > 0 {
		a.Keep(store.PendingSlot, st.PendingApprovals)
	}
	for i, c := range l.journal {
		if c.sub < 0 {
			continue
		}
		kid, err := t.build(&st.PendingSubRuns[c.sub].State, live)
		if err != nil {
			return nil, err
		}
		a.Park(i, kid)
	}
	now, err := t.shown(a, a.Move.At)
	if err != nil {
		return nil, err
	}
	a.Keep(store.ImportedSlot, snapshot(st, now, l.places))
	return a, a.Conclude(t.e.Engine)
}

// shown is the state that the run shows once it is written.
func (t *takeover) shown(a *run.Adoption, at int64) (*runstate.State, error) {
	row := &a.Move.Run
	res, err := agent.ResultAt(row, a.Record, journal.EndOf(row, a.Record, at))
	return &res.State, err
}

// orderSubRuns brings the child runs into the order of their calls, in which they are shown.
func (l *layout) orderSubRuns(st *runstate.State) {
	unordered := slices.Clone(st.PendingSubRuns)
	n := 0
	for i := range l.journal {
		if c := &l.journal[i]; c.sub >= 0 {
			st.PendingSubRuns[n], c.sub = unordered[c.sub], n
			n++
		}
	}
}

func addSteps(m *run.Move, st *runstate.State) error {
	for _, s := range st.Steps {
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
func (t *takeover) addCalls(m *run.Move, st *runstate.State, l *layout) {
	reg := t.e.Agents().Agent(st.AgentID) // of a run that waits, it is an agent with a model
	asked := m.Run.Step
	for _, s := range slices.Backward(st.Steps) {
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
			row.Child = st.PendingSubRuns[c.sub].State.ID
		case c.approval >= 0:
			row.Reason = st.PendingApprovals[c.approval].Reason
			if reg.LLM.Callee(c.Name) != "" {
				row.Child = id.New()
			}
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

// addMessages adds the transcript. The outcome of a call is that of a step, the latest call first: ids can repeat, and what
// comes before the run belongs to none of its steps.
func addMessages(m *run.Move, st *runstate.State, l *layout) {
	type settled struct {
		step int
		*message.Outcome
	}
	steps := map[[2]string][]settled{} // by id and tool
	for i := range st.Steps {
		s := &st.Steps[i]
		for j := range s.ToolCalls {
			c := &s.ToolCalls[j]
			key := [2]string{c.Call.ID, c.Call.Name}
			steps[key] = append(steps[key], settled{s.StepNumber, &c.Outcome})
		}
	}
	outcomes := make([]*message.Outcome, len(st.Messages))
	for i, msg := range slices.Backward(st.Messages) {
		at, answers := l.answers[i] // only tool messages do
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
	for i, msg := range st.Messages {
		m.MessageAt(l.places[i], msg, outcomes[i])
	}
}

// addHandoffs adds the hand-offs, each with the index of its call if that is known; else with one that no call has.
func addHandoffs(m *run.Move, st *runstate.State, l *layout) error {
	all := st.Handoffs
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
