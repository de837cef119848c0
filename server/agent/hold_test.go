package agent_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/hub"
	"agentd/server/run"
	"agentd/server/tool"
	"agentd/store"
)

// heldRig has an agent that calls a tool twice in its only step with calls.
func heldRig(t *testing.T, spec tool.Spec, execute func(context.Context, tool.Call) (tool.Result, error)) *rig {
	return heldAuditedRig(t, spec, execute, nil)
}

func heldAuditedRig(t *testing.T, spec tool.Spec, execute func(context.Context, tool.Call) (tool.Result, error),
	audit func([]run.Happening) (func(*store.Tx) error, error)) *rig {
	spec.Name, spec.Description = "look", "d"
	look := &counter{spec: spec, execute: execute}
	return newAuditedRig(t, single(llm(t, `{"turns":[{"when":{"lastTool":"."},"text":"done"},{"toolCalls":[{"name":"look","args":{"n":1}},{"name":"look","args":{"n":2}}]}]}`, look)), audit)
}

// TestAuditedStartIsRecordedBeforeTheCall: where the chain records the start of calls, no claim is held back.
func TestAuditedStartIsRecordedBeforeTheCall(t *testing.T) {
	b := &book{}
	r := heldAuditedRig(t, tool.Spec{SideEffect: tool.ReadOnly}, func(context.Context, tool.Call) (tool.Result, error) {
		if got := b.read(); len(got) < 2 || got[0] != "execute.start look" || got[1] != got[0] {
			t.Errorf("during the call the chain has %q, want both starts", got)
		}
		return tool.JSON("seen")
	}, b.write)
	r.run("a", "go")
	if got := b.read(); len(got) != 4 {
		t.Errorf("the chain has %q, want two starts and two ends", got)
	}
}

// TestFreeCallsShareACommit: the claim of calls without an effect is committed with their outcomes, that of all others
// before they are made. What subscribers see is the same.
func TestFreeCallsShareACommit(t *testing.T) {
	seen := ""
	for name, tc := range map[string]struct {
		spec tool.Spec
		want int64 // the row's version: start, [claim, first outcome,] outcomes and the next step, end
	}{
		"pure":           {tool.Spec{SideEffect: tool.Pure}, 3},
		"read-only":      {tool.Spec{SideEffect: tool.ReadOnly}, 3},
		"idempotent":     {tool.Spec{Idempotent: true}, 6},
		"side-effecting": {tool.Spec{}, 6},
	} {
		t.Run(name, bubble(func(t *testing.T) { // where no time passes unless all wait
			r := heldRig(t, tc.spec, nil)
			h := r.start(run.StartRequest{Owner: "a", Input: []byte(`"go"`)})
			res := r.wait(h)
			row, err := r.db.Runs().Get(t.Context(), h.ID)
			if err != nil || res.Status != store.Completed || row.Version != tc.want {
				t.Errorf("%s after %d commits, %v; want %d", res.Status, row.Version, err, tc.want)
			}
			got := types(r.events("a", h.ID))
			if seen == "" {
				seen = got
			}
			if got != seen {
				t.Errorf("events\n%s\nwant as with another tool\n%s", got, seen)
			}
		}))
	}
}

// TestSlowFreeCallIsSeen: subscribers see a call that takes long while it runs, and before what it reports.
func TestSlowFreeCallIsSeen(t *testing.T) {
	for name, reports := range map[string]bool{"takes long": false, "reports": true} {
		t.Run(name, bubble(func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			r := heldRig(t, tool.Spec{SideEffect: tool.ReadOnly}, func(_ context.Context, c tool.Call) (tool.Result, error) {
				if reports {
					c.Progress(1, 2, "half")
				}
				<-ctx.Done()
				return tool.JSON("seen")
			})
			h := r.start(run.StartRequest{Owner: "a", Input: []byte(`"go"`)})
			sub, _ := r.hub.Subscribe(event.OfAgentRun("a", h.ID).String(), hub.NewQueue(100, 1<<20, func() {}), nil)
			defer sub.Close()
			if !reports {
				time.Sleep(10 * time.Millisecond)
			}
			synctest.Wait()
			got := types(r.events("a", h.ID))
			want := "tool.execute.start tool.execute.start"
			if reports {
				want += " tool.execute.progress*"
			}
			if !strings.HasSuffix(got, want) {
				t.Errorf("while the calls run, events\n%s\nwant them to end with %s", got, want)
			}
			stop()
			if res := r.wait(h); res.Status != store.Completed {
				t.Errorf("status %s %+v", res.Status, res.Error)
			}
			r.events("a", h.ID)
		}))
	}
}

