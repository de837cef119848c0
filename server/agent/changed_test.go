package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/provider"
	"agentd/server/run"
	"agentd/server/tool"
	"agentd/store"
)

// kinds are what can be registered under an id, by name. All of them that can answer "done" at once. The LLM and the
// resumer pay first, after an approval each.
func kinds(t testing.TB, id string, pay *counter) map[string][]agent.Registration {
	done := func(context.Context, agent.Input, agent.Sink) (agent.Result, error) {
		return agent.Result{Output: "done"}, nil
	}
	gated := llm(t, `{"turns":[{"when":{"lastTool":"."},"text":"done"},{"toolCalls":[{"name":"pay","args":{}}]}]}`, pay)
	gated.Policy.Tools = map[string]agent.Gate{"pay": {Always: true}}
	toolless := llm(t, `{"turns":[{"text":"done"}]}`)
	toolless.Tools = nil
	asks := resumeAgent{streamAgent{goAgent{id: id, stream: func(_ context.Context, _ agent.Input, out agent.Sink) (agent.Result, error) {
		return agent.Result{}, out.RequestApproval(wants("c"))
	}}}, func(ctx context.Context, _ agent.Input, from agent.Resumption, _ agent.Sink) (agent.Result, error) {
		for _, d := range from.Approvals {
			if d.Granted {
				pay.Execute(ctx, tool.Call{}) //nolint:errcheck // it counts
			}
		}
		return agent.Result{Output: "done"}, nil
	}}
	return map[string][]agent.Registration{
		"llm":          {{ID: id, LLM: gated}},
		"toolless llm": {{ID: id, LLM: toolless}},
		"plain":        {{ID: id, Agent: goAgent{id: id, run: func(ctx context.Context, in agent.Input) (agent.Result, error) { return done(ctx, in, nil) }}}},
		"streamer":     {{ID: id, Agent: streamAgent{goAgent{id: id, stream: done}}}},
		"resumer":      {{ID: id, Agent: asks}},
		"gone":         {},
	}
}

// changing is a rig whose agents are those that the pointer leads to when it is opened.
func changing(t testing.TB, now *[]agent.Registration) *rig {
	return newRig(t, func(*rig) []agent.Registration { return *now })
}

// become restarts the rig with other agents.
func (r *rig) become(now *[]agent.Registration, next []agent.Registration) {
	*now = next
	r.restart()
}

func decisions(r *rig, runID string, granted bool) []run.Decision {
	r.t.Helper()
	s, err := r.engine.Snapshot(r.t.Context(), runID)
	if err != nil || len(s.PendingApprovals) == 0 {
		r.t.Fatalf("Snapshot(%s) = %v, %v; want approvals", runID, s.PendingApprovals, err)
	}
	var list []run.Decision
	for _, a := range s.PendingApprovals {
		list = append(list, run.Decision{ToolCallID: a.ToolCallID, SubRunToolCallID: a.SubRunToolCallID, Granted: granted, Again: granted})
	}
	return list
}

// A run that waits goes on only with an agent that can go on from what the run has left. With any other, the decision
// is refused and the run waits as before, until it is aborted or the agent is put back.
func TestAgentThatChangesUnderAParkedRun(t *testing.T) {
	for _, maker := range []string{"llm", "resumer"} {
		for next, want := range map[string]*fault.Kind{"llm": fault.AgentChanged, "toolless llm": fault.AgentChanged, "plain": fault.AgentChanged,
			"streamer": fault.AgentChanged, "resumer": fault.AgentChanged, "gone": fault.AgentNotFound} {
			if next == maker || next == "toolless llm" && maker == "llm" {
				want = nil
			}
			for _, held := range []bool{false, true} {
				name := maker + " to " + next
				if held {
					name += ", held"
				}
				t.Run(name, func(t *testing.T) {
					pay := &counter{spec: tool.Spec{Name: "pay", Description: "d"}}
					all := kinds(t, "a", pay)
					now := all[maker]
					r := changing(t, &now)
					res, _ := r.run("a", "go")
					id, status := res.State.ID, store.Awaiting
					if held {
						status = store.Aborted
						if _, err := r.engine.Abort(t.Context(), id, run.AbortOptions{OnPending: "hold"}); err != nil {
							t.Fatal(err)
						}
					}
					r.become(&now, all[next])
					for _, granted := range []bool{true, false} {
						if want == nil {
							break
						}
						before, err := r.engine.Snapshot(t.Context(), id)
						if err != nil {
							t.Fatal(err)
						}
						h, _, err := r.engine.Resume(t.Context(), id, decisions(r, id, granted), "", nil)
						if h != nil || !fault.Is(err, want) {
							t.Fatalf("Resume(granted %v) = %v, %v; want %s", granted, h, err, want.Code)
						}
						after, err := r.engine.Snapshot(t.Context(), id)
						if a, b := encode(t, before), encode(t, after); err != nil || a != b || after.Status != status {
							t.Fatalf("after the refusal:\n got %s, %v\nwant %s", b, err, a)
						}
					}
					if want != nil {
						r.become(&now, all[maker])
					}
					res = resume(t, r, id, decisions(r, id, true)...)
					paid := 1
					if next == "toolless llm" && want == nil {
						paid = 0
					}
					if res.Status != store.Completed || string(res.Output) != `"done"` || pay.count() != paid {
						t.Errorf("resumed: %s %s %+v with %d payments, want done and %d", res.Status, res.Output, res.Error, pay.count(), paid)
					}
					r.events("a", id)
				})
			}
		}
	}
}

