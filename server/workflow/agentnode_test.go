package workflow_test

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"agentd/server/agent"
	"agentd/server/hub"
	"agentd/server/journal"
	"agentd/server/provider"
	"agentd/server/run"
	"agentd/server/tool"
	"agentd/server/workflow"
	"agentd/store"
	"agentd/store/storetest"
)

// A cast is workflows with agents: "echo" returns its input and its session, "say" a text, "hold" waits until it is released or
// aborted, and "payer" is a model that makes a call of "pay", which needs an approval. "soon" is payer, whose approvals expire.
type cast struct {
	rig
	agents  *agent.Engine
	pay     counter
	release chan struct{}

	mu   sync.Mutex // guards the field below
	runs []agent.Input
}

func newCast(t *testing.T, declared map[string]string, list ...tool.Tool) *cast {
	t.Helper()
	c := &cast{rig: rig{tb: t, path: filepath.Join(t.TempDir(), "agentd.db"), declared: declared, tools: newTools(t, list...)}, release: make(chan struct{})}
	c.open()
	return c
}

func (c *cast) open() {
	c.tb.Helper()
	c.db = storetest.OpenAt(c.tb, c.path)
	c.tb.Cleanup(c.stop) // before the store is closed
	c.Workflows = workflow.New()
	for id, text := range c.declared {
		c.declare(id, text)
	}
	registry := &agent.Registry{}
	for id, run := range map[string]func(context.Context, agent.Input) (agent.Result, error){
		"echo": func(_ context.Context, in agent.Input) (agent.Result, error) {
			return agent.Result{Output: map[string]any{"in": in.Input, "session": in.SessionID}}, nil
		},
		"say": func(_ context.Context, in agent.Input) (agent.Result, error) {
			return agent.Result{Output: "{" + in.Text() + "}"}, nil
		},
		"hold": func(ctx context.Context, _ agent.Input) (agent.Result, error) {
			select {
			case <-c.release:
				return agent.Result{Output: "released"}, nil
			case <-ctx.Done():
				return agent.Result{}, context.Cause(ctx)
			}
		},
	} {
		if err := registry.Register(agent.Registration{ID: id, Agent: actor{c, id, run}}); err != nil {
			c.tb.Fatal(err)
		}
	}
	script, err := provider.NewScripted("s", []byte(`{"turns":[{"when":{"step":0},"toolCalls":[{"name":"pay","args":{}}]},{"text":"end: {{lastTool}}"}]}`))
	if err != nil {
		c.tb.Fatal(err)
	}
	set, err := tool.NewSet(c.pay.tool("pay", tool.Spec{}))
	if err != nil {
		c.tb.Fatal(err)
	}
	for id, terms := range map[string]journal.Terms{"payer": {}, "soon": {Expires: 200 * time.Millisecond}} {
		llm := &agent.LLM{Models: []agent.Model{{Provider: script, Model: "m"}}, Tools: set}
		llm.Policy.Tools = map[string]agent.Gate{"pay": {Always: true, Terms: terms}}
		if err := registry.Register(agent.Registration{ID: id, LLM: llm}); err != nil {
			c.tb.Fatal(err)
		}
	}
	c.agents = agent.New(registry, run.Options{Owner: c.Owner, Forms: map[string]journal.Form{store.Workflow: c.Form()}, Runs: c.db.Runs(), Sessions: c.db.Sessions(),
		Hub: hub.New(hub.Options{MaxEvents: 1000, TTL: time.Minute})})
	c.kernel = c.agents.Engine
	c.Attach(workflow.Options{Kernel: c.kernel, Threads: c.db.Threads(), Runs: c.db.Runs(), Tools: c.tools,
		MayJoin: func(_ context.Context, principal, session string) (bool, error) {
			return principal == "token:t" && session == "granted", nil
		}})
	if _, err := c.agents.Recover(context.Background()); err != nil {
		c.tb.Fatal(err)
	}
}

func (c *cast) restart() {
	c.tb.Helper()
	c.stop()
	c.open()
}

// began returns how often an agent in Go was started.
func (c *cast) began(id string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, in := range c.runs {
		if in.AgentID == id {
			n++
		}
	}
	return n
}

