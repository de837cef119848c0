package agent

import (
	"encoding/json"
	"errors"
	"strings"

	"agentd/server/canonical"
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

// Match reports whether the pattern matches a call with arguments in canonical form. An argument that is not a text is
// compared by its canonical JSON; of a list, one item that matches is enough. The case of the argument's name does not
// count, since there are programs to which it does not. An argument that is absent, or arguments that are no object, match
// no condition.
func (p Pattern) Match(name string, args json.RawMessage) bool { return p.match(name, args, false) }

// Covers is Match for a pattern that allows: the argument must be there under its own name, each item of a list must match,
// and so must the arguments whose names differ in case only.
func (p Pattern) Covers(name string, args json.RawMessage) bool { return p.match(name, args, true) }

func (p Pattern) match(name string, args json.RawMessage, all bool) bool {
	if !glob(p.Tool, name) {
		return false
	}
	if p.Arg == "" {
		return true
	}
	found := false
	for member, value := range canonical.Members(args) {
		if !strings.EqualFold(member, p.Arg) {
			continue
		}
		found = found || member == p.Arg
		if p.matchValue(value, all) != all {
			return !all
		}
	}
	return found && all
}

func (p Pattern) matchValue(value []byte, all bool) bool {
	if !all && value[0] == '[' && glob(p.Glob, string(value)) {
		return true
	}
	for leaf := range canonical.Leaves(value) {
		if glob(p.Glob, canonical.Text(leaf)) != all {
			return !all
		}
	}
	return all
}

// glob matches with * for any characters, in time proportional to the product of the lengths.
func glob(pattern, s string) bool {
	part, pattern, star := strings.Cut(pattern, "*")
	if !star {
		return part == s
	}
	s, ok := strings.CutPrefix(s, part)
	for ok {
		if part, pattern, star = strings.Cut(pattern, "*"); !star {
			return strings.HasSuffix(s, part)
		}
		_, s, ok = strings.Cut(s, part)
	}
	return false
}
