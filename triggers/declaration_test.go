package triggers_test

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"agentd/server/fuzztest"
	"agentd/server/graph"
	"agentd/store/storetest"
	"agentd/triggers"
)

// FuzzDeclaration checks declarations. One that a compiler accepts can be declared, and one that it refuses cannot; the next dues of a trigger
// come one after the other, and are the same each time.
func FuzzDeclaration(f *testing.F) {
	for _, text := range []string{
		`{"Kind": "cron", "Spec": "0 4 * * *", "Timezone": "Europe/Berlin", "Agent": "a", "Input": "Report for ${ due }", "CatchUpPolicy": "last", "JitterMs": 60000, "ExpiresAt": 1900000000000}`,
		`{"Kind": "cron", "Spec": "0 0 30 2 *", "Agent": "a"}`,
		`{"Kind": "interval", "EveryMs": 300000, "Workflow": "sync", "CatchUpPolicy": "all", "MaxCatchUpRuns": 3, "CatchUpWindowMs": 5, "Overlap": "queue", "QueueMax": 7}`,
		`{"Kind": "idle", "AfterMs": 300000, "Workflow": "tidy", "Session": "s", "Scopes": ["workflows:execute:tidy"]}`,
		`{"Kind": "event", "Spec": "order.created", "If": "event.total > 100", "Workflow": "refund", "Input": {"a": "${ event }"}, "Session": "order-${ event.id }", "Retry": {"MaxAttempts": 3, "BackoffMs": 10}}`,
		`{"Kind": "interval", "EveryMs": 1, "Agent": "a", "Workflow": "w", "Scopes": ["x"], "DisableAfter": -1, "ExpiresAt": -1}`,
		`{"Kind": "later"}`, `{}`,
	} {
		f.Add([]byte(text))
	}
	db := storetest.Open(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		var d triggers.Declaration
		if len(data) > 4096 || json.Unmarshal(data, &d) != nil {
			return
		}
		var issues []graph.Problem
		fuzztest.Cost{Base: 1 << 20}.Check(t, len(data), func() { // a zone takes some of it, expressions too
			issues = triggers.NewCompiler().Check(d)
		})
		e := triggers.New(triggers.Options{Store: db.Triggers()})
		err := e.Declare("t", d)
		if (err == nil) != (len(issues) == 0) {
			t.Fatalf("Check(%+v) = %v, Declare = %v", d, issues, err)
		}
		for _, i := range issues {
			if len(i.Path) == 0 || i.Message == "" {
				t.Errorf("Check(%+v) has the issue %+v", d, i)
			}
		}
		if err != nil {
			return
		}
		if err := e.Load(context.Background(), true); err != nil {
			t.Fatal(err)
		}
		first, err := e.Next("t", 5)
		if err != nil {
			t.Fatal(err)
		}
		again, err := e.Next("t", 5)
		for len(first) > 0 && len(again) > 0 && first[0].Before(again[0]) { // has passed between the calls
			first = first[1:]
		}
		if err != nil || !slices.EqualFunc(first, again[:min(len(first), len(again))], time.Time.Equal) {
			t.Errorf("Next = %v, and then %v, %v", first, again, err)
		}
		for i, due := range first {
			if i > 0 && !due.After(first[i-1]) || d.ExpiresAt != 0 && due.UnixMilli() >= d.ExpiresAt {
				t.Errorf("Next = %v; it expires at %d", first, d.ExpiresAt)
			}
		}
	})
}
