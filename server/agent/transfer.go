package agent

import (
	"encoding/json"
	"fmt"
	"slices"

	"agentd/server/event"
	"agentd/server/id"
	"agentd/server/message"
	"agentd/store"
)

// A hand-off in transfer mode gives the conversation away. The run ends with the answer of the agent that has it, and
// keeps the path to that agent, at each level the part below. The session takes over the path of the root. The next run
// of the same agent there follows it: it begins with the call that the model would make, and the child that it makes
// follows the rest of the path.
//
//	run 1   desk: transfer_to_clerk --> clerk answers        session: desk -> [clerk]
//	run 2   desk: (follows) --> clerk: transfer_to_desk --> desk answers    session: desk -> []

// holders sets the agents below the run's to which the conversation is given.
func (m *move) holders(path []string) {
	kept, _ := message.Encode(path)
	m.slot(store.HoldersSlot, kept)
}

// follow begins a run with the call that leads to the agent which holds the conversation. Its message has no text, and its
// step no model. Where there is no such call any more, the conversation is back.
func (a *LLM) follow(r *run, step store.Step) error {
	to := r.rec.holders[0]
	w := a.judge(message.ToolCall{ID: id.New(), Name: handoffPrefix + to, Args: json.RawMessage("{}")})
	m := r.move()
	if t, ok := a.agentTool(w.Name); !ok || !t.spec.Final || w.refusal != nil {
		r.e.log.Warn("an agent answers itself, because it does not give its conversation to the other any more", "run", r.row.ID, "agent", r.row.Owner, "other", to)
		m.gives = true
		m.holders(nil)
		return r.commit(m)
	}
	index := m.message(message.Message{Role: message.Assistant, AgentID: r.row.Owner, ToolCalls: []message.ToolCall{w.ToolCall}})
	m.say(event.ToolCallStart, callHead{w.ID, w.Name})
	m.emit(toolCallEnd(w.ToolCall), index, callHead{ToolCallID: w.ID})
	return a.claim(r, m, step, index, []wish{w})
}

// A gift is what became of a conversation that was given away.
type gift struct {
	output json.RawMessage
	text   string   // the output as a message tells it
	path   []string // from the agent that it was given to
	holder string   // the last of those: it answered
}

// given finds out whether the latest calls, all of which are through, have given the conversation away; nil: they have not.
// A run that goes on after an approval told of some of them before.
func (a *LLM) given(r *run, m *move) (*gift, error) {
	for i := range slices.Backward(r.rec.calls) {
		c := r.rec.calls[i]
		if changed := m.callAt(c.Index); changed != nil {
			c = *changed
		}
		if c.Asked != r.rec.calls[len(r.rec.calls)-1].Asked {
			break
		}
		t, known := a.Tools.Get(c.Name)
		if !known || !t.Spec().Final || c.Phase != store.CallDone {
			continue
		}
		o := m.outcomeAt(r, c.Answered)
		if o == nil || o.Failed() {
			continue
		}
		g := &gift{output: o.Output, holder: c.Name[len(handoffPrefix):]} // where the call was replayed
		if k, err := r.readChild(&c); err != nil {
			return nil, fmt.Errorf("%w: %w", errLeft, err)
		} else if k != nil {
			kid := r.newChild(*k.row, k.rec, r.e.registration(k.row.Owner), c.ID)
			kid.cancel(nil)
			g.output, g.holder = kid.output(), k.row.Current
			g.path = append(g.path, k.row.Owner)
			g.path = append(g.path, k.rec.holders...)
		}
		if json.Unmarshal(g.output, &g.text) != nil {
			g.text = string(g.output)
		}
		return g, nil
	}
	return nil, nil
}

// say adds the answer to the transcript, as the word of the agent that gave it.
func (g *gift) say(m *move) {
	index := m.message(message.Message{Role: message.Assistant, AgentID: g.holder, Content: message.Text(g.text)})
	if g.text != "" {
		m.emit(textComplete(g.text), index, struct{}{})
	}
}

// end ends the run with the answer. It has the form that this agent's answers have.
func (a *LLM) end(r *run, m *move, g *gift) error {
	if a.Output != nil {
		var err error
		if g.output, err = a.Output.parse(g.text); err != nil {
			return r.finish(m, store.Failed, err)
		}
	}
	m.slot(store.OutputSlot, g.output)
	m.row.Current, m.gives = g.holder, true
	m.holders(direct(r.row.Owner, g.path))
	return r.finish(m, store.Completed, nil)
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
