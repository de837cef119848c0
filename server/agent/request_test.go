package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/run"
	"agentd/store"
)

// asker is an agent that asks for approvals. Each of its turns is told where it goes on from, "run" at first.
type asker struct {
	mu    sync.Mutex // guards told
	told  []string
	turns []turn // the last is repeated
}

type turn func(ctx context.Context, out agent.Sink) (agent.Result, error)

func (a *asker) take(ctx context.Context, told string, out agent.Sink) (agent.Result, error) {
	a.mu.Lock()
	next := a.turns[min(len(a.told), len(a.turns)-1)]
	a.told = append(a.told, told)
	a.mu.Unlock()
	return next(ctx, out)
}

func (a *asker) last() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.told) == 0 {
		return ""
	}
	return a.told[len(a.told)-1]
}

// newAsker is a rig with an agent "a" whose turns are given.
func newAsker(t testing.TB, turns ...turn) (*rig, *asker) {
	a := &asker{turns: turns}
	return newRig(t, func(*rig) []agent.Registration { return []agent.Registration{{ID: "a", Agent: a.agent("a")}} }), a
}

func (a *asker) agent(id string) agent.Agent {
	return resumeAgent{streamAgent{goAgent{id: id, stream: func(ctx context.Context, _ agent.Input, out agent.Sink) (agent.Result, error) {
		return a.take(ctx, "run", out)
	}}}, func(ctx context.Context, _ agent.Input, from agent.Resumption, out agent.Sink) (agent.Result, error) {
		return a.take(ctx, goingOn(from), out)
	}}
}

func goingOn(from agent.Resumption) string {
	told := "from " + string(from.State)
	for _, d := range from.Approvals {
		told += fmt.Sprintf(" %s=%v", d.ToolCallID, d.Granted)
		if d.Reason != "" {
			told += " (" + d.Reason + ")"
		}
	}
	return told
}

func wants(id string) agent.ApprovalRequest {
	return agent.ApprovalRequest{ToolCallID: id, ToolName: "pay", Args: json.RawMessage(`{ "to": "` + id + `<" }`), Reason: "why " + id}
}

// asks is a turn that leaves a checkpoint, unless that is empty, and asks.
func asks(state string, ids ...string) turn {
	return func(_ context.Context, out agent.Sink) (agent.Result, error) {
		if state != "" {
			if err := out.Checkpoint(json.RawMessage(state)); err != nil {
				return agent.Result{}, err
			}
		}
		for _, id := range ids {
			if err := out.RequestApproval(wants(id)); err != nil {
				return agent.Result{}, err
			}
		}
		return agent.Result{}, nil
	}
}

// stuck is a turn that does what another does and then does not end.
func stuck(do turn) turn {
	return func(ctx context.Context, out agent.Sink) (agent.Result, error) {
		if do != nil {
			if _, err := do(ctx, out); err != nil {
				return agent.Result{}, err
			}
		}
		<-ctx.Done()
		return agent.Result{}, ctx.Err()
	}
}

func answers(output string) turn {
	return func(context.Context, agent.Sink) (agent.Result, error) { return agent.Result{Output: output}, nil }
}

func grant(id string) run.Decision { return run.Decision{ToolCallID: id, Granted: true} }
func again(id string) run.Decision {
	return run.Decision{ToolCallID: id, Granted: true, Again: true}
}
func deny(id, why string) run.Decision {
	return run.Decision{ToolCallID: id, Reason: why}
}

func waitingFor(list []journal.Approval) string {
	var out []string
	for _, a := range list {
		out = append(out, fmt.Sprintf("%s %s %s %s", a.ToolCallID, a.ToolName, a.Args, a.Reason))
	}
	return strings.Join(out, ", ")
}

