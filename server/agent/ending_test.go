package agent_test

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/run"
	"agentd/server/tool"
	"agentd/store"
)

// payer is an agent "a" that calls pay at once, and a desk that asks it. Its model may be asked once.
func payer(t testing.TB, pay *counter, failOnRestart bool) func(*rig) []agent.Registration {
	return func(*rig) []agent.Registration {
		pays := llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"pay","args":{"n":1}}]},{"text":"told: {{lastTool}}"}]}`, pay)
		desk := llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"subagent_a","args":{"input":"x"}}]},{"text":"desk: {{lastTool}}"}]}`, agent.SubAgentTool("a", ""))
		return []agent.Registration{{ID: "a", LLM: pays, FailOnRestart: failOnRestart}, {ID: "desk", LLM: desk, FailOnRestart: failOnRestart}}
	}
}

// descends lists the statuses of a run and all below it.
func descends(r *rig, runID string) (all []store.Status) {
	r.t.Helper()
	row, err := r.engine.Find(r.t.Context(), runID)
	if err != nil {
		r.t.Fatal(err)
	}
	all = append(all, row.Status)
	kids, _, err := r.engine.List(r.t.Context(), store.RunFilter{Parent: row.N, Limit: 100})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, k := range kids {
		all = append(all, descends(r, k.RunID)...)
	}
	return all
}

func waiting(r *rig) []journal.Waiting {
	r.t.Helper()
	list, err := r.engine.Approvals(r.t.Context(), nil, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return list
}

// A run that recovery ends with a call in flight waits for a person, with its error on show, and then ends with it. The
// model is not asked again.
func TestRecoveryEndsNoUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, root := range []string{"a", "desk"} {
			for _, gone := range []bool{false, true} {
				for _, granted := range []bool{false, true} {
					pay := &counter{spec: tool.Spec{Name: "pay", Description: "d"}}
					hang(pay)
					agents := payer(t, pay, true)
					r := newRig(t, func(r *rig) []agent.Registration { return agents(r) })
					h := r.start(run.StartRequest{Owner: root, Input: json.RawMessage(`"go"`)})
					waitFor(t, func() bool { return pay.count() == 1 })
					if gone {
						agents = func(*rig) []agent.Registration { return nil }
					}
					r.crash()
					pay.succeed()
					for range 2 { // also after another restart
						list := waiting(r)
						s := r.settled(h.ID)
						if len(list) != 1 || list[0].RunID != h.ID || list[0].Reason != "outcome-unknown" || string(list[0].Args) != `{"n":1}` ||
							s.Status != store.Awaiting || s.Error == nil || s.Error.Code != "server-restarted" {
							t.Fatalf("%s gone %v: %s %+v waits for %+v, want the call that may have happened", root, gone, s.Status, s.Error, list)
						}
						if status, err := r.engine.Abort(t.Context(), h.ID, run.AbortOptions{OnPending: "hold"}); status != store.Awaiting || err != nil {
							t.Errorf("%s gone %v: Abort = %s, %v; want it to wait on", root, gone, status, err)
						}
						r.restart()
					}
					if granted && gone {
						_, _, err := r.engine.Resume(t.Context(), h.ID, decisions(r, h.ID, true), "tester", nil)
						if !fault.Is(err, fault.RunEnding) || len(waiting(r)) != 1 {
							t.Errorf("%s: a grant that nobody can carry out = %v, want run-ending", root, err)
						}
						continue
					}
					res := resume(t, r, h.ID, decisions(r, h.ID, granted)...)
					if res.Status != store.Failed || res.Error.Code != "server-restarted" || res.State.FinishedAt == "" || len(waiting(r)) != 0 {
						t.Errorf("%s gone %v granted %v: in the end %s %+v", root, gone, granted, res.Status, res.Error)
					}
					for _, status := range descends(r, h.ID) {
						if status != store.Failed {
							t.Errorf("%s gone %v granted %v: %v, want all failed", root, gone, granted, descends(r, h.ID))
						}
					}
					if want := map[bool]int{false: 1, true: 2}[granted]; pay.count() != want || granted && pay.keys[0] != pay.keys[1] {
						t.Errorf("%s gone %v granted %v: keys %q, want %d calls", root, gone, granted, pay.keys, want)
					}
					text, _ := json.Marshal(res)
					if strings.Contains(string(text), "told:") || strings.Contains(string(text), "desk:") {
						t.Errorf("%s: a model was asked after the end: %s", root, text)
					}
					if root == "a" {
						events := r.events("a", h.ID)
						end := map[bool]string{false: event.ToolError, true: event.ToolEnd}[granted]
						if !contains(events, end, "pay") {
							t.Errorf("granted %v: the events do not show what became of the call: %s", granted, types(events))
						}
					} else {
						r.checkNumbers(h.ID)
					}
					if n := r.restart(); n != 0 {
						t.Errorf("a last restart took up %d runs", n)
					}
				}
			}
		}
	})
}

