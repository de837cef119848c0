package auth

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

const (
	wildcard          = "*"
	maxResourceLength = 32
	maxTargetLength   = 128
)

// A Scope is a permission, or a need for one: resource:action or resource:action:target.
//
// A resource is a lower-case letter and up to 31 of a-z 0-9 and -. An action has the same characters and any length, or
// is "*". A target is 1 to 128 of A-Z a-z 0-9 _ . and -, or "*". The zero Scope permits nothing and is never permitted.
type Scope struct {
	Resource string
	Action   string
	Target   string // empty: none, which as a permission means every target
}

// ParseScope reads the text form. The error's text says what is wrong and suits [fault.At].
func ParseScope(text string) (Scope, error) {
	parts := strings.SplitN(text, ":", 4)
	if len(parts) != 2 && len(parts) != 3 {
		return Scope{}, fmt.Errorf("%.80q is not resource:action or resource:action:target", text)
	}
	s := Scope{Resource: parts[0], Action: parts[1], Target: strings.Join(parts[2:], "")}
	flaw := s.flaw()
	if len(parts) == 3 && s.Target == "" {
		flaw = cmp.Or(flaw, badTarget)
	}
	if flaw != "" {
		return Scope{}, fmt.Errorf("%.80q is not a scope: %s", text, flaw)
	}
	return s, nil
}

const (
	badResource = "its resource is not a lower-case letter and up to 31 of a-z 0-9 and -"
	badAction   = `its action is neither "*" nor a lower-case letter and more of a-z 0-9 and -`
	badTarget   = `its target is neither "*" nor 1 to 128 of A-Z a-z 0-9 _ . and -`
)

// flaw is what is wrong with the scope, empty when it is well-formed.
func (s Scope) flaw() string {
	switch {
	case !isName(s.Resource, maxResourceLength):
		return badResource
	case s.Action != wildcard && !isName(s.Action, len(s.Action)):
		return badAction
	case s.Target != "" && !isTarget(s.Target):
		return badTarget
	}
	return ""
}

// String is the text form.
func (s Scope) String() string {
	if s.Target == "" {
		return s.Resource + ":" + s.Action
	}
	return s.Resource + ":" + s.Action + ":" + s.Target
}

// matches reports whether the scope covers a well-formed one. The zero Scope covers none, for none has an empty resource.
func (s Scope) matches(required Scope) bool {
	switch {
	case s.Resource == "admin" && s.Action == wildcard:
		return true
	case s.Resource != required.Resource, s.Action != wildcard && s.Action != required.Action:
		return false
	}
	return s.Target == "" || s.Target == wildcard || s.Target == required.Target
}

// A Grant is what a principal may do: whatever one of its scopes covers. The zero Grant covers nothing.
type Grant []Scope

// parseGrant reads stored scopes. One that does not parse permits nothing, so it is left out.
func parseGrant(texts []string) Grant {
	g := make(Grant, 0, len(texts))
	for _, text := range texts {
		if s, err := ParseScope(text); err == nil {
			g = append(g, s)
		}
	}
	return g
}

// Covers reports whether one who holds the grant may do what needs required, or may mint a token with it: whether one of
// its scopes covers that. The rules, of which the first that applies decides:
//
//	admin:* and admin:*:target cover everything
//	the resources must be equal
//	granted's action must be "*" or equal
//	granted without a target, or with target "*", covers every target and none
//	the targets must be equal
//
// A required scope that is not well-formed is covered by nothing, so an id from a path can be put in it unchecked.
func (g Grant) Covers(required Scope) bool {
	return required.flaw() == "" && slices.ContainsFunc(g, func(s Scope) bool { return s.matches(required) })
}

// Targets returns for which targets the grant covers resource:action: all, or else those with the ids listed, which
// are sorted and without repetition.
func (g Grant) Targets(resource, action string) (all bool, ids []string) {
	if g.Covers(Scope{Resource: resource, Action: action}) {
		return true, nil
	}
	for _, s := range g {
		if (Grant{s}).Covers(Scope{Resource: resource, Action: action, Target: s.Target}) {
			ids = append(ids, s.Target)
		}
	}
	slices.Sort(ids)
	return false, slices.Compact(ids)
}

// isName reports whether s is a lower-case letter followed by a-z 0-9 and -, at most limit characters in all.
func isName(s string, limit int) bool {
	if len(s) == 0 || len(s) > limit || s[0] < 'a' || s[0] > 'z' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

func isTarget(s string) bool {
	if s == wildcard {
		return true
	}
	if len(s) == 0 || len(s) > maxTargetLength {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isBase62(c) && c != '_' && c != '.' && c != '-' {
			return false
		}
	}
	return true
}

func isBase62(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
}
