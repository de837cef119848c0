package external

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/message"
	"agentd/server/secret"
)

// A hider takes known secrets out of the events that a program reports: out of the deltas of one type together, wherever
// the text is cut, and out of every other event.
type hider struct {
	agent.Sink
	known *secret.Redactor
	flows map[string]*secret.Flow // by type of delta
}

func newHider(out agent.Sink, known *secret.Redactor) *hider {
	return &hider{out, known, map[string]*secret.Flow{}}
}

func (h *hider) Emit(ev event.Event) error {
	switch ev.Type {
	case event.TextDelta, event.ReasoningDelta:
		return h.delta(ev)
	case event.TextComplete, event.StepEnd:
		if err := h.flush(); err != nil {
			return err
		}
	}
	ev.Payload = hideJSON(h.known, ev.Payload)
	return h.Sink.Emit(ev)
}

func (h *hider) delta(ev event.Event) error {
	var body struct{ Delta *string }
	if json.Unmarshal(ev.Payload, &body) != nil || body.Delta == nil {
		ev.Payload = hideJSON(h.known, ev.Payload)
		return h.Sink.Emit(ev)
	}
	flow := h.flows[ev.Type]
	if flow == nil {
		flow = h.known.Flow()
		h.flows[ev.Type] = flow
	}
	switch shown := flow.Push(*body.Delta); {
	case shown == *body.Delta:
	case shown == "":
		return nil
	default:
		ev = event.New(ev.Type, map[string]string{"delta": shown})
	}
	return h.Sink.Emit(ev)
}

// flush reports the part of the deltas that is held back.
func (h *hider) flush() error {
	for _, typ := range slices.Sorted(maps.Keys(h.flows)) {
		if rest := h.flows[typ].Rest(true); rest != "" {
			if err := h.Sink.Emit(event.New(typ, map[string]string{"delta": rest})); err != nil {
				return err
			}
		}
	}
	return nil
}

// hideJSON takes known secrets out of the texts of a JSON document. A number that is a secret becomes a text.
func hideJSON(known *secret.Redactor, raw json.RawMessage) json.RawMessage {
	if known.Text(string(raw)) == string(raw) {
		return raw
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return json.RawMessage("null")
	}
	hidden, err := message.Encode(hideIn(known, v))
	if err != nil {
		return json.RawMessage("null")
	}
	return hidden
}

func hideIn(known *secret.Redactor, v any) any {
	switch v := v.(type) {
	case string:
		return known.Text(v)
	case json.Number:
		if text := known.Text(v.String()); text != v.String() {
			return text
		}
	case []any:
		for i := range v {
			v[i] = hideIn(known, v[i])
		}
	case map[string]any:
		all := make(map[string]any, len(v))
		for name, value := range v {
			all[known.Text(name)] = hideIn(known, value)
		}
		return all
	}
	return v
}
