package workflow_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentd/metrics"
	"agentd/server/event"
	"agentd/server/hub"
	"agentd/server/run"
	"agentd/server/tool"
	"agentd/server/workflow"
	"agentd/store"
)

// newGoRig starts an engine with workflows written in Go.
func newGoRig(tb testing.TB, list []tool.Tool, defs ...workflow.Definition) *rig {
	tb.Helper()
	r := &rig{tb: tb, path: filepath.Join(tb.TempDir(), "agentd.db"), tools: newTools(tb, list...), written: defs}
	r.start()
	tb.Cleanup(r.stop)
	return r
}

func does(run func(*workflow.Context, workflow.State) (workflow.Result, error)) workflow.Node {
	return workflow.Node{Run: run}
}

func writes(channel string, value any) workflow.Node {
	return does(func(*workflow.Context, workflow.State) (workflow.Result, error) { return wrote(channel, value), nil })
}

func wrote(channel string, value any) workflow.Result {
	return workflow.Result{Write: map[string]any{channel: value}}
}

func line(names ...string) (edges []workflow.Edge) {
	for i, to := range append(names, workflow.End) {
		edges = append(edges, workflow.Edge{From: append([]string{workflow.Start}, names...)[i], To: to})
	}
	return edges
}

func fan(names ...string) (edges []workflow.Edge) {
	for _, name := range names {
		edges = append(edges, workflow.Edge{From: workflow.Start, To: name}, workflow.Edge{From: name, To: workflow.End})
	}
	return edges
}

func channels(names ...string) map[string]workflow.Channel {
	all := map[string]workflow.Channel{}
	for _, name := range names {
		all[name] = workflow.Channel{}
	}
	return all
}

// steps are the checkpoints of a thread, the oldest first.
func (r *rig) steps(id, thread string) (all []string) {
	r.tb.Helper()
	list, _, err := r.Checkpoints(context.Background(), id, thread, 100, 0)
	if err != nil {
		r.tb.Fatal(err)
	}
	for _, c := range slices.Backward(list) {
		all = append(all, fmt.Sprintf("%d %s %s%s", c.StepNumber, c.Node, c.Status, c.Writes))
	}
	return all
}

// TestSupersteps runs a graph with a fan, a loop and dispatches, and restarts a thread that has ended.
func TestSupersteps(t *testing.T) {
	spread := does(func(_ *workflow.Context, s workflow.State) (workflow.Result, error) {
		r := wrote("log", "spread")
		for i := range int(s.Number("n")) {
			r.Dispatch = append(r.Dispatch, workflow.Dispatch{Node: "work", Args: i})
		}
		return r, nil
	})
	work := does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
		var i int
		if made, err := c.DispatchArgs(&i); err != nil || !made {
			return workflow.Result{}, fmt.Errorf("arguments: %v, %v", made, err)
		}
		return wrote("log", i*i), nil
	})
	r := newGoRig(t, nil, workflow.Definition{ID: "w", Nodes: map[string]workflow.Node{"a": writes("log", "a"), "b": writes("log", "b"), "spread": spread, "work": work},
		Channels: map[string]workflow.Channel{"n": {}, "log": workflow.List()},
		Edges:    []workflow.Edge{{From: workflow.Start, To: "b"}, {From: workflow.Start, To: "a"}, {From: "a", To: "spread"}, {From: "work", To: workflow.End}}})
	r.stop()
	r.metrics = metrics.New("test")
	r.start()
	out := r.run("w", "t", `{"n":3}`)
	r.want(out, store.Completed, `{"log":["b","a","spread",0,1,4],"n":3}`)
	if text := string(r.metrics.Text()); !strings.Contains(text, "\nsvc_workflow_steps_total 3\n") {
		t.Errorf("the steps are not counted: %s", text)
	}
	want := []string{`1 b, a completed{"log":["b","a"]}`, `2 spread completed{"log":["spread"]}`, `3 work completed{"log":[0,1,4]}`}
	if got := r.steps("w", "t"); !slices.Equal(got, want) {
		t.Errorf("checkpoints %q, want %q", got, want)
	}
	r.want(r.run("w", "t", `{"n":1}`), store.Completed, `{"log":["b","a","spread",0],"n":1}`)
	if got := r.steps("w", "t"); len(got) != 6 || !strings.HasPrefix(got[5], "6 ") {
		t.Errorf("checkpoints of two runs: %q", got)
	}
	_, err := r.Execute(context.Background(), workflow.ExecuteRequest{WorkflowID: "w", ThreadID: "u", Input: json.RawMessage(`{"m":1}`)})
	if code(err) != "config-invalid" {
		t.Errorf("Execute with an unknown key = %v", err)
	}
	if _, err := r.State(context.Background(), "w", "u"); code(err) != "thread-not-found" {
		t.Errorf("the thread of a refused input: %v", err)
	}
}

