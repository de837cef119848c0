package config

import "fmt"

// This file refuses what the tree can say but this version cannot do: whole sections. Each goes when its subsystem
// comes.

// later is the message for a section that has no subsystem yet; "" for other names.
func later(section string) string {
	switch section {
	case "mcpServers", "skills", "memory", "workflows", "triggers":
		return fmt.Sprintf("%q is a reserved section: this version does not have it yet; leave it out", section)
	}
	return ""
}
