package workflow_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"agentd/metrics"
	"agentd/server/agent"
	"agentd/server/fault"
	"agentd/server/graph"
	"agentd/server/hub"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/run"
	"agentd/server/tool"
	"agentd/server/workflow"
	"agentd/store"
)

// A rig is workflows on a store of their own, with tools that the test makes.
type rig struct {
	tb     testing.TB
	path   string
	tools  *tools
	db     *store.DB
	kernel *run.Engine
	hub    *hub.Hub
	*workflow.Workflows
	metrics  *metrics.Inventory
	declared map[string]string
	written  []workflow.Definition
}

// newRig starts an engine with workflows, by id: their declarations as JSON.
func newRig(tb testing.TB, declared map[string]string, list ...tool.Tool) *rig {
	tb.Helper()
	r := &rig{tb: tb, path: filepath.Join(tb.TempDir(), "agentd.db"), declared: declared, tools: newTools(tb, list...)}
	r.start()
	tb.Cleanup(r.stop)
	return r
}

func (r *rig) start() {
	r.tb.Helper()
	db, err := store.Open(context.Background(), store.Options{Path: r.path, Durability: "full"})
	if err != nil {
		r.tb.Fatal(err)
	}
	r.db = db
	r.Workflows = workflow.New()
	for id, text := range r.declared {
		r.declare(id, text)
	}
	for _, d := range r.written {
		if err := r.Register(d); err != nil {
			r.tb.Fatal(err)
		}
	}
	r.hub = hub.New(hub.Options{MaxEvents: 1000, TTL: time.Minute})
	r.kernel = run.New(run.Options{Owner: r.Workflows.Owner, Forms: map[string]journal.Form{store.Workflow: r.Workflows.Form()},
		Runs: db.Runs(), Sessions: db.Sessions(), Hub: r.hub})
	r.Attach(workflow.Options{Kernel: r.kernel, Threads: db.Threads(), Runs: db.Runs(), Tools: r.tools, Metrics: r.metrics})
	if err := r.Unblock(context.Background()); err != nil {
		r.tb.Fatal(err)
	}
	if _, err := r.kernel.Recover(context.Background()); err != nil {
		r.tb.Fatal(err)
	}
}

func (r *rig) declare(id, text string) {
	r.tb.Helper()
	g, err := graph.Parse(id, []byte(text))
	if err != nil {
		r.tb.Fatalf("workflow %s: %v", id, err)
	}
	if err := r.Declare(id, g); err != nil {
		r.tb.Fatal(err)
	}
}

// stop drains the engine at once, as a server's stop would whose time is over.
func (r *rig) stop() {
	if r.db == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.kernel.Drain(ctx); err != nil {
		r.tb.Error(err)
	}
	r.statuses()
	r.db.Close()
	r.db = nil
}

// statuses checks that threads have the status of their latest run.
func (r *rig) statuses() {
	for _, status := range []store.Status{store.Running, store.Suspended, store.Awaiting, store.Completed, store.Failed, store.Aborted} {
		for _, w := range r.List() {
			err := r.db.View(context.Background(), func(tx *store.Tx) error {
				rows, err := r.db.Threads().List(tx, store.ThreadFilter{Workflow: w.ID, Status: status, Limit: 1000})
				for _, row := range rows {
					if row.Status != status {
						r.tb.Errorf("the thread %s is %s, and its run %s", row.ID, status, row.Status)
					}
				}
				return err
			})
			if err != nil {
				r.tb.Error(err)
			}
		}
	}
}

func (r *rig) restart() {
	r.tb.Helper()
	r.stop()
	r.start()
}

// run executes a workflow and waits until the run has ended or is parked.
func (r *rig) run(id, thread, input string) workflow.Outcome {
	r.tb.Helper()
	h, err := r.Execute(context.Background(), workflow.ExecuteRequest{WorkflowID: id, ThreadID: thread, Input: json.RawMessage(input), By: "token:t"})
	if err != nil {
		r.tb.Fatalf("Execute(%s) = %v", id, err)
	}
	return r.wait(h.RunID)
}

