package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/agent"
	"agentd/server/run"
	"agentd/server/tool"
	"agentd/store"
)

// A run that gets further between crashes is no loop, however many there are: a model's, an opaque agent's with
// checkpoints, and one that waits for a child.
func TestProgressIsNoCrashLoop(t *testing.T) {
	const crashes = 8
	for _, kind := range []string{"llm", "opaque", "parent"} {
		var mu sync.Mutex // guards gate
		gate := make(chan struct{})
		reached := make(chan struct{}, 100)
		pass := func() chan struct{} { mu.Lock(); defer mu.Unlock(); return gate }
		look := tool.Func(tool.Spec{Name: "look", Description: "d", Idempotent: true}, func(ctx context.Context, _ tool.Call) (tool.Result, error) {
			g := pass()
			reached <- struct{}{}
			select {
			case <-g:
				return tool.JSON("seen")
			case <-ctx.Done():
				return tool.Result{}, ctx.Err()
			}
		})
		work := func(ctx context.Context, from int, out agent.Sink) (agent.Result, error) {
			for n := from; n <= crashes; n++ {
				if err := out.Checkpoint(json.RawMessage(fmt.Sprint(n))); err != nil {
					return agent.Result{}, err
				}
				g := pass()
				reached <- struct{}{}
				select {
				case <-g:
				case <-ctx.Done():
					return agent.Result{}, ctx.Err()
				}
			}
			return agent.Result{Output: "done"}, nil
		}
		opaque := resumeAgent{streamAgent{goAgent{id: "opaque", stream: func(ctx context.Context, _ agent.Input, out agent.Sink) (agent.Result, error) {
			return work(ctx, 1, out)
		}}}, func(ctx context.Context, _ agent.Input, from agent.Resumption, out agent.Sink) (agent.Result, error) {
			var n int
			if err := json.Unmarshal(from.State, &n); err != nil {
				return agent.Result{}, err
			}
			return work(ctx, n+1, out)
		}}
		turns := ""
		for n := range crashes {
			turns += fmt.Sprintf(`{"when":{"step":%d},"toolCalls":[{"name":"look","args":{}}]},`, n)
		}
		r := newRig(t, func(*rig) []agent.Registration {
			return []agent.Registration{{ID: "opaque", Agent: opaque}, {ID: "llm", LLM: llm(t, `{"turns":[`+turns+`{"text":"done"}]}`, look)},
				{ID: "parent", LLM: llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"subagent_llm","args":{"input":"x"}}]},{"text":"done"}]}`, agent.SubAgentTool("llm", ""))}}
		})
		h := r.start(run.StartRequest{Owner: kind, Input: json.RawMessage(`"go"`)})
		for n := range crashes {
			<-reached
			if n > 0 && kind != "opaque" { // the call that the crash interrupted is made again; let it end, and begin the next
				mu.Lock()
				close(gate)
				gate = make(chan struct{})
				mu.Unlock()
				<-reached
			}
			if n < crashes-1 {
				if r.crash() != 1 {
					break
				}
			}
		}
		mu.Lock()
		close(gate)
		mu.Unlock()
		if s := r.settled(h.ID); s.Status != store.Completed {
			t.Errorf("%s: after %d crashes, the run is %s %+v; want it to have ended well", kind, crashes-1, s.Status, s.Error)
		}
	}
}

// Runs that a crash has interrupted twice go on one by one, so that the one that is to blame can be told from the others.
func TestSuspectsAreTriedOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var moving, most atomic.Int32
		var free atomic.Bool
		look := tool.Func(tool.Spec{Name: "look", Description: "d", Idempotent: true}, func(ctx context.Context, _ tool.Call) (tool.Result, error) {
			if !free.Load() {
				moving.Add(1)
				<-ctx.Done()
				return tool.Result{}, ctx.Err()
			}
			most.Store(max(most.Load(), moving.Add(1)))
			defer moving.Add(-1)
			<-time.After(5 * time.Millisecond)
			return tool.JSON("seen")
		})
		r := newRig(t, single(llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"look","args":{}}]},{"text":"done"}]}`, look)))
		var ids []string
		for range 10 {
			ids = append(ids, r.start(run.StartRequest{Owner: "a"}).ID)
		}
		waitFor(t, func() bool { return moving.Load() == 10 })
		r.crash()
		waitFor(t, func() bool { return moving.Load() == 20 })
		free.Store(true)
		moving.Store(0)
		if n := r.crash(); n != 10 {
			t.Fatalf("the second crash left %d runs", n)
		}
		for _, id := range ids {
			if s := r.settled(id); s.Status != store.Completed {
				t.Errorf("a run is %s %+v", s.Status, s.Error)
			}
		}
		if most.Load() != 1 {
			t.Errorf("%d suspects moved at once, want 1", most.Load())
		}
	})
}

// A suspect that waits for its trial can be aborted, and does not count its own interruptions while it waits.
func TestAbortOfASuspectThatWaits(t *testing.T) {
	began := make(chan string, 10)
	look := tool.Func(tool.Spec{Name: "look", Description: "d", Idempotent: true}, func(ctx context.Context, c tool.Call) (tool.Result, error) {
		began <- c.RunID
		<-ctx.Done()
		return tool.Result{}, ctx.Err()
	})
	r := newRig(t, single(llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"look","args":{}}]},{"text":"done"}]}`, look)))
	a, b := r.start(run.StartRequest{Owner: "a"}), r.start(run.StartRequest{Owner: "a"})
	for range 2 {
		<-began
		<-began
		r.crash()
	}
	if first := <-began; first != a.ID {
		t.Errorf("the first to be tried is %s, want the oldest", first)
	}
	if status, err := r.engine.Abort(t.Context(), b.ID, run.AbortOptions{}); status != store.Aborted || err != nil {
		t.Errorf("Abort of the run that waits = %s, %v", status, err)
	}
	r.crash()
	if first := <-began; first != a.ID {
		t.Errorf("after the crash of its trial, %s is tried again, want %s", first, a.ID)
	}
	r.crash()
	if s := r.settled(a.ID); s.Status != store.Failed || s.Error.Code != "crash-loop" {
		t.Errorf("after two crashes alone, the run is %s %+v", s.Status, s.Error)
	}
}