func TestAgentAsksForApprovals(t *testing.T) {
	r, a := newAsker(t, asks(`{"at":1}`, "c1", "c2"), asks("", "c3"), answers("done"))
	res, events := r.run("a", "go")
	id := res.State.ID
	const first, second = `c1 pay {"to":"c1<"} why c1`, `c2 pay {"to":"c2<"} why c2`
	if got := waitingFor(res.State.PendingApprovals); res.Status != store.Awaiting || got != first+", "+second || res.State.FinishedAt != "" {
		t.Fatalf("parked: %s with %s, %+v; want it to wait for both", res.Status, got, res.Error)
	}
	if got, want := types(events), "agent.start tool.approval.requested tool.approval.requested agent.end"; got != want || !contains(events, event.ApprovalRequested, `"why c2"`) {
		t.Errorf("events = %s, want %s", got, want)
	}
	if len(res.State.Messages) != 1 || len(res.State.Steps) != 0 {
		t.Errorf("the parked run has messages %+v and steps %+v, want the input alone", res.State.Messages, res.State.Steps)
	}
	if n := r.restart(); n != 0 {
		t.Errorf("a restart took up %d runs, want the parked one left alone", n)
	}
	list, err := r.engine.Approvals(t.Context(), nil, nil)
	if err != nil || len(list) != 2 || list[0].RunID != id || len(list[0].ArgsDigest) != 64 {
		t.Errorf("Approvals = %+v, %v; want both", list, err)
	}

	// One of two: the run waits on, and the agent is not called.
	res = resume(t, r, id, grant("c1"))
	if got := waitingFor(res.State.PendingApprovals); res.Status != store.Awaiting || got != second || len(a.told) != 1 {
		t.Fatalf("after one of two decisions: %s with %s, agent told %q", res.Status, got, a.told)
	}
	if got, want := types(r.events("a", id)), "agent.start tool.approval.granted agent.end"; got != want {
		t.Errorf("events of one decision = %s, want %s", got, want)
	}
	r.restart()
	if _, _, err := r.engine.Resume(t.Context(), id, []run.Decision{grant("c1"), grant("other")}, "", nil); !fault.Is(err, fault.ApprovalNotWaiting) {
		t.Errorf("Resume with decisions for nothing = %v, want approval-not-waiting", err)
	}
	res = resume(t, r, id, deny("c2", "no"))
	if got := waitingFor(res.State.PendingApprovals); a.last() != `from {"at":1} c1=true c2=false (no)` || res.Status != store.Awaiting || got != `c3 pay {"to":"c3<"} why c3` {
		t.Fatalf("after both decisions: told %q, %s with %s", a.last(), res.Status, got)
	}
	if got, want := types(r.events("a", id)), "agent.start tool.approval.denied tool.approval.requested agent.end"; got != want {
		t.Errorf("events of the other decision = %s, want %s", got, want)
	}

	// What it was told counts as acted upon, since it has asked again.
	r.restart()
	res = resume(t, r, id, grant("c3"))
	if a.last() != `from {"at":1} c3=true` || res.Status != store.Completed || string(res.Output) != `"done"` {
		t.Errorf("in the end: told %q, %s %s %+v", a.last(), res.Status, res.Output, res.Error)
	}
	var calls []store.Call
	row, err := r.engine.Find(t.Context(), id)
	if err == nil {
		err = r.db.Runs().View(t.Context(), func(tx *store.Tx) (err error) {
			calls, err = r.db.Runs().Calls(tx, row.N)
			return err
		})
	}
	if err != nil || len(calls) != 3 {
		t.Fatalf("the journal has %d calls, %v; want 3", len(calls), err)
	}
	for i, c := range calls {
		var d journal.Decided
		if err := json.Unmarshal(c.Decision, &d); err != nil || c.Phase != store.CallDone || d.By != "tester" || d.At == "" || d.Granted != (i != 1) ||
			i < 2 && d.ArgsSHA256 != list[i].ArgsDigest {
			t.Errorf("journal of %s: %s %s, %v", c.ID, c.Phase, c.Decision, err)
		}
	}
}