// hosts returns the runs that a run hosts.
func (c *cast) hosts(runID string) (list []*store.Run) {
	c.tb.Helper()
	row, err := c.kernel.Find(context.Background(), runID)
	if err == nil {
		err = c.db.View(context.Background(), func(tx *store.Tx) (err error) {
			list, err = c.db.Runs().List(tx, store.RunFilter{Parent: row.N})
			return err
		})
	}
	if err != nil {
		c.tb.Fatal(err)
	}
	return list
}

// hosted waits until a run hosts one with a status, and returns that.
func (c *cast) hosted(runID string, status store.Status) *store.Run {
	c.tb.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		list := c.hosts(runID)
		if i := slices.IndexFunc(list, func(r *store.Run) bool { return r.Status == status }); i >= 0 {
			return list[i]
		}
		if time.Now().After(end) {
			c.tb.Fatalf("no hosted run is %s: %+v", status, list)
		}
	}
}

// begin executes a workflow without waiting.
func (c *cast) begin(id, input string) string {
	c.tb.Helper()
	h, err := c.Execute(context.Background(), workflow.ExecuteRequest{WorkflowID: id, ThreadID: "t", Input: json.RawMessage(input), By: "token:t"})
	if err != nil {
		c.tb.Fatal(err)
	}
	return h.RunID
}

type actor struct {
	c   *cast
	id  string
	run func(context.Context, agent.Input) (agent.Result, error)
}

func (a actor) ID() string { return a.id }

func (a actor) Run(ctx context.Context, in agent.Input) (agent.Result, error) {
	a.c.mu.Lock()
	a.c.runs = append(a.c.runs, in)
	a.c.mu.Unlock()
	return a.run(ctx, in)
}

// TestAgentNodes runs agents and looks at what they get and what their nodes give.
func TestAgentNodes(t *testing.T) {
	c := newCast(t, map[string]string{
		"none":  `{"state":{"a":{}},"start":"n","output":"${ state.a }","nodes":{"n":{"kind":"agent","agent":"echo","input":{"x":"${ input.n }"},"save":"a","next":"end"}}}`,
		"text":  `{"state":{"a":{}},"start":"n","output":"${ state.a + '!' }","nodes":{"n":{"kind":"agent","agent":"say","input":"n ${ input.n }","save":"a","next":"end"}}}`,
		"named": `{"state":{"a":{}},"start":"n","output":"${ state.a.session }","nodes":{"n":{"kind":"agent","agent":"echo","session":"s-${ input.n }","save":"a","next":"end"}}}`,
		"map": `{"state":{"a":{}},"start":"m","output":"${ state.a.map(r, r.ok ? r.value : r.error.code) }","nodes":{"m":{"kind":"map","over":"${ ['own', 'theirs', 'granted'] }","failures":"collect","save":"a","next":"end",
			"do":{"kind":"agent","agent":"say","input":"${ item }","session":"${ item }"}}}}`,
		"maps": `{"state":{"a":{}},"start":"m","output":"${ state.a.map(r, r.ok ? r.value : r.error.code) }","nodes":{"m":{"kind":"map","over":"${ [1, 2] }","failures":"collect","save":"a","next":"end",
			"do":{"kind":"workflow","workflow":"odd","input":"${ {'n': item} }"}}}}`,
		"odd": `{"start":"b","output":"${ input.n }","nodes":{"b":{"kind":"branch","cases":[{"if":"input.n % 2 == 1","next":"s"}],"else":"f"},
			"s":{"kind":"sleep","forMs":20,"next":"end"},"f":{"kind":"fail","code":"even","message":"It is even."}}}`})
	if err := c.db.Update(t.Context(), func(tx *store.Tx) error {
		theirs := store.Session{ID: "theirs", User: "u", Agent: "say", Created: tx.Now(), Maker: "token:other"}
		granted := theirs
		granted.ID = "granted"
		return errors.Join(c.db.Sessions().Insert(tx, theirs), c.db.Sessions().Insert(tx, granted))
	}); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{
		"none": `{"in":{"x":7},"session":""}`, "text": `"{n 7}!"`, "named": `"s-7"`, "map": `["{own}","scope-denied","{granted}"]`, "maps": `[1,"even"]`,
	} {
		if out := c.ended(id, "", `{"n":7}`); out.Status != store.Completed || string(out.Output) != want {
			t.Errorf("%s: %s %s, want %s", id, failure(out), out.Output, want)
		}
	}
}

