package config

import (
	"fmt"
	"slices"
	"strings"
)

// Ref is a reference to a secret, such as env:NAME or file:path; the secret itself is never in the configuration. The
// zero value is absent. A relative file is relative to the folder of the configuration.
type Ref string

func (r *Ref) decode(l *loader, n *node, path []any) {
	if l.expect(n, stringNode, path, "a reference such as env:NAME or file:path") && l.accept(n, path, Ref(n.text).check()) {
		*r = Ref(n.text)
	}
}

// check never repeats more than 4 characters of a text that may be a secret itself.
func (r Ref) check() string {
	scheme, rest, _ := strings.Cut(string(r), ":")
	scheme = strings.ToLower(scheme)
	place, _, _ := strings.Cut(rest, "?")
	switch {
	case r == "":
		return ""
	case scheme == "env":
		if !textRules["variable"].pattern.MatchString(place) {
			return "want env: and the name of a variable"
		}
		return ""
	case scheme == "file":
		if place == "" || strings.ContainsRune(place, 0) {
			return "want file: and a path"
		}
		return ""
	case slices.Contains(laterSchemes, scheme):
		return fmt.Sprintf("this version does not support references of the scheme %s; use env: or file:", scheme)
	}
	start := []rune(string(r))
	return fmt.Sprintf("want a reference such as env:NAME or file:path, got a text of %d characters that begins with %q",
		len(start), string(start[:min(4, len(start)/4)]))
}

func refSchema() map[string]any {
	return map[string]any{"type": "string", "pattern": `^([Ee][Nn][Vv]|[Ff][Ii][Ll][Ee]):.+`}
}

func (*Ref) form() (string, map[string]any) { return "reference", refSchema() }

// String is the reference for people: a default inside it (env:NAME?default=...) is hidden, because it is a secret.
func (r Ref) String() string {
	if name, query, ok := strings.Cut(string(r), "?"); ok && strings.Contains(query, "default") {
		return name + "?default=***"
	}
	return string(r)
}

// MarshalJSON writes String.
func (r Ref) MarshalJSON() ([]byte, error) { return encode(r.String()), nil }
