package event_test

import (
	"encoding/json"
	"strings"
	"testing"

	"agentd/server/event"
	"agentd/server/fuzztest"
)

func TestReduced(t *testing.T) {
	nest := func(payload string) string {
		return `{"type":"subagent.event","toolCallId":"c","agentName":"a","event":` + payload + `}`
	}
	const (
		asked = `{"type":"tool.approval.requested","toolCallId":"c","toolName":"pay","args":{"to":"ann"}}`
		told  = `{"type":"tool.approval.requested","toolCallId":"c","toolName":"pay"}`
		end   = `{"type":"agent.end","runId":"r","result":{"output":"x","usage":{"totalTokens":1},"status":"failed","error":{"code":"c"},"state":{"messages":["m"],"pendingApprovals":[{"toolCallId":"c","toolName":"pay","args":{"to":"ann"}}]}}}`
		ended = `{"type":"agent.end","runId":"r","result":{"output":"x","usage":{"totalTokens":1},"status":"failed","error":{"code":"c"},"pendingApprovals":[{"toolCallId":"c","toolName":"pay"}]}}`
	)
	deep := asked
	for range 20 {
		deep = nest(deep)
	}
	for payload, want := range map[string]string{
		`{"type":"text.delta","delta":"x"}`: `{"type":"text.delta","delta":"x"}`,
		asked:                               told,
		end:                                 ended,
		nest(asked):                         nest(told),
		nest(nest(end)):                     nest(nest(ended)),
		`{"type":"agent.end","result":{"state":7}}`:                       `{"type":"agent.end"}`,
		`{"type":"subagent.event","event":7}`:                             `{"type":"subagent.event"}`,
		`{"type":"agent.end","result":{"status":"completed","usage":{}}}`: `{"type":"agent.end","runId":"","result":{"usage":{},"status":"completed","pendingApprovals":[]}}`,
	} {
		var typ struct{ Type string }
		if err := json.Unmarshal([]byte(payload), &typ); err != nil {
			t.Fatal(err)
		}
		if got := string(event.Reduced(typ.Type, json.RawMessage(payload))); got != want {
			t.Errorf("Reduced(%s) =\n%s, want\n%s", payload, got, want)
		}
	}
	if got := string(event.Reduced(event.SubagentEvent, json.RawMessage(deep))); strings.Contains(got, "ann") {
		t.Errorf("Reduced(an event 20 deep) = %s, want nothing of it", got)
	}
}

// FuzzReduced: whatever an event is, its reduced form is JSON, and an end has no state.
func FuzzReduced(f *testing.F) {
	f.Add([]byte(`{"type":"tool.approval.requested","args":{"a":"zzsecret"}}`))
	f.Add([]byte(`{"type":"agent.end","result":{"state":{"messages":["zzsecret"]}}}`))
	f.Add([]byte(`{"type":"subagent.event","event":{"type":"tool.approval.requested","args":"zzsecret"}}`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		ev, err := event.Parse(payload)
		if err != nil {
			return
		}
		fuzztest.Cost{PerByte: 100 * 17, Base: 64 << 10}.Check(t, len(payload), func() { event.Reduced(ev.Type, ev.Payload) })
		got := event.Reduced(ev.Type, ev.Payload)
		var doc struct {
			Result struct{ State json.RawMessage }
		}
		if !json.Valid(got) {
			t.Fatalf("Reduced(%q) = %q, want JSON", payload, got)
		}
		json.Unmarshal(got, &doc) //nolint:errcheck // then it has none
		if ev.Type == event.AgentEnd && doc.Result.State != nil {
			t.Errorf("Reduced(%q) = %q, want no state", payload, got)
		}
	})
}
