package graph

import "fmt"

// A region is a place where one path is at a time: the workflow itself, or a branch of a parallel.
type region struct {
	outer    *region // nil for the workflow itself
	parallel string
	branch   int
	depth    int
	entries  []link
	nodes    []*Node // in the order in which paths reach them
}

func (r *region) String() string {
	if r.outer == nil {
		return "outside of it"
	}
	return fmt.Sprintf("in branch %d of %q", r.branch, r.parallel)
}

// A link leads from a node, or from the workflow, to another node.
type link struct {
	to   string
	kind string // as [DrawnEdge] has it
	path []any  // of the name in the form
}

// links are where a node leads, without the branches of a parallel.
func (n *Node) links() (all []link) {
	add := func(to, kind string, path ...any) {
		if to != "" {
			all = append(all, link{to, kind, under([]any{"nodes", n.Name}, path...)})
		}
	}
	for i, c := range n.Cases {
		add(c.Next, "case", "cases", i, "next")
	}
	add(n.Else, "else", "else")
	add(n.Next, "next", "next")
	add(n.Late, "late", "late")
	add(n.Denied, "denied", "denied")
	if n.OnError != nil {
		add(n.OnError.Next, "error", "onError", "next")
	}
	return all
}

// paths checks where nodes lead, and finds the region of each.
func (c *compiler) paths() {
	before := len(c.problems)
	entries := []link{{to: c.graph.Start, path: []any{"start"}}}
	c.leads(entries[0], false)
	if h := c.graph.OnError; h != nil {
		entries = append(entries, link{to: h.Next, path: []any{"onError", "next"}})
		c.leads(entries[1], true)
	}
	links := len(entries)
	for _, name := range sorted(c.graph.Nodes) {
		n := c.graph.Nodes[name]
		if links += len(n.links()) + len(n.entries()); links > MaxLinks {
			c.problem([]any{"nodes"}, "nodes name other nodes more than %d times; move some to a workflow that runs as a child", MaxLinks)
			return
		}
		for _, l := range n.links() {
			c.leads(l, true)
		}
		for _, l := range n.entries() {
			c.leads(l, false)
		}
	}
	if len(c.problems) > before || len(c.problems) == maxProblems {
		return // what follows would report the same again
	}
	w := walker{compiler: c, owner: map[string]*region{}}
	for queue := []*region{{entries: entries}}; len(queue) > 0; queue = queue[1:] {
		r := queue[0]
		w.walk(r)
		for _, n := range r.nodes {
			for i, first := range n.entries() {
				if r.depth == MaxNesting {
					c.problem([]any{"nodes", n.Name}, "is inside %d others of its kind; move some to a workflow that runs as a child", MaxNesting)
					return
				}
				queue = append(queue, &region{outer: r, entries: []link{first}, parallel: n.Name, branch: i, depth: r.depth + 1})
			}
		}
	}
	if len(c.problems) > before {
		return
	}
	for _, name := range sorted(c.graph.Nodes) {
		if w.owner[name] == nil {
			c.problem([]any{"nodes", name}, "no path leads to this node; name it where a node leads to, or remove it")
		}
	}
	w.conflicts()
}

// entries lead into the branches of a parallel.
func (n *Node) entries() (all []link) {
	for i, first := range n.Branches {
		all = append(all, link{first, "branch", []any{"nodes", n.Name, "branches", i}})
	}
	return all
}

// leads checks that a link leads to a node, or to the end where that may be.
func (c *compiler) leads(l link, end bool) {
	switch {
	case l.to == End && !end:
		c.problem(l.path, "want a node, got %q", End)
	case l.to != End && c.graph.Nodes[l.to] == nil:
		c.problem(l.path, "there is no node %q%s", l.to, c.meant(l.to, func() []string { return sorted(c.graph.Nodes) }))
	}
}

type walker struct {
	*compiler
	owner map[string]*region // by node
}

