package graph_test

import (
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"agentd/server/golden"
	"agentd/server/graph"
)

// hostile is a drawing whose names and labels try to break out of every format.
func hostile() *graph.Drawing {
	names := []string{`a"];b[`, "end", `<script>&amp;"'`, "a\nb\x00\u2028", `\N\"`, "#quot;|`%%{init}%%", strings.Repeat("long ", 40), "ünï 😀", ""}
	d := &graph.Drawing{}
	for i, name := range names {
		kind := []string{graph.KindBranch, graph.KindTool, graph.KindAwait}[i%3]
		d.Nodes = append(d.Nodes, graph.DrawnNode{Name: name, Kind: kind, Label: name, Parallel: names[(i+3)%len(names)]})
		for _, other := range names[i/2:] {
			d.Edges = append(d.Edges, graph.DrawnEdge{From: name, To: other, Kind: "case", Label: name})
		}
	}
	d.Edges = append(d.Edges, graph.DrawnEdge{From: "end", To: "nowhere", Kind: "next"})
	return d
}

func write(t *testing.T, d *graph.Drawing, format string, marks map[string]graph.Mark) string {
	t.Helper()
	text, err := d.Write(format, marks)
	if err != nil {
		t.Fatalf("Write(%q) = %v", format, err)
	}
	return text
}

// The golden files are also what CI shows to Graphviz and Mermaid.
func TestFormats(t *testing.T) {
	marks := map[string]graph.Mark{"fetch": graph.Done, "ask": graph.Parked, "each": graph.Active, "reject": graph.Failed, "size": "strange"}
	for name, d := range map[string]*graph.Drawing{"refund": compile(t, refund).Drawing(), "hostile": hostile()} {
		for _, format := range graph.Formats {
			text := write(t, d, format, marks)
			golden.Check(t, "testdata/"+name+"."+format, text)
			if again := write(t, d, format, marks); again != text {
				t.Errorf("the second %s of %s is another one", format, name)
			}
		}
	}
	if text, err := hostile().Write("png", nil); err == nil || text != "" {
		t.Errorf("Write(png) = %q, %v, want an error", text, err)
	}
}

// sound reads an SVG as XML, and returns what it says.
func sound(t *testing.T, svg string) (said []string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		token, err := d.Token()
		if err == io.EOF {
			return said
		} else if err != nil {
			t.Fatalf("the SVG is no XML: %v\n%s", err, svg)
		}
		switch token := token.(type) {
		case xml.CharData:
			if text := strings.TrimSpace(string(token)); text != "" {
				said = append(said, text)
			}
		case xml.StartElement:
			if !slices.Contains([]string{"svg", "rect", "defs", "marker", "path", "g", "title", "text"}, token.Name.Local) {
				t.Errorf("the SVG has an element %s", token.Name.Local)
			}
		}
	}
}

func TestTextsAreEscaped(t *testing.T) {
	if said := sound(t, write(t, hostile(), "svg", nil)); !slices.Contains(said, `<script>&amp;"'`) {
		t.Errorf("the SVG says %q, want the name of each node in it", said)
	}
	for line := range strings.Lines(write(t, hostile(), "mermaid", nil)) {
		if strings.Count(line, `"`)%2 != 0 || strings.ContainsAny(line, "`%'") || strings.Contains(line, "<script") {
			t.Errorf("a text breaks out of its quotes in the line %s", line)
		}
	}
}

func TestDrawing(t *testing.T) {
	d := compile(t, refund).Drawing()
	var edges []string
	for _, e := range d.Edges {
		edges = append(edges, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", e.From, e.Kind, e.To, e.Label)))
	}
	want := []string{
		"__start__ next fetch", "ask next both", "ask denied reject", "both branch each", "both branch wait", "both error reject", "each next tell",
		"fetch next size", `size case ask state.order.total > 100 && "<&>" != ''`, "size else both", "tell next end", "wait next tell",
	}
	if !slices.Equal(edges, want) {
		t.Errorf("the edges are\n%s\nwant\n%s", strings.Join(edges, "\n"), strings.Join(want, "\n"))
	}
	i := slices.IndexFunc(d.Nodes, func(n graph.DrawnNode) bool { return n.Name == "wait" })
	if want := (graph.DrawnNode{Name: "wait", Kind: "await", Label: "paid", Parallel: "both", Branch: 1}); d.Nodes[i] != want {
		t.Errorf("the node is %+v, want %+v", d.Nodes[i], want)
	}
}

// A drawing may be of any size; what is written of it may not.
func TestDrawingsAreBounded(t *testing.T) {
	d := &graph.Drawing{}
	for i := range 3000 {
		name := fmt.Sprint("n", i)
		d.Nodes = append(d.Nodes, graph.DrawnNode{Name: name, Kind: "tool", Parallel: fmt.Sprint("n", i-1)})
		for j := range 10 {
			d.Edges = append(d.Edges, graph.DrawnEdge{From: name, To: fmt.Sprint("n", (i*7+j*13)%3000), Kind: "case", Label: strings.Repeat("x", 1000)})
		}
	}
	for _, format := range graph.Formats {
		if n := len(write(t, d, format, nil)); n > 4<<20 {
			t.Errorf("the drawing as %s has %d bytes, want at most 4 MiB", format, n)
		}
	}
	for i := range d.Edges { // between nodes that are drawn
		d.Edges[i].From, d.Edges[i].To = "n0", "n1"
	}
	dot := write(t, d, "dot", nil)
	if nodes, edges := strings.Count(dot, "tool"), strings.Count(dot, "->"); nodes != graph.MaxNodes+2 || edges != graph.MaxLinks+graph.MaxNodes {
		t.Errorf("of a large drawing, %d nodes and %d edges are drawn", nodes, edges)
	}
}
