package tool

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"agentd/server/outbound"
)

// slot is what a template has in the place of an argument: {name}. Other braces are themselves.
var slot = regexp.MustCompile(`\{([A-Za-z0-9_.-]+)\}`)

// slots are the names of the arguments in a template.
func slots(template string) (names []string) {
	for _, m := range slot.FindAllStringSubmatch(template, -1) {
		names = append(names, m[1])
	}
	return names
}

// fill replaces the slots of a template by the texts that value gives. It reports false when value does so for any of them.
func fill(template string, value func(arg string) (string, bool)) (filled string, whole bool) {
	whole = true
	filled = slot.ReplaceAllStringFunc(template, func(s string) string {
		text, ok := value(s[1 : len(s)-1])
		whole = whole && ok
		return text
	})
	return filled, whole
}

// fillBody is the template of a body with the arguments in place of its slots. It reports false for a text that is nothing
// but the slot of an absent argument, which is then left out.
func fillBody(node any, args arguments) (any, bool) {
	switch n := node.(type) {
	case string:
		if n != "" && n == slot.FindString(n) {
			v, ok := args[n[1:len(n)-1]]
			return v, ok
		}
		s, _ := fill(n, args.text)
		return s, true
	case []any:
		out := make([]any, 0, len(n))
		for _, e := range n {
			if v, ok := fillBody(e, args); ok {
				out = append(out, v)
			}
		}
		return out, true
	case map[string]any:
		out := make(map[string]any, len(n))
		for k, e := range n {
			if v, ok := fillBody(e, args); ok {
				out[k] = v
			}
		}
		return out, true
	}
	return node, true
}

// arguments are the members of a call's arguments, as the model wrote them. A null counts as absent.
type arguments map[string]json.RawMessage

func parseArguments(raw json.RawMessage) (arguments, error) {
	var a arguments
	if err := json.Unmarshal(raw, &a); err != nil {
		return nil, invalidInput("The arguments are not a JSON object.", "")
	}
	for name, v := range a {
		if string(v) == "null" {
			delete(a, name)
		}
	}
	return a, nil
}

// text is an argument as text: a string's value, or the JSON of anything else.
func (a arguments) text(name string) (string, bool) {
	v, ok := a[name]
	var s string
	if json.Unmarshal(v, &s) != nil {
		s = string(v)
	}
	return s, ok
}

// An address is the template of a URL. Scheme and host are fixed; arguments go into the path and the query only, and
// cannot leave their place there.
type address struct {
	base  string // scheme://host[:port], as in the template
	host  string // host:port
	path  string
	query string
}

// parseAddress reads an http or https template like https://host/v1/{id}?city={city}.
func parseAddress(s string) (*address, error) {
	scheme, rest, _ := strings.Cut(s, "://")
	end := strings.IndexAny(rest+"/", "/?#")
	base := scheme + "://" + rest[:end]
	path, query, _ := strings.Cut(rest[end:], "?")
	u, err := url.Parse(base)
	literal := slot.ReplaceAllString(s, "x")
	_, unfit := url.Parse(literal) // what is left of the template must be a URL as it is
	switch {
	case err != nil || scheme != "http" && scheme != "https" || u.Hostname() == "" || u.User != nil:
		return nil, errors.New("want http:// or https:// and a fixed host, without user and password")
	case climbs(path):
		return nil, errors.New("the path must not contain . or ..")
	case unfit != nil || strings.ContainsAny(literal, "{}# \t\r\n\"<>\\^`|"):
		return nil, errors.New("characters that a URL cannot have must be escaped as %XX, and a fragment is never sent")
	}
	return &address{base, outbound.HostPort(u), cmp.Or(path, "/"), query}, nil
}

// fill makes the URL of a call. Every argument of the path must be there; it is one segment or a part of one, never a
// step up. A pair of the query whose argument is absent is left out; a list repeats a pair without other arguments, like
// tag={tags}.
func (a *address) fill(args arguments) (*url.URL, error) {
	var missing string
	path, ok := fill(a.path, func(arg string) (string, bool) {
		text, _ := args.text(arg)
		if text == "" {
			missing = cmp.Or(missing, arg)
		}
		return url.PathEscape(text), text != ""
	})
	if !ok {
		return nil, invalidInput(fmt.Sprintf("The argument %q must not be empty.", missing), "Give it a value.")
	}
	if climbs(path) {
		return nil, invalidInput("The arguments make a path with . or .. in it.", "Give plain names.")
	}
	var pairs []string
	for pair := range strings.SplitSeq(a.query, "&") {
		each := args.each(pair)
		if len(pairs)+len(each) > maxPairs {
			return nil, invalidInput(fmt.Sprintf("The arguments make more than %d pairs of the query.", maxPairs), "Give shorter lists.")
		}
		for _, one := range each {
			text, ok := fill(pair, func(arg string) (string, bool) {
				text, ok := one.text(arg)
				return url.QueryEscape(text), ok
			})
			if ok && text != "" {
				pairs = append(pairs, text)
			}
		}
	}
	raw := a.base + path
	if len(pairs) > 0 {
		raw += "?" + strings.Join(pairs, "&")
	}
	u, err := url.Parse(raw)
	if err != nil || outbound.HostPort(u) != a.host {
		return nil, invalidInput("The arguments do not make a valid URL.", "")
	}
	return u, nil
}

// climbs reports whether a server that decodes the path could read a segment of it as . or .., in any spelling.
func climbs(path string) bool {
	for range 3 { // some servers decode twice
		for segment := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '/' || r == '\\' }) {
			name, _, _ := strings.Cut(segment, ";")
			if name == "." || name == ".." {
				return true
			}
		}
		decoded, err := url.PathUnescape(path)
		if err != nil || decoded == path {
			return false
		}
		path = decoded
	}
	return false
}

// maxPairs bounds the query of a call.
const maxPairs = 1000

// each is the arguments that a pair is made of: all, or one item after the other if the pair's only argument is a list.
func (a arguments) each(pair string) (all []arguments) {
	var list []json.RawMessage
	names := slots(pair)
	if len(names) != 1 || json.Unmarshal(a[names[0]], &list) != nil {
		return []arguments{a}
	}
	for _, item := range list {
		all = append(all, arguments{names[0]: item})
	}
	return all
}
