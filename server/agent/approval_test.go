package agent_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/server/journal"
	"agentd/server/run"
	"agentd/server/tool"
	"agentd/store"
)

// gatedAgent asks for two calls at once: a needs approval, b does not; c needs it too when n is 3.
func gatedAgent(t testing.TB, calls string) (func(*rig) []agent.Registration, map[string]*counter) {
	list, byName := tools("a", "b", "c")
	l := llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[`+calls+`]},{"when":{"step":1},"text":"end: {{lastTool}}"}]}`, list...)
	l.Policy.Tools = map[string]agent.Gate{"a": {Always: true}, "c": {When: json.RawMessage(`{"n":3}`)}}
	return single(l), byName
}

func resume(t testing.TB, r *rig, runID string, decisions ...run.Decision) agent.RunResult {
	t.Helper()
	h, unmatched, err := r.engine.Resume(t.Context(), runID, decisions, "tester", nil)
	if err != nil || len(unmatched) > 0 {
		t.Fatalf("Resume(%v) = %v unmatched, %v", decisions, unmatched, err)
	}
	return r.wait(h)
}

func TestApprovalAfterARestart(t *testing.T) {
	make, count := gatedAgent(t, `{"name":"a","args":{"x":1}},{"name":"b","args":{}}`)
	r := newRig(t, make)
	res, events := r.run("a", "go")
	id := res.State.ID
	want := "agent.start step.start tool.call.start tool.call.delta* tool.call.start tool.call.delta* tool.call.end tool.call.end " +
		"tool.execute.start tool.execute.start tool.approval.requested tool.execute.end agent.end"
	if got := types(events); got != want {
		t.Errorf("events:\n got %s\nwant %s", got, want)
	}
	if res.Status != store.Awaiting || len(res.State.PendingApprovals) != 1 || count["a"].count() != 0 || count["b"].count() != 1 || res.State.FinishedAt != "" {
		t.Fatalf("parked: %s %+v, executions %d and %d", res.Status, res.State.PendingApprovals, count["a"].count(), count["b"].count())
	}
	if res.State.Steps[0].EndedAt == "" {
		t.Error("the step that parked the run has no end")
	}
	if n := r.restart(); n != 0 {
		t.Errorf("a restart took up %d runs, want the parked one left alone", n)
	}
	waiting, err := r.engine.Approvals(t.Context(), nil, nil)
	if err != nil || len(waiting) != 1 || waiting[0].RunID != id || waiting[0].ToolName != "a" || string(waiting[0].Args) != `{"x":1}` || len(waiting[0].ArgsDigest) != 64 {
		t.Errorf("Approvals = %+v, %v", waiting, err)
	}
	if others, err := r.engine.Approvals(t.Context(), []string{"other"}, []string{}); err != nil || len(others) != 0 {
		t.Errorf("Approvals of another agent = %+v, %v", others, err)
	}
	res = resume(t, r, id, run.Decision{ToolCallID: waiting[0].ToolCallID, Granted: true})
	if res.Status != store.Completed || count["a"].count() != 1 || string(res.Output) != `"end: did b"` && string(res.Output) != `"end: did a"` {
		t.Errorf("resumed: %s %s %+v with %d executions", res.Status, res.Output, res.Error, count["a"].count())
	}
	want = "agent.start tool.approval.granted tool.execute.start tool.execute.end step.start text.delta* text.complete step.end agent.end"
	if got := types(r.events("a", id)); got != want {
		t.Errorf("events after the resumption:\n got %s\nwant %s", got, want)
	}
	var numbers []int
	for _, s := range res.State.Steps {
		numbers = append(numbers, s.StepNumber)
	}
	if len(numbers) != 3 || numbers[1] != 2 || numbers[2] != 3 || len(res.State.Steps[1].ToolCalls) != 1 || res.State.Steps[1].ToolCalls[0].StepNumber != 2 {
		t.Errorf("steps = %v, %+v; want the granted call in step 2", numbers, res.State.Steps)
	}
	if _, _, err := r.engine.Resume(t.Context(), id, []run.Decision{{ToolCallID: "x"}}, "", nil); !fault.Is(err, fault.RunNotSuspended) {
		t.Errorf("Resume of a completed run = %v, want run-not-suspended", err)
	}
}

// What a granted call brings is in the next request to the model, also after a restart.
func TestGrantedResultReachesTheModel(t *testing.T) {
	register, count := gatedAgent(t, `{"name":"a","args":{}}`)
	r := newRig(t, register)
	res, _ := r.run("a", "go")
	r.restart()
	res = resume(t, r, res.State.ID, run.Decision{ToolCallID: res.State.PendingApprovals[0].ToolCallID, Granted: true})
	if res.Status != store.Completed || string(res.Output) != `"end: did a"` || count["a"].count() != 1 {
		t.Errorf("resumed: %s %s with %d executions, want one that the model was told of", res.Status, res.Output, count["a"].count())
	}
}

// TestThreeSuspensions: steps are numbered on over every pause.
func TestThreeSuspensions(t *testing.T) {
	list, byName := tools("a")
	l := llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"a","args":{}}]},{"when":{"step":1},"toolCalls":[{"name":"a","args":{}}]},
		{"when":{"step":2},"toolCalls":[{"name":"a","args":{}}]},{"text":"end"}]}`, list...)
	l.Policy.Tools = map[string]agent.Gate{"a": {Always: true}}
	r := newRig(t, single(l))
	res, _ := r.run("a", "go")
	for cycle := range 3 {
		if res.Status != store.Awaiting || len(res.State.PendingApprovals) != 1 || byName["a"].count() != cycle {
			t.Fatalf("cycle %d: %s %+v with %d executions, want it parked", cycle, res.Status, res.State.PendingApprovals, byName["a"].count())
		}
		r.restart()
		res = resume(t, r, res.State.ID, run.Decision{ToolCallID: res.State.PendingApprovals[0].ToolCallID, Granted: true})
	}
	if res.Status != store.Completed || byName["a"].count() != 3 {
		t.Errorf("in the end: %s %+v with %d executions", res.Status, res.Error, byName["a"].count())
	}
	var numbers []int
	for _, s := range res.State.Steps {
		numbers = append(numbers, s.StepNumber)
	}
	if want := []int{1, 2, 3, 4, 5, 6, 7}; !slices.Equal(numbers, want) { // four model calls, and three steps that decisions began
		t.Errorf("steps = %v, want %v", numbers, want)
	}
	r.checkNumbers(res.State.ID)
}