// An abort needs nothing of the agent.
func TestAbortOfAParkedRunWhoseAgentChanged(t *testing.T) {
	for _, maker := range []string{"llm", "resumer"} {
		for next := range kinds(t, "a", &counter{spec: tool.Spec{Name: "pay"}}) {
			pay := &counter{spec: tool.Spec{Name: "pay", Description: "d"}}
			all := kinds(t, "a", pay)
			now := all[maker]
			r := changing(t, &now)
			res, _ := r.run("a", "go")
			r.become(&now, all[next])
			if status, err := r.engine.Abort(t.Context(), res.State.ID, run.AbortOptions{}); status != store.Aborted || err != nil || pay.count() != 0 {
				t.Errorf("%s to %s: Abort = %s, %v with %d payments", maker, next, status, err, pay.count())
			}
		}
	}
}

// subAgent is an agent "desk" that asks the agent "a"; without knows, it does not know that agent any more.
func subAgent(t testing.TB, knows bool, other ...agent.Registration) []agent.Registration {
	var tools []tool.Tool
	if knows {
		tools = append(tools, agent.SubAgentTool("a", ""))
	}
	desk := llm(t, `{"turns":[{"when":{"lastTool":"."},"text":"desk: {{lastTool}}"},{"toolCalls":[{"name":"subagent_a","args":{"input":"x"}}]}]}`, tools...)
	return append([]agent.Registration{{ID: "desk", LLM: desk}}, other...)
}

// The same holds for the agents of child runs, whether their parent still knows them or not.
func TestSubAgentThatChangesUnderAParkedRun(t *testing.T) {
	for _, maker := range []string{"llm", "resumer"} {
		for next, want := range map[string]*fault.Kind{"llm": fault.AgentChanged, "plain": fault.AgentChanged, "streamer": fault.AgentChanged,
			"resumer": fault.AgentChanged, "gone": fault.AgentNotFound} {
			for _, knows := range []bool{true, false} {
				name := maker + " to " + next
				if next == maker && knows {
					continue
				}
				if !knows {
					name += ", unknown to its parent"
				}
				t.Run(name, func(t *testing.T) {
					pay := &counter{spec: tool.Spec{Name: "pay", Description: "d"}}
					all := kinds(t, "a", pay)
					now := subAgent(t, true, all[maker]...)
					r := changing(t, &now)
					res, _ := r.run("desk", "go")
					id := res.State.ID
					r.become(&now, subAgent(t, knows, all[next]...))
					if h, _, err := r.engine.Resume(t.Context(), id, decisions(r, id, true), "", nil); h != nil || !fault.Is(err, want) {
						t.Fatalf("Resume = %v, %v; want %s", h, err, want.Code)
					}
					if s, err := r.engine.Snapshot(t.Context(), id); err != nil || s.Status != store.Awaiting || len(s.State.PendingSubRuns) != 1 {
						t.Fatalf("after the refusal: %s, %v; want it to wait as before", s.Status, err)
					}
					r.become(&now, subAgent(t, true, all[maker]...))
					res = resume(t, r, id, decisions(r, id, true)...)
					if res.Status != store.Completed || string(res.Output) != `"desk: done"` || pay.count() != 1 {
						t.Errorf("resumed: %s %s %+v with %d payments", res.Status, res.Output, res.Error, pay.count())
					}
				})
			}
		}
	}
}

// mute is a provider that tells when it is asked, and does not answer.
type mute func()

func (mute) Name() string { return "mute" }

func (m mute) Stream(ctx context.Context, _ *provider.Request, _ func(provider.Delta)) (*provider.Response, error) {
	m()
	<-ctx.Done()
	return nil, ctx.Err()
}

