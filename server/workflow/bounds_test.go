package workflow_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/event"
	"agentd/server/hub"
	"agentd/server/tool"
	"agentd/server/workflow"
	"agentd/store"
)

// TestGoBounds has a node reach each of its bounds, and go beyond it by one.
func TestGoBounds(t *testing.T) {
	nested := func(n int) any {
		var v any = 1
		for range n {
			v = []any{v}
		}
		return v
	}
	emits := func(bytes int) func(*workflow.Context) error {
		return func(c *workflow.Context) error { return c.Emit("name", strings.Repeat("x", bytes-len(`name""`))) }
	}
	steps := func(n int, v any, err error) func(*workflow.Context) error {
		return func(c *workflow.Context) error {
			for range n {
				c.Step("s", func() (any, error) { return v, err }) //nolint:errcheck // its error is kept like a value
			}
			return nil
		}
	}
	sleeps := func(n int) func(*workflow.Context) error {
		return func(c *workflow.Context) error {
			steps(n, nil, nil)(c) //nolint:errcheck // nil
			c.SleepUntil(time.UnixMilli(1))
			return nil
		}
	}
	keeps := func(last int) func(*workflow.Context) error {
		return func(c *workflow.Context) error {
			steps(3, strings.Repeat("x", 1<<20-2), nil)(c) //nolint:errcheck // nil
			return steps(1, strings.Repeat("x", last-2), nil)(c)
		}
	}
	asks := func(terms workflow.Terms) func(*workflow.Context) error {
		return func(c *workflow.Context) error { c.RequestApproval("ok", nil, terms); return nil }
	}
	dive := func(levels int) func(*workflow.Context) error {
		return func(c *workflow.Context) error {
			_, err := c.Step("s", func() (any, error) { return nested(levels), nil })
			return err
		}
	}
	for _, c := range []struct {
		name string
		run  func(*workflow.Context) error
		want string // status, or code of the failure
	}{
		{"an event", emits(64 << 10), "completed"},
		{"an event that is too long", emits(64<<10 + 1), "node-execution-failed"},
		{"levels", dive(200), "completed"},
		{"too many levels", dive(201), "state-not-serializable"},
		{"calls", steps(1000, nil, nil), "completed"},
		{"too many calls", steps(1001, nil, nil), "state-too-large"},
		{"too many calls that fail", steps(1001, nil, errors.New("no")), "state-too-large"},
		{"too many calls, the last without a value", sleeps(1000), "state-too-large"},
		{"results", keeps(1 << 20), "completed"},
		{"results that are too large", keeps(1<<20 + 1), "state-too-large"},
		{"approvers", asks(workflow.Terms{Approvers: 10}), "awaiting_approval"},
		{"too many approvers", asks(workflow.Terms{Approvers: 11}), "node-execution-failed"},
		{"fewer approvers than none", asks(workflow.Terms{Approvers: -1}), "node-execution-failed"},
		{"a second", asks(workflow.Terms{Expires: time.Second}), "awaiting_approval"},
		{"less than a second", asks(workflow.Terms{Expires: time.Second - 1}), "node-execution-failed"},
		{"less than no time", asks(workflow.Terms{Expires: -time.Second}), "node-execution-failed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newGoRig(t, nil, workflow.Definition{ID: "w", Edges: line("n"), Nodes: map[string]workflow.Node{
				"n": does(func(ctx *workflow.Context, _ workflow.State) (workflow.Result, error) {
					return workflow.Result{}, c.run(ctx)
				})}})
			if got := failure(r.run("w", "t", "{}")); got != c.want {
				t.Errorf("the run is %s, want %s", got, c.want)
			}
		})
	}
}