// TestOwnSession: the session of a thread is one for its nodes, its runs and after a restart, and belongs to it alone.
func TestOwnSession(t *testing.T) {
	c := newCast(t, map[string]string{"w": `{"state":{"a":{"merge":"append"}},"start":"one","output":"${ state.a }","nodes":{
		"one":{"kind":"agent","agent":"echo","session":"thread","save":"a","next":"wait"},"wait":{"kind":"await","name":"x","next":"two"},
		"two":{"kind":"agent","agent":"echo","session":"thread","save":"a","next":"end"}}}`})
	out := c.run("w", "t", `{}`)
	c.want(c.until(out.RunID, store.Suspended), store.Suspended, "")
	if _, err := c.kernel.Abort(t.Context(), out.RunID, run.AbortOptions{}); err != nil {
		t.Fatal(err)
	}
	c.restart()
	again := c.retry("w", "t")
	if err := c.resume("w", "t", "x", `1`); err != nil {
		t.Fatal(err)
	}
	c.want(c.until(again.RunID, store.Completed), store.Completed, "")
	own := "thread-" + out.RunID
	var got []string
	for _, in := range c.runs {
		got = append(got, in.SessionID)
	}
	if !slices.Equal(got, []string{own, own}) {
		t.Errorf("the sessions of two nodes are %v, want twice %s", got, own)
	}
	_, err := c.agents.Start(t.Context(), run.StartRequest{Owner: "echo", SessionID: own, By: "token:other"})
	if code(err) != "scope-denied" {
		t.Errorf("another principal's run in the session = %v, want scope-denied", err)
	}
}

// TestBusySession: the agent of a node takes its turn in a session.
func TestBusySession(t *testing.T) {
	c := newCast(t, map[string]string{"w": `{"state":{"a":{}},"start":"n","output":"${ state.a.session }","nodes":{"n":{"kind":"agent","agent":"echo","session":"${ 's' }","save":"a","next":"end"}}}`})
	if _, err := c.agents.Start(t.Context(), run.StartRequest{Owner: "hold", SessionID: "s", By: "token:t"}); err != nil {
		t.Fatal(err)
	}
	id := c.begin("w", `{}`)
	c.hosted(id, store.Pending)
	if n := c.began("echo"); n != 0 {
		t.Errorf("the agent began %d times while the session was busy", n)
	}
	close(c.release)
	c.want(c.until(id, store.Completed), store.Completed, `"s"`)
}

// TestAgentApproval decides on the approval of an agent at the root, over a restart, with one thread above it and with two.
func TestAgentApproval(t *testing.T) {
	flows := map[string]string{
		"one":  `{"state":{"a":{}},"start":"n","output":"${ state.a }","nodes":{"n":{"kind":"agent","agent":"payer","input":"go","save":"a","next":"end"}}}`,
		"two":  `{"state":{"a":{}},"start":"n","output":"${ state.a }","nodes":{"n":{"kind":"workflow","workflow":"one","save":"a","next":"end"}}}`,
		"soon": `{"state":{"a":{}},"start":"n","output":"${ state.a }","nodes":{"n":{"kind":"agent","agent":"soon","input":"go","save":"a","next":"end"}}}`,
	}
	for _, test := range []struct {
		flow    string
		granted bool
		calls   int
	}{{"one", true, 1}, {"one", false, 0}, {"two", true, 1}, {"two", false, 0}, {"soon", false, 0}} {
		c := newCast(t, flows)
		id := c.begin(test.flow, `{}`)
		out := c.until(id, store.Awaiting)
		if test.flow != "soon" {
			c.restart()
			out = c.until(id, store.Awaiting)
			if len(out.PendingApprovals) != 1 || out.PendingApprovals[0].ToolName != "pay" || out.PendingApprovals[0].SubRunToolCallID == "" {
				t.Fatalf("%s: approvals at the root: %+v", test.flow, out.PendingApprovals)
			}
			a, child := out.PendingApprovals[0], c.hosted(id, store.Awaiting)
			d := run.Decision{ToolCallID: a.ToolCallID, SubRunToolCallID: a.SubRunToolCallID, Granted: test.granted}
			if _, _, err := c.agents.Resume(t.Context(), child.ID, []run.Decision{d}, "token:p", nil); code(err) != "run-is-child" {
				t.Errorf("%s: the decision under the child = %v, want run-is-child", test.flow, err)
			}
			if _, _, err := c.agents.Resume(t.Context(), id, []run.Decision{d}, "token:p", nil); err != nil {
				t.Fatal(err)
			}
		}
		out = c.until(id, store.Completed) // the model is told of a denial
		if n := c.pay.all; n != test.calls || len(c.hosts(id)) != 1 || len(out.Output) == 0 {
			t.Errorf("%s, granted %v: %d calls, %d hosted runs, output %s; want %d calls, 1 run", test.flow, test.granted, n, len(c.hosts(id)), out.Output, test.calls)
		}
	}
}

