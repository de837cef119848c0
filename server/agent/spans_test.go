package agent_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/message"
	"agentd/server/run"
	"agentd/server/span"
	"agentd/server/trace"
)

// What a run that waited for a person has left in its trace: what was done and how it went, for everybody who may see
// sanitised traces; what was said in it, for those who may see raw ones.
func TestReplayOfARun(t *testing.T) {
	register, _ := gatedAgent(t, `{"name":"a","args":{"card":"card-secret"}}`)
	r := newRig(t, func(r *rig) []agent.Registration {
		regs := register(r)
		regs[0].LLM.Instructions = "prompt-secret"
		return regs
	})
	h := r.start(run.StartRequest{Owner: "a", SessionID: "s", UserID: "user-secret", Input: json.RawMessage(`"input-secret"`)})
	res := r.wait(h)
	resume(t, r, h.ID, run.Decision{ToolCallID: res.State.PendingApprovals[0].ToolCallID, Granted: true, Reason: "reason-secret"})
	for _, raw := range []bool{false, true} {
		for _, target := range []trace.Target{{RunID: h.ID}, {SessionID: "s"}} {
			p, err := trace.New(r.db.Runs(), r.db.Sessions()).Replay(t.Context(), target, trace.Options{Raw: raw})
			if err != nil {
				t.Fatal(err)
			}
			var found []string
			byID := map[string]bool{"": true}
			for _, e := range p.Events[1 : len(p.Events)-1] {
				byID[e.Span.ID] = true
			}
			for _, e := range p.Events[1 : len(p.Events)-1] {
				if e.Type != trace.ReplaySpan || *e.Sanitized == raw {
					t.Fatalf("Replay(%v, raw %v) has the event %+v", target, raw, e)
				}
				found = append(found, e.Span.Type)
				if !byID[e.Span.ParentID] {
					t.Errorf("Replay(%v, raw %v) has not the parent %s of a span %s", target, raw, e.Span.ParentID, e.Span.Type)
				}
			}
			slices.Sort(found)
			want := []string{span.Resume, span.Run, span.Step, span.Step, span.Step, span.Suspend, span.Provider, span.Provider, span.Approval, span.Tool}
			if !slices.Equal(found, want) {
				t.Errorf("Replay(%v, raw %v) has the spans %v, want %v", target, raw, found, want)
			}
			b, _ := message.Encode(p)
			for _, part := range []string{`"tool.name":"a"`, `"model":"m"`, `"run.status":"completed"`, `"usage.promptTokens":`} {
				if !strings.Contains(string(b), part) {
					t.Errorf("Replay(%v, raw %v) lacks %s", target, raw, part)
				}
			}
			for _, part := range []string{"card-secret", "user-secret", "reason-secret", "end: did a", `"tool.result":"did a"`} {
				if strings.Contains(string(b), part) != raw {
					t.Errorf("Replay(%v, raw %v) shows %s: %v, want %v", target, raw, part, !raw, raw)
				}
			}
			if strings.Contains(string(b), "prompt-secret") {
				t.Errorf("Replay(%v, raw %v) shows the instructions", target, raw)
			}
		}
	}
	if events := r.events("a", h.ID); len(events) == 0 || events[len(events)-1].Type != event.AgentEnd {
		t.Errorf("the replays changed the run: %s", types(events))
	}
}
