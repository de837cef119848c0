package workflow_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"agentd/server/run"
	"agentd/server/tool"
	"agentd/server/workflow"
	"agentd/store"
)

// imageGraph has what a Go graph persists: superstep, steps, calls, an approval, an await, a sleep, an attempt that fails,
// dispatches. seen is called in each of its nodes and steps.
func imageGraph(seen func(string)) workflow.Definition {
	var mu sync.Mutex // guards tries
	tries := 0
	step := func(name string) workflow.Node {
		return does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
			seen("in " + name)
			v, err := c.Step("s", func() (any, error) {
				seen("step of " + name)
				return "made " + name, nil
			})
			seen("after the step of " + name)
			return wrote("log", v), err
		})
	}
	call := func(c *workflow.Context, line int) (json.RawMessage, error) {
		return c.Tool("once", map[string]int{"line": line})
	}
	flaky := workflow.Node{Retry: workflow.Retry{MaxAttempts: 20, Backoff: time.Millisecond}, Run: func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
		first, err := call(c, 1)
		if err != nil {
			return workflow.Result{}, err
		}
		mu.Lock()
		tries++
		failing := tries%3 != 0
		mu.Unlock()
		if seen("an attempt"); failing {
			return workflow.Result{}, fmt.Errorf("not yet")
		}
		second, err := call(c, 2)
		return workflow.Result{Write: map[string]any{"log": []any{first, second}}, Dispatch: []workflow.Dispatch{{Node: "work", Args: "x"}, {Node: "work", Args: "y"}}}, err
	}}
	work := does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
		var name string
		if _, err := c.DispatchArgs(&name); err != nil {
			return workflow.Result{}, err
		}
		if name == "y" {
			c.SleepFor(3 * time.Millisecond)
		}
		seen("in work " + name)
		return wrote("log", name), nil
	})
	waits := does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
		granted := c.RequestApproval("big", nil, workflow.Terms{}).Granted
		seen("after the approval")
		paid := c.AwaitExternal("paid")
		third, err := call(c, 3)
		return wrote("log", []any{granted, paid, third}), err
	})
	return workflow.Definition{ID: "w", Channels: map[string]workflow.Channel{"log": workflow.List()},
		Nodes: map[string]workflow.Node{"a": step("a"), "b": step("b"), "flaky": flaky, "work": work, "waits": waits},
		Edges: []workflow.Edge{{From: workflow.Start, To: "a"}, {From: workflow.Start, To: "b"}, {From: "b", To: "flaky"}, {From: "work", To: "waits"}, {From: "waits", To: workflow.End}}}
}

// A crash is what one would leave on disk at a moment, and which lines were printed by then, how often.
type crash struct {
	name, path string
	printed    map[int]int
}

// printer is a tool with an effect that happens once for each line. seen is called before it and after it.
func printer(printed map[int]int, seen func(string)) tool.Tool {
	return tool.Func(tool.Spec{Name: "once"}, func(_ context.Context, call tool.Call) (tool.Result, error) {
		var args struct{ Line int }
		if err := json.Unmarshal(call.Args, &args); err != nil {
			return tool.Result{}, err
		}
		seen(fmt.Sprint("before line ", args.Line))
		printed[args.Line]++
		seen(fmt.Sprint("after line ", args.Line))
		return tool.JSON(fmt.Sprint("did ", args.Line))
	})
}

// conclude brings a run to its end: it grants what waits, gives what is awaited, and says of a call of unknown outcome
// what it found out.
func (r *rig) conclude(runID string, printed map[int]int, seen func(string)) workflow.Outcome {
	r.tb.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		out, err := r.Outcome(context.Background(), runID)
		switch {
		case err != nil || time.Now().After(end):
			r.tb.Fatalf("%v: %+v", err, out)
		case out.Status.Terminal():
			return out
		case out.Status == store.Running:
		case len(out.PendingApprovals) > 0:
			a := out.PendingApprovals[0]
			word := run.Decision{ToolCallID: a.ToolCallID, Granted: true}
			if a.MayHaveHappened() {
				var args struct{ Line int }
				if err := json.Unmarshal(a.Args, &args); err != nil {
					r.tb.Fatal(err)
				}
				if word.Again = printed[args.Line] == 0; !word.Again {
					word.Granted, word.Result = false, fmt.Appendf(nil, `"did %d"`, args.Line)
				}
			}
			seen("while it asks")
			if _, _, err := r.kernel.Resume(context.Background(), runID, []run.Decision{word}, "token:t", nil); err != nil {
				r.tb.Fatal(err)
			}
		case len(out.PendingPauses) > 0 && out.PendingPauses[0].Name == "paid":
			seen("while it waits")
			if err := r.resume("w", "t", "paid", `{"by":"bank"}`); err != nil {
				r.tb.Fatal(err)
			}
		}
	}
}

// TestGoCrashAtEveryStep is the fault table of a Go graph: an image of the disk is taken in each node, in each step, around
// each call and in each wait. Each image must recover to the same output, with no call made twice.
func TestGoCrashAtEveryStep(t *testing.T) {
	const output = `{"log":["made a","made b","did 1","did 2","x","y",true,{"by":"bank"},"did 3"]}`
	printed := map[int]int{}
	var mu sync.Mutex // guards images
	var images []crash
	var r *rig
	snap := func(name string) {
		mu.Lock()
		defer mu.Unlock()
		im := crash{fmt.Sprintf("%02d %s", len(images), name), filepath.Join(t.TempDir(), "agentd.db"), maps.Clone(printed)}
		for _, suffix := range []string{"", "-wal"} {
			text, err := os.ReadFile(r.path + suffix)
			if err == nil {
				err = os.WriteFile(im.path+suffix, text, 0o600)
			}
			if err != nil {
				t.Error(err)
			}
		}
		images = append(images, im)
	}
	r = newGoRig(t, []tool.Tool{printer(printed, snap)}, imageGraph(snap))
	h, err := r.Execute(context.Background(), workflow.ExecuteRequest{WorkflowID: "w", ThreadID: "t", By: "token:t"})
	if err != nil {
		t.Fatal(err)
	}
	r.want(r.conclude(h.RunID, printed, snap), store.Completed, output)
	snap("at its end")
	if len(images) < 20 {
		t.Fatalf("only %d images were taken", len(images))
	}
	for _, im := range images {
		t.Run(im.name, func(t *testing.T) {
			nothing := func(string) {}
			kept := &rig{tb: t, path: im.path, tools: newTools(t, printer(im.printed, nothing)), written: []workflow.Definition{imageGraph(nothing)}}
			kept.start()
			t.Cleanup(kept.stop)
			kept.want(kept.conclude(h.RunID, im.printed, nothing), store.Completed, output)
			for line, n := range im.printed {
				if n > 1 {
					t.Errorf("line %d was printed %d times", line, n)
				}
			}
		})
	}
}