func TestRequestsThatCannotBeMade(t *testing.T) {
	after := func(do ...func(agent.Sink) error) turn {
		return func(_ context.Context, out agent.Sink) (agent.Result, error) {
			for _, f := range do {
				if err := f(out); err != nil {
					return agent.Result{}, err
				}
			}
			return agent.Result{}, nil
		}
	}
	ask := func(q agent.ApprovalRequest) func(agent.Sink) error {
		return func(out agent.Sink) error { return out.RequestApproval(q) }
	}
	with := func(edit func(q *agent.ApprovalRequest)) func(agent.Sink) error {
		q := wants("c")
		edit(&q)
		return ask(q)
	}
	many := func(n int) func(agent.Sink) error {
		return func(out agent.Sink) (err error) {
			for i := range n {
				err = errors.Join(err, out.RequestApproval(wants(fmt.Sprint(i))))
			}
			return err
		}
	}
	large := func(q *agent.ApprovalRequest) {
		q.Args = json.RawMessage(`"` + strings.Repeat("x", 1<<20-2-len(q.Reason)) + `"`)
	}
	for _, tc := range []struct {
		name string
		turn turn
		says string // empty: it can be made
	}{
		{"the largest", after(with(large)), ""},
		{"as many as can be", after(many(100)), ""},
		{"no id", after(with(func(q *agent.ApprovalRequest) { q.ToolCallID = "" })), "The id of a call has 1 to 256 bytes"},
		{"a long id", after(with(func(q *agent.ApprovalRequest) { q.ToolCallID = strings.Repeat("i", 257) })), "The id of a call has 1 to 256 bytes"},
		{"an id that is no text", after(with(func(q *agent.ApprovalRequest) { q.ToolCallID = "\xff" })), "is not UTF-8"},
		{"no name", after(with(func(q *agent.ApprovalRequest) { q.ToolName = "" })), `in the call "c" does not have 1 to 256 bytes`},
		{"arguments that are no JSON", after(with(func(q *agent.ApprovalRequest) { q.Args = json.RawMessage("{") })), `arguments of the call "c" are not JSON`},
		{"too large", after(with(func(q *agent.ApprovalRequest) { large(q); q.Reason += "!" })), "more than 1048576 bytes"},
		{"too large together", after(ask(wants("b")), with(large)), "more than 1048576 bytes"},
		{"the same id again", after(ask(wants("c")), ask(wants("c"))), `already asked for a call with the id "c"`},
		{"the same id behind a checkpoint", after(ask(wants("c")), func(out agent.Sink) error { return out.Checkpoint(json.RawMessage("1")) }, ask(wants("c"))), `already asked for a call with the id "c"`},
		{"too many", after(many(101)), "100 approvals already wait"},
		{"an answer", func(ctx context.Context, out agent.Sink) (agent.Result, error) {
			return agent.Result{Output: "x"}, out.RequestApproval(wants("c"))
		}, "answered although"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, _ := newAsker(t, tc.turn)
			res, _ := r.run("a", "")
			switch {
			case tc.says == "" && res.Status != store.Awaiting:
				t.Errorf("the run is %s %+v, want it to wait", res.Status, res.Error)
			case tc.says != "" && (res.Status != store.Failed || res.Error.Code != "agent-protocol" || !strings.Contains(res.Error.Message, tc.says)):
				t.Errorf("the run is %s %+v, want agent-protocol that says %q", res.Status, res.Error, tc.says)
			}
			if tc.says != "" && len(res.State.PendingApprovals) != 0 {
				t.Errorf("the failed run waits for %s", waitingFor(res.State.PendingApprovals))
			}
		})
	}
	t.Run("an id that was decided", func(t *testing.T) {
		r, _ := newAsker(t, asks("", "c"), asks("2", "c"))
		res, _ := r.run("a", "")
		if res = resume(t, r, res.State.ID, grant("c")); res.Error == nil || !strings.Contains(res.Error.Message, `already asked for a call with the id "c"`) {
			t.Errorf("the run is %s %+v, want agent-protocol", res.Status, res.Error)
		}
	})
	t.Run("an agent without Resume", func(t *testing.T) {
		r := newRig(t, func(*rig) []agent.Registration {
			return []agent.Registration{{ID: "a", Agent: streamAgent{goAgent{id: "a", stream: func(ctx context.Context, _ agent.Input, out agent.Sink) (agent.Result, error) {
				return asks("1", "c")(ctx, out)
			}}}}}
		})
		if res, _ := r.run("a", ""); res.Error == nil || res.Error.Code != "agent-protocol" || !strings.Contains(res.Error.Message, "cannot resume") {
			t.Errorf("the run is %s %+v, want agent-protocol", res.Status, res.Error)
		}
	})
}

