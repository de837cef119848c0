package workflow_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/run"
	"agentd/server/workflow"
	"agentd/store"
)

// TestGoWaitNames has two tasks wait at one time: under one name, the run fails; pauses without a name get one each.
func TestGoWaitNames(t *testing.T) {
	awaits := does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
		return wrote("log", c.AwaitExternal("a")), nil
	})
	pauses := does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
		return wrote("log", c.Pause("?")), nil
	})
	spreads := does(func(*workflow.Context, workflow.State) (workflow.Result, error) {
		return workflow.Result{Dispatch: []workflow.Dispatch{{Node: "p"}, {Node: "p"}, {Node: "p"}}}, nil
	})
	log := map[string]workflow.Channel{"log": workflow.List()}
	r := newGoRig(t, nil, workflow.Definition{ID: "same", Channels: log, Edges: fan("n", "m"), Nodes: map[string]workflow.Node{"n": awaits, "m": awaits}},
		workflow.Definition{ID: "none", Channels: log, Edges: append(line("s")[:1], workflow.Edge{From: "p", To: workflow.End}), Nodes: map[string]workflow.Node{"s": spreads, "p": pauses}})
	out := r.run("same", "t", "{}")
	if out.Status != store.Failed || out.Error == nil || out.Error.Code != "pause-name-taken" {
		t.Errorf("two awaits of one name: %+v, %+v", out, out.Error)
	}
	for range 10 {
		out = r.run("none", "", "{}")
		if out.Status != store.Suspended || len(out.PendingPauses) != 3 {
			t.Fatalf("three pauses: %+v, %+v", out, out.Error)
		}
		for i, p := range out.PendingPauses {
			if err := r.resume("none", out.ThreadID, p.Name, fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		end := r.until(out.RunID, store.Completed)
		var held struct{ Log []int }
		if err := json.Unmarshal(end.Output, &held); err != nil || len(held.Log) != 3 || held.Log[0]+held.Log[1]+held.Log[2] != 3 {
			t.Errorf("the pauses gave %s", end.Output)
		}
	}
}

// TestGoAttempts gives a node as many attempts after a retry of the thread as before it.
func TestGoAttempts(t *testing.T) {
	for _, attempts := range []int{0, 1, 3} {
		var ran atomic.Int32
		r := newGoRig(t, nil, workflow.Definition{ID: "w", Edges: line("n"), Nodes: map[string]workflow.Node{"n": {Retry: workflow.Retry{MaxAttempts: attempts, Backoff: time.Millisecond},
			Run: func(*workflow.Context, workflow.State) (workflow.Result, error) {
				ran.Add(1)
				return workflow.Result{}, errors.New("no")
			}}}})
		r.want(r.run("w", "t", "{}"), store.Failed, "")
		for i := range 3 {
			if want := (i + 1) * max(attempts, 1); int(ran.Load()) != want {
				t.Fatalf("MaxAttempts %d: the node ran %d times in %d runs, want %d", attempts, ran.Load(), i+1, want)
			}
			h, err := r.Retry(context.Background(), workflow.RetryRequest{WorkflowID: "w", ThreadID: "t", By: "token:t"})
			if err != nil {
				t.Fatal(err)
			}
			r.want(r.wait(h.RunID), store.Failed, "")
		}
	}
}

// TestGoInputKept keeps what the input of a thread gave its channels: under another schema of the input, and when the thread
// goes over to a graph that lacks one of the channels.
func TestGoInputKept(t *testing.T) {
	waits := map[string]workflow.Node{"n": does(func(c *workflow.Context, s workflow.State) (workflow.Result, error) {
		c.Pause(nil)
		return wrote("y", s.JSON("x")), nil
	})}
	begun := workflow.Definition{ID: "w", Channels: channels("x", "y", "z"), Edges: line("n"), Nodes: waits}
	stricter := begun
	stricter.Input = json.RawMessage(`{"type":"object","required":["w"]}`)
	fewer := begun
	fewer.Channels = channels("x", "y")
	for name, c := range map[string]struct {
		then  workflow.Definition
		allow bool
		want  string
	}{"schema": {stricter, false, `{"x":1,"y":1,"z":2}`}, "channels": {fewer, true, `{"x":1,"y":1}`}} {
		t.Run(name, func(t *testing.T) {
			r := newGoRig(t, nil, begun)
			out := r.run("w", "t", `{"x":1,"z":2}`)
			r.want(out, store.Suspended, "")
			r.written = []workflow.Definition{c.then}
			r.restart()
			if _, err := r.Resume(context.Background(), workflow.ResumeRequest{WorkflowID: "w", ThreadID: "t", AllowVersionMismatch: c.allow, By: "token:t"}); err != nil {
				t.Fatal(err)
			}
			r.want(r.until(out.RunID, store.Completed), store.Completed, c.want)
		})
	}
}

// TestGoNested refuses calls of the context within the function of a step, whose place among the calls would differ when the
// node runs again.
func TestGoNested(t *testing.T) {
	for name, call := range map[string]func(*workflow.Context){
		"step":  func(c *workflow.Context) { c.Step("inner", func() (any, error) { return 1, nil }) },
		"pause": func(c *workflow.Context) { c.Pause(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newGoRig(t, nil, workflow.Definition{ID: "w", Edges: line("n"), Nodes: map[string]workflow.Node{"n": does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
				_, err := c.Step("outer", func() (any, error) { call(c); return 2, nil })
				return workflow.Result{}, err
			})}})
			if out := r.run("w", "t", "{}"); out.Status != store.Failed || out.Error.Code != "node-execution-failed" {
				t.Errorf("%+v, %+v", out, out.Error)
			}
		})
	}
}

