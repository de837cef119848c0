package secret

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A Ref is a reference that was read: scheme ":" ["//" authority] path ["?" query] ["#" fragment], a subset of RFC 3986.
// Percent triplets are decoded byte by byte; in the query + is a space, and the last of several values of a name counts.
type Ref struct {
	Scheme    string // lower case
	Authority string
	Path      string
	Query     map[string]string
	Fragment  string

	raw string
}

// maxRef bounds a reference, in bytes.
const maxRef = 8 << 10

// A scheme is what references of one scheme may have.
type scheme struct {
	path      string // what the path is, in words
	authority authority
	params    []string
	fragment  bool
	peer      string // what this build lacks to resolve it; empty: nothing
}

type authority int

const (
	noAuthority  authority = iota // no // at all
	thisMachine                   // // and nothing or localhost before the path
	anyAuthority                  // // and a name
)

var schemes = map[string]scheme{
	"env":            {path: "the name of a variable", params: []string{"default"}},
	"file":           {path: "a path", authority: thisMachine, params: []string{"encoding", "warnOnPermissions"}},
	"encrypted-file": {path: "a path", authority: thisMachine, params: []string{"key"}, fragment: true},
	"ref":            {path: "a key"},
	"literal":        {path: "a value"},
	"keyring":        {path: "an account", params: []string{"service"}, peer: "keyring"},
	"vault":          {path: "a path", authority: anyAuthority, fragment: true, peer: "vault adapter"},
}

// Usable are the schemes that this build resolves, for messages.
const Usable = "env:, file:, encrypted-file: or ref:"

