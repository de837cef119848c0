package config

import (
	"maps"
	"slices"

	"agentd/server/graph"
)

// Graph compiles a workflow, which may name what the configuration declares. The graph is nil if there are problems.
func (c *Config) Graph(id string) (*graph.Graph, []graph.Problem) {
	return graph.Compile(id, c.Workflows[id], graph.Names{
		Tools:     slices.AppendSeq(slices.Clip(workflowTools), maps.Keys(c.Tools)),
		Agents:    slices.Collect(maps.Keys(c.Agents)),
		Workflows: slices.Collect(maps.Keys(c.Workflows)),
	})
}

// workflowTools are the built-in tools that need no transcript, so that a workflow can call them.
var workflowTools = []string{"clock", "calculator"}

// workflow checks a workflow whose form is right. Otherwise, what could not be read would be reported as missing.
func (k checker) workflow(id string) {
	if k.Wrong("workflows", id) {
		return
	}
	_, problems := k.Graph(id)
	for _, p := range problems {
		k.ProblemWithin(p.Message, p.Offset, under([]any{"workflows", id}, p.Path...)...)
	}
	for name, n := range sorted(k.Workflows[id].Nodes) {
		k.terms(n.Terms, "workflows", id, "nodes", name, "terms")
		if n.Do != nil {
			k.terms(n.Do.Terms, "workflows", id, "nodes", name, "do", "terms")
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