// TestGoPauses answers pauses by name and as the only one, over restarts, and shows what siblings have written.
func TestGoPauses(t *testing.T) {
	waits := func(name string) workflow.Node {
		return does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
			return wrote(name, c.AwaitExternal(name)), nil
		})
	}
	plain := does(func(c *workflow.Context, s workflow.State) (workflow.Result, error) {
		return wrote("c", []any{c.Pause("question"), s.Text("a")}), nil
	})
	r := newGoRig(t, nil, workflow.Definition{ID: "w", Channels: channels("a", "b", "c", "d"), Nodes: map[string]workflow.Node{"a": waits("a"), "b": waits("b"), "c": plain, "d": writes("d", 1)},
		Edges: append(fan("a", "b", "d")[:5], workflow.Edge{From: "a", To: "c"}, workflow.Edge{From: "c", To: workflow.End})})
	out := r.run("w", "t", `{}`)
	if out.Status != store.Suspended || len(out.PendingPauses) != 2 {
		t.Fatalf("%+v", out)
	}
	st, err := r.State(context.Background(), "w", "t")
	if err != nil || string(st.State["d"]) != "1" {
		t.Fatalf("state %v, %v: what a sibling has written is missing", st, err)
	}
	if err := r.resume("w", "t", "", "1"); code(err) != "pause-ambiguous" {
		t.Errorf("resume of two = %v", err)
	}
	if err := r.resume("w", "t", "z", "1"); code(err) != "pause-not-found" {
		t.Errorf("resume of another name = %v", err)
	}
	if err := r.resume("w", "t", "b", `"B"`); err != nil {
		t.Fatal(err)
	}
	r.restart()
	if err := r.resume("w", "t", "b", `"again"`); code(err) != "pause-not-found" {
		t.Errorf("resume of what was answered = %v", err)
	}
	if err := r.resume("w", "t", "", `"A"`); err != nil {
		t.Fatal(err)
	}
	out = r.until(out.RunID, store.Suspended)
	for len(out.PendingPauses) == 0 || out.PendingPauses[0].Node != "c" {
		out = r.until(out.RunID, store.Suspended)
	}
	if p := out.PendingPauses[0]; p.Kind != "pause" || string(p.Value) != `"question"` {
		t.Errorf("the pause is %+v", p)
	}
	if err := r.resume("w", "t", "", `"C"`); err != nil {
		t.Fatal(err)
	}
	r.want(r.until(out.RunID, store.Completed), store.Completed, `{"a":"A","b":"B","c":["C","A"],"d":1}`)
}

// TestGoSleep wakes within the lateness that the manual promises, also after a restart.
func TestGoSleep(t *testing.T) {
	var ran atomic.Int32
	r := newGoRig(t, nil, workflow.Definition{ID: "w", Channels: channels("x"), Edges: line("n"), Nodes: map[string]workflow.Node{"n": does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
		ran.Add(1)
		c.SleepUntil(time.Now().Add(-time.Hour))
		c.SleepFor(200 * time.Millisecond)
		return wrote("x", 1), nil
	})}})
	out := r.run("w", "t", "{}")
	if out.Status != store.Suspended || len(out.PendingPauses) != 1 || out.PendingPauses[0].WakeAt == "" {
		t.Fatalf("%+v", out)
	}
	r.restart()
	r.want(r.until(out.RunID, store.Completed), store.Completed, `{"x":1}`)
	if n := ran.Load(); n != 3 {
		t.Errorf("the node ran %d times, want 3: to each of its sleeps, and to its end", n)
	}
}