// An abort does not settle what nobody knows, and everything else below it.
func TestAbortEndsNoUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for policy, end := range map[string]store.Status{"deny": store.Aborted, "hold": store.Aborted, "fail": store.Failed} {
			for _, root := range []string{"a", "desk"} {
				pay := &counter{spec: tool.Spec{Name: "pay", Description: "d"}}
				hang(pay)
				r := newRig(t, payer(t, pay, false))
				h := r.start(run.StartRequest{Owner: root, SessionID: "s", Input: json.RawMessage(`"go"`)})
				waitFor(t, func() bool { return pay.count() == 1 })
				r.crash()
				pay.succeed()
				r.settled(h.ID)
				status, err := r.engine.Abort(t.Context(), h.ID, run.AbortOptions{OnPending: policy})
				if status != store.Awaiting || err != nil || len(waiting(r)) != 1 {
					t.Errorf("%s: Abort(%s) = %s, %v with %v; want it to wait for a person", root, policy, status, err, waiting(r))
				}
				r.restart()
				res := resume(t, r, h.ID, decisions(r, h.ID, false)...)
				for _, status := range descends(r, h.ID) {
					if status != end || res.Error.Code != "run-aborted" {
						t.Errorf("%s: Abort(%s) ended as %v %+v", root, policy, descends(r, h.ID), res.Error)
					}
				}
				r.checkNumbers(h.ID)
				if next := r.wait(r.start(run.StartRequest{Owner: "a", SessionID: "s", Input: json.RawMessage(`"go"`)})); next.Status != store.Completed {
					t.Errorf("%s: the next run of the session is %s", root, next.Status)
				}
			}
		}
	})
}

// A run that recovery ends takes along its children, whether they moved or waited, and their approvals.
func TestRecoveryEndsChildren(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		look := &counter{spec: tool.Spec{Name: "look", Description: "d", SideEffect: tool.ReadOnly}}
		hang(look)
		ask := &counter{spec: tool.Spec{Name: "ask", Description: "d"}}
		waits := llm(t, `{"turns":[{"toolCalls":[{"name":"ask","args":{}}]}]}`, ask)
		waits.Policy.Tools = map[string]agent.Gate{"ask": {Always: true}}
		r := newRig(t, func(*rig) []agent.Registration {
			desk := llm(t, `{"turns":[{"toolCalls":[{"name":"subagent_moves","args":{"input":"x"}},{"name":"subagent_waits","args":{"input":"x"}}]}]}`,
				agent.SubAgentTool("moves", ""), agent.SubAgentTool("waits", ""))
			return []agent.Registration{{ID: "desk", LLM: desk, FailOnRestart: true}, {ID: "waits", LLM: waits},
				{ID: "moves", LLM: llm(t, `{"turns":[{"toolCalls":[{"name":"look","args":{}}]}]}`, look)}}
		})
		h := r.start(run.StartRequest{Owner: "desk", Input: json.RawMessage(`"go"`)})
		waitFor(t, func() bool {
			all := descends(r, h.ID)
			return look.count() == 1 && len(all) == 3 && (all[1] == store.Awaiting || all[2] == store.Awaiting)
		})
		r.crash()
		if got := descends(r, h.ID); len(got) != 3 || got[0] != store.Failed || got[1] != store.Failed || got[2] != store.Failed {
			t.Errorf("after the recovery the run and its children are %v, want all failed", got)
		}
		row, _ := r.engine.Find(t.Context(), h.ID)
		kids, _, err := r.engine.List(t.Context(), store.RunFilter{Parent: row.N, Limit: 10})
		if err != nil || len(waiting(r)) != 0 || ask.count() != 0 {
			t.Errorf("%v, approvals %v", err, waiting(r))
		}
		for _, k := range kids {
			if end := r.events(k.AgentID, k.RunID); len(end) == 0 || end[len(end)-1].Type != event.AgentEnd {
				t.Errorf("the child %s does not end with agent.end: %s", k.AgentID, types(end))
			}
			if status, err := r.engine.Abort(t.Context(), k.RunID, run.AbortOptions{}); status != store.Failed || err != nil {
				t.Errorf("Abort of the child %s = %s, %v", k.AgentID, status, err)
			}
		}
		if !contains(r.events("desk", h.ID), event.ToolError, "subagent_moves") {
			t.Error("no tool.execute.error of the call whose child was ended")
		}
	})
}
