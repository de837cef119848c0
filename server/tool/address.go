package tool

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"agentd/server/outbound"
)

// An address is the template of a URL. Scheme and host are fixed; arguments go into the path and the query only, and
// cannot leave their place there.
type address struct {
	base  string // scheme://host[:port], as in the template
	host  string // host:port
	path  template
	query []template // one for each pair
}

// parseAddress reads an http or https template like https://host/v1/{id}?city={city}.
func parseAddress(s string) (*address, error) {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok || scheme != "http" && scheme != "https" {
		return nil, errors.New("want an address that begins with http:// or https://")
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	authority, rest := rest[:end], rest[end:]
	if strings.ContainsAny(authority, "{}") {
		return nil, errors.New("the host is fixed; arguments go into the path and the query only")
	}
	if strings.Contains(rest, "#") {
		return nil, errors.New("a fragment is never sent")
	}
	a := &address{base: scheme + "://" + authority}
	u, err := url.Parse(a.base)
	if err != nil || u.Hostname() == "" {
		return nil, errors.New("the host is not valid")
	}
	if u.User != nil {
		return nil, errors.New("user and password belong into a header")
	}
	a.host = outbound.HostPort(u)
	path, query, _ := strings.Cut(rest, "?")
	if path == "" {
		path = "/"
	}
	a.path = parseTemplate(path)
	if query != "" {
		for pair := range strings.SplitSeq(query, "&") {
			a.query = append(a.query, parseTemplate(pair))
		}
	}
	if climbs(path) {
		return nil, errors.New("the path must have no . or .. in it")
	}
	// What is left of the template must be a URL as it is.
	literal := slot.ReplaceAllString(s, "x")
	if _, err := url.Parse(literal); err != nil || strings.ContainsAny(literal, "{} \t\r\n\"<>\\^`|") {
		return nil, errors.New("characters that a URL cannot have must be escaped as %XX")
	}
	return a, nil
}

// args are the names of the slots.
func (a *address) args() []string {
	var names []string
	for _, t := range append([]template{a.path}, a.query...) {
		for _, p := range t {
			if p.arg != "" && !slices.Contains(names, p.arg) {
				names = append(names, p.arg)
			}
		}
	}
	return names
}

// fill makes the URL of a call. Every argument of the path must be there; it is one segment or a part of one, never a
// step up. A pair of the query whose argument is absent is left out; a list in a pair like tag={tags} repeats the pair.
func (a *address) fill(args arguments) (*url.URL, error) {
	var missing string
	path, ok := a.path.fill(func(arg string) (string, bool) {
		text, ok := args.text(arg)
		if !ok || text == "" {
			missing = arg
			return "", false
		}
		return url.PathEscape(text), true
	})
	if !ok {
		return nil, invalidInput(fmt.Sprintf("The argument %q must not be empty.", missing), "Give it a value.")
	}
	if climbs(path) {
		return nil, invalidInput("The arguments make a path with . or .. in it.", "Give plain names.")
	}
	var pairs []string
	left := maxPairs
	for _, t := range a.query {
		if pairs, ok = fillPair(pairs, t, args, &left); !ok {
			return nil, invalidInput(fmt.Sprintf("The arguments make more than %d pairs of the query.", maxPairs), "Give shorter lists.")
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

// maxPairs bounds the query of a call: two lists in one pair make as many pairs as their lengths multiplied.
const maxPairs = 1000

// fillPair adds the pair for the arguments, repeated for each item of those that are lists. It reports false when there
// are none left to be made.
func fillPair(pairs []string, t template, args arguments, left *int) (all []string, ok bool) {
	for _, p := range t {
		var list []json.RawMessage
		if p.arg == "" || json.Unmarshal(args[p.arg], &list) != nil {
			continue
		}
		one := maps.Clone(args)
		for _, item := range list {
			one[p.arg] = item
			if pairs, ok = fillPair(pairs, t, one, left); !ok {
				return nil, false
			}
		}
		return pairs, true
	}
	if *left--; *left < 0 {
		return nil, false
	}
	if pair, ok := t.fill(func(arg string) (string, bool) {
		text, ok := args.text(arg)
		return url.QueryEscape(text), ok
	}); ok {
		pairs = append(pairs, pair)
	}
	return pairs, true
}
