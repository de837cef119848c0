package schema

import (
	"cmp"
	"encoding/json"
	"iter"
	"maps"
	"math/big"
	"regexp"
	"slices"
	"unicode/utf8"

	"agentd/server/canonical"
)

type (
	object = map[string]any
	list   = []any
)

// A keyword is compiled where it stands: it adds to the node what it asserts.
type keyword struct {
	name    string // empty for what is about several keywords together, and is always called
	compile func(site)
}

// keywords are what is asserted and what is refused, in the order in which problems are reported.
var keywords []keyword

func init() { // because what keywords compile may hold every keyword
	keywords = []keyword{
		{"$id", func(s site) {
			if s.n.where != "" {
				s.nestedID = s.at
			}
		}},
		{"nullable", func(s site) { s.n.nullable = read[bool](s, "boolean") }},
		{"type", readTypes},
		{"const", func(s site) { s.n.among(list{s.v}, show(s.v)) }},
		{"enum", func(s site) { values := read[list](s, "array"); s.n.among(values, "one of "+join(values, show)) }},
		{"minLength", count("character", length, "at least", -1)},
		{"maxLength", count("character", length, "at most", 1)},
		{"pattern", func(s site) {
			re := s.pattern(read[string](s, "string"))
			on(s.n, func(c *check, text string) {
				if !c.match(re, text) {
					c.report("does not match the pattern %s", re)
				}
			})
		}},
		{"minimum", compare("at least", -1, -1)},
		{"maximum", compare("at most", 1, 1)},
		{"exclusiveMinimum", compare("more than", -1, 0)},
		{"exclusiveMaximum", compare("less than", 1, 0)},
		{"multipleOf", multipleOf},
		{"minItems", count("item", items, "at least", -1)},
		{"maxItems", count("item", items, "at most", 1)},
		{"", arrays},
		{"contains", contains},
		{"uniqueItems", func(s site) {
			if read[bool](s, "boolean") {
				on(s.n, (*check).unique)
			}
		}},
		{"minProperties", count("property", members, "at least", -1)},
		{"maxProperties", count("property", members, "at most", 1)},
		{"required", func(s site) {
			names := s.strings()
			on(s.n, func(c *check, obj object) { c.require(obj, names, "required") })
		}},
		{"properties", properties},
		{"", others},
		{"dependentRequired", func(s site) {
			for name, v := range sorted(read[object](s, "object")) {
				names := s.under(name, v).strings()
				on(s.n, func(c *check, obj object) {
					if has(obj, name) {
						c.require(obj, names, "required when "+cut(name)+" is given")
					}
				})
			}
		}},
		{"dependentSchemas", func(s site) {
			for name, sub := range sorted(s.named()) {
				s.n.apply(func(c *check, v any) {
					if obj, ok := v.(object); ok && has(obj, name) {
						c.value(sub, v)
					}
				}, sub)
			}
		}},
		{"$ref", func(s site) { s.n.all(s.reference()) }},
		{"allOf", func(s site) { s.n.all(s.nodes()...) }},
		{"anyOf", func(s site) { s.n.any(s.nodes(), false) }},
		{"oneOf", func(s site) { s.n.any(s.nodes(), true) }},
		{"not", func(s site) {
			sub := s.node()
			s.n.apply(func(c *check, v any) {
				if c.matches(sub, v) {
					c.report("is of a kind that is not allowed")
				}
			}, sub)
		}},
		{"if", conditional},
	}
	for _, name := range []string{"unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef", "dependencies", "extends",
		"disallow", "divisibleBy"} {
		keywords = append(keywords, keyword{name, func(s site) { s.problem(s.at, "%s is not supported", name) }})
	}
}

// sorted walks a map by its keys.
func sorted[V any](m map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if !yield(key, m[key]) {
				return
			}
		}
	}
}

func has(obj object, name string) bool {
	_, ok := obj[name]
	return ok
}

