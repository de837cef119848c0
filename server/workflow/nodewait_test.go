package workflow_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentd/server/run"
	"agentd/server/workflow"
	"agentd/store"
)

// TestGoVersions resumes a thread whose workflow has another version, another graph, or lacks the node.
func TestGoVersions(t *testing.T) {
	waits := does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
		return wrote("x", c.Pause(nil)), nil
	})
	base := workflow.Definition{ID: "w", Version: "1", Channels: channels("x"), Edges: line("n"), Nodes: map[string]workflow.Node{"n": waits}}
	more := base
	more.Edges, more.Nodes = line("n", "m"), map[string]workflow.Node{"n": waits, "m": writes("x", "m")}
	later := base
	later.Version = "2"
	named := more
	named.Version = ""
	unnamed := base
	unnamed.Version = ""
	without := later
	without.Edges, without.Nodes = line("m"), map[string]workflow.Node{"m": writes("x", "m")}
	other := base
	other.Nodes = map[string]workflow.Node{"n": does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
		return wrote("x", c.AwaitExternal("other")), nil
	})}
	for _, c := range []struct {
		name          string
		begun, then   workflow.Definition
		asked, forced string // how a resumption ends, and one that allows another version
	}{
		{"same", base, base, `{"x":1}`, ""},
		{"another version", base, later, "workflow-version-mismatch", `{"x":1}`},
		{"another graph", base, more, "workflow-version-mismatch", `{"x":"m"}`},
		{"another graph that has a version now", unnamed, more, "workflow-version-mismatch", `{"x":"m"}`},
		{"another graph that has none any more", base, named, "workflow-version-mismatch", `{"x":"m"}`},
		{"no version any more", base, unnamed, `{"x":1}`, ""},
		{"no node", base, without, "workflow-version-mismatch", "workflow-divergence"},
		{"another node", base, other, "failed pause-replay-divergence", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newGoRig(t, nil, c.begun)
			out := r.run("w", "t", "{}")
			if out.Status != store.Suspended {
				t.Fatalf("%+v", out)
			}
			r.written = []workflow.Definition{c.then}
			r.restart()
			for _, step := range []struct {
				allow bool
				want  string
			}{{false, c.asked}, {true, c.forced}} {
				if step.want == "" {
					continue
				}
				_, err := r.Resume(context.Background(), workflow.ResumeRequest{WorkflowID: "w", ThreadID: "t", Value: json.RawMessage("1"), AllowVersionMismatch: step.allow, By: "token:t"})
				got := code(err)
				if err == nil {
					end := r.wait(out.RunID)
					for !end.Status.Terminal() {
						end = r.wait(out.RunID)
					}
					if got = string(end.Output); end.Error != nil {
						got = "failed " + end.Error.Code
					}
				}
				if got != step.want {
					t.Errorf("Resume(allow %v) = %s, want %s", step.allow, got, step.want)
				}
			}
		})
	}
}

// TestGoOtherChannel moves a thread to a definition in which a channel has another kind. What it holds stays, and a write that
// does not fit it fails.
func TestGoOtherChannel(t *testing.T) {
	for _, c := range []struct {
		begun, then workflow.Channel
		held, want  string // the value before the thread moves, and how it ends
	}{
		{workflow.Channel{}, workflow.List(), `"text"`, "reducer-failed"},
		{workflow.Channel{}, workflow.Barrier("n"), `"text"`, "reducer-failed"},
		{workflow.List(), workflow.Channel{}, `["text","text"]`, `{"x":1}`},
		{workflow.List(), workflow.Stream(true), `["text","text"]`, `{"x":["text","text",1]}`},
	} {
		d := workflow.Definition{ID: "w", Channels: map[string]workflow.Channel{"x": c.begun}, Edges: line("l", "m", "n"), Nodes: map[string]workflow.Node{
			"l": writes("x", "text"), "m": writes("x", "text"), "n": does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
				c.Pause(nil)
				return wrote("x", 1), nil
			})}}
		r := newGoRig(t, nil, d)
		out := r.run("w", "t", "{}")
		r.want(out, store.Suspended, "")
		d.Channels = map[string]workflow.Channel{"x": c.then}
		r.written = []workflow.Definition{d}
		r.restart()
		st, err := r.State(context.Background(), "w", "t")
		if err != nil {
			t.Fatal(err)
		}
		if string(st.State["x"]) != c.held {
			t.Errorf("before it moves, the thread has %s, want %s", st.State["x"], c.held)
		}
		if _, err := r.Resume(context.Background(), workflow.ResumeRequest{WorkflowID: "w", ThreadID: "t", AllowVersionMismatch: true, By: "token:t"}); err != nil {
			t.Fatal(err)
		}
		for out = r.wait(out.RunID); !out.Status.Terminal(); {
			out = r.wait(out.RunID)
		}
		got := string(out.Output)
		if out.Error != nil {
			got = out.Error.Code
		}
		if got != c.want {
			t.Errorf("the thread ended with %s, want %s", got, c.want)
		}
		r.stop()
	}
}

