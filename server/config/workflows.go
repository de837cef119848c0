package config

import (
	"maps"
	"slices"
	"strings"

	"agentd/server/graph"
)

// Graph compiles a workflow, which may name what the configuration declares. The graph is nil if there are problems.
func (c *Config) Graph(id string) (*graph.Graph, []graph.Problem) {
	return graph.Compile(id, c.Workflows[id], names{c})
}

// names are what workflows may name.
type names struct{ *Config }

// Has reports whether there is a tool, an agent or a workflow of a name.
func (n names) Has(what, name string) (ok bool) {
	switch what {
	case "tool":
		_, ok = n.Tools[name]
		return ok || slices.Contains(workflowTools, name)
	case "agent":
		_, ok = n.Agents[name]
	case "workflow":
		_, ok = n.Workflows[name]
	}
	return ok
}

// All lists the tools, agents or workflows.
func (n names) All(what string) []string {
	switch what {
	case "tool":
		return slices.Sorted(maps.Keys(n.Tools))
	case "agent":
		return slices.Sorted(maps.Keys(n.Agents))
	}
	return slices.Sorted(maps.Keys(n.Workflows))
}

// WorkflowTool begins the entries of an agent's tools that are workflows; the id follows.
const WorkflowTool = "workflow:"

// ToolName is the name by which models call what an entry of an agent's tools names.
func ToolName(entry string) string {
	if id, is := strings.CutPrefix(entry, WorkflowTool); is {
		return "workflow_" + id
	}
	return entry
}

// workflowTools are the built-in tools that workflows have. Results are whole in a workflow, so none reads them in parts.
var workflowTools = slices.DeleteFunc(slices.Clone(builtinTools), func(name string) bool { return name == "read_result" })

// workflows checks the workflows whose form is right. In the others, what could not be read would be reported as missing.
func (k checker) workflows() {
	for id, w := range sorted(k.Workflows) {
		if k.Full() {
			return // there may be more problems than anybody reads, and compiling takes long
		}
		if k.Wrong("workflows", id) {
			continue
		}
		_, problems := graph.Compile(id, w, names{k.Config})
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