// interrupted are runs of the agent "a" that are under way, by the kind of the agent and what it has done. Each tells
// when it has.
func interrupted(t testing.TB, reached func()) map[string][]agent.Registration {
	slow := &counter{spec: tool.Spec{Name: "pay", Description: "d", Idempotent: true}}
	slow.execute = func(ctx context.Context, _ tool.Call) (tool.Result, error) {
		reached()
		<-ctx.Done()
		return tool.Result{}, ctx.Err()
	}
	calling := llm(t, `{"turns":[{"when":{"lastTool":"."},"text":"done"},{"toolCalls":[{"name":"pay","args":{}}]}]}`, slow)
	asking := llm(t, `{"turns":[{"text":"x"}]}`)
	asking.Models[0].Provider = mute(reached)
	after := func(do func(agent.Sink) error) []agent.Registration {
		return []agent.Registration{{ID: "a", Agent: resumeAgent{streamAgent{goAgent{id: "a", stream: func(ctx context.Context, _ agent.Input, out agent.Sink) (agent.Result, error) {
			if err := do(out); err != nil {
				return agent.Result{}, err
			}
			reached()
			<-ctx.Done()
			return agent.Result{}, ctx.Err()
		}}}, nil}}}
	}
	steps := func(out agent.Sink) error {
		<-time.After(5 * time.Millisecond) // no program tells of its first step within the millisecond in which it is started
		for _, ev := range []event.Event{
			event.New(event.StepStart, map[string]any{"stepNumber": 1}), event.New(event.StepEnd, map[string]any{"stepNumber": 1}),
			event.New(event.TextComplete, map[string]any{"text": "half"}), event.New(event.StepStart, map[string]any{"stepNumber": 2}),
		} {
			if err := out.Emit(ev); err != nil {
				return err
			}
		}
		return nil
	}
	checkpoint := func(out agent.Sink) error { return out.Checkpoint(json.RawMessage(`1`)) }
	return map[string][]agent.Registration{
		"llm in a model call":  {{ID: "a", LLM: asking}},
		"llm in a tool":        {{ID: "a", LLM: calling}},
		"nothing yet":          after(func(agent.Sink) error { return nil }),
		"steps":                after(steps),
		"checkpoint":           after(checkpoint),
		"checkpoint and steps": after(func(out agent.Sink) error { return errors.Join(steps(out), checkpoint(out)) }),
		"request":              after(func(out agent.Sink) error { return errors.Join(out.RequestApproval(wants("c")), checkpoint(out)) }),
	}
}

// A restart takes up only what the agent can go on from, as it is registered then. All else ends as failed, and so
// does what no agent may call any more, once a person has settled what nobody knows.
func TestAgentThatChangesUnderARunningRun(t *testing.T) {
	goesOn := map[string][]string{
		"llm in a model call":  {"llm", "toolless llm"},
		"llm in a tool":        {"llm", "toolless llm"},
		"checkpoint":           {"resumer"},
		"checkpoint and steps": {"resumer"},
		"request":              {"resumer"},
	}
	for maker := range interrupted(t, nil) {
		for next := range kinds(t, "a", &counter{spec: tool.Spec{Name: "pay"}}) {
			for _, family := range []string{"", ", of a child", ", of a child that its parent does not know any more"} {
				t.Run(maker+" to "+next+family, func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						reached := make(chan struct{}, 1)
						now := interrupted(t, func() { reached <- struct{}{} })[maker]
						then := kinds(t, "a", &counter{spec: tool.Spec{Name: "pay", Description: "d"}})[next]
						root := "a"
						if family != "" {
							root, now, then = "desk", subAgent(t, true, now...), subAgent(t, !strings.HasSuffix(family, "any more"), then...)
						}
						r := changing(t, &now)
						h := r.start(run.StartRequest{Owner: root})
						<-reached
						id := h.ID
						if family != "" {
							kids, _, err := r.engine.List(t.Context(), store.RunFilter{Parent: h.Number, Limit: 1})
							if err != nil || len(kids) != 1 {
								t.Fatalf("List = %v, %v; want the child", kids, err)
							}
							id = kids[0].RunID
						}
						now = then
						r.crash()
						rootSaid := r.settled(h.ID)
						s, err := r.engine.Snapshot(t.Context(), id)
						if err != nil {
							t.Fatal(err)
						}
						on := slices.Contains(goesOn[maker], next) && !strings.HasSuffix(family, "any more")
						if maker == "llm in a tool" && !on { // the call may have had its effect, so a person settles it first
							if rootSaid.Status != store.Awaiting || s.Status != store.Awaiting || s.Error == nil || rootSaid.PendingApprovals[0].Reason != "outcome-unknown" {
								t.Errorf("the run is %s %+v and its root %s, want both to wait for a person", s.Status, s.Error, rootSaid.Status)
							}
							resume(t, r, h.ID, decisions(r, h.ID, false)...)
							rootSaid = r.settled(h.ID)
							s, _ = r.engine.Snapshot(t.Context(), id)
						}
						switch {
						case on && s.Status != store.Completed && s.Status != store.Awaiting:
							t.Errorf("the run is %s %+v, want it to go on", s.Status, s.Error)
						case !on && (s.Status != store.Failed || s.Error.Code != "server-restarted"):
							t.Errorf("the run is %s %+v, want failed: server-restarted", s.Status, s.Error)
						case family != "" && rootSaid.Status != store.Completed && rootSaid.Status != s.Status:
							t.Errorf("its parent is %s %+v, want it to have gone on", rootSaid.Status, rootSaid.Error)
						}
					})
				})
			}
		}
	}
}