// TestGoRestartedAnew fails a run whose node was running when the process ended, and the next process has another version.
func TestGoRestartedAnew(t *testing.T) {
	var ran atomic.Int32
	d := workflow.Definition{ID: "w", Version: "1", Channels: channels("x"), Edges: line("n"), Nodes: map[string]workflow.Node{"n": does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
		if ran.Add(1) == 1 {
			<-c.Done()
			return workflow.Result{}, context.Cause(c)
		}
		return wrote("x", 1), nil
	})}}
	r := newGoRig(t, nil, d)
	h, err := r.Execute(context.Background(), workflow.ExecuteRequest{WorkflowID: "w", ThreadID: "t", By: "token:t"})
	if err != nil {
		t.Fatal(err)
	}
	for ran.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	d.Version = "2"
	r.written = []workflow.Definition{d}
	r.restart()
	if out := r.until(h.RunID, store.Failed); out.Error == nil || out.Error.Code != "workflow-version-mismatch" {
		t.Errorf("%+v", out)
	}
	if _, err := r.Retry(context.Background(), workflow.RetryRequest{WorkflowID: "w", ThreadID: "t", By: "token:t"}); code(err) != "workflow-version-mismatch" {
		t.Errorf("Retry = %v", err)
	}
	again, err := r.Retry(context.Background(), workflow.RetryRequest{WorkflowID: "w", ThreadID: "t", AllowVersionMismatch: true, By: "token:t"})
	if err != nil {
		t.Fatal(err)
	}
	r.want(r.wait(again.RunID), store.Completed, `{"x":1}`)
}

// TestGoStatic waits before and after nodes.
func TestGoStatic(t *testing.T) {
	var ran atomic.Int32
	n := does(func(*workflow.Context, workflow.State) (workflow.Result, error) {
		ran.Add(1)
		return workflow.Result{}, nil
	})
	r := newGoRig(t, nil, workflow.Definition{ID: "w", Edges: fan("a", "b"), Nodes: map[string]workflow.Node{"a": n, "b": n}, PauseAt: workflow.PauseAt{Before: []string{"b"}, After: []string{"a"}}})
	out := r.run("w", "t", "{}")
	for i, kind := range []string{"static-before", "static-after"} {
		for out.Status == store.Running {
			out = r.wait(out.RunID)
		}
		if out.Status != store.Suspended || len(out.PendingPauses) != 1 || out.PendingPauses[0].Kind != kind || int(ran.Load()) != 2*i {
			t.Fatalf("%d nodes ran: %+v", ran.Load(), out)
		}
		r.restart()
		if err := r.resume("w", "t", "", "null"); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			for out.PendingPauses == nil || out.PendingPauses[0].Kind != "static-after" {
				out = r.wait(out.RunID)
			}
		}
	}
	r.want(r.until(out.RunID, store.Completed), store.Completed, "{}")
}

// TestGoDirective writes channels and sends a thread that waits to another node.
func TestGoDirective(t *testing.T) {
	asks := does(func(c *workflow.Context, s workflow.State) (workflow.Result, error) {
		c.RequestApproval("pay", nil, workflow.Terms{})
		return workflow.Result{}, nil
	})
	r := newGoRig(t, nil, workflow.Definition{ID: "w", Channels: channels("x", "y"), Edges: append(line("n"), workflow.Edge{From: "m", To: workflow.End}), Nodes: map[string]workflow.Node{
		"n": asks, "m": does(func(_ *workflow.Context, s workflow.State) (workflow.Result, error) {
			return wrote("y", s.Number("x")+1), nil
		})}})
	out := r.run("w", "t", "{}")
	direct := func(update map[string]any, to string) error {
		_, err := r.Resume(context.Background(), workflow.ResumeRequest{WorkflowID: "w", ThreadID: "t", Update: update, Goto: to, By: "token:t"})
		return err
	}
	if err := direct(nil, "z"); code(err) != "unknown-node" {
		t.Errorf("goto z = %v", err)
	}
	if err := direct(map[string]any{"z": 1}, "m"); code(err) != "invalid-channel-write" {
		t.Errorf("update of z = %v", err)
	}
	if err := direct(map[string]any{"x": 41}, "m"); err != nil {
		t.Fatal(err)
	}
	r.want(r.until(out.RunID, store.Completed), store.Completed, `{"x":41,"y":42}`)
}