// all applies nodes that the value must all match.
func (n *node) all(subs ...*node) {
	for _, sub := range subs {
		n.apply(func(c *check, v any) { c.value(sub, v) }, sub)
	}
}

// any applies nodes of which the value must match one: exactly one or at least one.
func (n *node) any(subs []*node, exactlyOne bool) {
	n.apply(func(c *check, v any) { c.alternatives(subs, v, exactlyOne) }, subs...)
}

// among asserts that the value equals one of some.
func (n *node) among(values list, want string) {
	forms := make(map[string]bool, len(values))
	for _, v := range values {
		forms[string(form(nil, v))] = true
	}
	n.apply(func(c *check, v any) {
		got := form(nil, v)
		if c.spend(len(got) / 64); !forms[string(got)] {
			c.report("got %s, want %s", show(v), want)
		}
	})
}

func readTypes(s site) {
	names, ok := s.v.(list)
	if !ok {
		names = list{s.v}
	}
	for _, name := range names {
		t, _ := name.(string)
		if !slices.Contains(typeNames, t) {
			s.problem(s.at, "%s is no type", show(name))
		}
		s.n.types = append(s.n.types, t)
	}
	if len(names) == 0 {
		s.problem(s.at, "want at least one type")
	}
}

// The sizes that keywords bound; ok is false for values of other types.
func length(v any) (n int, ok bool)  { s, ok := v.(string); return utf8.RuneCountInString(s), ok }
func items(v any) (n int, ok bool)   { l, ok := v.(list); return len(l), ok }
func members(v any) (n int, ok bool) { o, ok := v.(object); return len(o), ok }

// count is a keyword that refuses sizes on one side of a limit: -1 below it, 1 above it.
func count(unit string, size func(any) (int, bool), want string, refused int) func(site) {
	return func(s site) {
		limit := s.natural()
		s.n.apply(func(c *check, v any) {
			if got, ok := size(v); ok && cmp.Compare(got, limit) == refused {
				c.report("got %s, want %s %d", plural(got, unit), want, limit)
			}
		})
	}
}

// compare is a keyword that refuses numbers for which a comparison with the limit has one of two results.
func compare(want string, refused, too int) func(site) {
	return func(s site) {
		limit, text := s.number()
		on(s.n, func(c *check, v json.Number) {
			if got := canonical.ParseDecimal(v.String()).Cmp(limit); got == refused || got == too {
				c.report("got %s, want %s %s", cut(v.String()), want, text)
			}
		})
	}
}

// maxDigits bounds the numbers that multipleOf divides; division is the one operation here that is not linear.
const maxDigits = 4096

func multipleOf(s site) {
	step, text := s.number()
	if text != "" && (step.Sign() <= 0 || len(step.Digits) > maxDigits) {
		s.problem(s.at, "want a positive number of at most %d digits", maxDigits)
	}
	on(s.n, func(c *check, v json.Number) {
		if d := canonical.ParseDecimal(v.String()); len(d.Digits) > maxDigits || !isMultiple(d, step) {
			c.report("got %s, want a multiple of %s", cut(v.String()), text)
		}
	})
}

// isMultiple reports whether a number is a whole number of steps. Both have at most maxDigits digits; step is positive.
func isMultiple(d, step canonical.Decimal) bool {
	shift := d.Exp - step.Exp
	if d.Digits == "" || shift < 0 {
		return d.Digits == "" // else the number has no trailing zero, so it has no factor of ten to give
	}
	n, _ := new(big.Int).SetString(d.Digits, 10)
	m, _ := new(big.Int).SetString(step.Digits, 10)
	tens := new(big.Int).Exp(big.NewInt(10), big.NewInt(shift), m)
	return n.Mod(n.Mul(n, tens), m).Sign() == 0
}

