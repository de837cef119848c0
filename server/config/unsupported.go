package config

import "fmt"

// This file refuses what the tree can say but this version cannot do: sub-agents, hand-offs, whole
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
	for id, a := range sorted(k.Agents) {
		if len(a.SubAgents) > 0 {
			k.report("this version does not have sub-agents yet; leave them out", "agents", id, "subAgents")
		}
		if len(a.Handoffs) > 0 {
			k.report("this version does not have hand-offs yet; leave them out", "agents", id, "handoffs")
		}
	}
}
