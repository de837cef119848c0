package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/run"
	"agentd/server/tool"
	"agentd/store"
)

func TestRunGoesOnWhenTheCallerLeaves(t *testing.T) {
	r := newRig(t, single(llm(t, `{"turns":[{"text":"done","delayMs":30}]}`)))
	h := r.start(run.StartRequest{Owner: "a"})
	if _, err := h.Wait(ended()); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait with an ended context = %v", err)
	}
	if s := r.settled(h.ID); s.Status != store.Completed {
		t.Errorf("status = %s, want completed", s.Status)
	}
}

func TestAbort(t *testing.T) {
	stuck := &counter{spec: tool.Spec{Name: "stuck", Description: "d", Idempotent: true}} // else a person is asked what it did
	stuck.execute = func(ctx context.Context, _ tool.Call) (tool.Result, error) {
		<-ctx.Done()
		return tool.Result{}, ctx.Err()
	}
	for _, tc := range []struct{ name, script string }{
		{"model call", `{"turns":[{"text":"x","chunkSize":1,"delayMs":60000}]}`},
		{"tool", `{"turns":[{"toolCalls":[{"name":"stuck","args":{}}]}]}`},
	} {
		t.Run(tc.name, bubble(func(t *testing.T) {
			r := newRig(t, single(llm(t, tc.script, stuck)))
			before := stuck.count()
			h := r.start(run.StartRequest{Owner: "a"})
			if tc.name == "tool" {
				waitFor(t, func() bool { return stuck.count() > before })
			}
			begun := time.Now()
			status, err := r.engine.Abort(t.Context(), h.ID, run.AbortOptions{OnPending: "fail"})
			if took := time.Since(begun); status != store.Aborted || err != nil || took > 500*time.Millisecond {
				t.Errorf("Abort = %s, %v after %s; want aborted at once, whatever the policy", status, err, took)
			}
			events := r.events("a", h.ID)
			if n := len(events); n < 2 || events[n-2].Type != event.AgentCancelling || events[n-1].Type != event.AgentEnd {
				t.Errorf("events = %s, want agent.cancelling agent.end last", types(events))
			}
			if res := r.wait(h); res.Error == nil || res.Error.Code != "run-aborted" || res.State.FinishedAt == "" {
				t.Errorf("result = %+v", res.Error)
			}
			if again, err := r.engine.Abort(t.Context(), h.ID, run.AbortOptions{}); again != store.Aborted || err != nil {
				t.Errorf("second Abort = %s, %v", again, err)
			}
		}))
	}
	r := newRig(t, single(llm(t, `{"turns":[{"text":"x"}]}`)))
	if _, err := r.engine.Abort(t.Context(), "none", run.AbortOptions{}); !fault.Is(err, fault.RunNotFound) {
		t.Errorf("Abort of no run = %v, want run-not-found", err)
	}
	res, _ := r.run("a", "x")
	if status, err := r.engine.Abort(t.Context(), res.State.ID, run.AbortOptions{}); status != store.Completed || err != nil {
		t.Errorf("Abort of a completed run = %s, %v; want completed", status, err)
	}
}

func TestDrainingAbortFinishesTheStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &counter{spec: tool.Spec{Name: "slow", Description: "d"}}
		begun, leave := make(chan bool), make(chan bool)
		slow.execute = func(ctx context.Context, _ tool.Call) (tool.Result, error) {
			close(begun)
			select {
			case <-leave:
				return tool.JSON("finished")
			case <-ctx.Done():
				return tool.Result{}, ctx.Err()
			}
		}
		r := newRig(t, single(llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"slow","args":{}}]},{"text":"never"}]}`, slow)))
		h := r.start(run.StartRequest{Owner: "a"})
		<-begun
		asked := make(chan bool)
		go func() {
			defer close(asked)
			r.engine.Abort(t.Context(), h.ID, run.AbortOptions{Drain: true}) //nolint:errcheck // the run tells
		}()
		synctest.Wait()
		close(leave)
		<-asked
		res := r.wait(h)
		if res.Status != store.Aborted || len(res.State.Steps) != 1 || len(res.State.Steps[0].ToolCalls) != 1 ||
			string(res.State.Steps[0].ToolCalls[0].Outcome.Output) != `"finished"` || res.State.Steps[0].EndedAt == "" || res.Output != nil {
			t.Errorf("result = %s, steps %+v; want aborted with the step's outcome kept, and no other step", res.Status, res.State.Steps)
		}
		want := "agent.start step.start tool.call.start tool.call.delta* tool.call.end tool.execute.start tool.execute.end step.end agent.cancelling agent.end"
		if got := types(r.events("a", h.ID)); got != want {
			t.Errorf("events:\n got %s\nwant %s", got, want)
		}
	})
}

// A run that is ended while its tools run has no step after theirs.
func TestEndInAToolBeginsNoStep(t *testing.T) {
	for code, end := range map[string]func(*rig, *agent.Handle){
		"run-aborted":     func(r *rig, h *agent.Handle) { r.engine.Abort(r.t.Context(), h.ID, run.AbortOptions{}) }, //nolint:errcheck // the run tells
		"budget-exceeded": func(*rig, *agent.Handle) {},
	} {
		slow := &counter{spec: tool.Spec{Name: "slow", Description: "d"}}
		begun := make(chan bool, 1)
		slow.execute = func(ctx context.Context, _ tool.Call) (tool.Result, error) {
			begun <- true
			<-ctx.Done()
			return tool.Result{}, ctx.Err()
		}
		a := llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"slow","args":{}}]},{"text":"never"}]}`, slow)
		if code == "budget-exceeded" {
			a.Budget.Wall = 200 * time.Millisecond
		}
		r := newRig(t, single(a))
		h := r.start(run.StartRequest{Owner: "a"})
		<-begun
		end(r, h)
		res := r.wait(h)
		if res.Error == nil || res.Error.Code != code || len(res.State.Steps) != 1 || res.State.Steps[0].EndedAt == "" {
			t.Errorf("ended by %s: %s %+v with the steps %+v, want one that has ended", code, res.Status, res.Error, res.State.Steps)
		}
		if all := r.events("a", h.ID); strings.Count(types(all), "step.start") != 1 {
			t.Errorf("ended by %s: %s, want one step", code, types(all))
		}
	}
}

