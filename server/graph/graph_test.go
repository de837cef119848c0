package graph_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"agentd/server/graph"
	"agentd/server/shape"
)

// refund is a workflow with most kinds of nodes.
const refund = `{
  "input":  { "type": "object", "required": ["orderId"] },
  "state":  { "order": {}, "lines": {}, "note": {}, "total": { "merge": "sum", "initial": 1.0 } },
  "output": "${ {'paid': state.order.total} }", "start": "fetch",
  "nodes": {
    "fetch": { "kind": "tool", "tool": "orders", "args": { "id": "${ input.orderId }", "n": 100.0 }, "save": "order",
      "retry": { "maxAttempts": 5, "backoffMs": 500 }, "next": "size" },
    "size":  { "kind": "branch", "cases": [{ "if": "state.order.total > 100 && \"<&>\" != ''", "next": "ask" }], "else": "both" },
    "ask":   { "kind": "approval", "name": "big-refund", "show": { "total": "${ state.order.total }" },
      "terms": { "approvers": 2, "expiresMs": 86400000 }, "next": "both", "denied": "reject" },
    "both":  { "kind": "parallel", "branches": ["each", "wait"], "next": "tell", "onError": { "next": "reject" } },
    "each":  { "kind": "map", "over": "${ state.order.lines }", "save": "lines",
      "do": { "kind": "await", "name": "ok" }, "next": "end" },
    "wait":  { "kind": "await", "name": "paid", "next": "end" },
    "tell":  { "kind": "agent", "agent": "writer", "input": "Tell: ${ state.lines }", "save": "note", "next": "end" },
    "reject":{ "kind": "fail", "code": "refund-refused", "message": "Refused." }
  }
}`

// compile compiles a workflow that a document holds.
func compile(t testing.TB, text string) *graph.Graph {
	t.Helper()
	g, problems := parse(t, text)
	if g == nil {
		t.Fatalf("Compile(%s) = %v", text, problems)
	}
	return g
}

// parse reads a document; the graph and the problems are nil if it is not in the form of a workflow.
func parse(t testing.TB, text string) (*graph.Graph, []graph.Problem) {
	t.Helper()
	var w graph.Workflow
	form := shape.Of(reflect.TypeFor[graph.Workflow]())
	form.Default(&w)
	if r := (&shape.Reader{File: true, MaxDepth: 64}); !r.Read([]byte(text), form, &w) || r.Count() > 0 {
		return nil, nil
	}
	return graph.Compile("w", w, nil)
}

func TestSourceIsTheWholeWorkflow(t *testing.T) {
	g := compile(t, refund)
	if sum := sha256.Sum256(g.Source); !bytes.Equal(g.Digest, sum[:]) {
		t.Errorf("Digest = %x, want %x", g.Digest, sum)
	}
	again, err := graph.Parse("w", g.Source)
	if err != nil {
		t.Fatalf("Parse(Source) = %v", err)
	}
	if !bytes.Equal(again.Source, g.Source) || !bytes.Equal(again.Digest, g.Digest) {
		t.Errorf("Parse(Source).Source = %s, want %s", again.Source, g.Source)
	}
	for _, part := range []string{`"n":100.0`, `"initial":1.0`, `"maxBackoffMs":60000`, `\"<&>\"`} {
		if !bytes.Contains(g.Source, []byte(part)) {
			t.Errorf("Source = %s, want %s in it", g.Source, part)
		}
	}
}

func TestNodesKnowWhereTheyAre(t *testing.T) {
	g := compile(t, refund)
	for name, want := range map[string]struct {
		parallel string
		branch   int
	}{"fetch": {"", 0}, "both": {"", 0}, "each": {"both", 0}, "wait": {"both", 1}, "tell": {"", 0}} {
		if n := g.Nodes[name]; n.Parallel != want.parallel || n.Branch != want.branch {
			t.Errorf("node %s is in branch %d of %q, want %d of %q", name, n.Branch, n.Parallel, want.branch, want.parallel)
		}
	}
}

func TestAwaits(t *testing.T) {
	g := compile(t, refund)
	for name, want := range map[string]bool{"paid": true, "ok[0]": true, "ok[9999]": true, "ok[10000]": false, "ok[01]": false, "ok[-1]": false,
		"ok[": false, "ok": false, "paid[0]": false, "big-refund": false, "": false, "[0]": false} {
		if got := len(g.Awaits(name)) > 0; got != want {
			t.Errorf("Awaits(%q) = %v, want %v", name, got, want)
		}
	}
}

func TestHandlers(t *testing.T) {
	g := compile(t, `{"start": "a", "onError": {"next": "b", "on": ["x"]}, "nodes": {
		"a": {"kind": "sleep", "forMs": 1, "next": "end", "onError": {"next": "end"}}, "b": {"kind": "fail", "code": "c", "message": ""}}}`)
	if h := g.OnError; !h.Takes("x") || h.Takes("y") {
		t.Errorf("the handler of %q takes x: %v, y: %v", h.On, h.Takes("x"), h.Takes("y"))
	}
	if h := g.Nodes["a"].OnError; !h.Takes("y") {
		t.Error("a handler without codes does not take y")
	}
	if d := g.Drawing(); !slices.Contains(d.Edges, graph.DrawnEdge{From: graph.Start, To: "b", Kind: "error"}) {
		t.Errorf("the edges are %+v, want one from the start to the workflow's handler", d.Edges)
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		`{"start": "a"}`:                                    "missing",
		`{"start": "a", "nodes": {}}`:                       `start: there is no node "a"`,
		`{"start": "a", "nodes": {}, 1`:                     "not valid JSON",
		strings.Repeat("[", 201) + strings.Repeat("]", 201): "nested deeper",
		strings.Repeat("[", 200) + strings.Repeat("]", 200): "want an object",
	} {
		if g, err := graph.Parse("w", []byte(text)); g != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%.60s) = %v, %v, want an error with %q", text, g, err, want)
		}
	}
}

// Nobody reads more than a hundred problems.
func TestProblemsAreBounded(t *testing.T) {
	text := `{"start": "n0", "nodes": {`
	for i := range 1000 {
		text += fmt.Sprintf(`"n%d": {"kind": "sleep", "forMs": -1, "next": "x%d"}, `, i, i)
	}
	if _, problems := parse(t, text+"}}"); len(problems) != 100 {
		t.Errorf("Compile() has %d problems, want 100", len(problems))
	}
}

func BenchmarkParse(b *testing.B) {
	source := compile(b, refund).Source
	for b.Loop() {
		if _, err := graph.Parse("w", source); err != nil {
			b.Fatal(err)
		}
	}
}