// TestGoApproval is decided like any approval.
func TestGoApproval(t *testing.T) {
	r := newGoRig(t, nil, workflow.Definition{ID: "w", Channels: channels("x"), Edges: line("n"), Nodes: map[string]workflow.Node{"n": does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
		d := c.RequestApproval("pay", map[string]int{"eur": 5}, workflow.Terms{})
		return wrote("x", []any{d.Granted, d.Reason}), nil
	})}})
	for _, granted := range []bool{true, false} {
		out := r.run("w", "", "{}")
		if out.Status != store.Awaiting || len(out.PendingApprovals) != 1 {
			t.Fatalf("%+v", out)
		}
		a := out.PendingApprovals[0]
		if a.ToolName != "pay" || string(a.Args) != `{"eur":5}` {
			t.Errorf("the approval is %+v", a)
		}
		if _, _, err := r.kernel.Resume(context.Background(), out.RunID, []run.Decision{{ToolCallID: a.ToolCallID, Granted: granted, Reason: "why not"}}, "token:boss", nil); err != nil {
			t.Fatal(err)
		}
		r.want(r.until(out.RunID, store.Completed), store.Completed, fmt.Sprintf(`{"x":[%v,"why not"]}`, granted))
	}
}

// TestGoTool calls tools once, however often the node runs.
func TestGoTool(t *testing.T) {
	c := &counter{}
	broken := &counter{do: func(tool.Call, int) (tool.Result, error) {
		return tool.Result{}, &tool.Error{Message: "no paper", NotBegun: true}
	}}
	var ran atomic.Int32
	r := newGoRig(t, []tool.Tool{c.tool("count", tool.Spec{}), broken.tool("print", tool.Spec{SideEffect: tool.Pure})},
		workflow.Definition{ID: "w", Channels: channels("x"), Edges: line("n"), Nodes: map[string]workflow.Node{"n": does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
			ran.Add(1)
			first, err := c.Tool("count", map[string]int{"a": 1})
			if err != nil {
				return workflow.Result{}, err
			}
			_, failed := c.Tool("print", nil)
			word := c.AwaitExternal("word")
			second, err := c.Tool("count", map[string]int{"a": 1})
			return wrote("x", []any{first, failed != nil, word, second}), err
		})}})
	out := r.run("w", "t", "{}")
	if out.Status != store.Suspended {
		t.Fatalf("%+v", out)
	}
	r.restart()
	if err := r.resume("w", "t", "word", `"go"`); err != nil {
		t.Fatal(err)
	}
	r.want(r.until(out.RunID, store.Completed), store.Completed, `{"x":[{"called":1},true,"go",{"called":2}]}`)
	if c.all != 2 || len(c.calls) != 2 || broken.all != 1 || ran.Load() != 5 {
		t.Errorf("%d calls with %d keys, %d of the tool that fails; the node ran %d times", c.all, len(c.calls), broken.all, ran.Load())
	}
}