func (r *rig) wait(runID string) workflow.Outcome {
	r.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	out, err := r.Wait(ctx, runID)
	if err != nil {
		r.tb.Fatalf("Wait = %v", err)
	}
	return out
}

// until waits until a run has a status.
func (r *rig) until(runID string, status store.Status) workflow.Outcome {
	r.tb.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		out, err := r.Outcome(context.Background(), runID)
		if err != nil {
			r.tb.Fatal(err)
		}
		if out.Status == status {
			return out
		}
		if time.Now().After(end) {
			b, _ := json.Marshal(out)
			r.tb.Fatalf("run is not %s: %s", status, b)
		}
	}
}

func (r *rig) resume(id, thread, name, value string) error {
	_, err := r.Resume(context.Background(), workflow.ResumeRequest{WorkflowID: id, ThreadID: thread, Name: name, Value: json.RawMessage(value), By: "token:t"})
	return err
}

func (r *rig) want(out workflow.Outcome, status store.Status, output string) {
	r.tb.Helper()
	if out.Status != status || output != "" && string(out.Output) != output {
		b, _ := json.Marshal(out)
		r.tb.Fatalf("outcome = %s, want %s %s", b, status, output)
	}
}

func code(err error) string {
	if err == nil {
		return ""
	}
	return fault.Of(err).Kind.Code
}

// tools are the tools of a rig, of which those named ask* need an approval.
type tools struct {
	set *tool.Set
	mu  sync.Mutex
}

func newTools(tb testing.TB, list ...tool.Tool) *tools {
	set, err := tool.NewSet(list...)
	if err != nil {
		tb.Fatal(err)
	}
	set.Retry.MaxAttempts = 1
	return &tools{set: set}
}

func (t *tools) Spec(name string) (tool.Spec, bool) {
	found, ok := t.set.Get(name)
	if !ok {
		return tool.Spec{}, false
	}
	return found.Spec(), true
}

func (t *tools) Judge(callID, name string, args json.RawMessage) (json.RawMessage, bool, *message.Outcome) {
	canonical, err := message.Arguments(args)
	if err != nil {
		return nil, false, message.Fail(callID, name, message.InvalidInput, err.Error(), "")
	}
	return canonical, len(name) > 3 && name[:3] == "ask", nil
}

func (t *tools) Terms(a journal.Approval, _ string, _ int64) journal.Approval { return a }

func (t *tools) Edit(_, _ string, args json.RawMessage) (json.RawMessage, error) {
	return nil, fmt.Errorf("it has no approval.edit.")
}

func (t *tools) Doubt(name string) run.Doubt { return agent.Calls{Set: t.set}.Doubt(name) }

func (t *tools) Admit(ctx context.Context, name string, call tool.Call, wait func() error) (func(), *message.Outcome) {
	return t.set.Admit(ctx, name, call, wait)
}

func (t *tools) Execute(ctx context.Context, name string, call tool.Call) tool.Settled {
	return t.set.Execute(ctx, name, call)
}

// counter is a tool that counts its calls by idempotency key.
type counter struct {
	mu    sync.Mutex
	calls map[string]int
	all   int
	do    func(call tool.Call, n int) (tool.Result, error) // n: how many calls there were, this one included
}

func (c *counter) tool(name string, spec tool.Spec) tool.Tool {
	spec.Name = name
	return tool.Func(spec, func(ctx context.Context, call tool.Call) (tool.Result, error) {
		c.mu.Lock()
		if c.calls == nil {
			c.calls = map[string]int{}
		}
		c.calls[call.Key]++
		c.all++
		n := c.all
		c.mu.Unlock()
		if c.do != nil {
			return c.do(call, n)
		}
		return tool.JSON(map[string]any{"called": n})
	})
}
