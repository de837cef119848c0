package run_test

import (
	"context"
	"strings"
	"testing"

	"agentd/server/journal"
	"agentd/server/run"
)

// TestRequesters lets neither the principal that started a run nor the one that fired its trigger grant its calls.
func TestRequesters(t *testing.T) {
	e := run.New(run.Options{Lineages: func(_ context.Context, names []string) ([]string, error) {
		out := make([]string, len(names))
		for i, name := range names {
			out[i] = strings.TrimSuffix(name, "-minted")
		}
		return out, nil
	}})
	for by, refused := range map[string]bool{"token:a": true, "token:a-minted": true, "trigger:x": true, "token:b": false, "x for token:a": false} {
		a := journal.Approval{ToolCallID: "c", NotBy: "trigger:x for token:a"}
		d, err := e.Decider(t.Context(), by, []journal.Approval{a})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Vote(&a); (err != nil) != refused {
			t.Errorf("Vote by %s = %v, want refused: %v", by, err, refused)
		}
	}
}