// TestGoRetry runs only what failed again: by its node's policy, and by a retry of the thread.
func TestGoRetry(t *testing.T) {
	var mu sync.Mutex
	ran := map[string]int{}
	node := func(name string, failures int) workflow.Node {
		return workflow.Node{Retry: workflow.Retry{MaxAttempts: 2, Backoff: time.Millisecond}, Run: func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
			once, err := c.Step("once", func() (any, error) { return "once", nil })
			if err != nil {
				return workflow.Result{}, err
			}
			mu.Lock()
			ran[name]++
			n := ran[name]
			mu.Unlock()
			if n <= failures {
				return workflow.Result{}, errors.New("not yet")
			}
			return workflow.Result{Write: map[string]any{"log": name + fmt.Sprint(n)}, Dispatch: []workflow.Dispatch{{Node: "d", Args: once}}}, nil
		}}
	}
	r := newGoRig(t, nil, workflow.Definition{ID: "w", Channels: map[string]workflow.Channel{"log": workflow.List()},
		Edges: append(fan("a", "b", "c"), workflow.Edge{From: "d", To: workflow.End}),
		Nodes: map[string]workflow.Node{"a": node("a", 0), "b": node("b", 3), "c": node("c", 1), "d": writes("log", "d")}})
	out := r.run("w", "t", "{}")
	if out.Status != store.Failed || out.Error == nil || out.Error.Code != "node-execution-failed" {
		t.Fatalf("%+v", out)
	}
	if got := r.steps("w", "t"); !slices.Equal(got, []string{"1 b failed"}) {
		t.Errorf("checkpoints %q", got)
	}
	r.restart()
	h, err := r.Retry(context.Background(), workflow.RetryRequest{WorkflowID: "w", ThreadID: "t", By: "token:t"})
	if err != nil {
		t.Fatal(err)
	}
	r.want(r.wait(h.RunID), store.Completed, `{"log":["a1","b4","c2","d","d","d"]}`)
	if ran["a"] != 1 || ran["b"] != 4 || ran["c"] != 2 {
		t.Errorf("the nodes ran %v times", ran)
	}
}

// TestGoStep keeps the result of a step, also where the process ends while the node still runs.
func TestGoStep(t *testing.T) {
	var made, ran atomic.Int32
	r := newGoRig(t, nil, workflow.Definition{ID: "w", Channels: channels("x"), Edges: line("n"), Nodes: map[string]workflow.Node{"n": does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
		v, err := c.Step("charge", func() (any, error) { return made.Add(1), nil })
		if err != nil {
			return workflow.Result{}, err
		}
		if ran.Add(1) == 1 {
			<-c.Done()
			return workflow.Result{}, context.Cause(c)
		}
		return wrote("x", v), nil
	})}})
	h, err := r.Execute(context.Background(), workflow.ExecuteRequest{WorkflowID: "w", ThreadID: "t", By: "token:t"})
	if err != nil {
		t.Fatal(err)
	}
	for ran.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	r.restart()
	r.want(r.until(h.RunID, store.Completed), store.Completed, `{"x":1}`)
	if made.Load() != 1 || ran.Load() != 2 {
		t.Errorf("the step was made %d times, the node ran to %d", made.Load(), ran.Load())
	}
}

// TestGoAbort gives nodes their grace, and continues with a retry.
func TestGoAbort(t *testing.T) {
	held, stuck := make(chan bool), make(chan bool)
	var aborted atomic.Bool
	d := workflow.Definition{ID: "w", Channels: channels("x", "y"), Edges: fan("good", "bad"), CancelGrace: 20 * time.Millisecond, Nodes: map[string]workflow.Node{
		"good": does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
			if !aborted.Load() {
				<-c.Done()
				return workflow.Result{}, c.Err()
			}
			return wrote("x", 1), nil
		}),
		"bad": does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
			if !aborted.Load() {
				held <- true
				<-stuck
			}
			return wrote("y", 1), nil
		})}}
	r := newGoRig(t, nil, d)
	h, err := r.Execute(context.Background(), workflow.ExecuteRequest{WorkflowID: "w", ThreadID: "t", By: "token:t"})
	if err != nil {
		t.Fatal(err)
	}
	<-held
	begun := time.Now()
	if _, err := r.kernel.Abort(context.Background(), h.RunID, run.AbortOptions{}); err != nil {
		t.Fatal(err)
	}
	r.want(r.until(h.RunID, store.Aborted), store.Aborted, "")
	if took := time.Since(begun); took > 3*time.Second {
		t.Errorf("the abort took %v", took)
	}
	late := false
	err = r.kernel.Replay(context.Background(), h.RunID, event.RunView, 0, func(e *hub.Entry) error {
		late = late || e.Type == event.WorkflowTaskEnd && strings.Contains(string(e.Payload), "workflow-cancel-timeout")
		return nil
	})
	if err != nil || !late {
		t.Errorf("no event says that a node outlived its grace; %v", err)
	}
	close(stuck)
	aborted.Store(true)
	again, err := r.Retry(context.Background(), workflow.RetryRequest{WorkflowID: "w", ThreadID: "t", By: "token:t"})
	if err != nil {
		t.Fatal(err)
	}
	r.want(r.wait(again.RunID), store.Completed, `{"x":1,"y":1}`)
}

