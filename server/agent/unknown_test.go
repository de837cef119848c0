package agent_test

import (
	"fmt"
	"testing"

	"agentd/server/agent"
	"agentd/server/fault"
	"agentd/server/tool"
	"agentd/store"
)

// TestUnknownOutcomeNeedsLeave interrupts a call and grants it: alone, beside another one, and in a child. A grant must
// say that the call may be made again; one that does not changes nothing.
func TestUnknownOutcomeNeedsLeave(t *testing.T) {
	for _, tc := range []struct {
		name string
		make func(pay *counter) func(*rig) []agent.Registration
	}{
		{"own", func(pay *counter) func(*rig) []agent.Registration {
			return single(llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"pay","args":{}}]},{"text":"end: {{lastTool}}"}]}`, pay))
		}},
		{"a child's", func(pay *counter) func(*rig) []agent.Registration {
			return func(*rig) []agent.Registration {
				return []agent.Registration{
					{ID: "a", LLM: llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"subagent_b","args":{"input":"x"}}]},{"text":"end: {{lastTool}}"}]}`, agent.SubAgentTool("b", ""))},
					{ID: "b", LLM: llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"pay","args":{}}]},{"text":"end: {{lastTool}}"}]}`, pay)}}
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pay := &counter{spec: tool.Spec{Name: "pay", Description: "d"}}
			hang(pay)
			r := newRig(t, tc.make(pay))
			h := r.start(agent.StartRequest{AgentID: "a"})
			waitFor(t, func() bool { return pay.count() == 1 })
			pay.execute = nil
			r.restart()
			s := r.settled(h.ID)
			if len(s.PendingApprovals) != 1 || !s.PendingApprovals[0].MayHaveHappened() {
				t.Fatalf("after the restart %s waits for %+v, want one call of unknown outcome", s.Status, s.PendingApprovals)
			}
			p := s.PendingApprovals[0]
			word := agent.Decision{ToolCallID: p.ToolCallID, SubRunToolCallID: p.SubRunToolCallID, Granted: true}
			leave := word
			leave.Again = true
			for _, decisions := range [][]agent.Decision{{word}, {leave, word}, {word, {ToolCallID: "other", Granted: true}}} { // of several for one call, the last counts
				_, _, err := r.engine.Resume(t.Context(), h.ID, decisions, "tester")
				if f := fault.Of(err); !fault.Is(err, fault.OutcomeUnknown) || fmt.Sprint(f.Extra["toolCallId"]) != p.ToolCallID {
					t.Errorf("Resume(%+v) = %v, want outcome-unknown of %s", decisions, err, p.ToolCallID)
				}
			}
			if now := r.settled(h.ID); now.Status != store.Awaiting || now.StepNumber != s.StepNumber || pay.count() != 1 {
				t.Errorf("after refused grants: %s in step %d with %d calls, want nothing changed", now.Status, now.StepNumber, pay.count())
			}
			if res := resume(t, r, h.ID, leave); res.Status != store.Completed || pay.count() != 2 {
				t.Errorf("after leave was given: %s %+v with %d calls, want completed with two", res.Status, res.Error, pay.count())
			}
		})
	}
}
