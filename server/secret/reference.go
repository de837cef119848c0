package secret

import (
	"net/url"
	"regexp"
	"slices"
	"strings"

	"agentd/server/fault"
)

// A Ref is a reference that was read: scheme ":" ["//" authority] path ["?" query] ["#" fragment], a subset of RFC 3986.
// Percent triplets are decoded byte by byte; in the query + is a space, and the last of several values of a name counts.
type Ref struct {
	Scheme   string // lower case
	Path     string
	Query    map[string]string
	Fragment string

	raw string
}

// maxRef bounds a reference, in bytes.
const maxRef = 8 << 10

// A scheme is what references of one scheme may have.
type scheme struct {
	path     string   // what the path is, in words
	local    bool     // the path is a file's: // or //localhost may precede it
	params   []string // after ?
	fragment bool
	peer     string // what this build lacks to resolve it; empty: nothing
}

var schemes = map[string]scheme{
	"env":            {path: "the name of a variable", params: []string{"default"}},
	"file":           {path: "a path", local: true, params: []string{"encoding", "warnOnPermissions"}},
	"encrypted-file": {path: "a path", local: true, params: []string{"key"}, fragment: true},
	"ref":            {path: "a key"},
	"literal":        {path: "a value"},
	"keyring":        {peer: "keyring"},
	"vault":          {peer: "vault adapter"},
}

// Usable are the schemes that this build resolves, for messages.
const Usable = "env:, file:, encrypted-file: or ref:"

var (
	validScheme   = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*$`)
	validVariable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// Parse reads a reference. The error is secret-ref-invalid, or missing-peer-dependency for a scheme that this build does not
// support. It shows nothing of the text, not even its length, because the text may be a secret in the wrong place.
func Parse(text string) (Ref, error) {
	wrong := func(form, clause string, args ...any) (Ref, error) { return Ref{}, invalid(form, clause, args...) }
	none := func(form string) (Ref, error) {
		return wrong(form, "want a reference such as env:NAME or file:path; the value is not shown, because it may be a secret")
	}
	name, rest, colon := strings.Cut(text, ":")
	switch {
	case strings.TrimSpace(text) == "":
		return wrong("empty-input", "the reference is empty")
	case len(text) > maxRef:
		return wrong("malformed-uri", "a reference has at most %d bytes", maxRef)
	case !colon:
		return none("naked-string")
	case !validScheme.MatchString(name):
		return none("invalid-scheme")
	case strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7F }):
		return wrong("malformed-uri", "a reference has no control characters; write them as %%XX")
	}
	r := Ref{Scheme: strings.ToLower(name), Query: map[string]string{}, raw: text}
	s, known := schemes[r.Scheme]
	switch {
	case !known:
		return none("unknown-scheme")
	case s.peer != "":
		return Ref{}, failed(fault.MissingPeerDependency, "this build has no %s, so it cannot resolve %s: references; use %s", s.peer, r.Scheme, Usable).
			Advise("Use a reference with " + Usable + " instead.")
	}
	rest, fragment, hasFragment := strings.Cut(rest, "#")
	path, query, _ := strings.Cut(rest, "?")
	host := ""
	local, hasAuthority := strings.CutPrefix(path, "//")
	if hasAuthority {
		host, path, _ = strings.Cut(local, "/")
		if local != host {
			path = "/" + path
		}
	}
	ok := true
	decode := func(s string) string {
		text, err := url.PathUnescape(s)
		ok = ok && err == nil
		return text
	}
	r.Path, r.Fragment = decode(path), decode(fragment)
	for pair := range strings.SplitSeq(query, "&") {
		if pair != "" {
			key, value, _ := strings.Cut(strings.ReplaceAll(pair, "+", " "), "=")
			r.Query[decode(key)] = decode(value)
		}
	}
	switch {
	case !ok:
		return wrong("invalid-percent-encoding", "a %% begins two hexadecimal digits; write %% itself as %%25")
	case hasAuthority && !s.local:
		return wrong("unexpected-authority", "no // follows %s:", r.Scheme)
	case hasAuthority && host == "" && r.Path == "":
		return wrong("missing-authority", "want %s after %s://", s.path, r.Scheme)
	case host != "" && host != "localhost":
		return wrong("unexpected-authority", "the file is on this machine: write %[1]s:path or %[1]s:///path", r.Scheme)
	case r.Path == "":
		return wrong("empty-path", "want %s: and %s", r.Scheme, s.path)
	case hasFragment && !s.fragment:
		return wrong("malformed-uri", "no # follows %s: and %s; write # as %%23", r.Scheme, s.path)
	case r.Scheme == "env" && !validVariable.MatchString(r.Path):
		return wrong("malformed-uri", "want env: and the name of a variable: letters, digits and _")
	case strings.ContainsRune(r.Path+r.Fragment, 0):
		return wrong("malformed-uri", "a path has no NUL")
	}
	if where, given := r.Query["key"]; given && r.Scheme == "encrypted-file" {
		const source = "the passphrase of an encrypted file comes from env: or file:"
		if name, _, _ := strings.Cut(where, ":"); strings.EqualFold(name, "encrypted-file") {
			return wrong("malformed-uri", source) // what it says itself after ?key= is not looked at
		}
		switch key, err := Parse(where); {
		case err != nil:
			return wrong(fault.Of(err).Extra["kind"].(string), "after ?key=: %s", Clause(err))
		case key.Scheme != "env" && key.Scheme != "file":
			return wrong("malformed-uri", source)
		}
	}
	for key := range r.Query {
		switch {
		case slices.Contains(s.params, key):
		case len(s.params) == 0:
			return wrong("malformed-uri", "%s: takes no parameters; write ? as %%3F", r.Scheme)
		default:
			return wrong("malformed-uri", "%s: takes %s after its ?, and nothing else; write ? in a path as %%3F", r.Scheme, strings.Join(s.params, " and "))
		}
	}
	return r, nil
}

// String is the reference for people. What may be a secret in it is hidden: the value of literal:, and a default.
func (r Ref) String() string {
	if r.Scheme == "literal" {
		return "literal:***"
	}
	rest, fragment, hasFragment := strings.Cut(r.raw, "#")
	before, query, _ := strings.Cut(rest, "?")
	var text strings.Builder
	text.WriteString(before)
	sep := "?"
	for pair := range strings.SplitSeq(query, "&") {
		if pair == "" {
			continue
		}
		switch name, _, _ := strings.Cut(pair, "="); name {
		case "encoding", "warnOnPermissions":
			text.WriteString(sep + pair)
		case "key":
			text.WriteString(sep + "key=" + Show(r.Query["key"]))
		default:
			text.WriteString(sep + name + "=***")
		}
		sep = "&"
	}
	if hasFragment {
		text.WriteString("#" + fragment)
	}
	return text.String()
}

// Show is any text that stands where a reference should, for people: the reference without what may be secret in it, or
// that it is none.
func Show(text string) string {
	if r, err := Parse(text); err == nil {
		return r.String()
	}
	return "(no reference)"
}