func TestDenialReachesTheModel(t *testing.T) {
	make, count := gatedAgent(t, `{"name":"a","args":{}}`)
	r := newRig(t, make)
	res, _ := r.run("a", "go")
	res = resume(t, r, res.State.ID, run.Decision{ToolCallID: res.State.PendingApprovals[0].ToolCallID, Reason: "too risky"})
	if res.Status != store.Completed || count["a"].count() != 0 || !strings.Contains(string(res.Output), "too risky") {
		t.Errorf("after a denial: %s %s with %d executions", res.Status, res.Output, count["a"].count())
	}
	if !contains(r.events("a", res.State.ID), event.ApprovalDenied, "too risky") {
		t.Error("no tool.approval.denied with the reason")
	}
}

func TestPartialDecision(t *testing.T) {
	make, count := gatedAgent(t, `{"name":"a","args":{}},{"name":"c","args":{"n":3}},{"name":"c","args":{"n":4}}`)
	r := newRig(t, make)
	res, _ := r.run("a", "go")
	id, pending := res.State.ID, res.State.PendingApprovals
	if len(pending) != 2 || count["c"].count() != 1 {
		t.Fatalf("pending = %+v with %d executions of c, want a and one c to wait", pending, count["c"].count())
	}
	res = resume(t, r, id, run.Decision{ToolCallID: pending[0].ToolCallID, Granted: true})
	if res.Status != store.Awaiting || len(res.State.PendingApprovals) != 1 || count["a"].count() != 1 || count["c"].count() != 1 {
		t.Fatalf("after one of two: %s with %+v", res.Status, res.State.PendingApprovals)
	}
	r.restart()
	_, _, err := r.engine.Resume(t.Context(), id, []run.Decision{{ToolCallID: pending[0].ToolCallID, Granted: true}, {ToolCallID: "nonsense"}}, "", nil)
	waits, _ := json.Marshal(fault.Of(err).Extra["waiting"])
	if want := fmt.Sprintf(`[{"toolCallId":%q,"toolName":"c"}]`, pending[1].ToolCallID); !fault.Is(err, fault.ApprovalNotWaiting) || string(waits) != want {
		t.Errorf("Resume with decisions for nothing = %v with %s, want approval-not-waiting with %s", err, waits, want)
	}
	res = resume(t, r, id, run.Decision{ToolCallID: pending[1].ToolCallID, Granted: true})
	if res.Status != store.Completed || count["a"].count() != 1 || count["c"].count() != 2 {
		t.Errorf("after both: %s with %d and %d executions", res.Status, count["a"].count(), count["c"].count())
	}
	last := 0
	for _, s := range res.State.Steps {
		if s.StepNumber <= last {
			t.Errorf("step %d after %d", s.StepNumber, last)
		}
		last = s.StepNumber
	}
	r.checkNumbers(id)
}

