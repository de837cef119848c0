package config

import "fmt"

// This file refuses what the tree can say but this version cannot do: approvals, sub-agents, hand-offs, whole
// sections and some schemes of references. Each part goes when its subsystem comes.

// laterSchemes are the schemes of references that are known but cannot be resolved yet.
var laterSchemes = []string{"keyring", "vault", "encrypted-file", "ref", "literal"}

// later is the message for a section that has no subsystem yet; "" for other names.
func later(section string) string {
	switch section {
	case "mcpServers", "skills", "memory", "workflows", "triggers":
		return fmt.Sprintf("%q is a reserved section: this version does not have it yet; leave it out", section)
	}
	return ""
}

func (k checker) supported() {
	callers := map[string]string{} // of each tool, the first agent that may call it
	for id, a := range sorted(k.Agents) {
		if len(a.SubAgents) > 0 {
			k.report("this version does not have sub-agents yet; leave them out", "agents", id, "subAgents")
		}
		if len(a.Handoffs) > 0 {
			k.report("this version does not have hand-offs yet; leave them out", "agents", id, "handoffs")
		}
		if len(a.Permissions.Ask) > 0 {
			k.report("this version cannot ask for approval yet; use deny or allow", "agents", id, "permissions", "ask")
		}
		denied := map[string]bool{}
		for _, pattern := range a.Permissions.Deny {
			denied[pattern] = true
		}
		for _, name := range a.Tools {
			if callers[name] == "" && !denied[name] {
				callers[name] = id
			}
		}
	}
	for name, t := range sorted(k.Tools) {
		if id := callers[name]; id != "" && t.EffectiveApproval().Mode != "never" {
			k.report(fmt.Sprintf("calls need approval, which this version cannot ask for yet, and agent %q may call it: "+
				"set approval to \"never\" or sideEffect to \"read-only\"", id), "tools", name, "approval")
		}
	}
}
