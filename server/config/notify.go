package config

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"agentd/server/expr"
	"agentd/server/graph"
	"agentd/server/outbound"
)

// Notify is a receiver of notifications, and what agentd reports to it.
type Notify struct {
	On         []string        `json:"on" check:"required 1.. notice" doc:"What agentd reports to the receiver: approval.requested, run.failed, run.completed, budget.exceeded, trigger.missed, audit.broken, health.failing."`
	Agents     []string        `json:"agents" default:"" check:"id" doc:"Agents and workflows whose runs and triggers count. Empty: all."`
	URL        string          `json:"url" check:"required url" doc:"Address that agentd posts to: https, or http to this machine. Each declaration has another one. agentd repeats a request for three days, until the answer is 2xx; redirects fail, and after a 410 it sends nothing more to the address."`
	Template   json.RawMessage `json:"template" doc:"Template of the body, such as {\"text\": \"${ data.toolName } waits\"}. It may read type, timestamp, sequence, data, and for approval.requested arguments, those of the call. Absent: the JSON of the notification, without arguments."`
	SecretRefs []Ref           `json:"secretRefs" check:"required 1.. ref" doc:"Keys that sign each request by Standard Webhooks: whsec_ and base64. With two, a receiver can change from one to the other."`
}

// NotifyVars are the variables of the template of a notification.
func NotifyVars() expr.Vars {
	return expr.Vars{"type": {}, "timestamp": {}, "sequence": {}, "data": nil, "arguments": nil}
}

// notify refuses what could not be delivered.
func (k checker) notify() {
	seen := map[string]bool{}
	for i, n := range k.Notify {
		at := func(path ...any) []any { return under([]any{"notify", i}, path...) }
		if strings.HasPrefix(n.URL, "http:") && !outbound.Local(address(n.URL)) {
			k.Problem("want https: only addresses of this machine are reached without", at("url")...)
		}
		if seen[n.URL] {
			k.Problem("another declaration has this address: merge the two", at("url")...)
		}
		seen[n.URL] = true
		k.twice(n.On, at("on"))
		if n.Template != nil {
			_, problems := graph.Template(n.Template, NotifyVars())
			for _, p := range problems {
				k.ProblemWithin(p.Message, p.Offset, at(append([]any{"template"}, p.Path...)...)...)
			}
		}
		for j, id := range n.Agents {
			_, agent := k.Config.Agents[id]
			if _, workflow := k.Workflows[id]; !agent && !workflow && id != "" {
				k.unknown("agent or workflow", id, slices.Values(slices.AppendSeq(slices.Collect(maps.Keys(k.Config.Agents)), maps.Keys(k.Workflows))), at("agents", j))
			}
		}
	}
}
