package shape

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"agentd/server/fault"
)

// A Rule is a rule for texts that check tags can name.
type Rule struct {
	Pattern *regexp.Regexp      // the part of the rule that a JSON Schema can state
	Want    string              // what a text must be, for people: "a host name"
	More    func(string) string // checks what Pattern leaves open, and returns what is wrong, or ""; may be nil
	Label   string              // names the type of such a text in documentation; empty for "text"
}

// Check returns what is wrong with s, or "". It does not repeat s, which may be a secret in the wrong place.
func (t *Rule) Check(s string) string {
	switch {
	case t.Want != "" && !t.Pattern.MatchString(s):
		return "want " + t.Want
	case t.More != nil:
		return t.More(s)
	}
	return ""
}

// Rules that every type may name.
var common = map[string]*Rule{
	"nonempty": {Pattern: regexp.MustCompile(`^[\s\S]`), Want: "a text that is not empty"},
	"code":     {Pattern: regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`), Want: "a code: small letters and digits, with - between words"},
	"id":       {Pattern: regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`), Want: "1 to 128 letters, digits, _ and -"},
}

// rules are what the tags of a field ask of its value; on a list, all but size of each item.
type rules struct {
	required bool
	given    bool // it is there; required implies that
	lenient  bool
	null     bool // null is allowed and means absent
	object   bool // of a json.RawMessage: it is an object
	enum     []string
	text     *Rule
	keys     *Rule // of the keys of a map
	size     bounds
}

// bounds are those of a number, of the bytes of a text or of the items of a list. The zero value has none.
type bounds struct {
	min, max       float64
	hasMin, hasMax bool
	exclusive      bool // min itself is not allowed
}

// checkText returns what is wrong with a text, or "". closed says that it must be one of the enum, if there is one.
func (r *rules) checkText(s string, closed bool) string {
	switch {
	case s == "" && (r.required || r.size.exclude(0)):
		return "is empty"
	case closed && r.enum != nil && !slices.Contains(r.enum, s):
		return fmt.Sprintf("want %s, got %s%s", alternatives(r.enum), quoted(s), DidYouMean(fault.Nearest(s, r.enum)))
	case r.size.exclude(float64(len(s))):
		return fmt.Sprintf("want %v bytes, got %d", r.size, len(s))
	case r.text != nil:
		return r.text.Check(s)
	}
	return ""
}

// checkNumber returns what is wrong with a number, or "".
func (r *rules) checkNumber(f float64) string {
	if r.size.exclude(f) {
		return fmt.Sprintf("want a number %v, got %s", r.size, plain(f))
	}
	return ""
}

// checkCount returns what is wrong with the number of items of a list, or "".
func (r *rules) checkCount(n int) string {
	switch {
	case r.size.exclude(float64(n)) && n == 0:
		return "want at least one item"
	case r.size.exclude(float64(n)):
		return fmt.Sprintf("want %v items, got %d", r.size, n)
	}
	return ""
}

func (b bounds) exclude(f float64) bool {
	return b.hasMin && (f < b.min || b.exclusive && f == b.min) || b.hasMax && f > b.max
}

// String is the range in words: "from 0 to 65535".
func (b bounds) String() string {
	switch {
	case b.hasMin && b.hasMax:
		return "from " + plain(b.min) + " to " + plain(b.max)
	case b.exclusive:
		return "above " + plain(b.min)
	case b.hasMin:
		return "from " + plain(b.min) + " up"
	case b.hasMax:
		return "up to " + plain(b.max)
	}
	return ""
}

func plain(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// alternatives joins words as people do: a, b or c.
func alternatives(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// rules reads a check and an enum tag. It panics on what it does not know.
func (d *describer) rules(check, enum string) (r rules) {
	if enum != "" {
		r.enum = strings.Split(enum, "|")
	}
	for word := range strings.FieldsSeq(check) {
		low, high, isRange := strings.Cut(word, "..")
		keys, isKeys := strings.CutPrefix(word, "keys=")
		switch {
		case word == "required":
			r.required, r.given = true, true
		case word == "given":
			r.given = true
		case word == "lenient":
			r.lenient = true
		case word == "null":
			r.null = true
		case word == "object":
			r.object = true
		case isRange:
			low, r.size.exclusive = strings.CutPrefix(low, ">")
			r.size.min, r.size.hasMin = bound(low)
			r.size.max, r.size.hasMax = bound(high)
		case isKeys:
			r.keys = d.rule(keys)
		default:
			r.text = d.rule(word)
		}
	}
	return r
}

func (d *describer) rule(name string) *Rule {
	for _, set := range []map[string]*Rule{common, d.named} {
		if r := set[name]; r != nil {
			return r
		}
	}
	panic("shape: there is no rule " + name)
}

func bound(s string) (float64, bool) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && s != "" {
		panic("shape: no bound: " + s)
	}
	return f, s != ""
}

// quoted shows a text in a message, shortened.
func quoted(s string) string {
	if r := []rune(s); len(r) > 40 {
		s = string(r[:40]) + "…"
	}
	return strconv.Quote(s)
}

// DidYouMean completes a message with what [fault.Nearest] found, if anything.
func DidYouMean(best string) string {
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}
