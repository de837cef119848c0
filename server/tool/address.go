package tool

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"agentd/server/outbound"
)

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
