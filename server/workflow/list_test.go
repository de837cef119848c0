package workflow_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"agentd/server/workflow"
	"agentd/store"
)

// TestThreadPages: a page of the largest size is followed by another.
func TestThreadPages(t *testing.T) {
	r := newRig(t, map[string]string{"w": `{"state":{"n":{}},"start":"a","nodes":{"a":{"kind":"set","values":{"n":1},"next":"end"}}}`})
	const all = 1003
	for i := range all {
		if _, err := r.Execute(context.Background(), workflow.ExecuteRequest{WorkflowID: "w", ThreadID: fmt.Sprint(i), Detached: true}); err != nil {
			t.Fatal(err)
		}
	}
	f, seen := workflow.ThreadFilter{Workflow: "w", Limit: 1000}, 0
	for _, want := range []int{1000, 3} {
		list, next, err := r.Threads(context.Background(), f)
		if err != nil || len(list) != want || (next == 0) != (want == 3) {
			t.Fatalf("Threads(%+v) = %d threads, next %d, %v, want %d", f, len(list), next, err, want)
		}
		f.Before, seen = next, seen+len(list)
	}
	if seen != all {
		t.Errorf("the pages have %d threads, want %d", seen, all)
	}
}

// TestListUnregistered: a thread whose workflow the process lacks stays in the lists of its status.
func TestListUnregistered(t *testing.T) {
	r := newGoRig(t, nil, workflow.Definition{ID: "w", Channels: channels("x"), Edges: line("n"), Nodes: map[string]workflow.Node{
		"n": does(func(c *workflow.Context, _ workflow.State) (workflow.Result, error) {
			c.SleepFor(50 * time.Millisecond)
			return wrote("x", 1), nil
		})}})
	r.want(r.run("w", "t", "{}"), store.Suspended, "")
	r.written = nil
	r.restart()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		list, _, err := r.Threads(context.Background(), workflow.ThreadFilter{Workflow: "w", Blocked: true})
		if err != nil || time.Now().After(end) {
			t.Fatalf("Threads = %+v, %v, want a blocked one", list, err)
		}
		if len(list) == 1 {
			break
		}
	}
	list, _, err := r.Threads(context.Background(), workflow.ThreadFilter{Workflow: "w", Status: store.Suspended})
	if err != nil || len(list) != 1 {
		t.Errorf("Threads = %+v, %v, want the thread that waits", list, err)
	}
}
