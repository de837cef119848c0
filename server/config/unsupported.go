package config

import "fmt"

// This file refuses what the tree can say but this version cannot do: whole sections and some
// schemes of references. Each part goes when its subsystem comes.

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
