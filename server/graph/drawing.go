package graph

import (
	"cmp"
	"fmt"
	"strings"
	"unicode"
)

// A Drawing is what people see of a workflow. Names and labels in it may be any texts; the writers escape them.
type Drawing struct {
	Nodes []DrawnNode `json:"nodes"`
	Edges []DrawnEdge `json:"edges"`
}

// A DrawnNode is one node. Two nodes of a drawing have different names.
type DrawnNode struct {
	Name     string `json:"name"`
	Kind     string `json:"kind"`               // that of a node, or start or end
	Label    string `json:"label,omitempty"`    // what it works with: a tool, an agent, the name of a wait
	Parallel string `json:"parallel,omitempty"` // the node around it
	Branch   int    `json:"branch,omitempty"`   // index of the branch of Parallel
}

// A DrawnEdge leads from a node to another one. Where a branch of a parallel ends, it leads to what follows the parallel.
type DrawnEdge struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Kind  string `json:"kind"`            // next, case, else, branch, late, denied or error
	Label string `json:"label,omitempty"` // the condition of a case
}

// A Mark is the state of a node in a thread.
type Mark string

// Marks that drawings show.
const (
	Done   Mark = "done"
	Active Mark = "active"
	Parked Mark = "parked"
	Failed Mark = "failed"
)

// fills are the colours of marks.
var fills = map[Mark]string{Done: "#d5f0d5", Active: "#d6e6ff", Parked: "#fff1c2", Failed: "#f9d0d0"}

// Start is the name of the drawn node that runs begin at.
const Start = "__start__"

// Drawing returns a new drawing of the workflow.
func (g *Graph) Drawing() *Drawing {
	d := &Drawing{Nodes: []DrawnNode{{Name: Start, Kind: "start"}}, Edges: []DrawnEdge{{From: Start, To: g.Start, Kind: "next"}}}
	if g.OnError != nil {
		d.Edges = append(d.Edges, DrawnEdge{From: Start, To: g.OnError.Next, Kind: "error"})
	}
	for _, name := range sorted(g.Nodes) {
		n := g.Nodes[name]
		d.Nodes = append(d.Nodes, DrawnNode{name, n.Kind, n.label(), n.Parallel, n.Branch})
		for _, l := range n.entries() {
			d.Edges = append(d.Edges, DrawnEdge{From: name, To: l.to, Kind: "branch"})
		}
		for i, l := range n.links() {
			if n.Kind == KindParallel && l.kind == "next" {
				continue // its branches lead there
			}
			e := DrawnEdge{From: name, To: g.after(n, l.to), Kind: l.kind}
			if l.kind == "case" {
				e.Label = g.Form.Nodes[name].Cases[i].If
			}
			d.Edges = append(d.Edges, e)
		}
	}
	d.Nodes = append(d.Nodes, DrawnNode{Name: End, Kind: "end"})
	return d
}

// after is where a path leads to: at the end of a branch, to what follows the parallel.
func (g *Graph) after(n *Node, to string) string {
	for to == End && n.Parallel != "" {
		n = g.Nodes[n.Parallel]
		to = n.Next
	}
	return to
}

// label is what a node works with.
func (n *Node) label() string {
	if n.Do != nil {
		return strings.TrimSpace(n.Do.Kind + " " + n.Do.label())
	}
	return cmp.Or(n.Tool, n.Agent, n.Workflow, n.Wait, n.Code)
}

// Bounds of a drawing in a format for people.
const (
	maxLabel = 60 // characters of a text
	maxNodes = MaxNodes + 2
	maxEdges = MaxLinks + MaxNodes
)

// A sketch is a drawing as the writers need it: with numbers in the place of names.
type sketch struct {
	nodes []sketched
	edges []line
}

type sketched struct {
	DrawnNode
	mark   Mark
	lines  []string
	inside int // index of the node around it; -1: none
}

type line struct {
	from, to int
	label    string
	dashed   bool
}

// sketch leaves out edges of unknown nodes, and what is beyond the bounds.
func (d *Drawing) sketch(marks map[string]Mark) *sketch {
	s := &sketch{}
	index := map[string]int{}
	for _, n := range d.Nodes[:min(len(d.Nodes), maxNodes)] {
		if _, twice := index[n.Name]; twice {
			continue
		}
		index[n.Name] = len(s.nodes)
		mark := marks[n.Name]
		lines := []string{short(n.Name), short(strings.TrimSpace(n.Kind + " " + n.Label))}
		if n.Kind == "start" || n.Kind == "end" {
			lines = []string{n.Kind}
		}
		if fills[mark] == "" {
			mark = ""
		} else {
			lines[len(lines)-1] += " (" + string(mark) + ")"
		}
		s.nodes = append(s.nodes, sketched{n, mark, lines, -1})
	}
	for i := range s.nodes {
		if around, ok := index[s.nodes[i].Parallel]; ok && around != i {
			s.nodes[i].inside = around
		}
	}
	for i := range s.nodes { // nobody is inside of itself
		around := i
		for steps := 0; around >= 0 && steps <= MaxNesting; steps++ {
			around = s.nodes[around].inside
		}
		if around >= 0 {
			s.nodes[i].inside = -1
		}
	}
	for _, e := range d.Edges[:min(len(d.Edges), maxEdges)] {
		from, known := index[e.From]
		to, both := index[e.To]
		if !known || !both {
			continue
		}
		l := line{from: from, to: to, label: short(e.Label), dashed: e.Kind == "error" || e.Kind == "late" || e.Kind == "denied"}
		if l.label == "" && e.Kind != "next" && e.Kind != "branch" {
			l.label = short(e.Kind)
		}
		s.edges = append(s.edges, l)
	}
	return s
}

// short is a text on one line, cut where it is too long.
func short(s string) string {
	runes := make([]rune, 0, maxLabel)
	for _, r := range s {
		if len(runes) == maxLabel {
			runes[maxLabel-1] = '…'
			break
		}
		if !unicode.IsPrint(r) {
			r = ' '
		}
		runes = append(runes, r)
	}
	return string(runes)
}

// Formats are the names of the formats that [Drawing.Write] knows.
var Formats = []string{"mermaid", "dot", "svg"}

// Write returns the drawing in a format, with marks by the names of nodes. It fails for a format that it does not know.
func (d *Drawing) Write(format string, marks map[string]Mark) (string, error) {
	switch s := d.sketch(marks); format {
	case "mermaid":
		return s.mermaid(), nil
	case "dot":
		return s.dot(), nil
	case "svg":
		return s.svg(), nil
	}
	return "", fmt.Errorf("there is no format %q: want one of %s", format, strings.Join(Formats, ", "))
}