// TestGoTimeout fails a node that does not end in time, whether it minds its context or not.
func TestGoTimeout(t *testing.T) {
	release := make(chan bool)
	defer close(release)
	for name, wait := range map[string]func(c *workflow.Context){"minds": func(c *workflow.Context) { <-c.Done() }, "does not": func(*workflow.Context) { <-release }} {
		t.Run(name, func(t *testing.T) {
			r := newGoRig(t, nil, workflow.Definition{ID: "w", Edges: line("n"), CancelGrace: 5 * time.Millisecond, NodeDefaults: workflow.NodeDefaults{Timeout: 20 * time.Millisecond},
				Nodes: map[string]workflow.Node{"n": does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
					wait(c)
					return workflow.Result{}, c.Err()
				})}})
			if out := r.run("w", "", "{}"); out.Status != store.Failed || out.Error.Code != "node-timeout" {
				t.Errorf("%+v, %+v", out, out.Error)
			}
		})
	}
}

// TestGoFailures are those of a superstep as a whole; a retry tries the same again.
func TestGoFailures(t *testing.T) {
	for _, c := range []struct {
		name string
		def  workflow.Definition
		want string
	}{
		{"merge", workflow.Definition{Channels: channels("x"), Edges: fan("a", "b"), Nodes: map[string]workflow.Node{"a": writes("x", 1), "b": writes("x", 2)}}, "multi-write-into-latest-value"},
		{"dead end", workflow.Definition{Edges: line("a")[:1], Nodes: map[string]workflow.Node{"a": does(func(*workflow.Context, workflow.State) (workflow.Result, error) { return workflow.Result{}, nil })}}, "dead-end"},
		{"steps", workflow.Definition{MaxSteps: 3, Channels: channels("x"), Edges: []workflow.Edge{{From: workflow.Start, To: "a"}, {From: "a", To: "a"}}, Nodes: map[string]workflow.Node{"a": writes("x", 1)}}, "max-steps-exceeded"},
		{"check", workflow.Definition{Channels: channels("x"), Validate: func(s workflow.State) error {
			if s.Number("x") > 0 {
				return errors.New("x is positive")
			}
			return nil
		}, Edges: line("a"), Nodes: map[string]workflow.Node{"a": writes("x", 1)}}, "state-validation-failed"},
		{"long", workflow.Definition{Validate: func(workflow.State) error { return errors.New(strings.Repeat("x", 1<<20)) }, Edges: line("a"), Nodes: map[string]workflow.Node{"a": does(func(*workflow.Context, workflow.State) (workflow.Result, error) {
			return workflow.Result{}, nil
		})}}, "state-validation-failed"},
		{"panic", workflow.Definition{Edges: line("a"), Nodes: map[string]workflow.Node{"a": does(func(*workflow.Context, workflow.State) (workflow.Result, error) { panic("no") })}}, "node-execution-failed"},
		{"no tool", workflow.Definition{Edges: line("a"), Nodes: map[string]workflow.Node{"a": does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
			_, err := c.Tool("nothing", nil)
			return workflow.Result{}, err
		})}}, "unknown-tool"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.def.ID = "w"
			r := newGoRig(t, nil, c.def)
			out := r.run("w", "t", "{}")
			if out.Status != store.Failed || out.Error == nil || out.Error.Code != c.want || len(out.Error.Message) > 2100 {
				t.Fatalf("%+v, %+v", out, out.Error)
			}
			h, err := r.Retry(context.Background(), workflow.RetryRequest{WorkflowID: "w", ThreadID: "t", By: "token:t"})
			if err != nil {
				t.Fatal(err)
			}
			if out := r.wait(h.RunID); out.Status != store.Failed || out.Error == nil || out.Error.Code != c.want {
				t.Errorf("again: %+v, %+v", out, out.Error)
			}
		})
	}
}
