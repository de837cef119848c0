package agent

import (
	"encoding/json"
	"fmt"
	"slices"

	"agentd/server/event"
	"agentd/server/id"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/run"
	"agentd/store"
)

// A hand-off in transfer mode gives the conversation away. The run ends with the answer of the agent that has it, and
// keeps the path to that agent, at each level the part below. The session takes over the path of the root. The next run
// of the same agent there follows it: it begins with the call that the model would make, and the child that it makes
// follows the rest of the path.
//
//	run 1   desk: transfer_to_clerk --> clerk answers        session: desk -> [clerk]
//	run 2   desk: (follows) --> clerk: transfer_to_desk --> desk answers    session: desk -> []

// holders are the agents below the run's to which the conversation is given.
func holders(rec *journal.Record) (path []string) {
	if kept := rec.Slots[store.HoldersSlot]; kept != nil {
		json.Unmarshal(kept, &path) //nolint:errcheck // ours
	}
	return path
}

func setHolders(m *run.Move, path []string) {
	kept, _ := message.Encode(path)
	m.Slot(store.HoldersSlot, kept)
}

// hold makes the session of a root take over the holders of its conversation, with the move.
func (l *loop) hold(m *run.Move, path []string) {
	setHolders(m, path)
	if row := l.Row; row.Parent == 0 && row.Session != "" {
		m.Also(func(tx *store.Tx) error { return l.Sessions().Hold(tx, row.Session, row.Owner, path) })
	}
}

// follow begins a run with the call that leads to the agent which holds the conversation. Its message has no text, and its
// step no model. Where there is no such call any more, the conversation is back.
func (l *loop) follow(step store.Step) error {
	to := holders(l.Record)[0]
	w := l.Judge(message.ToolCall{ID: id.New(), Name: HandoffPrefix + to, Args: json.RawMessage("{}")})
	m := l.Move()
	if t, ok := l.agentTool(w.Name); !ok || !t.spec.Final || w.Refusal != nil {
		l.Log().Warn("an agent answers itself, because it no longer gives its conversation to the other agent", "run", l.Row.ID, "agent", l.Row.Owner, "other", to)
		l.hold(m, nil)
		return l.Commit(m)
	}
	index := m.Message(message.Message{Role: message.Assistant, AgentID: l.Row.Owner, ToolCalls: []message.ToolCall{w.ToolCall}})
	m.Say(event.ToolCallStart, journal.Head(w.ID, w.Name))
	m.Emit(toolCallEnd(w.ToolCall), index, journal.Head(w.ID, ""))
	return l.claim(m, step, index, []run.Wish{w})
}

// A gift is what became of a conversation that was given away.
type gift struct {
	output json.RawMessage
	text   string   // the output as a message shows it
	path   []string // from the agent that it was given to
	holder string   // the last of those: it answered
}

// given finds out whether the latest calls, all of which are through, have given the conversation away; nil: they have not.
// A run that continues after an approval has reported some of them before.
func (l *loop) given(m *run.Move) (*gift, error) {
	calls := l.Record.Calls
	for _, c := range slices.Backward(calls) {
		if c = m.Call(c); c.Asked != calls[len(calls)-1].Asked {
			break
		}
		t, known := l.Tools.Get(c.Name)
		if !known || !t.Spec().Final || c.Phase != store.CallDone {
			continue
		}
		o := m.Outcome(l.Run, &c)
		if o == nil || o.Failed() {
			continue
		}
		g := &gift{output: o.Output, holder: c.Name[len(HandoffPrefix):]} // where the call was replayed
		if k, err := l.ChildOf(&c); err != nil {
			return nil, fmt.Errorf("%w: %w", run.ErrLeft, err)
		} else if k != nil {
			g.output, g.holder = journal.Output(k.Row, k.Record), k.Row.Current
			g.path = append([]string{k.Row.Owner}, holders(k.Record)...)
		}
		if json.Unmarshal(g.output, &g.text) != nil {
			g.text = string(g.output)
		}
		return g, nil
	}
	return nil, nil
}

// say adds the answer to the transcript, as the word of the agent that gave it.
func (g *gift) say(m *run.Move) {
	index := m.Message(message.Message{Role: message.Assistant, AgentID: g.holder, Content: message.Text(g.text)})
	if g.text != "" {
		m.Emit(textComplete(g.text), index, struct{}{})
	}
}

// give ends the run with the answer of the agent that has the conversation. It has the form that this agent's answers have.
func (l *loop) give(m *run.Move, g *gift) error {
	if l.Output != nil {
		var err error
		if g.output, err = l.Output.parse(g.text); err != nil {
			return l.End(m, store.Failed, err)
		}
	}
	m.Slot(store.OutputSlot, g.output)
	m.Run.Current = g.holder
	l.hold(m, direct(l.Row.Owner, g.path))
	return l.End(m, store.Completed, nil)
}

// direct leaves out of a path of agents what leads back to where it has been: whoever is given a conversation back holds it.
func direct(owner string, path []string) []string {
	var out []string
	for _, agent := range path {
		if agent == owner {
			out = nil
			continue
		}
		if i := slices.Index(out, agent); i >= 0 {
			out = out[:i]
		}
		out = append(out, agent)
	}
	return out
}