// arrays are prefixItems and items; in draft 7, a list as items and additionalItems.
func arrays(s site) {
	first, rest := "prefixItems", "items"
	if _, tuple := s.schema["items"].(list); tuple {
		first, rest = "items", "additionalItems"
	}
	var prefix []*node
	var others *node
	if s, ok := s.sibling(first); ok {
		prefix = s.nodes()
	}
	if s, ok := s.sibling(rest); ok {
		others = s.node()
	}
	if prefix == nil && others == nil {
		return
	}
	on(s.n, func(c *check, values list) {
		for i, v := range values {
			switch {
			case c.stopped():
				return
			case i < len(prefix):
				c.within(step{index: i}, prefix[i], v)
			case others != nil:
				c.within(step{index: i}, others, v)
			}
		}
	})
}

func contains(s site) {
	sub, least, most := s.node(), 1, -1
	minimum, hasMinimum := s.sibling("minContains")
	if hasMinimum {
		least = minimum.natural()
	}
	if maximum, ok := s.sibling("maxContains"); ok {
		most = maximum.natural()
	}
	on(s.n, func(c *check, values list) {
		found := 0
		for i, v := range values {
			trial := check{budget: c.budget, limit: 1, path: slices.Clip(c.path)}
			if trial.within(step{index: i}, sub, v); len(trial.issues) == 0 {
				found++
			}
		}
		switch {
		case found == 0 && !hasMinimum:
			c.report("no item is of the kind that must be among them")
		case found < least:
			c.report("got %s, want at least %d", plural(found, "matching item"), least)
		case most >= 0 && found > most:
			c.report("got %s, want at most %d", plural(found, "matching item"), most)
		}
	})
}

func properties(s site) {
	s.n.properties = s.named()
	names := slices.Sorted(maps.Keys(s.n.properties))
	on(s.n, func(c *check, obj object) {
		for _, name := range names {
			if v, ok := obj[name]; ok {
				c.within(step{name: &name}, s.n.properties[name], v)
			}
		}
	})
}

// others are patternProperties, additionalProperties and propertyNames: about members by their names rather than about
// declared ones.
func others(s site) {
	type patternNode struct {
		*regexp.Regexp
		*node
	}
	var patterns []patternNode
	var additional, allowed *node
	if s, ok := s.sibling("patternProperties"); ok {
		for text, sub := range sorted(s.named()) {
			patterns = append(patterns, patternNode{s.under(text, nil).pattern(text), sub})
		}
	}
	if s, ok := s.sibling("additionalProperties"); ok {
		additional = s.node()
	}
	if s, ok := s.sibling("propertyNames"); ok {
		allowed = s.node()
	}
	if additional == nil && allowed == nil && patterns == nil {
		return
	}
	properties, declared := s.n.properties, slices.Sorted(maps.Keys(s.n.properties))
	on(s.n, func(c *check, obj object) {
		var names []string
		for name := range obj {
			if properties[name] == nil || patterns != nil || allowed != nil {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		for _, name := range names {
			known := properties[name] != nil
			if allowed != nil && !c.matches(allowed, name) {
				c.at(name, "the name is not allowed")
			}
			for _, p := range patterns {
				if c.match(p.Regexp, name) {
					known = true
					c.within(step{name: &name}, p.node, obj[name])
				}
			}
			switch {
			case c.stopped():
				return
			case known || additional == nil:
			case additional.never && len(declared) > 0:
				c.at(name, "no such property, known are "+join(declared, cut))
			default:
				c.within(step{name: &name}, additional, obj[name])
			}
		}
	})
}

func conditional(s site) {
	condition, branch := s.node(), map[bool]*node{true: {}, false: {}}
	for matches, key := range map[bool]string{true: "then", false: "else"} {
		if s, ok := s.sibling(key); ok {
			branch[matches] = s.node()
		}
	}
	s.n.apply(func(c *check, v any) { c.value(branch[c.matches(condition, v)], v) }, condition, branch[true], branch[false])
}
