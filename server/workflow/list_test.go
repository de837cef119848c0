package workflow_test

import (
	"context"
	"fmt"
	"testing"

	"agentd/server/workflow"
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
