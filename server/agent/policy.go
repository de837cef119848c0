package agent

import (
	"encoding/json"
	"slices"
	"strings"

	"agentd/server/canonical"
	"agentd/server/journal"
	"agentd/server/message"
)

// Policy says which tool calls an agent may make: deny wins over ask, ask over allow, allow over what the tool says
// itself, unless the tool always asks.
type Policy struct {
	Deny, Ask, Allow []Pattern
	Tools            map[string]Gate // by tool; a tool without one needs nobody
}

// Gate is whether a tool itself wants its calls to be approved. The zero value needs nobody.
type Gate struct {
	Always  bool            // no permission of an agent takes that back
	Default bool            // because nothing else is said about a tool with side effects
	When    json.RawMessage // an object: calls whose arguments match all of it
	Edit    bool            // a person may change the arguments of a call with the grant
	journal.Terms
}

// verdict is what a policy says about a call.
type verdict int

const (
	allowed verdict = iota
	asked
	refused
)

// decide finds the verdict on a call with arguments in canonical form.
func (p *Policy) decide(name string, args json.RawMessage) verdict {
	matches := func(pattern Pattern) bool { return pattern.Match(name, args) }
	own := p.Tools[name]
	switch {
	case slices.ContainsFunc(p.Deny, matches):
		return refused
	case own.Always, slices.ContainsFunc(p.Ask, matches):
		return asked
	case slices.ContainsFunc(p.Allow, func(pattern Pattern) bool { return pattern.Covers(name, args) }):
		return allowed
	case own.Default, own.When != nil && whenMatches(own.When, args):
		return asked
	}
	return allowed
}

// hides reports whether every call of a tool is denied, so that it need not be offered.
func (p *Policy) hides(name string) bool {
	for _, d := range p.Deny {
		if d.Arg == "" && d.Match(name, nil) {
			return true
		}
	}
	return false
}

// whenMatches reports whether each member of the condition matches an argument of its name, in whatever case: a text as a
// glob, a list if one of its items does, anything else if it is the same JSON or its text. Of an argument that is a list,
// one item that matches is enough. An argument that is absent does not match. The arguments are in canonical form.
func whenMatches(when, args json.RawMessage) bool {
	when, err := message.Arguments(when)
	if err != nil || when[0] != '{' || args[0] != '{' {
		return true // who cannot tell asks
	}
	for name, want := range canonical.Members(when) {
		matches := false
		for member, value := range canonical.Members(args) {
			matches = matches || strings.EqualFold(member, name) && valueMatches(want, value)
		}
		if !matches {
			return false
		}
	}
	return true
}

func valueMatches(want, value []byte) bool {
	for w := range canonical.Leaves(want) {
		one := func(v []byte) bool {
			if w[0] == '"' {
				return glob(canonical.Text(w), canonical.Text(v))
			}
			return string(w) == canonical.Text(v)
		}
		if one(value) {
			return true
		}
		for v := range canonical.Leaves(value) {
			if one(v) {
				return true
			}
		}
	}
	return false
}
