package workflow_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"agentd/server/expr"
	"agentd/server/message"
	"agentd/server/run"
	"agentd/server/tool"
	"agentd/server/workflow"
	"agentd/store"
)

func echo(call tool.Call, _ int) (tool.Result, error) { return tool.Result{Output: call.Args}, nil }

// TestNodes runs one node of each kind that needs nobody.
func TestNodes(t *testing.T) {
	c := &counter{do: echo}
	flaky := &counter{do: func(call tool.Call, n int) (tool.Result, error) {
		if n < 3 {
			return tool.Result{}, &tool.Error{Message: "not yet", NotBegun: true}
		}
		return tool.JSON(n)
	}}
	pure := tool.Spec{SideEffect: tool.Pure}
	for _, test := range []struct{ name, flow, input, output string }{
		{"set", `{"state":{"a":{},"b":{}},"start":"s","nodes":{"s":{"kind":"set","values":{"a":"${ input.x + 1 }","b":"n ${ input.x }"},"next":"end"}}}`, `{"x":1}`, `{"a":2,"b":"n 1"}`},
		{"branch", `{"state":{"a":{}},"start":"b","output":"${ state.a }","nodes":{"b":{"kind":"branch","cases":[{"if":"input.x > 5","next":"big"}],"else":"small"},
			"big":{"kind":"set","values":{"a":"big"},"next":"end"},"small":{"kind":"set","values":{"a":"small"},"next":"end"}}}`, `{"x":9}`, `"big"`},
		{"tool", `{"state":{"a":{}},"start":"t","output":"${ state.a }","nodes":{"t":{"kind":"tool","tool":"echo","args":{"v":"${ input.x }"},"save":"a","next":"end"}}}`, `{"x":9}`, `{"v":9}`},
		{"retry", `{"state":{"a":{}},"start":"t","output":"${ state.a }","nodes":{"t":{"kind":"tool","tool":"flaky","save":"a","retry":{"maxAttempts":5,"backoffMs":1},"next":"end"}}}`, `{}`, `3`},
		{"map", `{"state":{"a":{}},"start":"m","output":"${ state.a }","nodes":{"m":{"kind":"map","over":"${ input.x }","save":"a","concurrency":3,
			"do":{"kind":"tool","tool":"echo","args":{"i":"${ index }","v":"${ item * 2 }"}},"next":"end"}}}`, `{"x":[1,2,3,4,5]}`,
			`[{"i":0,"v":2},{"i":1,"v":4},{"i":2,"v":6},{"i":3,"v":8},{"i":4,"v":10}]`},
		{"empty map", `{"state":{"a":{}},"start":"m","output":"${ state.a }","nodes":{"m":{"kind":"map","over":"${ [] }","save":"a","do":{"kind":"tool","tool":"echo"},"next":"end"}}}`, `{}`, `[]`},
		{"collect", `{"state":{"a":{}},"start":"m","output":"${ state.a.map(r, r.ok) }","nodes":{"m":{"kind":"map","over":"${ [1, 0, 2] }","save":"a","failures":"collect",
			"do":{"kind":"tool","tool":"echo","args":{"v":"${ 6 / item }"}},"next":"end"}}}`, `{}`, `[true,false,true]`},
		{"parallel", `{"state":{"a":{"merge":"append"}},"start":"p","output":"${ size(state.a) }","nodes":{"p":{"kind":"parallel","branches":["x","y"],"next":"z"},
			"x":{"kind":"tool","tool":"echo","save":"a","next":"end"},"y":{"kind":"tool","tool":"echo","save":"a","next":"y2"},"y2":{"kind":"set","values":{"a":"${ [1] }"},"next":"end"},
			"z":{"kind":"set","values":{"a":"${ ['z'] }"},"next":"end"}}}`, `{}`, `4`},
		{"sleep that is over", `{"start":"s","output":"done","nodes":{"s":{"kind":"sleep","until":"2020-01-01T00:00:00Z","next":"end"}}}`, `{}`, `"done"`},
		{"sleep", `{"start":"s","output":"done","nodes":{"s":{"kind":"sleep","forMs":"${ 30 }","next":"end"}}}`, `{}`, `"done"`},
		{"caught", `{"state":{"e":{}},"start":"t","output":"${ state.e.code + ' ' + error.node }","nodes":{"t":{"kind":"tool","tool":"echo","args":{"v":"${ 1 / 0 }"},"onError":{"next":"end","save":"e"},"next":"end"}}}`, `{}`,
			`"expression-failed t"`},
		{"parallel caught", `{"state":{"e":{}},"start":"p","output":"${ state.e.code }","nodes":{"p":{"kind":"parallel","branches":["x","y"],"onError":{"next":"end","save":"e"},"next":"end"},
			"x":{"kind":"fail","code":"no-way","message":"x"},"y":{"kind":"await","name":"never","next":"end"}}}`, `{}`, `"no-way"`},
		{"workflow caught", `{"state":{"e":{},"zz":{}},"onError":{"next":"h","save":"e"},"start":"t","output":"${ state.e.code }","nodes":{"t":{"kind":"tool","tool":"echo","args":{"v":"${ 1 / 0 }"},"next":"end"},
			"h":{"kind":"set","values":{"zz":1},"next":"end"}}}`, `{}`, `"expression-failed"`},
		{"loop", `{"state":{"n":{"merge":"sum"}},"start":"add","nodes":{"add":{"kind":"set","values":{"n":"${ 1 }"},"next":"more"},
			"more":{"kind":"branch","cases":[{"if":"state.n < 50","next":"add"}],"else":"end"}}}`, `{}`, `{"n":50}`},
		{"state is output", `{"state":{"a":{"initial":[1]},"b":{"merge":"sum"}},"start":"s","nodes":{"s":{"kind":"set","values":{"b":"${ 2.0 }"},"next":"end"}}}`, `{}`, `{"a":[1],"b":2.0}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, map[string]string{"w": test.flow}, c.tool("echo", pure), flaky.tool("flaky", pure))
			out := r.run("w", "", test.input)
			if out.Status == store.Suspended {
				out = r.until(out.RunID, store.Completed)
			}
			r.want(out, store.Completed, test.output)
		})
	}
}

// TestFailures shows the codes of runs that fail.
func TestFailures(t *testing.T) {
	bad := &counter{do: func(call tool.Call, n int) (tool.Result, error) {
		return tool.Result{}, &tool.Error{Kind: message.ExecutionFailed, Message: "boom", NotBegun: true}
	}}
	big := &counter{do: func(call tool.Call, n int) (tool.Result, error) { return tool.JSON(make([]int, 5000)) }}
	deep := &counter{do: func(tool.Call, int) (tool.Result, error) { // the list of the map's results is a level more
		return tool.Result{Output: json.RawMessage(strings.Repeat("[", expr.MaxDepth) + strings.Repeat("]", expr.MaxDepth))}, nil
	}}
	pure := tool.Spec{SideEffect: tool.Pure}
	for _, test := range []struct{ name, flow, code string }{
		{"fail", `{"start":"f","nodes":{"f":{"kind":"fail","code":"refused","message":"No."}}}`, "refused"},
		{"tool", `{"start":"f","nodes":{"f":{"kind":"tool","tool":"bad","next":"end"}}}`, "node-execution-failed"},
		{"steps", `{"maxSteps":20,"state":{"zz":{}},"start":"a","nodes":{"a":{"kind":"set","values":{"zz":1},"next":"b"},"b":{"kind":"branch","cases":[{"if":"false","next":"end"}],"else":"a"}}}`, "max-steps-exceeded"},
		{"large", `{"maxStateBytes":4096,"state":{"a":{}},"start":"f","nodes":{"f":{"kind":"tool","tool":"big","save":"a","next":"end"}}}`, "state-too-large"},
		{"deep", `{"state":{"a":{}},"start":"m","nodes":{"m":{"kind":"map","over":"${ [1] }","save":"a","do":{"kind":"tool","tool":"deep"},"next":"end"}}}`, "state-not-serializable"},
		{"time", `{"timeoutMs":30,"start":"f","nodes":{"f":{"kind":"await","name":"x","next":"end"}}}`, "workflow-timeout"},
		{"node time", `{"start":"f","nodes":{"f":{"kind":"await","name":"x","timeoutMs":30,"next":"end"}}}`, "node-timeout"},
		{"a sleep without an end", `{"start":"s","nodes":{"s":{"kind":"sleep","forMs":"${ 9223372036854775807 }","next":"end"}}}`, "expression-failed"},
		{"a sleep of no number", `{"start":"s","nodes":{"s":{"kind":"sleep","forMs":"${ 0.0 / 0.0 }","next":"end"}}}`, "expression-failed"},
		{"a sleep of infinity", `{"start":"s","nodes":{"s":{"kind":"sleep","forMs":"${ 1.0 / 0.0 }","next":"end"}}}`, "expression-failed"},
		{"a sleep of a time", `{"start":"s","nodes":{"s":{"kind":"sleep","forMs":"${ timestamp('2020-01-01T00:00:00Z') }","next":"end"}}}`, "expression-failed"},
		{"a sleep of a time's text", `{"start":"s","nodes":{"s":{"kind":"sleep","forMs":"${ '2020-01-01T00:00:00Z' }","next":"end"}}}`, "expression-failed"},
		{"until beyond all times", `{"start":"s","nodes":{"s":{"kind":"sleep","until":"${ 9223372036854775807 }","next":"end"}}}`, "expression-failed"},
		{"until a duration", `{"start":"s","nodes":{"s":{"kind":"sleep","until":"${ duration('1s') }","next":"end"}}}`, "expression-failed"},
		{"output", `{"output":"${ 1 / 0 }","state":{"zz":{}},"start":"f","nodes":{"f":{"kind":"set","values":{"zz":1},"next":"end"}}}`, "expression-failed"},
		{"map", `{"state":{"a":{}},"start":"m","nodes":{"m":{"kind":"map","over":"${ [1,2,3] }","save":"a","do":{"kind":"tool","tool":"bad"},"next":"end"}}}`, "node-execution-failed"},
		{"name", `{"start":"p","nodes":{"p":{"kind":"map","over":"${ [1] }","do":{"kind":"tool","tool":"bad"},"next":"end"}}}`, "node-execution-failed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, map[string]string{"w": test.flow}, bad.tool("bad", pure), big.tool("big", pure), deep.tool("deep", pure))
			out := r.run("w", "", `{}`)
			if out.Status == store.Suspended {
				out = r.until(out.RunID, store.Failed)
			}
			if out.Status != store.Failed || out.Error == nil || out.Error.Code != test.code {
				b, _ := json.Marshal(out)
				t.Errorf("outcome = %s, want %s", b, test.code)
			}
		})
	}
}

const waits = `{"state":{"a":{},"b":{},"ok":{}},"start":"one","output":"${ [state.a, state.b, state.ok.granted] }","nodes":{
	"one":{"kind":"await","name":"first","schema":{"type":"integer"},"save":"a","next":"two"},
	"two":{"kind":"await","name":"second","schema":{"type":["string","array"]},"save":"b","next":"ask"},
	"ask":{"kind":"approval","name":"go","show":{"sum":"${ state.a }"},"save":"ok","next":"end"}}}`

// TestWaits answers waits in and out of their order, over restarts, and decides on an approval.
func TestWaits(t *testing.T) {
	r := newRig(t, map[string]string{"w": waits})
	out := r.run("w", "t1", `{}`)
	r.want(out, store.Suspended, "")
	if len(out.PendingPauses) != 1 || out.PendingPauses[0].Name != "first" || out.PendingPauses[0].Kind != "awakeable" {
		t.Fatalf("pauses = %+v", out.PendingPauses)
	}
	for _, bad := range []struct{ name, value, code string }{
		{"first", `"text"`, "awakeable-payload-invalid"}, {"second", `3`, "awakeable-payload-invalid"}, // before its await is reached
		{"second", strings.Repeat("[", 501) + strings.Repeat("]", 501), "awakeable-payload-invalid"}, {"nobody", `1`, "pause-not-found"}, {"go", `true`, "pause-not-found"},
	} {
		if err := r.resume("w", "t1", bad.name, bad.value); code(err) != bad.code {
			t.Errorf("Resume(%s, %s) = %v, want %s", bad.name, bad.value, err, bad.code)
		}
	}
	if err := r.resume("w", "t2", "first", `1`); code(err) != "thread-not-found" {
		t.Errorf("Resume of an unknown thread = %v", err)
	}
	if _, err := r.Execute(context.Background(), workflow.ExecuteRequest{WorkflowID: "w", ThreadID: "t1"}); code(err) != "checkpoint-version-conflict" {
		t.Errorf("Execute of an open thread = %v", err)
	}
	if err := r.resume("w", "t1", "second", `"early"`); err != nil { // kept
		t.Fatal(err)
	}
	r.restart()
	if err := r.resume("w", "t1", "", `7`); err != nil {
		t.Fatal(err)
	}
	out = r.until(out.RunID, store.Awaiting)
	if len(out.PendingApprovals) != 1 || out.PendingApprovals[0].ToolName != "go" || string(out.PendingApprovals[0].Args) != `{"sum":7}` {
		t.Fatalf("approvals = %+v", out.PendingApprovals)
	}
	r.restart()
	_, _, err := r.kernel.Resume(context.Background(), out.RunID, []run.Decision{{ToolCallID: out.PendingApprovals[0].ToolCallID, Granted: true}}, "token:p", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.want(r.until(out.RunID, store.Completed), store.Completed, `[7,"early",true]`)
	if err := r.resume("w", "t1", "first", `1`); code(err) != "resume-without-suspension" {
		t.Errorf("Resume after the end = %v", err)
	}
	again := r.run("w", "t1", `{}`)
	r.want(again, store.Suspended, "")
	if again.StepNumber <= out.StepNumber {
		t.Errorf("steps went back from %d to %d", out.StepNumber, again.StepNumber)
	}
}

// TestRetry runs again only what failed.
func TestRetry(t *testing.T) {
	good, fails := &counter{}, true
	bad := &counter{do: func(call tool.Call, n int) (tool.Result, error) {
		if fails {
			return tool.Result{}, &tool.Error{Message: "boom", NotBegun: true}
		}
		return tool.JSON(1)
	}}
	r := newRig(t, map[string]string{"w": `{"start":"p","nodes":{"p":{"kind":"parallel","branches":["a","b","c"],"next":"end"},
		"a":{"kind":"tool","tool":"good","next":"end"},"b":{"kind":"tool","tool":"bad","next":"end"},"c":{"kind":"tool","tool":"good","next":"end"}}}`},
		good.tool("good", tool.Spec{}), bad.tool("bad", tool.Spec{}))
	out := r.run("w", "t", `{}`)
	r.want(out, store.Failed, "")
	fails = false
	h, err := r.Retry(context.Background(), workflow.RetryRequest{WorkflowID: "w", ThreadID: "t"})
	if err != nil {
		t.Fatal(err)
	}
	r.want(r.wait(h.RunID), store.Completed, "")
	if good.all != 2 || bad.all != 2 {
		t.Errorf("calls = %d good, %d bad; want 2, 2", good.all, bad.all)
	}
}

// TestAbort ends a thread that waits and one that runs; a retry continues both.
func TestAbort(t *testing.T) {
	r := newRig(t, map[string]string{"w": `{"start":"a","nodes":{"a":{"kind":"await","name":"x","next":"end"}}}`})
	out := r.run("w", "t", `{}`)
	if status, err := r.kernel.Abort(context.Background(), out.RunID, run.AbortOptions{}); err != nil || status != store.Aborted {
		t.Fatalf("Abort = %s, %v", status, err)
	}
	h, err := r.Retry(context.Background(), workflow.RetryRequest{WorkflowID: "w", ThreadID: "t"})
	if err != nil {
		t.Fatal(err)
	}
	r.want(r.wait(h.RunID), store.Suspended, "")
	if err := r.resume("w", "t", "x", "1"); err != nil {
		t.Fatal(err)
	}
	r.want(r.until(h.RunID, store.Completed), store.Completed, "")
}

// TestHostedWorkflow runs a workflow in a workflow that waits and asks.
func TestHostedWorkflow(t *testing.T) {
	r := newRig(t, map[string]string{
		"outer": `{"state":{"v":{}},"start":"c","output":"${ state.v }","nodes":{"c":{"kind":"workflow","workflow":"inner","input":{"n":4},"save":"v","next":"end"}}}`,
		"inner": `{"state":{"ok":{}},"start":"s","output":"${ input.n }","nodes":{"s":{"kind":"sleep","forMs":20,"next":"ask"},"ask":{"kind":"approval","name":"sure","next":"end"}}}`})
	out := r.run("outer", "t", `{}`)
	out = r.until(out.RunID, store.Awaiting)
	if len(out.PendingApprovals) != 1 || out.PendingApprovals[0].SubRunToolCallID == "" {
		t.Fatalf("approvals = %+v", out.PendingApprovals)
	}
	a := out.PendingApprovals[0]
	if _, _, err := r.kernel.Resume(context.Background(), out.RunID, []run.Decision{{ToolCallID: a.ToolCallID, SubRunToolCallID: a.SubRunToolCallID, Granted: true}}, "token:p", nil); err != nil {
		t.Fatal(err)
	}
	r.want(r.until(out.RunID, store.Completed), store.Completed, `4`)
}

// TestLongThread checks that a state of many steps is read back as it was, and that old steps are folded away.
func TestLongThread(t *testing.T) {
	r := newRig(t, map[string]string{"w": `{"maxSteps":100000,"keepSteps":100,"state":{"n":{"merge":"sum"},"l":{"merge":"append"}},"start":"add","nodes":{
		"add":{"kind":"set","values":{"n":"${ 1 }","l":"${ [state.n] }"},"next":"more"},
		"more":{"kind":"branch","cases":[{"if":"state.n < 700","next":"add"}],"else":"stop"},
		"stop":{"kind":"await","name":"x","next":"end"}}}`})
	out := r.run("w", "t", `{}`)
	r.want(out, store.Suspended, "")
	before, err := r.State(context.Background(), "w", "t")
	if err != nil {
		t.Fatal(err)
	}
	r.restart()
	after, err := r.State(context.Background(), "w", "t")
	if err != nil {
		t.Fatal(err)
	}
	a, _ := json.Marshal(before)
	b, _ := json.Marshal(after)
	if string(a) != string(b) || string(after.State["n"]) != "700" {
		t.Errorf("state changed over a restart: %.200s, %.200s", a, b)
	}
	list, _, err := r.Checkpoints(context.Background(), "w", "t", 1000, 0)
	if err != nil || len(list) < 100 || len(list) > 400 {
		t.Errorf("Checkpoints = %d, %v", len(list), err)
	}
}

// TestRaces gives two answers to one wait and two decisions on one approval: of each pair, one counts.
func TestRaces(t *testing.T) {
	r := newRig(t, map[string]string{"w": waits})
	for n := range 50 {
		id := fmt.Sprintf("t%d", n)
		out := r.run("w", id, `{}`)
		won := make(chan error, 2)
		for range 2 {
			go func() { won <- r.resume("w", id, "first", `1`) }()
		}
		if a, b := <-won, <-won; (a == nil) == (b == nil) || code(a)+code(b) != "concurrent-resume-rejected" {
			t.Fatalf("two answers: %v and %v, want one to count", a, b)
		}
		if err := r.resume("w", id, "second", `"x"`); err != nil {
			t.Fatal(err)
		}
		out = r.until(out.RunID, store.Awaiting)
		for range 2 {
			go func() {
				_, _, err := r.kernel.Resume(context.Background(), out.RunID, []run.Decision{{ToolCallID: out.PendingApprovals[0].ToolCallID, Granted: true}}, "token:p", nil)
				won <- err
			}()
		}
		if a, b := <-won, <-won; (a == nil) == (b == nil) {
			t.Fatalf("two decisions: %v and %v, want one to count", a, b)
		}
		r.want(r.until(out.RunID, store.Completed), store.Completed, "")
	}
}

// TestTimeIsOver ends runs whose time is over at each kind of place.
func TestTimeIsOver(t *testing.T) {
	slow := tool.Func(tool.Spec{Name: "slow", SideEffect: tool.Pure}, func(ctx context.Context, call tool.Call) (tool.Result, error) {
		select {
		case <-ctx.Done():
			return tool.Result{}, ctx.Err()
		case <-time.After(10 * time.Second):
			return tool.JSON(1)
		}
	})
	late := tool.Func(tool.Spec{Name: "late", SideEffect: tool.Pure}, func(context.Context, tool.Call) (tool.Result, error) {
		time.Sleep(150 * time.Millisecond)
		return tool.JSON(1)
	})
	for name, nodes := range map[string]string{
		"call":     `"a":{"kind":"tool","tool":"slow","next":"b"},"b":{"kind":"await","name":"x","next":"end"}`,
		"success":  `"a":{"kind":"tool","tool":"late","next":"b"},"b":{"kind":"await","name":"x","next":"end"}`,
		"parallel": `"a":{"kind":"parallel","branches":["c","d"],"next":"end"},"c":{"kind":"tool","tool":"slow","next":"end"},"d":{"kind":"await","name":"x","next":"end"}`,
		"map":      `"a":{"kind":"map","over":"${ [1,2,3] }","do":{"kind":"tool","tool":"late"},"concurrency":1,"next":"end"}`,
		"child":    `"a":{"kind":"workflow","workflow":"inner","next":"end"}`,
		"asks":     `"a":{"kind":"approval","name":"x","next":"end"}`,
		"sleep":    `"a":{"kind":"sleep","forMs":60000,"next":"end"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, map[string]string{"w": `{"timeoutMs":100,"start":"a","nodes":{` + nodes + `}}`,
				"inner": `{"start":"a","nodes":{"a":{"kind":"await","name":"x","next":"end"}}}`}, slow, late)
			h, err := r.Execute(context.Background(), workflow.ExecuteRequest{WorkflowID: "w"})
			if err != nil {
				t.Fatal(err)
			}
			out := r.until(h.RunID, store.Failed)
			if out.Error == nil || out.Error.Code != "workflow-timeout" {
				t.Errorf("error = %+v, want workflow-timeout", out.Error)
			}
		})
	}
}