// TestTasksInACommit: a commit begins at most 256 tasks, so that others get their turn at the store.
func TestTasksInACommit(t *testing.T) {
	flow := func(tasks int) string { // three parallels in one, as each has at most 256 branches
		nodes, names := "", [3][]string{}
		for i := range tasks - 4 {
			names[i%3] = append(names[i%3], fmt.Sprintf(`"b%d"`, i))
			nodes += fmt.Sprintf(`,"b%d":{"kind":"await","name":"n%d","next":"end"}`, i, i)
		}
		for i, list := range names {
			nodes += fmt.Sprintf(`,"q%d":{"kind":"parallel","branches":[%s],"next":"end"}`, i, strings.Join(list, ","))
		}
		return `{"start":"p","nodes":{"p":{"kind":"parallel","branches":["q0","q1","q2"],"next":"end"}` + nodes + `}}`
	}
	r := newRig(t, map[string]string{"few": flow(512), "many": flow(513)})
	commits := map[string]int64{}
	for id := range r.declared {
		r.want(r.run(id, "t", "{}"), store.Suspended, "")
		err := r.db.View(t.Context(), func(tx *store.Tx) error {
			row, err := r.db.Threads().Find(tx, id, "t")
			commits[id] = row.Version
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if commits["many"] != commits["few"]+1 {
		t.Errorf("512 tasks begin in %d commits, and 513 in %d; want one more", commits["few"], commits["many"])
	}
}

// TestStateInEvents: an event carries a state of 16 KiB, and says of a larger one that it is omitted; live and in a replay.
func TestStateInEvents(t *testing.T) {
	r := newRig(t, map[string]string{"w": `{"state":{"a":{}},"start":"s","nodes":{"s":{"kind":"set","values":{"a":"${ input.a }"},"next":"p"},"p":{"kind":"await","name":"n","next":"end"}}}`})
	for _, bytes := range []int{16 << 10, 16<<10 + 1} {
		out := r.run("w", "", fmt.Sprintf(`{"a":%q}`, strings.Repeat("x", bytes-len(`{"a":""}`))))
		r.want(out, store.Suspended, "")
		if err := r.resume("w", out.ThreadID, "n", "1"); err != nil {
			t.Fatal(err)
		}
		r.until(out.RunID, store.Completed)
		live, replayed := map[string]string{}, map[string]string{}
		note := func(to map[string]string, name string, body []byte) {
			var shown struct {
				State   json.RawMessage `json:"state"`
				Omitted bool            `json:"stateOmitted"`
			}
			if err := json.Unmarshal(body, &shown); err != nil {
				t.Fatal(err)
			}
			to[name] = fmt.Sprint(len(shown.State), shown.Omitted)
		}
		_, ring := r.hub.Subscribe(event.OfWorkflowRun("w", out.RunID).String(), hub.NewQueue(1000, 1<<20, func() {}), nil)
		for _, e := range ring {
			note(live, e.Type, e.Body())
		}
		err := r.kernel.Replay(context.Background(), out.RunID, event.RunView, 0, func(e *hub.Entry) error { note(replayed, e.Type, e.Payload); return nil })
		if err != nil {
			t.Fatal(err)
		}
		want := "0 true"
		if bytes <= 16<<10 {
			want = fmt.Sprint(bytes, false)
		}
		for name, got := range map[string]string{"live step.end": live[event.WorkflowStepEnd], "live suspended": live[event.WorkflowSuspended], "live end": live[event.WorkflowEnd],
			"replayed suspended": replayed[event.WorkflowSuspended], "replayed end": replayed[event.WorkflowEnd]} {
			if got != want {
				t.Errorf("a state of %d bytes: %s has %s, want %s", bytes, name, got, want)
			}
		}
	}
}

// TestPageOfCheckpoints ends a page with the step that brings it to more than 4 MiB.
func TestPageOfCheckpoints(t *testing.T) {
	r := newGoRig(t, nil, workflow.Definition{ID: "w", Channels: channels("x"), Edges: line("a", "b", "c"), Nodes: map[string]workflow.Node{
		"a": writes("x", strings.Repeat("a", 2<<20)), "b": writes("x", strings.Repeat("b", 2<<20)), "c": writes("x", strings.Repeat("c", 2<<20))}})
	r.want(r.run("w", "t", "{}"), store.Completed, "")
	var pages []int
	for before, more := 0, true; more; more = before != 0 {
		list, next, err := r.Checkpoints(t.Context(), "w", "t", 10, before)
		if err != nil {
			t.Fatal(err)
		}
		pages, before = append(pages, len(list)), next
	}
	if fmt.Sprint(pages) != "[2 1]" {
		t.Errorf("the pages have %v checkpoints", pages)
	}
}

// TestLimitOfAMinute: calls beyond the limit of a minute wait before they begin, so that a crash finds nothing to doubt.
func TestLimitOfAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		begun := time.Now()
		c := &counter{do: func(tool.Call, int) (tool.Result, error) {
			at = append(at, time.Since(begun).Truncate(time.Second))
			return tool.JSON(1)
		}}
		r := newRig(t, map[string]string{"w": `{"state":{"a":{}},"start":"m","nodes":{"m":{"kind":"map","over":"${ [1,2,3] }","concurrency":1,"save":"a","do":{"kind":"tool","tool":"pay"},"next":"end"}}}`},
			c.tool("pay", tool.Spec{Limit: tool.NewLimit(0, 2)}))
		id := r.begin("w")
		time.Sleep(30 * time.Second)
		r.restart() // the limit is the tool's, and stays
		time.Sleep(31 * time.Second)
		r.want(r.wait(id), store.Completed, "")
		if fmt.Sprint(at) != "[0s 0s 1m0s]" {
			t.Errorf("the calls began after %v, want 0s 0s 1m0s", at)
		}
	})
}
