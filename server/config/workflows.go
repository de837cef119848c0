package config

import (
	"slices"

	"agentd/server/graph"
)

// Graph compiles a workflow, which may name what the configuration declares. The graph is nil if there are problems.
func (c *Config) Graph(id string) (*graph.Graph, []graph.Problem) {
	return graph.Compile(id, c.Workflows[id], c.names())
}

func (c *Config) names() graph.Names {
	n := graph.Names{Tools: map[string]bool{}, Agents: map[string]bool{}, Workflows: map[string]bool{}}
	for _, name := range builtinTools {
		if name != "read_result" { // results are whole in a workflow
			n.Tools[name] = true
		}
	}
	for name := range c.Tools {
		n.Tools[name] = true
	}
	for id := range c.Agents {
		n.Agents[id] = true
	}
	for id := range c.Workflows {
		n.Workflows[id] = true
	}
	return n
}

// workflows checks the workflows whose form is right. In the others, what could not be read would be reported as missing.
func (k checker) workflows() {
	names := k.names()
	for id, w := range sorted(k.Workflows) {
		if k.Full() {
			return // there may be more problems than anybody reads, and compiling takes long
		}
		if k.Wrong("workflows", id) {
			continue
		}
		_, problems := graph.Compile(id, w, names)
		for _, p := range problems {
			k.ProblemWithin(p.Message, p.Offset, under([]any{"workflows", id}, p.Path...)...)
		}
		for name, n := range sorted(w.Nodes) {
			k.terms(n.Terms, "workflows", id, "nodes", name, "terms")
			if n.Do != nil {
				k.terms(n.Do.Terms, "workflows", id, "nodes", name, "do", "terms")
			}
		}
	}
}

// misplaced is what to do about a field of a node that stands in the node of a map.
func misplaced(path []any) string {
	if len(path) == 6 && path[0] == "workflows" && path[4] == "do" && slices.Contains([]any{"next", "save", "onError", "late", "denied"}, path[5]) {
		return "has no place in the node of a map; set it on the map, or leave it out"
	}
	return ""
}
