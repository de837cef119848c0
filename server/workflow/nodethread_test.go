package workflow_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/event"
	"agentd/server/hub"
	"agentd/server/run"
	"agentd/server/workflow"
	"agentd/store"
)

// TestGoTransitions is each way from one status of a thread to another, and each that is refused.
func TestGoTransitions(t *testing.T) {
	fails := true
	r := newGoRig(t, nil,
		workflow.Definition{ID: "waits", Channels: channels("x"), Edges: line("n"), Nodes: map[string]workflow.Node{
			"n": does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
				return wrote("x", c.Pause("?")), nil
			})}},
		workflow.Definition{ID: "fails", Channels: channels("x"), Edges: line("n"), Nodes: map[string]workflow.Node{
			"n": does(func(*workflow.Context, workflow.State) (workflow.Result, error) {
				if fails {
					return workflow.Result{}, errors.New("not yet")
				}
				return wrote("x", 1), nil
			})}})
	ctx := context.Background()
	execute := func(id string) error {
		_, err := r.Execute(ctx, workflow.ExecuteRequest{WorkflowID: id, ThreadID: "t", By: "token:t"})
		return err
	}
	retry := func(id string) (string, error) {
		h, err := r.Retry(ctx, workflow.RetryRequest{WorkflowID: id, ThreadID: "t", By: "token:t"})
		if err != nil {
			return "", err
		}
		return h.RunID, nil
	}
	refused := func(what string, err error, want string) {
		t.Helper()
		if code(err) != want {
			t.Errorf("%s = %v, want %s", what, err, want)
		}
	}

	refused("resume of no thread", r.resume("waits", "t", "", "1"), "thread-not-found")
	_, err := retry("waits")
	refused("retry of no thread", err, "thread-not-found")
	out := r.run("waits", "t", "{}") // - -> running -> suspended
	r.want(out, store.Suspended, "")
	refused("execute of a suspended thread", execute("waits"), "checkpoint-version-conflict")
	var conflict *workflow.CheckpointConflictError
	if err := execute("waits"); !errors.As(err, &conflict) {
		t.Errorf("the conflict is %T", err)
	}
	_, err = retry("waits")
	refused("retry of a suspended thread", err, "checkpoint-version-conflict")
	if _, err := r.kernel.Abort(ctx, out.RunID, run.AbortOptions{}); err != nil { // suspended -> aborted
		t.Fatal(err)
	}
	r.want(r.until(out.RunID, store.Aborted), store.Aborted, "")
	refused("resume of an aborted thread", r.resume("waits", "t", "", "1"), "resume-without-suspension")
	again, err := retry("waits") // aborted -> running -> suspended
	if err != nil {
		t.Fatal(err)
	}
	r.want(r.wait(again), store.Suspended, "")
	if err := r.resume("waits", "t", "", "1"); err != nil { // suspended -> running -> completed
		t.Fatal(err)
	}
	r.want(r.until(again, store.Completed), store.Completed, `{"x":1}`)
	refused("resume of a completed thread", r.resume("waits", "t", "", "1"), "resume-without-suspension")
	_, err = retry("waits")
	refused("retry of a completed thread", err, "workflow-not-retryable")
	r.want(r.run("waits", "t", "{}"), store.Suspended, "") // completed -> running

	out = r.run("fails", "t", "{}") // running -> failed
	r.want(out, store.Failed, "")
	r.want(r.run("fails", "t", "{}"), store.Failed, "") // failed -> running, anew
	fails = false
	if again, err = retry("fails"); err != nil { // failed -> running -> completed
		t.Fatal(err)
	}
	r.want(r.wait(again), store.Completed, `{"x":1}`)
}

// TestGoTimer wakes a thread that sleeps two seconds after two seconds, without anybody's doing.
func TestGoTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newGoRig(t, nil, workflow.Definition{ID: "w", Channels: channels("x"), Edges: line("n"), Nodes: map[string]workflow.Node{"n": does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
			c.SleepFor(2 * time.Second)
			return wrote("x", 1), nil
		})}})
		begun := time.Now()
		out := r.run("w", "t", "{}")
		r.want(r.until(out.RunID, store.Completed), store.Completed, `{"x":1}`)
		if took := time.Since(begun); took < 2*time.Second || took > 2100*time.Millisecond {
			t.Errorf("the thread slept %v", took)
		}
	})
}

