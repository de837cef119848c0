package graph_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"agentd/server/fuzztest"
	"agentd/server/graph"
)

// A workflow has problems or is sound; then its source says all of it, and it can be drawn.
func FuzzWorkflow(f *testing.F) {
	f.Add(refund)
	f.Add(`{"start": "a", "nodes": {"a": {"kind": "parallel", "branches": ["b", "b"], "next": "a"}, "b": {"kind": "sleep", "forMs": "${ 1 ", "next": "end"}}}`)
	f.Add(`{"start": "a", "state": {"k": {"merge": "sum", "initial": 1.50}}, "nodes": {"a": {"kind": "set", "values": {"k": "${ state.k }"}, "next": "a", "onError": {"next": "end"}}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 64<<10 {
			return
		}
		var g *graph.Graph
		var problems []graph.Problem
		cost.Check(t, len(text), func() { g, problems = parse(t, text) })
		for _, p := range problems {
			if p.Message == "" || len(p.Path) == 0 {
				t.Errorf("a problem is %+v, want a path and a message", p)
			}
		}
		if g == nil {
			return
		}
		again, err := graph.Parse("w", g.Source)
		if err != nil || !bytes.Equal(again.Digest, g.Digest) {
			t.Fatalf("Parse(Source) = %v; want no error and the same digest, of the source\n%s", err, g.Source)
		}
		draw(t, g.Drawing())
	})
}

// cost is what compiling and drawing may take: expressions and schemas become far larger than their texts.
var cost = fuzztest.Cost{PerByte: 4000, Base: 1 << 20}

// draw writes a drawing in every format.
func draw(t *testing.T, d *graph.Drawing) {
	for _, format := range graph.Formats {
		text := write(t, d, format, map[string]graph.Mark{graph.Start: graph.Done})
		if format == "svg" {
			sound(t, text)
		}
	}
}

func FuzzDrawing(f *testing.F) {
	for _, name := range []string{"refund", "hostile"} {
		drawing := hostile()
		if name == "refund" {
			drawing = compile(f, refund).Drawing()
		}
		text, err := json.Marshal(drawing)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var d graph.Drawing
		if len(text) < 64<<10 && json.Unmarshal(text, &d) == nil {
			cost.Check(t, len(text), func() { draw(t, &d) })
		}
	})
}

// A merge that does not fail has a result, and its delta has the same one.
func FuzzMerge(f *testing.F) {
	f.Add("union", `[1,{"a":"<"}]`, `[1.0,"x"]`)
	f.Add("shallow", `{"a":1}`, `{"b":[1e400]}`)
	f.Add("sum", `1`, `1e999`)
	f.Fuzz(func(t *testing.T, kind, old, value string) {
		m := graph.Merge(kind)
		if !json.Valid([]byte(old)) || !json.Valid([]byte(value)) || !known(m) {
			return
		}
		merged, delta, err := m.Of([]byte(old), []byte(value))
		if err != nil {
			return
		}
		again, _, err := m.Of([]byte(old), delta)
		if err != nil || !bytes.Equal(again, merged) || !json.Valid(merged) {
			t.Errorf("%s.Of(%s, %s) = %s with the delta %s, which gives %s, %v", m, old, value, merged, delta, again, err)
		}
	})
}

func known(m graph.Merge) bool {
	switch m {
	case graph.Replace, graph.Append, graph.Sum, graph.Max, graph.Min, graph.Union, graph.Shallow:
		return true
	}
	return false
}
