package agent

import (
	"cmp"
	"encoding/json"
	"time"

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
	Terms
}

// Terms are what an approval takes. The zero value takes one principal's word, whenever it comes.
type Terms struct {
	Expires   time.Duration // after which the call is denied; 0: never
	Approvers int           // how many different principals must grant it; 0 is one
	Different bool          // none of them may be the one that started the run
}

// terms completes an approval that is asked for at a time, in a run that the named principal started.
func (p *Policy) terms(a Approval, at int64, startedBy string) Approval {
	t := p.Tools[a.ToolName].Terms
	if t.Expires > 0 {
		a.ExpiresAt = message.Millis(at + t.Expires.Milliseconds())
	}
	if t.Approvers > 1 {
		a.ApproversNeeded = t.Approvers
	}
	if t.Different {
		a.NotBy = cmp.Or(startedBy, anonymous)
	}
	return a
}

// verdict is what a policy says about a call.
type verdict int

const (
	allowed verdict = iota
	gated
	refused
)

// decide finds the verdict on a call.
func (p *Policy) decide(name string, args json.RawMessage) verdict {
	matches := func(patterns []Pattern) bool {
		for _, pattern := range patterns {
			if pattern.Match(name, args) {
				return true
			}
		}
		return false
	}
	own := p.Tools[name]
	switch {
	case matches(p.Deny):
		return refused
	case own.Always, matches(p.Ask):
		return gated
	case matches(p.Allow):
		return allowed
	case own.Default, own.When != nil && whenMatches(own.When, args):
		return gated
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

// whenMatches reports whether each member of the condition matches the argument of its name: a text as a glob, a list
// if one of its items does, anything else if it is the same JSON. An argument that is absent does not match.
// Reading both takes up to five hundred bytes of memory for each byte, where conditions are lists in lists.
func whenMatches(when, args json.RawMessage) bool {
	var conditions, given map[string]json.RawMessage
	if json.Unmarshal(when, &conditions) != nil || json.Unmarshal(args, &given) != nil {
		return true // who cannot tell asks
	}
	for name, want := range conditions {
		value, ok := given[name]
		if !ok || !valueMatches(want, value) {
			return false
		}
	}
	return true
}

func valueMatches(want, value json.RawMessage) bool {
	var items []json.RawMessage
	if want[0] == '[' && json.Unmarshal(want, &items) == nil { // null would be a list, too
		for _, item := range items {
			if valueMatches(item, value) {
				return true
			}
		}
		return false
	}
	var pattern string
	if want[0] == '"' && json.Unmarshal(want, &pattern) == nil {
		return glob(pattern, plain(value))
	}
	return canonical(want) == canonical(value)
}

// plain is a JSON string's value, or the JSON of anything else.
func plain(v json.RawMessage) string {
	var s string
	if v[0] == '"' && json.Unmarshal(v, &s) == nil {
		return s
	}
	return string(v)
}

// canonical is the same text for the same JSON value.
func canonical(v json.RawMessage) string {
	var x any
	if json.Unmarshal(v, &x) != nil {
		return string(v)
	}
	b, _ := json.Marshal(x)
	return string(b)
}