// TestGoEvents is what subscribers see of a run: a task begins again after its pause.
func TestGoEvents(t *testing.T) {
	r := newGoRig(t, nil, workflow.Definition{ID: "w", Channels: map[string]workflow.Channel{"x": {}, "gone": workflow.Ephemeral()}, Edges: line("n"), Nodes: map[string]workflow.Node{
		"n": does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
			if err := c.Emit("progress", 50); err != nil {
				return workflow.Result{}, err
			}
			return workflow.Result{Write: map[string]any{"x": c.Pause(nil), "gone": 2}}, nil
		})}})
	out := r.run("w", "t", "{}")
	if err := r.resume("w", "t", "", "1"); err != nil {
		t.Fatal(err)
	}
	r.want(r.until(out.RunID, store.Completed), store.Completed, `{"x":1}`)
	var got []string
	err := r.kernel.Replay(context.Background(), out.RunID, event.RunView, 0, func(e *hub.Entry) error {
		var shown struct {
			Node, Status string
			Channel      string
		}
		if err := json.Unmarshal(e.Payload, &struct {
			Node   *string `json:"nodeName"`
			Status *string `json:"status"`
		}{&shown.Node, &shown.Status}); err != nil {
			return err
		}
		got = append(got, fmt.Sprint(e.Type, " ", shown.Node, " ", shown.Status))
		return nil
	})
	want := []string{"workflow.start  ", "workflow.task.start n ", "workflow.task.end n paused", "workflow.suspended  suspended", "workflow.resumed  ", "workflow.task.start n ", "workflow.task.end n completed",
		"workflow.end  completed"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("events %q, %v; want %q", got, err, want)
	}
}

// TestGoBlocked leaves a sleeping thread parked whose time comes under another version, until somebody resumes it.
func TestGoBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := workflow.Definition{ID: "w", Version: "1", Channels: channels("x"), Edges: line("n"), Nodes: map[string]workflow.Node{"n": does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
			c.SleepFor(time.Minute)
			return wrote("x", 1), nil
		})}}
		r := newGoRig(t, nil, d)
		out := r.run("w", "t", "{}")
		r.want(out, store.Suspended, "")
		dropped := r.run("w", "u", "{}")
		d.Version = "2"
		r.written = []workflow.Definition{d}
		r.restart()
		for _, thread := range []string{"t", "u"} {
			for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Second) {
				st, err := r.State(context.Background(), "w", thread)
				if err != nil || st.Status != store.Suspended || time.Now().After(end) {
					t.Fatalf("%+v, %v", st, err)
				}
				if st.Blocked == "workflow-version-mismatch" {
					break
				}
			}
		}
		if _, err := r.kernel.Abort(context.Background(), dropped.RunID, run.AbortOptions{}); err != nil {
			t.Fatal(err)
		}
		if st, err := r.State(context.Background(), "w", "u"); err != nil || st.Status != store.Aborted || st.Blocked != "" {
			t.Errorf("aborted, the thread is %+v, %v", st, err)
		}
		if err := r.resume("w", "t", "", "null"); code(err) != "workflow-version-mismatch" {
			t.Errorf("Resume = %v", err)
		}
		if _, err := r.Resume(context.Background(), workflow.ResumeRequest{WorkflowID: "w", ThreadID: "t", AllowVersionMismatch: true, By: "token:t"}); err != nil {
			t.Fatal(err)
		}
		r.want(r.until(out.RunID, store.Completed), store.Completed, `{"x":1}`)
	})
}

// TestGoBeginnings are runs that end before a node has run.
func TestGoBeginnings(t *testing.T) {
	nothing := map[string]workflow.Node{"n": does(func(*workflow.Context, workflow.State) (workflow.Result, error) { return workflow.Result{}, nil })}
	never := func(workflow.State) bool { return false }
	r := newGoRig(t, nil, workflow.Definition{ID: "ends", Nodes: nothing, Edges: []workflow.Edge{{From: workflow.Start, To: workflow.End}}},
		workflow.Definition{ID: "dead", Nodes: nothing, Edges: []workflow.Edge{{From: workflow.Start, To: "n", When: never}}})
	r.want(r.run("ends", "t", "{}"), store.Completed, "{}")
	if out := r.run("dead", "t", "{}"); out.Status != store.Failed || out.Error.Code != "dead-end" {
		t.Errorf("%+v", out)
	}
}
