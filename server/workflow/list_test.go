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

// TestChildThreads: a thread that a task began is erased, retried and begun again only through the one that it belongs to; an await
// of it is answered under its own id.
func TestChildThreads(t *testing.T) {
	r := newRig(t, map[string]string{
		"outer": `{"start":"c","nodes":{"c":{"kind":"workflow","workflow":"inner","input":"${ input }","onError":{"next":"rest"},"next":"rest"},"rest":{"kind":"await","name":"x","next":"end"}}}`,
		"inner": `{"start":"a","nodes":{"a":{"kind":"await","name":"word","next":"b"},"b":{"kind":"branch","cases":[{"if":"has(input.fails)","next":"f"}],"else":"p"},
			"p":{"kind":"parallel","branches":["s"],"next":"end"},"s":{"kind":"sleep","forMs":1,"next":"end"},"f":{"kind":"parallel","branches":["g"],"next":"end"},"g":{"kind":"fail","code":"no","message":"No."}}}`})
	for i, input := range []string{`{}`, `{"fails":1}`} {
		root := r.run("outer", fmt.Sprint("t", i), input)
		child, err := r.Outcome(context.Background(), root.PendingPauses[0].ChildRun)
		if err != nil {
			t.Fatal(err)
		}
		refused := func(when string) {
			t.Helper()
			_, again := r.Execute(context.Background(), workflow.ExecuteRequest{WorkflowID: "inner", ThreadID: child.ThreadID})
			_, retried := r.Retry(context.Background(), workflow.RetryRequest{WorkflowID: "inner", ThreadID: child.ThreadID})
			erased := r.Delete(context.Background(), "inner", child.ThreadID, nil)
			for what, err := range map[string]error{"Execute": again, "Retry": retried, "Delete": erased} {
				if code(err) != "run-is-child" && code(err) != "checkpoint-version-conflict" && code(err) != "workflow-not-retryable" || what == "Delete" && code(err) != "run-is-child" {
					t.Errorf("%s of a child thread that %s = %v, want it refused", what, when, err)
				}
			}
		}
		refused("waits")
		if err := r.resume("inner", child.ThreadID, "word", `1`); err != nil {
			t.Fatal(err)
		}
		r.until(child.RunID, []store.Status{store.Completed, store.Failed}[i])
		refused("has ended")
		r.until(root.RunID, store.Suspended)
		if err := r.Delete(context.Background(), "outer", root.ThreadID, nil); err != nil {
			t.Errorf("Delete of the root = %v", err)
		}
		if _, err := r.State(context.Background(), "inner", child.ThreadID); code(err) != "thread-not-found" {
			t.Errorf("after that the child is there: %v", err)
		}
	}
}