// TestRecovery stops the engine while a tool runs, as a crash at that point would, and recovers.
func TestRecovery(t *testing.T) {
	for _, tc := range []struct {
		name   string
		spec   tool.Spec
		fail   bool
		counts int
		status store.Status
		part   string // of the last state
	}{
		{"read-only tool runs again", tool.Spec{SideEffect: tool.ReadOnly}, false, 2, store.Completed, `"did t"`},
		{"idempotent tool runs again under the same key", tool.Spec{Idempotent: true}, false, 2, store.Completed, `"did t"`},
		{"side effect waits for a person", tool.Spec{}, false, 1, store.Awaiting, `"reason":"outcome-unknown"`},
		{"side effect told as unknown", tool.Spec{OnUnknownOutcome: tool.ReportError}, false, 1, store.Completed, `outcome of this call is unknown`},
		{"agent that must not go on", tool.Spec{SideEffect: tool.ReadOnly}, true, 1, store.Failed, `server-restarted`},
	} {
		t.Run(tc.name, bubble(func(t *testing.T) {
			tc.spec.Name, tc.spec.Description = "t", "d"
			c := &counter{spec: tc.spec}
			var hang atomic.Bool
			hang.Store(true)
			c.execute = func(ctx context.Context, _ tool.Call) (tool.Result, error) {
				if hang.Load() {
					<-ctx.Done()
					return tool.Result{}, ctx.Err()
				}
				return tool.JSON("did t")
			}
			r := newRig(t, func(*rig) []agent.Registration {
				return []agent.Registration{{ID: "a", FailOnRestart: tc.fail,
					LLM: llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"t","args":{}}]},{"text":"end: {{lastTool}}"}]}`, c)}}
			})
			h := r.start(run.StartRequest{Owner: "a"})
			waitFor(t, func() bool { return c.count() > 0 })
			r.close()
			hang.Store(false)
			r.open()
			if s, err := r.engine.Snapshot(t.Context(), h.ID); err != nil || s.Status != store.Running {
				t.Fatalf("after the stop the run is %s, %v; want running", s.Status, err)
			}
			if _, err := r.engine.Recover(t.Context()); err != nil {
				t.Fatal(err)
			}
			s := r.settled(h.ID)
			state, _ := json.Marshal(s)
			if s.Status != tc.status || c.count() != tc.counts || !strings.Contains(string(state), tc.part) {
				t.Errorf("status %s with %d executions, want %s with %d and %s in\n%s", s.Status, c.count(), tc.status, tc.counts, tc.part, state)
			}
			if tc.counts == 2 && c.keys[0] != c.keys[1] {
				t.Errorf("keys = %q, want the same twice", c.keys)
			}
			r.events("a", h.ID)
			if n := r.restart(); n != 0 {
				t.Errorf("a second restart took up %d runs", n)
			}
		}))
	}
}

func TestAbortOfAParkedRun(t *testing.T) {
	for _, tc := range []struct {
		policy  string
		status  store.Status
		pending int
		part    string
	}{
		{"deny", store.Aborted, 0, "approval_denied"}, {"hold", store.Aborted, 1, `"toolName":"t"`}, {"fail", store.Failed, 0, "run-aborted"},
	} {
		t.Run(tc.policy, func(t *testing.T) {
			gated := llm(t, `{"turns":[{"toolCalls":[{"name":"t","args":{}}]}]}`, &counter{spec: tool.Spec{Name: "t", Description: "d"}})
			gated.Policy.Tools = map[string]agent.Gate{"t": {Always: true}}
			r := newRig(t, single(gated))
			h := r.start(run.StartRequest{Owner: "a"})
			r.wait(h)
			r.restart()
			if s := r.settled(h.ID); s.Status != store.Awaiting || len(s.PendingApprovals) != 1 {
				t.Fatalf("status %s with %d approvals, want it parked with one", s.Status, len(s.PendingApprovals))
			}
			status, err := r.engine.Abort(t.Context(), h.ID, run.AbortOptions{OnPending: tc.policy})
			if status != tc.status || err != nil {
				t.Errorf("Abort(%s) = %s, %v; want %s", tc.policy, status, err, tc.status)
			}
			s := r.settled(h.ID)
			text, _ := json.Marshal(s)
			if len(s.PendingApprovals) != tc.pending || !strings.Contains(string(text), tc.part) {
				t.Errorf("after Abort(%s): %s", tc.policy, text)
			}
			r.events("a", h.ID)
		})
	}
}

// What a held run would say belongs before the messages of the runs that came after it.
func TestHeldRunOfASessionThatHasGoneOn(t *testing.T) {
	pay := &counter{spec: tool.Spec{Name: "pay", Description: "d"}}
	gated := llm(t, `{"turns":[{"when":{"lastUser":"pay","step":0},"toolCalls":[{"name":"pay","args":{}}]},{"text":"ok"}]}`, pay)
	gated.Policy.Tools = map[string]agent.Gate{"pay": {Always: true}}
	r := newRig(t, single(gated))
	held := r.start(run.StartRequest{Owner: "a", SessionID: "s", Input: json.RawMessage(`"pay"`)})
	waits := r.wait(held)
	if _, err := r.engine.Abort(t.Context(), held.ID, run.AbortOptions{OnPending: "hold"}); err != nil {
		t.Fatal(err)
	}
	r.wait(r.start(run.StartRequest{Owner: "a", SessionID: "s", Input: json.RawMessage(`"on"`)}))
	_, _, err := r.engine.Resume(t.Context(), held.ID, []run.Decision{{ToolCallID: waits.State.PendingApprovals[0].ToolCallID, Granted: true}}, "", nil)
	if !fault.Is(err, fault.RunConflict) || pay.count() != 0 {
		t.Errorf("Resume of a held run whose session went on = %v with %d payments, want run-conflict and none", err, pay.count())
	}
	if s := r.settled(held.ID); s.Status != store.Aborted || len(s.PendingApprovals) != 1 {
		t.Errorf("the run is %s with %d approvals, want it as it was", s.Status, len(s.PendingApprovals))
	}
}

func TestCrashLoopEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, single(llm(t, `{"turns":[{"text":"x","delayMs":60000}]}`)))
		h := r.start(run.StartRequest{Owner: "a"})
		going := func() bool { return len(r.events("a", h.ID)) > 0 }
		for range 5 { // stops in good order are not its fault
			if n := r.restart(); n != 1 {
				t.Fatalf("restart took up %d runs, want 1", n)
			}
			waitFor(t, going)
		}
		for range 3 {
			if n := r.crash(); n != 1 {
				t.Fatalf("the start after a crash took up %d runs, want 1", n)
			}
			waitFor(t, going)
		}
		r.crash()
		if s := r.settled(h.ID); s.Status != store.Failed || s.Error.Code != "crash-loop" {
			t.Errorf("after the fourth crash: %s %+v, want failed with crash-loop", s.Status, s.Error)
		}
		r.checkNumbers(h.ID)
	})
}

func TestOpaqueAgents(t *testing.T) {
	say := func(out agent.Sink, typ string, fields any) error { return out.Emit(event.New(typ, fields)) }
	regs := func(*rig) []agent.Registration {
		return []agent.Registration{
			{ID: "plain", Agent: goAgent{id: "plain", run: func(_ context.Context, in agent.Input) (agent.Result, error) {
				return agent.Result{Output: map[string]string{"got": string(in.Input)}}, nil
			}}},
			{ID: "panics", Agent: goAgent{id: "panics", run: func(context.Context, agent.Input) (agent.Result, error) { panic("secret") }}},
			{ID: "fails", Agent: goAgent{id: "fails", run: func(context.Context, agent.Input) (agent.Result, error) {
				return agent.Result{}, fmt.Errorf("outer: %w", fault.New(fault.AgentExited, "exit 3"))
			}}},
			{ID: "deaf", Agent: goAgent{id: "deaf", run: func(context.Context, agent.Input) (agent.Result, error) {
				<-time.After(7 * time.Second)
				return agent.Result{}, nil
			}}},
			{ID: "streams", Agent: streamAgent{goAgent{id: "streams", stream: func(_ context.Context, _ agent.Input, out agent.Sink) (agent.Result, error) {
				err := errors.Join(say(out, "step.start", map[string]int{"stepNumber": 1}), say(out, "text.delta", map[string]string{"delta": "h"}),
					say(out, "text.complete", map[string]string{"text": "hi"}), say(out, "my.event", map[string]int{"n": 1}),
					say(out, "agent.end", nil), out.Checkpoint(json.RawMessage(`{"at":1}`)), say(out, "step.end", map[string]int{"stepNumber": 1}))
				if bad := out.Checkpoint(json.RawMessage(`{`)); bad == nil {
					err = errors.Join(err, errors.New("a checkpoint that is no JSON was taken"))
				}
				return agent.Result{Output: "hi"}, err
			}}}},
		}
	}
	r := newRig(t, regs)
	if res, events := r.run("plain", "x"); string(res.Output) != `{"got":"\"x\""}` || types(events) != "agent.start agent.end" {
		t.Errorf("plain = %s, %s", res.Output, types(events))
	}
	if res, _ := r.run("panics", ""); res.Status != store.Failed || res.Error.Code != "agent-panic" || strings.Contains(res.Error.Message, "secret") {
		t.Errorf("panics = %s %+v", res.Status, res.Error)
	}
	if res, _ := r.run("fails", ""); res.Status != store.Failed || res.Error.Code != "agent-exited" {
		t.Errorf("fails = %s %+v", res.Status, res.Error)
	}
	res, events := r.run("streams", "")
	if got, want := types(events), "agent.start step.start text.delta* text.complete my.event step.end agent.end"; got != want || string(res.Output) != `"hi"` {
		t.Errorf("streams = %s %+v, events %s, want %s", res.Output, res.Error, got, want)
	}
	if len(res.State.Steps) != 1 || len(res.State.Messages) != 2 {
		t.Errorf("streams: %d steps and %d messages, want 1 and 2", len(res.State.Steps), len(res.State.Messages))
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, regs)
		h := r.start(run.StartRequest{Owner: "deaf"})
		begun := time.Now()
		if status, err := r.engine.Abort(t.Context(), h.ID, run.AbortOptions{}); status != store.Aborted || err != nil || time.Since(begun) > 6500*time.Millisecond {
			t.Errorf("Abort of an agent that does not listen = %s, %v after %s", status, err, time.Since(begun))
		}
	})
}

func TestOpaqueAgentResumesFromItsCheckpoint(t *testing.T) {
	waiting := make(chan bool, 1)
	a := resumeAgent{streamAgent{goAgent{id: "a", stream: func(ctx context.Context, _ agent.Input, out agent.Sink) (agent.Result, error) {
		if err := out.Checkpoint(json.RawMessage(`{"at":7}`)); err != nil {
			return agent.Result{}, err
		}
		waiting <- true
		<-ctx.Done()
		return agent.Result{}, ctx.Err()
	}}}, func(_ context.Context, in agent.Input, from agent.Resumption, _ agent.Sink) (agent.Result, error) {
		return agent.Result{Output: in.Text() + " from " + string(from.State)}, nil
	}}
	r := newRig(t, func(*rig) []agent.Registration { return []agent.Registration{{ID: "a", Agent: a}} })
	h := r.start(run.StartRequest{Owner: "a", Input: json.RawMessage(`"in"`)})
	<-waiting
	if n := r.restart(); n != 1 {
		t.Fatalf("restart took up %d runs, want 1", n)
	}
	s := r.settled(h.ID)
	if s.Status != store.Completed || s.State.Messages[1].Content.String() != `in from {"at":7}` {
		t.Errorf("after the restart: %s %+v", s.Status, s.State.Messages)
	}
}

func TestRunWithoutCheckpointFailsTruthfully(t *testing.T) {
	a := goAgent{id: "a", run: func(ctx context.Context, _ agent.Input) (agent.Result, error) {
		<-ctx.Done()
		return agent.Result{}, ctx.Err()
	}}
	r := newRig(t, func(*rig) []agent.Registration { return []agent.Registration{{ID: "a", Agent: a}} })
	h := r.start(run.StartRequest{Owner: "a"})
	r.restart()
	if s := r.settled(h.ID); s.Status != store.Aborted || s.Error.Code != "shutdown-timeout" {
		t.Errorf("after an orderly stop: %s %+v, want aborted", s.Status, s.Error)
	}
}

func TestBusySession(t *testing.T) {
	leave := make(chan bool)
	var order []string
	a := goAgent{id: "a", run: func(_ context.Context, in agent.Input) (agent.Result, error) {
		if in.Text() == "first" {
			<-leave
		}
		before, err := in.Messages()
		if err != nil {
			return agent.Result{}, err
		}
		order = append(order, fmt.Sprint(in.Text(), len(before)))
		return agent.Result{Output: "ok"}, nil
	}}
	r := newRig(t, func(*rig) []agent.Registration { return []agent.Registration{{ID: "a", Agent: a}} })
	start := func(input string, queue bool) (*agent.Handle, error) {
		return r.engine.Start(t.Context(), run.StartRequest{Owner: "a", SessionID: "s", Input: json.RawMessage(`"` + input + `"`), Queue: queue})
	}
	first, err := start("first", false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := start("refused", false); !fault.Is(err, fault.SessionBusy) {
		t.Errorf("second Start = %v, want session-busy", err)
	}
	second, err1 := start("second", true)
	third, err2 := start("third", true)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if second.Status != store.Pending {
		t.Errorf("status of a queued run = %s, want pending", second.Status)
	}
	if status, err := r.engine.Abort(t.Context(), third.ID, run.AbortOptions{}); status != store.Aborted || err != nil {
		t.Errorf("Abort of a queued run = %s, %v", status, err)
	}
	close(leave)
	r.wait(first)
	if res := r.wait(second); res.Status != store.Completed {
		t.Errorf("queued run = %s", res.Status)
	}
	if got := strings.Join(order, " "); got != "first0 second2" {
		t.Errorf("order and histories = %s, want first0 second2", got)
	}
}

func TestQueuedRunSurvivesARestart(t *testing.T) {
	r := newRig(t, single(llm(t, `{"turns":[{"when":{"lastUser":"one"},"text":"1","delayMs":200},{"text":"2"}]}`)))
	req := run.StartRequest{Owner: "a", SessionID: "s", Queue: true}
	req.Input = json.RawMessage(`"one"`)
	one := r.start(req)
	req.Input = json.RawMessage(`"two"`)
	two := r.start(req)
	r.restart()
	if s := r.settled(one.ID); s.Status != store.Completed {
		t.Errorf("first = %s", s.Status)
	}
	s := r.settled(two.ID)
	if s.Status != store.Completed || len(s.State.Messages) != 4 || s.State.Messages[2].Content.String() != "two" {
		t.Errorf("second = %s with %+v, want it completed after the first", s.Status, s.State.Messages)
	}
}

func TestDrainRefusesNewRuns(t *testing.T) {
	r := newRig(t, single(llm(t, `{"turns":[{"text":"x"}]}`)))
	if err := r.engine.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.engine.Start(t.Context(), run.StartRequest{Owner: "a"}); !fault.Is(err, fault.ServerDraining) {
		t.Errorf("Start while draining = %v, want server-draining", err)
	}
}
