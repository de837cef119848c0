package agent

import (
	"encoding/json"
	"slices"

	"agentd/server/event"
	"agentd/server/message"
	"agentd/store"
)

// HandoffFilter says what of a conversation an agent is given that takes it over. Whatever it says, the system prompt
// and reasoning stay behind, and so do tool calls without an outcome.
type HandoffFilter struct {
	Kind           string // last-n (the zero value), full or last-user
	N              int    // messages, for last-n; 10 when 0
	StripToolCalls bool   // leave out tool calls and their outcomes
}

const defaultLastN = 10

// apply makes the seed of a child. Messages of its own agent lose their author: they are none of what it says now.
func (f HandoffFilter) apply(msgs []message.Message, child string) []message.Message {
	out := make([]message.Message, 0, len(msgs))
	for _, m := range msgs {
		if m.Role == message.System || f.StripToolCalls && m.Role == message.Tool {
			continue
		}
		if f.StripToolCalls {
			m.ToolCalls = nil
		}
		if m.AgentID == child {
			m.AgentID = ""
		}
		if m.Content.Parts != nil {
			m.Content.Parts = slices.DeleteFunc(slices.Clone(m.Content.Parts), func(p message.Part) bool { return p.Type == "reasoning" })
		}
		if m.Role == message.Assistant && len(m.ToolCalls) == 0 && m.Content.Text == "" && len(m.Content.Parts) == 0 {
			continue
		}
		out = append(out, m)
	}
	switch f.Kind {
	case "full":
	case "last-user":
		for i, m := range slices.Backward(out) {
			if m.Role == message.User {
				out = out[i : i+1]
				break
			}
		}
	default:
		n := f.N
		if n <= 0 {
			n = defaultLastN
		}
		out = out[max(0, len(out)-n):]
	}
	return paired(out)
}

// descriptor is the filter as hand-off records tell it.
func (f HandoffFilter) descriptor() json.RawMessage {
	type step struct {
		Kind string         `json:"kind"`
		Meta map[string]any `json:"meta,omitempty"`
	}
	steps := []step{{Kind: "last-n", Meta: map[string]any{"n": defaultLastN}}}
	switch f.Kind {
	case "full", "last-user":
		steps[0] = step{Kind: f.Kind}
	default:
		if f.N > 0 {
			steps[0].Meta["n"] = f.N
		}
	}
	steps = append(steps, step{Kind: "strip-reasoning"})
	if f.StripToolCalls {
		steps = append(steps, step{Kind: "strip-tool-calls"})
	}
	b, _ := message.Encode(step{Kind: "compose", Meta: map[string]any{"steps": steps}})
	return b
}

// handoffRecord is how a hand-off is kept. Secrets are never handed over: a child has its own.
type handoffRecord struct {
	FromAgentID        string          `json:"fromAgentId"`
	ToAgentID          string          `json:"toAgentId"`
	StepNumber         int             `json:"stepNumber"`
	At                 string          `json:"at"`
	InputFilter        json.RawMessage `json:"inputFilter"`
	SecretsInheritance string          `json:"secretsInheritance"`
	InheritedSecrets   []string        `json:"inheritedSecrets"`
}

// handOver makes the agent that a hand-off goes to the current one, and records the first time it does.
func (l *loop) handOver(calls []store.Call) error {
	for _, c := range calls {
		t, ok := l.agentTool(c.Name)
		if !ok || !t.handoff {
			continue
		}
		m := l.Move()
		m.Run.Current = t.agent
		if !slices.ContainsFunc(l.Record.Handoffs, func(h store.Handoff) bool { return h.Index == c.Index }) {
			body, err := message.Encode(handoffRecord{l.Row.Owner, t.agent, c.Step, message.Millis(m.At), l.Filter.descriptor(), "isolated", []string{}})
			if err != nil {
				return err
			}
			m.Handoffs = append(m.Handoffs, store.Handoff{Index: c.Index, At: m.At, Body: body})
			m.Say(event.Handoff, struct {
				FromAgentID string `json:"fromAgentId"`
				ToAgentID   string `json:"toAgentId"`
			}{l.Row.Owner, t.agent})
		}
		return l.Commit(m)
	}
	return nil
}

// handoffs counts the calls that hand the conversation over.
func (a *LLM) handoffs(calls []message.ToolCall) int {
	n := 0
	for _, c := range calls {
		if t, ok := a.agentTool(c.Name); ok && t.handoff {
			n++
		}
	}
	return n
}