// walk finds the nodes of a region, and checks that paths stay in it and can end.
func (w *walker) walk(r *region) {
	before := len(w.problems)
	open := r.entries
	from := map[string][]string{} // nodes that lead to a node
	var ends []string             // nodes from which a path ends
	for len(open) > 0 {
		l := open[0]
		open = open[1:]
		switch owner := w.owner[l.to]; {
		case l.to == End || owner == r:
			continue
		case owner != nil: // never of the workflow itself, which is walked first
			w.problem(l.path, "leads from branch %d of %q to %q, which is %v; a path stays in its branch, and \"end\" ends it", r.branch, r.parallel, l.to, owner)
			continue
		}
		n := w.graph.Nodes[l.to]
		w.owner[l.to] = r
		n.Parallel, n.Branch = r.parallel, r.branch
		r.nodes = append(r.nodes, n)
		if n.Kind == KindFail {
			ends = append(ends, n.Name)
		}
		for _, next := range n.links() {
			open = append(open, next)
			if next.to == End {
				ends = append(ends, n.Name)
			}
			from[next.to] = append(from[next.to], n.Name)
		}
	}
	if len(w.problems) > before {
		return
	}
	reach := map[string]bool{}
	for len(ends) > 0 {
		name := ends[len(ends)-1]
		ends = ends[:len(ends)-1]
		if !reach[name] {
			reach[name] = true
			ends = append(ends, from[name]...)
		}
	}
	for _, n := range r.nodes {
		if !reach[n.Name] {
			w.problem([]any{"nodes", n.Name}, "no path from this node leads to \"end\" or to a node of kind fail; add a way out")
			return
		}
	}
}

// apart reports whether two nodes can be at work at one time: in different branches of one parallel.
func (w *walker) apart(a, b string) bool {
	r, s := w.owner[a], w.owner[b]
	for r != nil && s != nil && r != s {
		if r.outer == s.outer {
			return r.parallel == s.parallel
		}
		if r.depth < s.depth {
			r, s = s, r
		}
		r = r.outer
	}
	return false
}

// conflicts checks what nodes do that can be at work at one time.
func (w *walker) conflicts() {
	waits := map[string][]string{}
	for _, name := range sorted(w.graph.Nodes) {
		n, path := w.graph.Nodes[name], []any{"nodes", name}
		inMap := n.Do != nil
		if inMap {
			n, path = n.Do, append(path, "do")
		}
		if n.Wait == "" {
			continue
		}
		wait := n.Wait
		if inMap {
			wait = WaitName(wait, 0)
		}
		for _, other := range waits[wait] {
			if w.apart(name, other) {
				w.problem(append(path, "name"), "%q waits under the name %q at the same time; give one of them another name", other, n.Wait)
				break
			}
		}
		waits[wait] = append(waits[wait], name)
	}

	writes := map[string][]use{}
	for _, u := range w.uses {
		if u.writes && u.node != "" {
			writes[u.key] = append(writes[u.key], u)
		}
	}
	for _, u := range w.uses {
		if u.node == "" {
			continue
		}
		keys := []string{u.key}
		if u.key == "" {
			keys = sorted(writes)
		}
		for _, key := range keys {
			if w.conflict(u, writes[key]) {
				break
			}
		}
	}
}

// conflict reports a use of a key that another node writes at the same time.
func (w *walker) conflict(u use, writes []use) bool {
	for _, other := range writes {
		merge := w.graph.Keys[other.key].Merge
		switch elements := u.inMap && other.inMap && u.node == other.node; {
		case u.writes && merge != Replace:
		case u.writes && elements:
			w.problem(u.path, "elements of the map write the key %q at the same time; declare another merge for it, or use the map's save", u.key)
			return true
		case elements:
			w.problem(u.path, "an element reads the key %q while others write it; read it before the map, or after it", other.key)
			return true
		case !w.apart(u.node, other.node):
		case u.writes && u.node < other.node:
			w.problem(u.path, "%q writes the key %q at the same time; give each branch a key, or declare another merge", other.node, u.key)
			return true
		case !u.writes:
			w.problem(u.path, "reads the key %q, which %q writes in another branch at the same time; read it after the parallel", other.key, other.node)
			return true
		}
	}
	return false
}