// TestCrashWhileAClaimIsHeldBack: the model is asked again, and the call made again.
func TestCrashWhileAClaimIsHeldBack(t *testing.T) {
	bubble(func(t *testing.T) {
		var mu sync.Mutex
		calls, reached := 0, make(chan struct{})
		r := heldRig(t, tool.Spec{SideEffect: tool.ReadOnly}, func(ctx context.Context, _ tool.Call) (tool.Result, error) {
			mu.Lock()
			calls++
			first := calls <= 2
			if calls == 2 {
				close(reached)
			}
			mu.Unlock()
			if first {
				<-ctx.Done()
				return tool.Result{}, ctx.Err()
			}
			return tool.JSON("seen")
		})
		h := r.start(run.StartRequest{Owner: "a", Input: []byte(`"go"`)})
		<-reached
		if n := r.crash(); n != 1 {
			t.Fatalf("Recover = %d, want 1", n)
		}
		s := r.settled(h.ID)
		if s.Status != store.Completed || calls != 4 || s.Usage.TotalTokens == 0 {
			t.Errorf("status %s after %d calls, %+v", s.Status, calls, s.Error)
		}
		r.events("a", h.ID)
	})(t)
}

// TestAbortWhileAClaimIsHeldBack: an abort settles the calls that are held back.
func TestAbortWhileAClaimIsHeldBack(t *testing.T) {
	bubble(func(t *testing.T) {
		reached := make(chan struct{}, 2)
		r := heldRig(t, tool.Spec{SideEffect: tool.ReadOnly}, func(ctx context.Context, c tool.Call) (tool.Result, error) {
			reached <- struct{}{}
			<-ctx.Done()
			c.Progress(1, 2, "too late")
			return tool.Result{}, ctx.Err()
		})
		h := r.start(run.StartRequest{Owner: "a", Input: []byte(`"go"`)})
		<-reached
		<-reached
		if status, err := r.engine.Abort(t.Context(), h.ID, run.AbortOptions{}); status != store.Aborted || err != nil {
			t.Fatalf("Abort = %s, %v", status, err)
		}
		got := types(r.events("a", h.ID))
		if !strings.Contains(got, "tool.execute.start tool.execute.start tool.execute.error tool.execute.error") {
			t.Errorf("events %s", got)
		}
		s, err := r.engine.Snapshot(t.Context(), h.ID)
		if err != nil || len(s.State.Messages) != 4 {
			t.Errorf("the state has %d messages, %v; want the question, the calls and their outcomes", len(s.State.Messages), err)
		}
	})(t)
}

// TestEndThatNobodyWaitsFor shares a commit with others, unless somebody has subscribed to the run.
func TestEndThatNobodyWaitsFor(t *testing.T) {
	for name, tc := range map[string]struct {
		detached, watched bool
		want              time.Duration
	}{"waited for": {false, false, 0}, "detached": {true, false, time.Millisecond}, "watched": {true, true, 0}} {
		t.Run(name, bubble(func(t *testing.T) {
			release := make(chan struct{})
			r := newRig(t, func(*rig) []agent.Registration {
				return []agent.Registration{{ID: "a", Agent: goAgent{id: "a", run: func(context.Context, agent.Input) (agent.Result, error) {
					<-release
					return agent.Result{}, nil
				}}}}
			})
			h := r.start(run.StartRequest{Owner: "a", Detached: tc.detached})
			if tc.watched {
				sub, _ := r.hub.Subscribe(event.OfAgentRun("a", h.ID).String(), hub.NewQueue(100, 1<<20, func() {}), nil)
				defer sub.Close()
			}
			synctest.Wait()
			begun := time.Now()
			close(release)
			if res := r.wait(h); res.Status != store.Completed || time.Since(begun) != tc.want {
				t.Errorf("the run is %s after %s, want after %s", res.Status, time.Since(begun), tc.want)
			}
		}))
	}
}