// TestAgentAborted: the abort of a thread, and the end of its time, abort the agent's run, whether that works or waits.
func TestAgentAborted(t *testing.T) {
	for _, test := range []struct {
		agent    string
		standing store.Status
	}{{"hold", store.Running}, {"payer", store.Awaiting}} {
		flow := `"start":"n","nodes":{"n":{"kind":"agent","agent":"` + test.agent + `","input":"go","next":"end"}}}`
		c := newCast(t, map[string]string{"w": `{` + flow, "late": `{"timeoutMs":300,` + flow})
		id := c.begin("w", `{}`)
		child := c.hosted(id, test.standing)
		if _, err := c.kernel.Abort(t.Context(), child.ID, run.AbortOptions{}); code(err) != "run-is-child" {
			t.Errorf("%s: Abort of the child = %v, want run-is-child", test.agent, err)
		}
		if _, err := c.kernel.Abort(t.Context(), id, run.AbortOptions{}); err != nil {
			t.Fatal(err)
		}
		if out := c.until(id, store.Aborted); failure(out) != "run-aborted" {
			t.Errorf("%s: the thread ends with %s", test.agent, failure(out))
		}
		c.hosted(id, store.Aborted)
		id = c.begin("late", `{}`)
		if out := c.until(id, store.Failed); failure(out) != "workflow-timeout" {
			t.Errorf("%s: the thread ends with %s, want workflow-timeout", test.agent, failure(out))
		}
		c.hosted(id, store.Aborted)
		if c.pay.all != 0 {
			t.Errorf("the aborted agent has made %d calls", c.pay.all)
		}
	}
}

// TestAgentRestarted: an agent in Go that a stop of the server cuts off fails its node, and is not started twice by one attempt.
func TestAgentRestarted(t *testing.T) {
	c := newCast(t, map[string]string{"w": `{"start":"n","nodes":{"n":{"kind":"agent","agent":"hold","next":"end"}}}`})
	id := c.begin("w", `{}`)
	c.hosted(id, store.Running)
	c.restart()
	if out := c.ends(id); failure(out) != "shutdown-timeout" || c.began("hold") != 1 || len(c.hosts(id)) != 1 {
		t.Errorf("the run ends with %s after %d starts and %d hosted runs, want shutdown-timeout, 1, 1", failure(out), c.began("hold"), len(c.hosts(id)))
	}
	close(c.release)
	c.want(c.retry("w", "t"), store.Completed, "")
}

// TestTimeWithDoubt: a run whose time is over while a person is asked what became of a call ends when that is said, and not
// before.
func TestTimeWithDoubt(t *testing.T) {
	cut := &counter{do: func(tool.Call, int) (tool.Result, error) {
		return tool.Result{}, &tool.Error{Message: "The line was cut.", Unknown: true}
	}}
	r := newRig(t, map[string]string{"w": `{"timeoutMs":100,"start":"n","nodes":{"n":{"kind":"tool","tool":"cut","next":"end"}}}`}, cut.tool("cut", tool.Spec{}))
	out := r.run("w", "t", `{}`)
	time.Sleep(300 * time.Millisecond)
	r.restart()
	out = r.until(out.RunID, store.Awaiting)
	if len(out.PendingApprovals) != 1 || !out.PendingApprovals[0].MayHaveHappened() {
		t.Fatalf("%s with %+v; want the doubtful call", failure(out), out.PendingApprovals)
	}
	if _, _, err := r.kernel.Resume(t.Context(), out.RunID, []run.Decision{{ToolCallID: out.PendingApprovals[0].ToolCallID, Result: []byte(`1`)}}, "token:p", nil); err != nil {
		t.Fatal(err)
	}
	if out = r.ends(out.RunID); failure(out) != "workflow-timeout" || cut.all != 1 {
		t.Errorf("the run ends with %s after %d calls, want workflow-timeout after 1", failure(out), cut.all)
	}
}
