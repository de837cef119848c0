package config

import (
	"fmt"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"agentd/server/fault"
)

// rules are what the tags of a field ask of its value; on a list of texts, of each of them.
type rules struct {
	required bool
	some     bool // at least one item
	null     bool // null is allowed and means absent
	enum     []string
	text     *textRule
	keys     *textRule // of the keys of a map
	number   bounds
}

// bounds are those of a number. The zero value has none.
type bounds struct {
	min, max       float64
	hasMin, hasMax bool
	exclusive      bool // min itself is not allowed
}

// A textRule is a rule that check tags can name. Pattern is the part of it that a JSON Schema can tell.
type textRule struct {
	pattern *regexp.Regexp
	want    string              // completes "want ..."
	more    func(string) string // what pattern leaves open: returns what is wanted, or ""; may be nil
}

var textRules = map[string]*textRule{
	"nonempty":    {pattern: regexp.MustCompile(`^[\s\S]`), want: "a text that is not empty"},
	"id":          {pattern: regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`), want: "1 to 128 letters, digits, _ and -"},
	"tool":        {pattern: regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`), want: "1 to 64 letters, digits, _ and -"},
	"token":       {pattern: regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"), want: "a token of HTTP, without spaces"},
	"variable":    {pattern: regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`), want: "the name of a variable: letters, digits and _"},
	"argument":    {pattern: regexp.MustCompile(`^[^\x00]*$`), want: "a text without NUL"},
	"tokenprefix": {pattern: regexp.MustCompile(`^[a-z][a-z0-9-]{0,15}$`), want: "1 to 16 small letters, digits and -, a letter first"},
	"basepath":    {pattern: regexp.MustCompile(`^(/[A-Za-z0-9._~-]+)*$`), want: "a path such as /v1, without a slash at its end, or nothing"},
	"path":        {pattern: regexp.MustCompile(`^(/[A-Za-z0-9._~-]+)+$`), want: "a path such as /name, without a slash at its end"},
	"origin":      {pattern: regexp.MustCompile(`^(\*|[a-z][a-z0-9+.-]*://[^\s/?#@]+)$`), want: "* or an origin such as https://app.example.com, without a path"},
	"host":        {pattern: regexp.MustCompile(`^(` + ipv6 + `|\[` + ipv6 + `\]|` + hostName + `)$`), want: "a host name or an IP address, without a port"},
	"hostport":    {pattern: regexp.MustCompile(`^(\[` + ipv6 + `\]|` + hostName + `)(:[0-9]{1,5})?$`), want: "a host, or host:port"},
	"baseurl":     {pattern: regexp.MustCompile(`^https?://[^\s?#{}]+$`), want: "an http or https address without a query", more: checkURL},
	"url":         {pattern: regexp.MustCompile(`^https?://[^\s#{}]+$`), want: "an http or https address", more: checkURL},
	"urltemplate": {pattern: regexp.MustCompile(`^https?://[^\s/?#{}]+([/?][^\s#]*)?$`), want: "an http or https address with {name} in its path or query only", more: checkTemplate},
	"stores": {pattern: regexp.MustCompile(`^(auto|` + storeName + `(, ?` + storeName + `)*)$`), more: checkStores,
		want: "auto, or one or several of keyring, encrypted-file and env with commas between them"},
	"permission": {pattern: regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}(:[^=]+=[\s\S]*)?$`), want: "tool or tool:argument=glob"},
}

const (
	ipv6      = `[0-9A-Fa-f]*:[0-9A-Fa-f:.]*`
	storeName = `(keyring|encrypted-file|env)`
	hostName  = `[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?`
)

// check returns what is wrong with s, or "". It does not repeat s, which may be a secret in the wrong place.
func (t *textRule) check(s string) string {
	if !t.pattern.MatchString(s) {
		return "want " + t.want
	}
	if t.more != nil {
		if want := t.more(s); want != "" {
			return "want " + want
		}
	}
	return ""
}

func checkURL(s string) string {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Hostname() == "":
		return "an http or https address"
	case strings.ContainsFunc(u.Host, func(r rune) bool { return r > 0x7F }):
		return "a host in ASCII: write xn--... for other letters"
	case u.User != nil:
		return "an address without user and password; a header can carry them as a reference"
	case u.Port() != "":
		if n, err := strconv.Atoi(u.Port()); err != nil || n < 1 || n > 65535 {
			return "a port from 1 to 65535"
		}
	}
	return ""
}

func checkStores(s string) string {
	names := strings.Split(strings.ReplaceAll(s, " ", ""), ",")
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return "each store once"
		}
	}
	return ""
}

var slot = regexp.MustCompile(`\{[A-Za-z0-9_.-]+\}`)

func checkTemplate(s string) string {
	s = slot.ReplaceAllString(s, "x")
	if strings.ContainsAny(s, "{}") {
		return "the name of an argument between { and }"
	}
	return checkURL(s)
}

// checkText returns what is wrong with a text, or "".
func (r *rules) checkText(s string) string {
	switch {
	case r.required && s == "":
		return "is empty"
	case r.enum != nil && !slices.Contains(r.enum, s):
		return fmt.Sprintf("want %s, got %s%s", alternatives(r.enum), quoted(s), didYouMean(fault.Nearest(s, r.enum)))
	case r.text != nil:
		return r.text.check(s)
	}
	return ""
}

// checkNumber returns what is wrong with a number, or "".
func (r *rules) checkNumber(f float64) string {
	if b := r.number; math.IsNaN(f) || b.hasMin && (f < b.min || b.exclusive && f == b.min) || b.hasMax && f > b.max {
		return fmt.Sprintf("want a number %s, got %s", b, plain(f))
	}
	return ""
}

// String is the range in words: "from 0 to 65535".
func (b bounds) String() string {
	low := "from "
	if b.exclusive {
		low = "above "
	}
	switch {
	case b.hasMin && b.hasMax && b.exclusive:
		return low + plain(b.min) + " and at most " + plain(b.max)
	case b.hasMin && b.hasMax:
		return low + plain(b.min) + " to " + plain(b.max)
	case b.hasMin && b.exclusive:
		return low + plain(b.min)
	case b.hasMin:
		return low + plain(b.min) + " up"
	case b.hasMax:
		return "up to " + plain(b.max)
	}
	return ""
}

func plain(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// alternatives joins words as people do: a, b or c.
func alternatives(words []string) string {
	if n := len(words); n > 1 {
		return strings.Join(words[:n-1], ", ") + " or " + words[n-1]
	}
	return words[0]
}

// parseRules reads a check and an enum tag. It panics on what it does not know.
func parseRules(check, enum string) rules {
	var r rules
	if enum != "" {
		r.enum = strings.Split(enum, "|")
	}
	for word := range strings.FieldsSeq(check) {
		low, high, isRange := strings.Cut(word, "..")
		keys, isKeys := strings.CutPrefix(word, "keys=")
		switch {
		case word == "required":
			r.required = true
		case word == "some":
			r.some = true
		case word == "null":
			r.null = true
		case isRange:
			r.number = parseBounds(low, high)
		case isKeys:
			r.keys = namedRule(keys)
		default:
			r.text = namedRule(word)
		}
	}
	return r
}

func namedRule(name string) *textRule {
	if t := textRules[name]; t != nil {
		return t
	}
	panic("config: no rule " + name)
}

func parseBounds(low, high string) (b bounds) {
	number := func(s string) (float64, bool) {
		if s == "" {
			return 0, false
		}
		f, err := strconv.ParseFloat(s, 64)
		if err != nil {
			panic("config: no bound " + s)
		}
		return f, true
	}
	low, b.exclusive = strings.CutPrefix(low, ">")
	b.min, b.hasMin = number(low)
	b.max, b.hasMax = number(high)
	return b
}
