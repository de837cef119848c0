package workflow_test

import (
	"encoding/json"
	"math"
	"testing"

	"agentd/server/fault"
	"agentd/server/workflow"
)

// TestRegister refuses definitions, and says where.
func TestRegister(t *testing.T) {
	nothing := workflow.Node{Run: func(*workflow.Context, workflow.State) (workflow.Result, error) { return workflow.Result{}, nil }}
	begin := []workflow.Edge{{From: workflow.Start, To: "a"}, {From: "a", To: workflow.End}}
	for _, c := range []struct {
		name   string
		change func(*workflow.Definition)
		kind   *fault.Kind
		path   string // of the first problem
	}{
		{"valid", func(*workflow.Definition) {}, nil, ""},
		{"id", func(d *workflow.Definition) { d.ID = "a b" }, fault.ConfigInvalid, `["id"]`},
		{"no node", func(d *workflow.Definition) { d.Nodes = nil }, fault.ConfigInvalid, `["nodes"]`},
		{"no Run", func(d *workflow.Definition) { d.Nodes["a"] = workflow.Node{} }, fault.ConfigInvalid, `["nodes","a"]`},
		{"reserved node", func(d *workflow.Definition) { d.Nodes[workflow.End] = nothing }, fault.ConfigInvalid, `["nodes","__end__"]`},
		{"name", func(d *workflow.Definition) { d.Nodes["a\n"] = nothing }, fault.ConfigInvalid, `["nodes","a\n"]`},
		{"reserved channel", func(d *workflow.Definition) { d.Channels["__tasks__"] = workflow.List() }, fault.ConfigInvalid, `["channels","__tasks__"]`},
		{"no edge from Start", func(d *workflow.Definition) { d.Edges = d.Edges[1:] }, fault.ConfigInvalid, `["edges"]`},
		{"edge from End", func(d *workflow.Definition) {
			d.Edges = append(begin, workflow.Edge{From: workflow.End, To: "a"})
		}, fault.ConfigInvalid, `["edges",2,"from"]`},
		{"edge to Start", func(d *workflow.Definition) {
			d.Edges = append(begin, workflow.Edge{From: "a", To: workflow.Start})
		}, fault.ConfigInvalid, `["edges",2,"to"]`},
		{"edge to nowhere", func(d *workflow.Definition) { d.Edges = append(begin, workflow.Edge{From: "a", To: "b"}) }, fault.UnknownNode, `["edges",2,"to"]`},
		{"edge from nowhere", func(d *workflow.Definition) { d.Edges = append(begin, workflow.Edge{From: "b", To: "a"}) }, fault.UnknownNode, `["edges",2,"from"]`},
		{"pause before nothing", func(d *workflow.Definition) { d.PauseAt.Before = []string{"b"} }, fault.UnknownNode, `["pauseAt","before",0]`},
		{"pause after nothing", func(d *workflow.Definition) { d.PauseAt.After = []string{"a", "b"} }, fault.UnknownNode, `["pauseAt","after",1]`},
		{"barrier of nobody", func(d *workflow.Definition) { d.Channels["b"] = workflow.Barrier() }, fault.ConfigInvalid, `["channels","b"]`},
		{"barrier of an unknown node", func(d *workflow.Definition) { d.Channels["b"] = workflow.Barrier("z") }, fault.UnknownNode, `["channels","b",0]`},
		{"reducer without function", func(d *workflow.Definition) { d.Channels["b"] = workflow.Reducer(nil, 1) }, fault.ConfigInvalid, `["channels","b"]`},
		{"reducer from NaN", func(d *workflow.Definition) {
			d.Channels["b"] = workflow.Reducer(func(_, u json.RawMessage) (any, error) { return u, nil }, math.NaN())
		}, fault.ConfigInvalid, `["channels","b"]`},
		{"initial of no channel", func(d *workflow.Definition) { d.Initial = map[string]any{"z": 1} }, fault.ConfigInvalid, `["initial"]`},
		{"initial that is no JSON", func(d *workflow.Definition) { d.Initial = map[string]any{"x": func() {}} }, fault.ConfigInvalid, `["initial"]`},
		{"initial that is too large", func(d *workflow.Definition) { d.MaxStateBytes, d.Initial = 11, map[string]any{"x": "12345"} }, fault.ConfigInvalid, `["initial"]`},
		{"initial that fills the state", func(d *workflow.Definition) { d.MaxStateBytes, d.Initial = 12, map[string]any{"x": "12345"} }, nil, ""},
		{"schema", func(d *workflow.Definition) { d.Input = json.RawMessage(`{"type":"thing"}`) }, fault.ConfigInvalid, `["input"]`},
		{"await without a name", func(d *workflow.Definition) { d.Awaits = []string{""} }, fault.ConfigInvalid, `["awaits",0]`},
		{"steps", func(d *workflow.Definition) { d.MaxSteps = -1 }, fault.ConfigInvalid, `["maxSteps"]`},
		{"retry", func(d *workflow.Definition) { d.NodeDefaults.Retry.MaxAttempts = -1 }, fault.ConfigInvalid, `["nodeDefaults"]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := workflow.Definition{ID: "w", Nodes: map[string]workflow.Node{"a": nothing}, Channels: map[string]workflow.Channel{"x": {}}, Edges: begin}
			c.change(&d)
			err := workflow.New().Register(d)
			if c.kind == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !fault.Is(err, c.kind) {
				t.Fatalf("Register() = %v, want %s", err, c.kind.Code)
			}
			if path, _ := json.Marshal(fault.Of(err).Issues[0].Path); string(path) != c.path {
				t.Errorf("the problem is at %s, want %s", path, c.path)
			}
		})
	}
}
