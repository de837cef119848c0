package workflow

import (
	"encoding/json"
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"agentd/server/fault"
)

// TestChannels merges what two tasks of a superstep, and one of the next, write.
func TestChannels(t *testing.T) {
	cyclic := map[string]any{}
	cyclic["self"] = cyclic
	for _, c := range []struct {
		name    string
		channel Channel
		writes  [3]any // by a and b in one step and by c in the next; nil: nothing
		want    string // the state, or how it failed
	}{
		{"latest", LatestValue(), [3]any{1, nil, "two"}, `{"x":"two"}`},
		{"latest null", LatestValue(), [3]any{1, nil, json.RawMessage("null")}, `{"x":null}`},
		{"latest twice", LatestValue(), [3]any{1, 2, nil}, "failed multi-write-into-latest-value at <channel-merge>"},
		{"any", AnyValue(), [3]any{1, 2, nil}, `{"x":2}`},
		{"reducer", Reducer(sum, 10), [3]any{1, 2, 3}, `{"x":16}`},
		{"reducer refuses", Reducer(sum, 0), [3]any{1, -2, nil}, "failed reducer-failed at <channel-merge>"},
		{"reducer panics", Reducer(sum, 0), [3]any{13, nil, nil}, "failed reducer-failed at <channel-merge>"},
		{"reducer gives no JSON", Reducer(func(_, _ json.RawMessage) (any, error) { return math.NaN(), nil }, 0), [3]any{1, nil, nil}, "failed state-not-serializable at <channel-merge>"},
		{"list", List(), [3]any{[]int{1, 2}, 3, []any{[]int{4}}}, `{"x":[1,2,3,[4]]}`},
		{"list of nothing", List(), [3]any{[]int{}, nil, nil}, `{"x":[]}`},
		{"stream", Stream(false), [3]any{1, 1, []int{1}}, `{"x":[1,1,1]}`},
		{"distinct stream", Stream(true), [3]any{[]int{1, 2, 1}, 1.0, json.RawMessage(`[ 2.0e0, {"b":1,"a":2}, {"a":2,"b":1}]`)}, `{"x":[1,2,{"b":1,"a":2}]}`},
		{"barrier", Barrier("a", "b", "c"), [3]any{1, 2, 3}, `{"x":{"a":1,"b":2,"c":3}}`},
		{"barrier of others", Barrier("a", "c"), [3]any{1, 2, 3}, "failed invalid-channel-write at b"},
		{"ephemeral", Ephemeral(), [3]any{1, 2, nil}, `{}`},
		{"NaN", LatestValue(), [3]any{math.NaN(), nil, nil}, "failed state-not-serializable at a"},
		{"infinity", LatestValue(), [3]any{nil, map[string]any{"n": math.Inf(-1)}, nil}, "failed state-not-serializable at b"},
		{"function", LatestValue(), [3]any{func() {}, nil, nil}, "failed state-not-serializable at a"},
		{"channel", LatestValue(), [3]any{make(chan int), nil, nil}, "failed state-not-serializable at a"},
		{"cycle", LatestValue(), [3]any{cyclic, nil, nil}, "failed state-not-serializable at a"},
		{"depth", LatestValue(), [3]any{json.RawMessage(strings.Repeat("[", 201) + strings.Repeat("]", 201)), nil, nil}, "failed state-not-serializable at a"},
		{"not JSON", LatestValue(), [3]any{json.RawMessage("{"), nil, nil}, "failed state-not-serializable at a"},
		{"panics", LatestValue(), [3]any{panics{}, nil, nil}, "failed state-not-serializable at a"},
		{"large", LatestValue(), [3]any{strings.Repeat("x", 1000), nil, nil}, "failed state-too-large at a"},
		{"large together", List(), [3]any{strings.Repeat("x", 500), strings.Repeat("y", 500), nil}, "failed state-too-large at <channel-merge>"},
	} {
		t.Run(c.name, func(t *testing.T) {
			nodes := map[string]Node{}
			for i, name := range []string{"a", "b", "c"} {
				if nodes[name] = says(); c.writes[i] != nil {
					nodes[name] = says("x", c.writes[i])
				}
			}
			w := walk(t, Definition{ID: "w", Nodes: nodes, Channels: map[string]Channel{"x": c.channel}, MaxStateBytes: 900,
				Edges: []Edge{{From: Start, To: "a"}, {From: Start, To: "b"}, {From: "a", To: "c"}, {From: "c", To: End}}}, "{}")
			got := w.on()
			if got == "completed" {
				got = w.now()
			}
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

type panics struct{}

func (panics) MarshalJSON() ([]byte, error) { panic("no") }

// TestUndeclared names the channel that is nearest to one that does not exist.
func TestUndeclared(t *testing.T) {
	w := walk(t, Definition{ID: "w", Nodes: map[string]Node{"a": says("notes", 1)}, Channels: map[string]Channel{"note": {}}, Edges: line("a")}, "{}")
	if got := w.on(); got != "failed invalid-channel-write at a" {
		t.Error(got)
	}
	if e := w.wrong[1]; !strings.Contains(e.Hint, `"note"`) {
		t.Errorf("the hint is %q", e.Hint)
	}
}

// TestPlan is what follows what.
func TestPlan(t *testing.T) {
	order := map[string]Channel{"order": List(), "n": {}, "both": Barrier("a", "b")}
	tell := func(name string) Node { return says("order", name) }
	count := does(func(_ *Context, s State) (Result, error) {
		return Result{Write: map[string]any{"n": s.Number("n") + 1}}, nil
	})
	spread := does(func(*Context, State) (Result, error) {
		return Result{Dispatch: []Dispatch{{"work", 1}, {"work", 1}, {"work", 2}}}, nil
	})
	work := does(func(c *Context, _ State) (Result, error) {
		var n int
		if _, err := c.DispatchArgs(&n); err != nil {
			return Result{}, err
		}
		return Result{Write: map[string]any{"order": n}}, nil
	})
	wrote := func(name string) Node { return says("order", name, "both", true) }
	less := func(s State) bool { return s.Number("n") < 3 }
	notLess := func(s State) bool { return s.Number("n") >= 3 }
	for _, c := range []struct {
		name        string
		nodes       map[string]Node
		edges       []Edge
		want, state string
		steps       int
		maxSteps    int
		total       int
	}{
		{"line", map[string]Node{"a": tell("a"), "b": tell("b")}, line("a", "b"), "completed", `["a","b"]`, 2, 0, 0},
		{"planned order", map[string]Node{"a": tell("a"), "b": tell("b"), "c": tell("c")}, fan("c", "a", "b"), "completed", `["c","a","b"]`, 1, 0, 0},
		{"each target once", map[string]Node{"a": tell("a"), "b": tell("b"), "c": tell("c")},
			[]Edge{{From: Start, To: "a"}, {From: Start, To: "b"}, {From: "a", To: "c"}, {From: "b", To: "c"}, {From: "c", To: End}}, "completed", `["a","b","c"]`, 2, 0, 0},
		{"loop", map[string]Node{"a": count, "b": tell("b")},
			[]Edge{{From: Start, To: "a"}, {From: "a", To: "a", When: less}, {From: "a", To: "b", When: notLess}, {From: "b", To: End}}, "completed", `["b"]`, 4, 0, 0},
		{"endless", map[string]Node{"a": count}, []Edge{{From: Start, To: "a"}, {From: "a", To: "a"}}, "failed max-steps-exceeded", `[]`, 5, 5, 0},
		{"endless run", map[string]Node{"a": count}, []Edge{{From: Start, To: "a"}, {From: "a", To: "a"}}, "failed max-steps-exceeded", `[]`, 4, 0, 4},
		{"as many as allowed", map[string]Node{"a": tell("a"), "b": tell("b")}, line("a", "b"), "completed", `["a","b"]`, 2, 2, 2},
		{"dead end", map[string]Node{"a": tell("a")}, []Edge{{From: Start, To: "a"}}, "failed dead-end", `["a"]`, 1, 0, 0},
		{"no condition holds", map[string]Node{"a": tell("a")}, []Edge{{From: Start, To: "a"}, {From: "a", To: End, When: notLess}}, "failed dead-end", `["a"]`, 1, 0, 0},
		{"condition panics", map[string]Node{"a": tell("a")}, []Edge{{From: Start, To: "a"}, {From: "a", To: End, When: func(State) bool { panic("no") }}}, "failed node-execution-failed", `["a"]`, 1, 0, 0},
		{"the end waits for others", map[string]Node{"a": tell("a"), "b": tell("b"), "c": tell("c")},
			[]Edge{{From: Start, To: "a"}, {From: Start, To: "b"}, {From: "a", To: End}, {From: "b", To: "c"}, {From: "c", To: End}}, "completed", `["a","b","c"]`, 2, 0, 0},
		{"nothing", map[string]Node{"a": tell("a")}, []Edge{{From: Start, To: End}}, "completed", `[]`, 0, 0, 0},
		{"dispatch", map[string]Node{"a": spread, "work": work, "z": tell("z")},
			[]Edge{{From: Start, To: "a"}, {From: "a", To: "work"}, {From: "work", To: "z"}, {From: "z", To: End}}, "completed", `[1,1,2,0,"z"]`, 3, 0, 0},
		{"dispatch to nowhere", map[string]Node{"a": does(func(*Context, State) (Result, error) { return Result{Dispatch: []Dispatch{{"w", nil}}}, nil })}, line("a"), "failed unknown-node at a", `[]`, 0, 0, 0},
		{"too many dispatches", map[string]Node{"a": does(func(*Context, State) (Result, error) {
			return Result{Dispatch: slices.Repeat([]Dispatch{{Node: "a"}}, maxDispatches+1)}, nil
		})}, line("a"), "failed state-too-large at <channel-merge>", `[]`, 0, 0, 0},
		{"barrier", map[string]Node{"a": wrote("a"), "slow": tell("slow"), "b": wrote("b"), "c": tell("c")},
			[]Edge{{From: Start, To: "a"}, {From: Start, To: "slow"}, {From: "slow", To: "b"}, {From: "a", To: "c"}, {From: "b", To: "c"}, {From: "c", To: End}}, "completed", `["a","slow","b","c"]`, 3, 0, 0},
		{"barrier that stays open", map[string]Node{"a": wrote("a"), "b": tell("b"), "c": tell("c")},
			[]Edge{{From: Start, To: "a"}, {From: "a", To: "c"}, {From: "b", To: "c"}, {From: "c", To: End}}, "failed dead-end", `["a"]`, 1, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			channels := maps.Clone(order)
			if !strings.HasPrefix(c.name, "barrier") {
				delete(channels, "both")
			}
			w := walk(t, Definition{ID: "w", Nodes: c.nodes, Channels: channels, Edges: c.edges, MaxSteps: c.maxSteps, MaxTotalSteps: c.total}, "{}")
			got := w.on()
			if order := string(w.state["order"]); got != c.want || order != c.state || w.steps != c.steps {
				t.Errorf("%s after %d steps with %s, want %s after %d with %s", got, w.steps, order, c.want, c.steps, c.state)
			}
		})
	}
}

// TestRounds passes a barrier twice: the first write after it was passed begins anew.
func TestRounds(t *testing.T) {
	both := func(s State) bool { return s.Number("n") < 2 }
	done := func(s State) bool { return s.Number("n") == 2 }
	tally := does(func(_ *Context, s State) (Result, error) {
		return Result{Write: map[string]any{"n": s.Number("n") + 1, "seen": s.JSON("both")}}, nil
	})
	w := walk(t, Definition{ID: "w", Nodes: map[string]Node{"a": says("both", "a"), "b": says("both", "b"), "late": says(), "c": tally},
		Channels: map[string]Channel{"both": Barrier("a", "b"), "n": {}, "seen": List()},
		Edges: []Edge{{From: Start, To: "a"}, {From: Start, To: "late"}, {From: "late", To: "b"}, {From: "a", To: "c"}, {From: "b", To: "c"},
			{From: "c", To: "a", When: both}, {From: "c", To: "late", When: both}, {From: "c", To: End, When: done}}}, "{}")
	if got := w.on(); got != "completed" || string(w.state["seen"]) != `[{"a":"a","b":"b"},{"a":"a","b":"b"}]` || w.steps != 6 {
		t.Errorf("%s after %d steps with %s", got, w.steps, w.state["seen"])
	}
}

// TestPauses walks one node through pauses of every kind.
func TestPauses(t *testing.T) {
	made := 0
	ask := does(func(c *Context, s State) (Result, error) {
		first := c.Pause(map[string]int{"q": 1})
		once, err := c.Step("once", func() (any, error) { made++; return made, nil })
		if err != nil {
			return Result{}, err
		}
		c.SleepFor(time.Hour)
		word := c.AwaitExternal("letter")
		d := c.RequestApproval("pay", "5 EUR", Terms{})
		out, err := c.Agent("writer", "tell")
		if err != nil {
			return Result{}, err
		}
		return Result{Write: map[string]any{"x": []any{first, once, word, d.Granted, out, s.Bool("sibling")}}}, nil
	})
	w := walk(t, Definition{ID: "w", Nodes: map[string]Node{"ask": ask, "b": says("sibling", true)}, Channels: map[string]Channel{"x": {}, "sibling": {}}, Edges: fan("ask", "b")}, "{}")
	for _, step := range []struct{ want, answer string }{
		{"waits ask:pause", `"first"`},
		{"waits ask:timer", "null"},
		{`waits ask:awakeable "letter"`, `"word"`},
		{`waits ask:approval "pay"`, `{"granted":true}`},
		{`waits ask:agent "writer"`, `"story"`},
	} {
		if got := w.on(); got != step.want {
			t.Fatalf("%s, want %s", got, step.want)
		}
		w.answer("ask", step.answer)
	}
	if got := w.on(); got != "completed" || string(w.state["x"]) != `["first",1,"word",true,"story",true]` {
		t.Errorf("%s with %s", got, w.state["x"])
	}
}

// TestDivergence is a node that makes other calls than before.
func TestDivergence(t *testing.T) {
	for _, c := range []struct {
		name string
		then func(*Context) // what the node does instead of AwaitExternal("a"), Pause
		want string
	}{
		{"same", func(c *Context) { c.AwaitExternal("a"); c.Pause(2) }, "waits n:pause"},
		{"another name", func(c *Context) { c.AwaitExternal("b") }, "failed pause-replay-divergence at n"},
		{"another kind", func(c *Context) { c.SleepFor(1) }, "failed pause-replay-divergence at n"},
		{"no call", func(*Context) {}, "failed pause-replay-divergence at n"},
		{"swallowed", func(c *Context) {
			defer func() { _ = recover() }()
			c.AwaitExternal("b")
		}, "failed pause-replay-divergence at n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			first := true
			w := walk(t, Definition{ID: "w", Edges: line("n"), Nodes: map[string]Node{"n": does(func(ctx *Context, _ State) (Result, error) {
				if first {
					first = false
					ctx.AwaitExternal("a")
				}
				c.then(ctx)
				return Result{}, nil
			})}}, "{}")
			if got := w.on(); got != `waits n:awakeable "a"` {
				t.Fatal(got)
			}
			w.answer("n", "1")
			if got := w.on(); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// TestStepErrors is kept when the node went on after it, and made again when the node failed with it.
func TestStepErrors(t *testing.T) {
	calls, broken := 0, true
	fragile := func(c *Context) error {
		_, err := c.Step("fragile", func() (any, error) {
			if calls++; broken {
				return nil, errors.New("no paper")
			}
			return "printed", nil
		})
		return err
	}
	handled := does(func(c *Context, _ State) (Result, error) {
		if fragile(c) != nil {
			c.AwaitExternal("paper")
		}
		return Result{}, fragile(c)
	})
	w := walk(t, Definition{ID: "w", Edges: line("n"), Nodes: map[string]Node{"n": handled}}, "{}")
	if got := w.on(); got != `waits n:awakeable "paper"` || calls != 1 {
		t.Fatal(got, calls)
	}
	w.answer("n", "null")
	if got := w.on(); got != "failed node-execution-failed at n" || calls != 2 {
		t.Fatal(got, calls)
	}
	broken = false
	clear(w.wrong)
	if got := w.on(); got != "completed" || calls != 3 {
		t.Error(got, calls)
	}
}

// TestAgain runs only what failed again, and merges in planned order.
func TestAgain(t *testing.T) {
	ran := map[string]int{}
	fails := true
	node := func(name string, may bool) Node {
		return does(func(*Context, State) (Result, error) {
			if ran[name]++; may && fails {
				return Result{}, errors.New("not yet")
			}
			return Result{Write: map[string]any{"x": name}, Dispatch: []Dispatch{{Node: "d", Args: name}}}, nil
		})
	}
	w := walk(t, Definition{ID: "w", Edges: append(fan("a", "b", "c"), Edge{From: "d", To: End}), Channels: map[string]Channel{"x": List()},
		Nodes: map[string]Node{"a": node("a", false), "b": node("b", true), "c": node("c", false), "d": does(func(c *Context, _ State) (Result, error) {
			var who string
			if _, err := c.DispatchArgs(&who); err != nil {
				return Result{}, err
			}
			return Result{Write: map[string]any{"x": "d" + who}}, nil
		})}}, "{}")
	if got := w.on(); got != "failed node-execution-failed at b" || w.now() != `{"x":[]}` {
		t.Fatal(got, w.now())
	}
	fails = false
	clear(w.wrong)
	if got := w.on(); got != "completed" || w.now() != `{"x":["a","b","c","da","db","dc"]}` || ran["a"] != 1 || ran["b"] != 2 || ran["c"] != 1 {
		t.Error(got, w.now(), ran)
	}
}

// TestStatic waits before and after nodes, and begins nothing of a superstep that waits.
func TestStatic(t *testing.T) {
	ran := 0
	node := does(func(*Context, State) (Result, error) { ran++; return Result{}, nil })
	w := walk(t, Definition{ID: "w", Edges: fan("a", "b"), Nodes: map[string]Node{"a": node, "b": node}, PauseAt: PauseAt{Before: []string{"b"}, After: []string{"a"}}}, "{}")
	if got := w.on(); got != "waits b:held" || ran != 0 {
		t.Fatal(got, ran)
	}
	w.answer("b", "null")
	if got := w.on(); got != "after a" || ran != 2 {
		t.Fatal(got, ran)
	}
	w.After = nil
	if got := w.on(); got != "completed" {
		t.Error(got)
	}
}

// TestDirective goes to a node and writes channels from outside.
func TestDirective(t *testing.T) {
	w := walk(t, Definition{ID: "w", Edges: line("a", "b"), Channels: map[string]Channel{"x": {}, "all": Barrier("a")},
		Nodes: map[string]Node{"a": does(func(c *Context, _ State) (Result, error) { c.Pause(nil); return Result{}, nil }), "b": says()}}, "{}")
	if got := w.on(); got != "waits a:pause" {
		t.Fatal(got)
	}
	if err := w.goTo("c", w.id); !fault.Is(err, fault.UnknownNode) {
		t.Errorf("goTo(c) = %v", err)
	}
	for name, want := range map[string]*fault.Kind{"y": fault.InvalidChannelWrite, "all": fault.InvalidChannelWrite} {
		if _, err := w.update(map[string]any{name: 1}); !fault.Is(err, want) {
			t.Errorf("update(%s) = %v", name, err)
		}
	}
	if _, err := w.update(map[string]any{"x": math.Inf(1)}); !fault.Is(err, fault.StateNotSerializable) || !strings.Contains(err.Error(), "<directive>") {
		t.Errorf("update(infinity) = %v", err)
	}
	if _, err := w.update(map[string]any{"x": 1}); err != nil {
		t.Fatal(err)
	}
	if err := w.goTo("b", w.id); err != nil {
		t.Fatal(err)
	}
	if got := w.on(); got != "completed" || string(w.state["x"]) != "1" {
		t.Error(got, w.now())
	}
}

// TestMissing names the node that a thread is at and the graph lacks.
func TestMissing(t *testing.T) {
	d := Definition{ID: "w", Edges: line("a", "b"), Nodes: map[string]Node{"a": does(func(c *Context, _ State) (Result, error) { c.Pause(nil); return Result{}, nil }), "b": says()}}
	w := walk(t, d, "{}")
	w.on()
	for gone, want := range map[string]string{"a": "a", "b": ""} {
		left := d
		left.Nodes, left.Edges = maps.Clone(d.Nodes), []Edge{{From: Start, To: End}}
		delete(left.Nodes, gone)
		p, err := left.compile()
		if err != nil {
			t.Fatal(err)
		}
		moved := *w.superstep
		moved.program = p
		if got := moved.missing(); got != want {
			t.Errorf("without %s, %q is missing, want %q", gone, got, want)
		}
		if p.digest == w.digest {
			t.Errorf("without %s, the graph has the same digest", gone)
		}
	}
}

// TestInput is checked before a run exists.
func TestInput(t *testing.T) {
	d := Definition{ID: "w", Edges: line("a"), Nodes: map[string]Node{"a": says()}, Channels: map[string]Channel{"x": {}, "l": List(), "b": Barrier("a"), "e": Ephemeral()}, Initial: map[string]any{"x": 7}}
	for _, c := range []struct{ schema, input, want string }{
		{"", `{}`, `{"b":{},"l":[],"x":7}`},
		{"", `{"x":1,"l":[2]}`, `{"b":{},"l":[2],"x":1}`},
		{"", `{"y":1}`, "config-invalid"},
		{"", `{"l":1}`, "config-invalid"},
		{"", `{"b":{"a":1}}`, "config-invalid"},
		{"", `{"e":1}`, "config-invalid"},
		{"", `[]`, "config-invalid"},
		{"", `null`, "config-invalid"},
		{`{"required":["x"]}`, `{}`, "config-invalid"},
		{`{"required":["x"]}`, `{"x":2}`, `{"b":{},"l":[],"x":2}`},
	} {
		d.Input = json.RawMessage(c.schema)
		p, err := d.compile()
		if err != nil {
			t.Fatal(err)
		}
		s, err := p.start([]byte(c.input))
		got := ""
		if err != nil {
			got = fault.Of(err).Kind.Code
		} else if text, err := json.Marshal(State{s.state}); err == nil {
			got = string(text)
		}
		if got != c.want {
			t.Errorf("begin(%s) with %s = %s, want %s", c.input, c.schema, got, c.want)
		}
	}
}