var (
	validScheme   = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*$`)
	validVariable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// Parse reads a reference. The error is an [*Error] of one of the kinds of references; it shows nothing of the text,
// not even its length, because the text may be a secret in the wrong place.
func Parse(text string) (Ref, error) {
	ref, e := parse(text)
	if e != nil {
		return Ref{}, e
	}
	return ref, nil
}

func parse(text string) (Ref, *Error) {
	wrong := func(kind Kind, format string, args ...any) (Ref, *Error) {
		return Ref{}, &Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
	}
	none := func(kind Kind) (Ref, *Error) {
		return wrong(kind, "want a reference such as env:NAME or file:path; what stands there is not shown, because it may be a secret")
	}
	name, rest, colon := strings.Cut(text, ":")
	switch {
	case strings.TrimSpace(text) == "":
		return wrong(EmptyInput, "the reference is empty")
	case len(text) > maxRef:
		return wrong(MalformedURI, "a reference has at most %d bytes", maxRef)
	case !colon:
		return none(NakedString)
	case !validScheme.MatchString(name):
		return none(InvalidScheme)
	case strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7F }):
		return wrong(MalformedURI, "a reference has no control characters; write them as %%XX")
	}
	r := Ref{Scheme: strings.ToLower(name), Query: map[string]string{}, raw: text}
	s, known := schemes[r.Scheme]
	if !known {
		return none(UnknownScheme)
	}
	rest, fragment, hasFragment := strings.Cut(rest, "#")
	path, query, _ := strings.Cut(rest, "?")
	hasAuthority := strings.HasPrefix(path, "//")
	if hasAuthority {
		path = path[2:]
		at := strings.IndexByte(path, '/')
		if at < 0 {
			at = len(path)
		}
		r.Authority, path = path[:at], path[at:]
	}
	ok := true
	r.Authority = decode(r.Authority, &ok)
	r.Path = decode(path, &ok)
	r.Fragment = decode(fragment, &ok)
	for pair := range strings.SplitSeq(query, "&") {
		if pair != "" {
			key, value, _ := strings.Cut(strings.ReplaceAll(pair, "+", " "), "=")
			r.Query[decode(key, &ok)] = decode(value, &ok)
		}
	}
	switch {
	case !ok:
		return wrong(InvalidPercentEncoding, "a %% begins two hexadecimal digits; write %% itself as %%25")
	case hasAuthority && s.authority == noAuthority:
		return wrong(UnexpectedAuthority, "no // follows %s:", r.Scheme)
	case hasAuthority && r.Authority == "" && r.Path == "", hasAuthority && r.Authority == "" && s.authority == anyAuthority:
		return wrong(MissingAuthority, "want %s after %s://", s.path, r.Scheme)
	case r.Authority != "" && r.Authority != "localhost" && s.authority == thisMachine:
		return wrong(UnexpectedAuthority, "the file is on this machine: write %[1]s:path or %[1]s:///path", r.Scheme)
	case strings.Contains(r.Authority, "@"):
		return wrong(UnexpectedAuthority, "want a host alone after %s://, without a user or a password", r.Scheme)
	case r.Path == "" && (r.Authority == "" || s.authority == thisMachine):
		return wrong(EmptyPath, "want %s: and %s", r.Scheme, s.path)
	case hasFragment && !s.fragment:
		return wrong(MalformedURI, "no # follows %s: and %s; write # as %%23", r.Scheme, s.path)
	case r.Scheme == "env" && !validVariable.MatchString(r.Path):
		return wrong(MalformedURI, "want env: and the name of a variable: letters, digits and _")
	case strings.ContainsRune(r.Authority+r.Path+r.Fragment, 0):
		return wrong(MalformedURI, "a path has no NUL")
	}
	if where, given := r.Query["key"]; given && r.Scheme == "encrypted-file" {
		const source = "the passphrase of an encrypted file comes from env: or file:"
		if name, _, _ := strings.Cut(where, ":"); strings.EqualFold(name, "encrypted-file") {
			return wrong(MalformedURI, source) // what it says itself after ?key= is not looked at
		}
		switch key, e := parse(where); {
		case e != nil:
			return Ref{}, &Error{Kind: e.Kind, Message: "after ?key=: " + e.Message}
		case key.Scheme != "env" && key.Scheme != "file":
			return wrong(MalformedURI, source)
		}
	}
	for key := range r.Query {
		switch {
		case r.Scheme == "vault" || slices.Contains(s.params, key):
		case len(s.params) == 0:
			return wrong(MalformedURI, "%s: takes no parameters; write ? as %%3F", r.Scheme)
		default:
			return wrong(MalformedURI, "%s: takes %s after its ?, and nothing else; write ? in a path as %%3F", r.Scheme, strings.Join(s.params, " and "))
		}
	}
	return r, nil
}

// Check is Parse for a reference that this build must be able to resolve: it also refuses schemes whose other half is
// not there.
func Check(text string) error {
	r, e := parse(text)
	if e == nil {
		e = r.peer()
	}
	if e != nil {
		return e
	}
	return nil
}

// peer is the error for a scheme that this build lacks something for.
func (r Ref) peer() *Error {
	if lacks := schemes[r.Scheme].peer; lacks != "" {
		return &Error{Kind: MissingPeer, Message: fmt.Sprintf("this build has no %s, so it cannot resolve %s: references; use %s", lacks, r.Scheme, Usable),
			Hint: "Use a reference with " + Usable + " instead."}
	}
	return nil
}

// decode undoes percent-encoding, and sets ok to false when it is none.
func decode(s string, ok *bool) string {
	if !strings.Contains(s, "%") {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b = append(b, s[i])
			continue
		}
		if i+2 >= len(s) {
			*ok = false
			return ""
		}
		high, low := digit(s[i+1]), digit(s[i+2])
		if high > 15 || low > 15 {
			*ok = false
			return ""
		}
		b = append(b, high<<4|low)
		i += 2
	}
	return string(b)
}

// digit is the value of a hexadecimal digit, above 15 for anything else.
func digit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	}
	return 255
}

// String is the reference for people. What may be a secret in it is hidden: the value of literal:, a default, and
// parameters that mean nothing to us.
func (r Ref) String() string {
	if r.Scheme == "literal" {
		return "literal:***"
	}
	rest, fragment, hasFragment := strings.Cut(r.raw, "#")
	before, query, _ := strings.Cut(rest, "?")
	text, sep := []byte(before), "?"
	for pair := range strings.SplitSeq(query, "&") {
		if pair == "" {
			continue
		}
		name, _, _ := strings.Cut(pair, "=")
		switch name {
		case "encoding", "warnOnPermissions", "service":
			text = append(append(text, sep...), pair...)
		case "key":
			text = append(append(append(text, sep...), "key="...), Show(r.Query["key"])...)
		default:
			text = append(append(append(text, sep...), name...), "=***"...)
		}
		sep = "&"
	}
	if hasFragment {
		text = append(append(text, '#'), fragment...)
	}
	return string(text)
}

// Show is any text that stands where a reference should, for people: the reference without what may be secret in it, or
// that it is none.
func Show(text string) string {
	if r, err := parse(text); err == nil {
		return r.String()
	}
	return "(no reference)"
}
