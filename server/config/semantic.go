package config

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"

	"agentd/server/fault"
	"agentd/server/shape"
)

// A checker finds what depends on more than one field.
type checker struct {
	*Config
	*shape.Reader
}

// checkMeaning reports what depends on more than one field.
func (c *Config) checkMeaning(r *shape.Reader) {
	k := checker{c, r}
	if t := c.Server.TLS; (t.CertFile == "") != (t.KeyFile == "") {
		k.Problem("needs both certFile and keyFile", "server", "tls")
	}
	for id, p := range sorted(c.Providers) {
		k.headers(p.Headers, "providers", id)
	}
	for name, t := range sorted(c.Tools) {
		k.tool(name, t)
	}
	for id, a := range sorted(c.Agents) {
		k.headers(a.Headers, "agents", id)
		if a.Kind == "llm" {
			k.llm(id, a)
		}
	}
	k.workflows()
	k.triggers()
	k.hooks()
	k.notify()
}

// under returns a path with more parts, in a new slice.
func under(path []any, more ...any) []any { return slices.Concat(path, more) }

// headers refuses what would break out of a header line (RFC 9110 section 5.5).
func (k checker) headers(headers map[string]Value, path ...any) {
	for name, v := range sorted(headers) {
		if strings.ContainsFunc(v.Text, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7F }) {
			k.Problem("want a text without line breaks and control characters", under(path, "headers", name)...)
		}
	}
}

func (k checker) tool(name string, t Tool) {
	if BuiltinTool(name) {
		k.Problem(fmt.Sprintf("%q is a built-in tool; give this one another name", name), "tools", name)
	}
	if t.OnUnknownOutcome == "retry" && !t.Idempotent {
		k.Problem("retry may run a call twice: it needs idempotent to be true", "tools", name, "onUnknownOutcome")
	}
	k.terms(t.ApprovalTerms, "tools", name, "approvalTerms")
	if t.Body != nil && (t.Method == "GET" || t.Method == "HEAD") {
		k.Problem(fmt.Sprintf("a %s request has no body; set method", t.Method), "tools", name, "body")
	}
	k.headers(t.Headers, "tools", name)
}

// terms refuses conditions that nobody can meet.
func (k checker) terms(terms ApprovalTerms, path ...any) {
	if k.Auth.Kind == "none" && (terms.Approvers > 1 || terms.RequireDifferentPrincipal) {
		k.Problem("with auth.kind none everybody is the same principal, so nobody could grant a call", path...)
	}
}

func (k checker) llm(id string, a Agent) {
	at := func(path ...any) []any { return under([]any{"agents", id}, path...) }
	k.provider(a.Provider, at("provider"))
	models := map[Fallback]bool{{a.Provider, a.Model}: true}
	for i, f := range a.Fallbacks {
		k.provider(f.Provider, at("fallbacks", i, "provider"))
		if models[f] && f != (Fallback{}) {
			k.Problem("this model is already tried before", at("fallbacks", i)...)
		}
		models[f] = true
	}

	for i, name := range a.Tools {
		if id, is := strings.CutPrefix(name, WorkflowTool); is {
			if _, ok := k.Workflows[id]; !ok {
				k.unknown("workflow", id, maps.Keys(k.Workflows), at("tools", i))
			}
		} else if _, ok := k.Tools[name]; !ok && !BuiltinTool(name) {
			k.unknown("tool", name, slices.Values(slices.AppendSeq(slices.Clip(builtinTools), maps.Keys(k.Tools))), at("tools", i))
		}
	}
	k.twice(a.Tools, at("tools"))
	k.others(id, a.SubAgents, at("subAgents"))
	handoffs := make([]string, len(a.Handoffs))
	for i, h := range a.Handoffs {
		handoffs[i] = h.Agent
	}
	k.others(id, handoffs, at("handoffs"))

	switch {
	case a.ToolChoice.Tool != "" && !slices.Contains(a.Tools, a.ToolChoice.Tool):
		k.unknown("tool of this agent", a.ToolChoice.Tool, slices.Values(a.Tools), at("toolChoice"))
	case a.ToolChoice.Mode == "required" && len(a.Tools)+len(a.SubAgents)+len(a.Handoffs) == 0:
		k.Problem("the model must call a tool, but the agent has none", at("toolChoice")...)
	}

	callable := map[string]bool{}
	for _, name := range a.Tools {
		if !strings.HasPrefix(name, WorkflowTool) {
			callable[name] = true
		}
	}
	for i, name := range a.Tools {
		if strings.HasPrefix(name, WorkflowTool) {
			k.agentTool(ToolName(name), callable, at("tools", i))
		}
	}
	for i, agent := range a.SubAgents {
		k.agentTool("subagent_"+agent, callable, at("subAgents", i))
	}
	for i, agent := range handoffs {
		if agent != "" { // else it could not be read
			k.agentTool("transfer_to_"+agent, callable, at("handoffs", i))
		}
	}
	k.calls(a.Permissions.Deny, callable, at("permissions", "deny"))
	k.calls(a.Permissions.Ask, callable, at("permissions", "ask"))
	k.calls(a.Permissions.Allow, callable, at("permissions", "allow"))
}

// agentTool notes the tool that an agent is offered as.
func (k checker) agentTool(name string, callable map[string]bool, path []any) {
	if callable[name] {
		k.Problem(fmt.Sprintf("a tool is named %s as well", name), path...)
	}
	if callable[name] = true; len(name) > 64 {
		k.Problem(fmt.Sprintf("the tool %s would have more than 64 characters: shorten the id", name), path...)
	}
}

func (k checker) provider(name string, path []any) {
	if _, ok := k.Providers[name]; !ok && name != "" {
		k.unknown("provider", name, maps.Keys(k.Providers), path)
	}
}

// others checks the agents that an agent names.
func (k checker) others(id string, names []string, path []any) {
	for i, name := range names {
		if _, ok := k.Agents[name]; !ok && name != "" {
			k.unknown("agent", name, maps.Keys(k.Agents), under(path, i))
		} else if name == id {
			k.Problem("an agent cannot call itself", under(path, i)...)
		}
	}
	k.twice(names, path)
}

// calls checks the tools that patterns of permissions name.
func (k checker) calls(patterns []string, callable map[string]bool, path []any) {
	for i, pattern := range patterns {
		if name, _, _ := strings.Cut(pattern, ":"); !callable[name] {
			k.unknown("tool of this agent", name, maps.Keys(callable), under(path, i))
		}
	}
}

func (k checker) twice(names []string, path []any) {
	seen := map[string]bool{}
	for i, name := range names {
		if seen[name] && name != "" {
			k.Problem(fmt.Sprintf("%q is listed twice", name), under(path, i)...)
		}
		seen[name] = true
	}
}

// unknown reports a name that nothing has. What was meant is looked for only while somebody will read it.
func (k checker) unknown(what, name string, known iter.Seq[string], path []any) {
	best := ""
	if !k.Full() {
		best = fault.Nearest(name, slices.Sorted(known))
	}
	k.Problem(fmt.Sprintf("there is no %s %s%s", what, strconv.Quote(name), shape.DidYouMean(best)), path...)
}

// sorted walks a map by its keys, so that problems come in the same order each time.
func sorted[V any](m map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if !yield(key, m[key]) {
				return
			}
		}
	}
}