// TestGoKept keeps answers to declared awaits until a node waits for them.
func TestGoKept(t *testing.T) {
	r := newGoRig(t, nil, workflow.Definition{ID: "w", Channels: channels("x"), Awaits: []string{"late"}, Edges: line("n", "m"), Nodes: map[string]workflow.Node{
		"n": does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
			return workflow.Result{Write: map[string]any{}}, must(c.AwaitExternal("first"))
		}),
		"m": does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
			return wrote("x", c.AwaitExternal("late")), nil
		})}})
	out := r.run("w", "t", "{}")
	h, err := r.Resume(context.Background(), workflow.ResumeRequest{WorkflowID: "w", ThreadID: "t", Name: "late", Value: json.RawMessage(`"early"`), By: "token:t"})
	if err != nil || !h.Kept {
		t.Fatalf("Resume = %+v, %v; want it kept", h, err)
	}
	r.restart()
	if err := r.resume("w", "t", "first", "null"); err != nil {
		t.Fatal(err)
	}
	if err := r.resume("w", "t", "first", "null"); code(err) != "pause-not-found" && code(err) != "resume-without-suspension" {
		t.Errorf("a second answer = %v", err)
	}
	r.want(r.until(out.RunID, store.Completed), store.Completed, `{"x":"early"}`)
}

func must(value json.RawMessage) error {
	if string(value) != "null" {
		return fmt.Errorf("the answer is %s", value)
	}
	return nil
}

// TestGoUnregistered has threads rest that wait, and that moved, when a process begins that lacks their workflow: their run
// is parked, no timer is set, and they count as blocked. They continue with a process that has it.
func TestGoUnregistered(t *testing.T) {
	var ran atomic.Int32
	d := workflow.Definition{ID: "w", Channels: channels("x", "moves"), Edges: line("n"), Nodes: map[string]workflow.Node{"n": does(func(c *workflow.Context, s workflow.State) (workflow.Result, error) {
		if s.Bool("moves") && ran.Add(1) == 1 {
			<-c.Done()
			return workflow.Result{}, c.Err()
		}
		c.SleepFor(50 * time.Millisecond)
		return wrote("x", 1), nil
	})}}
	r := newGoRig(t, nil, d)
	waits := r.run("w", "waits", `{"moves":false}`)
	moves, err := r.Execute(context.Background(), workflow.ExecuteRequest{WorkflowID: "w", ThreadID: "moves", Input: json.RawMessage(`{"moves":true}`), By: "token:t"})
	if err != nil {
		t.Fatal(err)
	}
	for ran.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	r.written = nil
	ctx := context.Background()
	blocked := func() (n int) {
		err := r.db.Runs().View(ctx, func(tx *store.Tx) (err error) {
			n, err = r.db.Threads().Blocked(tx)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for range 2 {
		r.restart()
		for end := time.Now().Add(10 * time.Second); blocked() != 2; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d threads are blocked", blocked())
			}
		}
		for _, id := range []string{waits.RunID, moves.RunID} {
			row, _, err := r.kernel.Read(ctx, id)
			if err != nil || row.Status != store.Suspended {
				t.Errorf("the run is %+v, %v", row, err)
			}
			if _, err := r.Outcome(ctx, id); code(err) != "route-handler-missing" {
				t.Errorf("Outcome = %v", err)
			}
			if _, _, err := r.kernel.Resume(ctx, id, []run.Decision{{ToolCallID: "t1", Granted: true}}, "token:boss", nil); code(err) != "route-handler-missing" {
				t.Errorf("a decision = %v", err)
			}
		}
		if due, err := r.db.Runs().NextDue(ctx); err != nil || due != 0 {
			t.Errorf("a timer is set for %d, %v", due, err)
		}
	}
	r.written = []workflow.Definition{d}
	r.restart()
	r.want(r.until(waits.RunID, store.Completed), store.Completed, `{"moves":false,"x":1}`)
	r.want(r.until(moves.RunID, store.Completed), store.Completed, `{"moves":true,"x":1}`)
	if n := blocked(); n != 0 {
		t.Errorf("%d threads are blocked in the end", n)
	}
}

// TestGoAnswers gives one wait two answers at one time: one of them counts.
func TestGoAnswers(t *testing.T) {
	for _, awaits := range [][]string{nil, {"a"}} {
		r := newGoRig(t, nil, workflow.Definition{ID: "w", Channels: channels("x"), Awaits: awaits, Edges: line("n"), Nodes: map[string]workflow.Node{
			"n": does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
				return wrote("x", c.AwaitExternal("a")), nil
			})}})
		for i := range 20 {
			thread := fmt.Sprint("t", i)
			out := r.run("w", thread, "{}")
			var wg sync.WaitGroup
			var counted atomic.Int32
			for _, value := range []string{"1", "2"} {
				wg.Go(func() {
					h, err := r.Resume(context.Background(), workflow.ResumeRequest{WorkflowID: "w", ThreadID: thread, Name: "a", Value: json.RawMessage(value), By: "token:t"})
					if err == nil && !h.Kept {
						counted.Add(1)
					} else if err == nil {
						t.Errorf("the answer %s is kept", value)
					}
				})
			}
			wg.Wait()
			if end := r.until(out.RunID, store.Completed); counted.Load() != 1 {
				t.Errorf("%d answers count, with the output %s", counted.Load(), end.Output)
			}
		}
	}
}
