package graph

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// mermaid writes a flowchart of Mermaid.
func (s *sketch) mermaid() string {
	var b strings.Builder
	b.WriteString("flowchart TD\n")
	shape := func(i int) string {
		n := s.nodes[i]
		lines := make([]string, len(n.lines))
		for i, line := range n.lines {
			lines[i] = mermaidText(line)
		}
		text := strings.Join(lines, "<br/>")
		switch n.Kind {
		case KindBranch:
			return fmt.Sprintf(`n%d{"%s"}`, i, text)
		case "start", "end", KindAwait, KindApproval, KindSleep:
			return fmt.Sprintf(`n%d(["%s"])`, i, text)
		}
		return fmt.Sprintf(`n%d["%s"]`, i, text)
	}
	s.nested(func(i, depth int) { fmt.Fprintf(&b, "%s%s\n", indent(depth), shape(i)) },
		func(i, depth int) {
			fmt.Fprintf(&b, "%ssubgraph s%d[\"%s\"]\n", indent(depth), i, mermaidText(s.nodes[i].lines[0]))
		},
		func(depth int) { fmt.Fprintf(&b, "%send\n", indent(depth)) })
	for _, e := range s.edges {
		arrow, label := "-->", ""
		if e.dashed {
			arrow = "-.->"
		}
		if e.label != "" {
			label = `|"` + mermaidText(e.label) + `"|`
		}
		fmt.Fprintf(&b, "  n%d %s%s n%d\n", e.from, arrow, label, e.to)
	}
	for _, mark := range slices.Sorted(maps.Keys(fills)) {
		var marked []string
		for i, n := range s.nodes {
			if n.mark == mark {
				marked = append(marked, fmt.Sprintf("n%d", i))
			}
		}
		if marked != nil {
			fmt.Fprintf(&b, "  classDef %s fill:%s,color:#000\n  class %s %s\n", mark, fills[mark], strings.Join(marked, ","), mark)
		}
	}
	return b.String()
}

// mermaidText writes all but plain characters as entities of Mermaid, so that no text ends a label or is markup. Mermaid
// wants no empty text.
func mermaidText(s string) string {
	if s == "" {
		return " "
	}
	var b strings.Builder
	for _, r := range s {
		if r < 0x80 && !strings.ContainsRune(" _.,:-/+=()?!", r) && !('0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z') {
			fmt.Fprintf(&b, "#%d;", r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// dot writes a digraph of Graphviz.
func (s *sketch) dot() string {
	var b strings.Builder
	b.WriteString("digraph workflow {\n  node [shape=box, style=\"rounded,filled\", fillcolor=white];\n")
	s.nested(func(i, depth int) {
		n := s.nodes[i]
		fmt.Fprintf(&b, "%sn%d [label=%s", indent(depth), i, dotText(n.lines...))
		switch n.Kind {
		case "start", "end":
			b.WriteString(", shape=oval")
		case KindBranch:
			b.WriteString(", shape=diamond, style=filled")
		}
		if n.mark != "" {
			fmt.Fprintf(&b, ", fillcolor=%q", fills[n.mark])
		}
		b.WriteString("];\n")
	}, func(i, depth int) {
		fmt.Fprintf(&b, "%ssubgraph cluster_%d {\n%slabel=%s;\n", indent(depth), i, indent(depth+1), dotText(s.nodes[i].lines[0]))
	}, func(depth int) { fmt.Fprintf(&b, "%s}\n", indent(depth)) })
	for _, e := range s.edges {
		fmt.Fprintf(&b, "  n%d -> n%d [label=%s", e.from, e.to, dotText(e.label))
		if e.dashed {
			b.WriteString(", style=dashed")
		}
		b.WriteString("];\n")
	}
	b.WriteString("}\n")
	return b.String()
}

var dotEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "&", "&amp;")

// dotText writes lines as one quoted text of DOT, in which Graphviz reads escapes and entities.
func dotText(lines ...string) string {
	escaped := make([]string, len(lines))
	for i, line := range lines {
		escaped[i] = dotEscapes.Replace(line)
	}
	return `"` + strings.Join(escaped, `\n`) + `"`
}

func indent(depth int) string { return strings.Repeat("  ", depth+1) }

// nested visits the nodes, those inside a parallel between an open and a close.
func (s *sketch) nested(node, open func(i, depth int), end func(depth int)) {
	inside := map[int][]int{}
	for i, n := range s.nodes {
		inside[n.inside] = append(inside[n.inside], i)
	}
	var visit func(around, depth int)
	visit = func(around, depth int) {
		for _, i := range inside[around] {
			node(i, depth)
			if inside[i] != nil {
				open(i, depth)
				visit(i, depth+1)
				end(depth)
			}
		}
	}
	visit(-1, 0)
}