// TestGoNames refuses names of calls that could not be stored as they are, or without bound.
func TestGoNames(t *testing.T) {
	for _, name := range []string{"", string(make([]byte, 129)), "\xff", "a\nb"} {
		for kind, call := range map[string]func(*workflow.Context){
			"await":    func(c *workflow.Context) { c.AwaitExternal(name) },
			"approval": func(c *workflow.Context) { c.RequestApproval(name, nil, workflow.Terms{}) },
			"step":     func(c *workflow.Context) { c.Step(name, func() (any, error) { return 1, nil }) },
		} {
			r := newGoRig(t, nil, workflow.Definition{ID: "w", Edges: line("n"), Nodes: map[string]workflow.Node{"n": does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
				call(c)
				return workflow.Result{}, nil
			})}})
			if out := r.run("w", "t", "{}"); out.Status != store.Failed || out.Error.Code != "node-execution-failed" {
				t.Errorf("%s %q: %+v", kind, name, out)
			}
			r.stop()
		}
	}
}

// TestGoBarrierInput refuses what a barrier cannot hold.
func TestGoBarrierInput(t *testing.T) {
	r := newGoRig(t, nil, workflow.Definition{ID: "w", Channels: map[string]workflow.Channel{"b": workflow.Barrier("n")}, Edges: line("n"), Nodes: map[string]workflow.Node{"n": writes("b", 1)}})
	if _, err := r.Execute(context.Background(), workflow.ExecuteRequest{WorkflowID: "w", Input: json.RawMessage(`{"b":[1]}`)}); code(err) != "config-invalid" {
		t.Errorf("Execute = %v", err)
	}
}

// TestGoInsteadOfDeclared does not take a thread of a declared workflow for one of a Go graph that has its id now.
func TestGoInsteadOfDeclared(t *testing.T) {
	r := newRig(t, map[string]string{"w": `{"start":"n","nodes":{"n":{"kind":"await","name":"a","next":"end"}}}`})
	r.want(r.run("w", "t", "{}"), store.Suspended, "")
	r.declared, r.written = nil, []workflow.Definition{{ID: "w", Edges: line("n"), Nodes: map[string]workflow.Node{"n": does(func(*workflow.Context, workflow.State) (workflow.Result, error) {
		return workflow.Result{}, nil
	})}}}
	r.restart()
	for allow, want := range map[bool]string{false: "workflow-version-mismatch", true: "workflow-divergence"} {
		_, err := r.Resume(context.Background(), workflow.ResumeRequest{WorkflowID: "w", ThreadID: "t", Name: "a", AllowVersionMismatch: allow, By: "token:t"})
		if code(err) != want {
			t.Errorf("Resume(allow %v) = %v, want %s", allow, err, want)
		}
	}
}

// TestGoPending bounds what the nodes of a superstep write and dispatch together, also before it is merged and over a restart.
func TestGoPending(t *testing.T) {
	text := strings.Repeat("x", 400)
	gate := make(chan bool)
	write := func(wait bool) workflow.Node {
		return does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
			if wait {
				select {
				case <-gate:
				case <-c.Done():
					return workflow.Result{}, c.Err()
				}
			}
			return wrote("x", text), nil
		})
	}
	r := newGoRig(t, nil, workflow.Definition{ID: "w", MaxStateBytes: 1000, Channels: map[string]workflow.Channel{"x": workflow.AnyValue()}, Edges: fan("a", "b", "c"),
		Nodes: map[string]workflow.Node{"a": write(false), "b": write(false), "c": write(true)}})
	h, err := r.Execute(context.Background(), workflow.ExecuteRequest{WorkflowID: "w", ThreadID: "t", By: "token:t"})
	if err != nil {
		t.Fatal(err)
	}
	for st := new(workflow.ThreadState); len(st.Active) != 1; time.Sleep(time.Millisecond) {
		if st, err = r.State(context.Background(), "w", "t"); err != nil {
			t.Fatal(err)
		}
	}
	r.restart()
	close(gate)
	out := r.until(h.RunID, store.Failed)
	if out.Error.Code != "state-too-large" {
		t.Errorf("%+v", out.Error)
	}
	if got := r.steps("w", "t"); !slices.Equal(got, []string{"1 c failed"}) {
		t.Errorf("checkpoints %q", got)
	}
}

