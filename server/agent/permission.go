package agent

import (
	"encoding/json"
	"errors"
	"strings"
)

// A Pattern matches tool calls: `tool`, or `tool:arg=glob` for those whose argument has a value that the glob matches.
// In a glob, as in a tool's name, * stands for any characters.
type Pattern struct {
	Tool string
	Arg  string // empty: whatever the arguments
	Glob string
}

// ParsePattern reads a pattern.
func ParsePattern(text string) (Pattern, error) {
	name, rest, conditional := strings.Cut(text, ":")
	p := Pattern{Tool: name}
	if conditional {
		var ok bool
		if p.Arg, p.Glob, ok = strings.Cut(rest, "="); !ok || p.Arg == "" {
			return p, errors.New("want tool or tool:argument=glob")
		}
	}
	if name == "" {
		return p, errors.New("want tool or tool:argument=glob")
	}
	return p, nil
}

// Match reports whether the pattern matches a call. An argument that is no text is compared by its JSON. An argument
// that is absent, or arguments that are no object, match no condition.
func (p Pattern) Match(name string, args json.RawMessage) bool {
	if !glob(p.Tool, name) {
		return false
	}
	if p.Arg == "" {
		return true
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(args, &object) != nil {
		return false
	}
	raw, ok := object[p.Arg]
	if !ok {
		return false
	}
	value := string(raw)
	var text string
	if json.Unmarshal(raw, &text) == nil && raw[0] == '"' {
		value = text
	}
	return glob(p.Glob, value)
}

// glob matches with * for any characters, in time proportional to the product of the lengths.
func glob(pattern, s string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == s
	}
	rest, ok := strings.CutPrefix(s, parts[0])
	if !ok {
		return false
	}
	for _, part := range parts[1 : len(parts)-1] {
		_, after, ok := strings.Cut(rest, part)
		if !ok {
			return false
		}
		rest = after
	}
	return strings.HasSuffix(rest, parts[len(parts)-1])
}
