package workflow_test

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"agentd/server/run"
	"agentd/server/tool"
	"agentd/server/workflow"
	"agentd/store"
)

// TestLimitOfATool: its calls of all threads together keep to the limit, and all are made.
func TestLimitOfATool(t *testing.T) {
	var running, most, all atomic.Int64
	limited := tool.Func(tool.Spec{Name: "limited", SideEffect: tool.Pure, Limit: tool.NewLimit(2, 0)}, func(context.Context, tool.Call) (tool.Result, error) {
		n := running.Add(1)
		defer running.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		time.Sleep(time.Millisecond)
		return tool.JSON(all.Add(1))
	})
	r := newRig(t, map[string]string{"w": `{"state":{"a":{}},"output":"${ size(state.a) }","start":"m","nodes":{"m":{"kind":"map","over":"${ [1,2,3,4,5,6,7,8,9] }","save":"a",
		"do":{"kind":"tool","tool":"limited"},"next":"end"}}}`}, limited)
	each(4, 4, func(int) { r.want(r.run("w", "", `{}`), store.Completed, "9") })
	if all.Load() != 36 || most.Load() > 2 {
		t.Errorf("%d calls were made, %d at once; want 36, and 2 at most", all.Load(), most.Load())
	}
}

const limitedFlow = `{"state":{"a":{}},"output":"${ state.a }","start":"t","nodes":{"t":{"kind":"tool","tool":"pay","save":"a","next":"end"}}}`

// pay is a tool with an effect, of which one call at a time is made. It ends when the test lets it.
func pay(begun, leave chan bool) tool.Tool {
	return tool.Func(tool.Spec{Name: "pay", Limit: tool.NewLimit(1, 0)}, func(ctx context.Context, _ tool.Call) (tool.Result, error) {
		begun <- true
		select {
		case <-leave:
			return tool.JSON("paid")
		case <-ctx.Done():
			return tool.Result{}, ctx.Err()
		}
	})
}

func (r *rig) begin(workflowID string) string {
	r.tb.Helper()
	h, err := r.Execute(context.Background(), workflow.ExecuteRequest{WorkflowID: workflowID, By: "token:t"})
	if err != nil {
		r.tb.Fatal(err)
	}
	return h.RunID
}

// TestCrashWhileACallWaits: only the call that had begun is of unknown outcome.
func TestCrashWhileACallWaits(t *testing.T) {
	begun, leave := make(chan bool, 10), make(chan bool, 10)
	declared := map[string]string{"w": limitedFlow}
	r := newRig(t, declared, pay(begun, leave))
	first := r.begin("w")
	<-begun
	second := r.begin("w")
	im := image{path: filepath.Join(t.TempDir(), "agentd.db")}
	r.copyTo(im.path)
	again, let := make(chan bool, 10), make(chan bool, 10)
	kept := &rig{tb: t, path: im.path, declared: declared, tools: newTools(t, pay(again, let))}
	kept.start()
	t.Cleanup(kept.stop)
	<-again // the second
	let <- true
	kept.want(kept.until(second, store.Completed), store.Completed, `"paid"`)
	out := kept.until(first, store.Awaiting)
	if len(out.PendingApprovals) != 1 || out.PendingApprovals[0].Reason != "outcome-unknown" {
		t.Fatalf("the call that had begun waits as %+v", out.PendingApprovals)
	}
	let <- true
	if _, _, err := kept.kernel.Resume(context.Background(), first, []run.Decision{{ToolCallID: out.PendingApprovals[0].ToolCallID, Granted: true, Again: true}}, "token:t", nil); err != nil {
		t.Fatal(err)
	}
	kept.want(kept.until(first, store.Completed), store.Completed, `"paid"`)
}

// TestAbortWhileACallWaits: it is withdrawn without an effect, and its place goes to the next.
func TestAbortWhileACallWaits(t *testing.T) {
	begun, leave := make(chan bool, 10), make(chan bool, 10)
	r := newRig(t, map[string]string{"w": limitedFlow}, pay(begun, leave))
	first := r.begin("w")
	<-begun
	second := r.begin("w")
	if _, err := r.kernel.Abort(context.Background(), second, run.AbortOptions{}); err != nil {
		t.Fatal(err)
	}
	if out := r.until(second, store.Aborted); len(out.PendingApprovals) != 0 {
		t.Errorf("the aborted run asks: %+v", out.PendingApprovals)
	}
	third := r.begin("w")
	leave <- true
	leave <- true
	for _, id := range []string{first, third} {
		r.want(r.until(id, store.Completed), store.Completed, `"paid"`)
	}
	if len(begun) != 1 {
		t.Errorf("%d calls were made beside the first, want that of the third run alone", len(begun))
	}
}