func TestAbortOfARunThatAsked(t *testing.T) {
	for _, tc := range []struct {
		policy string
		status store.Status
		waits  string
		types  string
	}{
		{"deny", store.Aborted, "", "agent.cancelling tool.approval.denied agent.end"},
		{"hold", store.Aborted, `d pay {"to":"d<"} why d`, "agent.cancelling agent.end"},
		{"fail", store.Failed, "", "agent.cancelling tool.approval.denied agent.error agent.end"},
	} {
		t.Run(tc.policy, func(t *testing.T) {
			r, a := newAsker(t, asks("1", "c", "d"), answers("x"))
			res, _ := r.run("a", "")
			id := res.State.ID
			resume(t, r, id, grant("c"))
			r.restart()
			if status, err := r.engine.Abort(t.Context(), id, run.AbortOptions{OnPending: tc.policy}); status != tc.status || err != nil {
				t.Errorf("Abort(%s) = %s, %v; want %s", tc.policy, status, err, tc.status)
			}
			s := r.settled(id)
			if got := waitingFor(s.PendingApprovals); got != tc.waits || len(s.State.Messages) != 1 {
				t.Errorf("after Abort(%s) the run waits for %q with messages %+v, want %q", tc.policy, got, s.State.Messages, tc.waits)
			}
			if got := types(r.events("a", id)); got != tc.types {
				t.Errorf("events = %s, want %s", got, tc.types)
			}
			if tc.policy == "hold" {
				if res = resume(t, r, id, deny("d", "no")); res.Status != store.Completed || a.last() != "from 1 c=true d=false (no)" {
					t.Errorf("after the decision on what was held: %s %+v, told %q", res.Status, res.Error, a.last())
				}
			}
		})
	}
}

// TestSubAgentAsks: the approvals of an opaque child show up at its parent.
func TestSubAgentAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, interrupted := range []bool{false, true} {
			a := &asker{turns: []turn{asks("1", "c", "d"), answers("paid")}}
			if interrupted {
				a.turns = []turn{a.turns[0], stuck(nil), a.turns[1]}
			}
			l := llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"subagent_a","args":{"input":"pay"}}]},{"text":"end: {{lastTool}}"}]}`, agent.SubAgentTool("a", ""))
			r := newRig(t, func(*rig) []agent.Registration {
				return []agent.Registration{{ID: "boss", LLM: l}, {ID: "a", Agent: a.agent("a")}}
			})
			res, _ := r.run("boss", "go")
			id := res.State.ID
			decide := func(on ...string) {
				t.Helper()
				s := r.settled(id)
				if s.Status != store.Awaiting {
					t.Fatalf("the run is %s %+v, want it to wait", s.Status, s.Error)
				}
				var words []run.Decision
				for _, p := range s.PendingApprovals {
					for _, c := range on {
						if p.ToolCallID == c && p.SubRunToolCallID != "" {
							words = append(words, run.Decision{ToolCallID: c, SubRunToolCallID: p.SubRunToolCallID, Granted: true, Again: p.MayHaveHappened()})
						}
					}
				}
				if _, unmatched, err := r.engine.Resume(t.Context(), id, words, "tester", nil); err != nil || len(unmatched) > 0 || len(words) != len(on) {
					t.Fatalf("Resume(%v) = %v unmatched, %v; pending %+v", words, unmatched, err, s.PendingApprovals)
				}
			}
			decide("d")
			decide("c")
			if interrupted {
				waitFor(t, func() bool { return a.last() == "from 1 c=true d=true" })
				r.restart()
				decide("c", "d")
			}
			s := r.settled(id)
			if last := s.State.Messages[len(s.State.Messages)-1]; s.Status != store.Completed || last.Content.String() != "end: paid" || a.last() != "from 1 c=true d=true" {
				t.Errorf("interrupted %v: %s %+v %+v, told %q", interrupted, s.Status, s.Error, last, a.told)
			}
			r.checkNumbers(id)
		}
	})
}

func TestAskingAfterTheRunHasGoneOn(t *testing.T) {
	var sink agent.Sink
	r, _ := newAsker(t, func(_ context.Context, out agent.Sink) (agent.Result, error) {
		sink = out
		return agent.Result{}, nil
	})
	r.run("a", "")
	if err := sink.RequestApproval(wants("c")); err == nil || fault.Is(err, fault.AgentProtocol) {
		t.Errorf("RequestApproval after the end = %v, want an error that is not the agent's", err)
	}
}