func TestConcurrentResumesOneWins(t *testing.T) {
	for range 50 {
		make, count := gatedAgent(t, `{"name":"a","args":{}}`)
		r := newRig(t, make)
		res, _ := r.run("a", "go")
		var wg sync.WaitGroup
		var mu sync.Mutex
		won := 0
		for range 2 {
			wg.Go(func() {
				h, _, err := r.engine.Resume(t.Context(), res.State.ID, []run.Decision{{ToolCallID: res.State.PendingApprovals[0].ToolCallID, Granted: true}}, "", nil)
				if err != nil && !fault.Is(err, fault.RunConflict) && !fault.Is(err, fault.RunNotSuspended) {
					t.Errorf("Resume = %v", err)
				}
				if err == nil {
					mu.Lock()
					won++
					mu.Unlock()
					r.wait(h)
				}
			})
		}
		wg.Wait()
		if won != 1 || count["a"].count() != 1 {
			t.Fatalf("%d of 2 resumptions won with %d executions, want 1 and 1", won, count["a"].count())
		}
	}
}

func TestUnknownOutcomeIsDecidedByAPerson(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, granted := range []bool{true, false} {
			c := &counter{spec: tool.Spec{Name: "t", Description: "d"}}
			r := newRig(t, single(llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"t","args":{}}]},{"text":"end: {{lastTool}}"}]}`, c)))
			hang(c)
			h := r.start(run.StartRequest{Owner: "a"})
			waitFor(t, func() bool { return c.count() == 1 })
			r.close()
			c.succeed()
			r.open()
			if _, err := r.engine.Recover(t.Context()); err != nil {
				t.Fatal(err)
			}
			s := r.settled(h.ID)
			res := resume(t, r, h.ID, run.Decision{ToolCallID: s.PendingApprovals[0].ToolCallID, Granted: granted, Again: granted})
			if res.Status != store.Completed {
				t.Errorf("granted %v: %s %+v", granted, res.Status, res.Error)
			}
			if granted && (c.count() != 2 || c.keys[0] != c.keys[1]) || !granted && (c.count() != 1 || !strings.Contains(string(res.Output), "unknown")) {
				t.Errorf("granted %v: keys %q, output %s", granted, c.keys, res.Output)
			}
		}
	})
}

func TestPolicyOrder(t *testing.T) {
	list, byName := tools("always", "default", "free")
	l := llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"always","args":{}},{"name":"default","args":{"env":"dev"}},
		{"name":"default","args":{"env":"prod-eu"}},{"name":"free","args":{}},{"name":"free","args":{"x":"no"}}]},{"text":"end"}]}`, list...)
	patterns := func(texts ...string) (out []agent.Pattern) {
		for _, s := range texts {
			p, err := agent.ParsePattern(s)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, p)
		}
		return out
	}
	l.Policy = agent.Policy{Deny: patterns("free:x=no"), Ask: patterns("default:env=prod*"), Allow: patterns("always", "default", "free"),
		Tools: map[string]agent.Gate{"always": {Always: true}, "default": {Default: true}}}
	r := newRig(t, single(l))
	res, _ := r.run("a", "go")
	var waiting []string
	for _, a := range res.State.PendingApprovals {
		waiting = append(waiting, a.ToolName+string(a.Args))
	}
	if got := strings.Join(waiting, " "); got != `always{} default{"env":"prod-eu"}` {
		t.Errorf("waiting: %s", got)
	}
	if byName["default"].count() != 1 || byName["free"].count() != 1 || byName["always"].count() != 0 {
		t.Errorf("executions: %d %d %d", byName["default"].count(), byName["free"].count(), byName["always"].count())
	}
}

// TestExpiry: what nobody decides in time is denied, also when the server was down meanwhile.
func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, restart := range []bool{false, true} {
			register, count := gatedAgent(t, `{"name":"a","args":{}}`)
			expires := 100 * time.Millisecond
			r := newRig(t, func(r *rig) []agent.Registration {
				regs := register(r)
				regs[0].LLM.Policy.Tools["a"] = agent.Gate{Always: true, Terms: journal.Terms{Expires: expires}}
				return regs
			})
			res, _ := r.run("a", "go")
			id := res.State.ID
			if p := res.State.PendingApprovals; res.Status != store.Awaiting || len(p) != 1 || p[0].ExpiresAt == "" {
				t.Fatalf("parked: %s %+v", res.Status, p)
			}
			if restart {
				r.restart()
			}
			waitFor(t, func() bool { s, err := r.engine.Find(t.Context(), id); return err == nil && s.Status.Terminal() })
			snap, err := r.engine.Snapshot(t.Context(), id)
			r.events("a", id)
			var stored []event.Event                                                      // on a slow machine, it expires before the restart
			r.engine.Replay(t.Context(), id, event.RunView, 0, func(e *hub.Entry) error { //nolint:errcheck // then it is not there
				stored = append(stored, event.Event{Type: e.Type, Payload: e.Body()})
				return nil
			})
			if err != nil || snap.Status != store.Completed || count["a"].count() != 0 || !contains(stored, event.ApprovalDenied, "nobody decided before") {
				t.Errorf("after its time: %s with %d executions, %v", snap.Status, count["a"].count(), err)
			}
		}
	})
}