// TestUndeclared answers, shows, aborts and erases a thread whose workflow the configuration has dropped.
func TestUndeclared(t *testing.T) {
	r := newRig(t, map[string]string{"w": waits})
	out := r.run("w", "t1", `{}`)
	delete(r.declared, "w")
	r.restart()
	if _, err := r.Execute(t.Context(), workflow.ExecuteRequest{WorkflowID: "w"}); code(err) != "route-handler-missing" {
		t.Errorf("Execute = %v", err)
	}
	if _, err := r.State(t.Context(), "w", "t2"); code(err) != "route-handler-missing" {
		t.Errorf("State of an unknown thread = %v", err)
	}
	if err := errors.Join(r.resume("w", "t1", "first", `7`), r.resume("w", "t1", "second", `"x"`)); err != nil {
		t.Fatal(err)
	}
	out = r.until(out.RunID, store.Awaiting)
	if st, err := r.State(t.Context(), "w", "t1"); err != nil || string(st.State["a"]) != "7" {
		t.Errorf("State = %+v, %v", st, err)
	}
	if _, err := r.kernel.Abort(t.Context(), out.RunID, run.AbortOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := r.Delete(t.Context(), "w", "t1", nil); err != nil {
		t.Errorf("Delete = %v", err)
	}
	if _, err := r.State(t.Context(), "w", "t1"); code(err) != "route-handler-missing" {
		t.Errorf("State of the erased thread = %v", err)
	}
}