// TestGoTerms decides an approval under the terms that its node sets.
func TestGoTerms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asks := func(terms workflow.Terms) map[string]workflow.Node {
			return map[string]workflow.Node{"n": does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
				d := c.RequestApproval("pay", nil, terms)
				return wrote("x", []any{d.Granted, d.By}), nil
			})}
		}
		ask := func(id string, terms workflow.Terms) workflow.Definition {
			return workflow.Definition{ID: id, Channels: channels("x"), Edges: line("n"), Nodes: asks(terms)}
		}
		r := newGoRig(t, nil, ask("two", workflow.Terms{Approvers: 2, Different: true}), ask("soon", workflow.Terms{Expires: time.Hour}), ask("many", workflow.Terms{Approvers: 11}), ask("past", workflow.Terms{Expires: -1}))
		for _, id := range []string{"many", "past"} {
			if out := r.run(id, "t", "{}"); out.Status != store.Failed || out.Error.Code != "node-execution-failed" {
				t.Errorf("%s: %+v", id, out)
			}
		}
		soon := r.run("soon", "t", "{}")
		r.want(soon, store.Awaiting, "")
		out := r.run("two", "t", "{}")
		a := out.PendingApprovals[0]
		if a.ApproversNeeded != 2 || a.NotBy != "token:t" || soon.PendingApprovals[0].ExpiresAt == "" {
			t.Fatalf("%+v, %+v", a, soon.PendingApprovals[0])
		}
		grant := func(by string) error {
			_, _, err := r.kernel.Resume(context.Background(), out.RunID, []run.Decision{{ToolCallID: a.ToolCallID, Granted: true}}, by, nil)
			return err
		}
		if err := grant("token:t"); err == nil {
			t.Error("the principal that started the run may grant")
		}
		r.restart()
		if err := grant("token:a"); err != nil {
			t.Fatal(err)
		}
		r.want(r.wait(out.RunID), store.Awaiting, "")
		if err := grant("token:b"); err != nil {
			t.Fatal(err)
		}
		r.want(r.until(out.RunID, store.Completed), store.Completed, `{"x":[true,"token:b"]}`)
		time.Sleep(time.Hour)
		r.want(r.until(soon.RunID, store.Completed), store.Completed, `{"x":[false,"expiry"]}`)
	})
}

// TestGoJournalBytes writes each result of a step once, however many follow.
func TestGoJournalBytes(t *testing.T) {
	const steps, size = 200, 4000
	r := newGoRig(t, nil, workflow.Definition{ID: "w", Edges: line("n"), Nodes: map[string]workflow.Node{"n": does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
		for i := range steps {
			if _, err := c.Step(fmt.Sprint(i), func() (any, error) { return strings.Repeat("x", size), nil }); err != nil {
				return workflow.Result{}, err
			}
		}
		c.Pause(nil)
		return workflow.Result{}, nil
	})}})
	before := r.size()
	out := r.run("w", "t", "{}")
	r.want(out, store.Suspended, "")
	if grown := r.size() - before; grown > 8*steps*size {
		t.Errorf("%d steps of %d bytes have written %d bytes", steps, size, grown)
	}
	if err := r.resume("w", "t", "", "1"); err != nil {
		t.Fatal(err)
	}
	r.want(r.until(out.RunID, store.Completed), store.Completed, "{}")
}

// TestGoLate ignores what an attempt does after its time and its grace are over, also when another attempt runs.
func TestGoLate(t *testing.T) {
	for range 10 {
		late := make(chan bool)
		var begun, kept atomic.Int32
		r := newGoRig(t, nil, workflow.Definition{ID: "w", Channels: channels("x"), Edges: line("n"), CancelGrace: time.Millisecond, Nodes: map[string]workflow.Node{
			"n": {Timeout: 50 * time.Millisecond, Retry: workflow.Retry{MaxAttempts: 10, Backoff: time.Millisecond}, Run: func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
				first := begun.Add(1) == 1
				v, err := c.Step("s", func() (any, error) {
					if first {
						<-late
						return "late", nil
					}
					return "in time", nil
				})
				if err != nil {
					return workflow.Result{}, err
				}
				if kept.Add(1) == 1 {
					close(late)
					time.Sleep(2 * time.Millisecond)
				}
				c.Pause(nil)
				return wrote("x", v), nil
			}}}})
		out := r.run("w", "t", "{}")
		r.want(out, store.Suspended, "")
		if err := r.resume("w", "t", "", "1"); err != nil {
			t.Fatal(err)
		}
		r.want(r.until(out.RunID, store.Completed), store.Completed, `{"x":"in time"}`)
		r.stop()
	}
}
