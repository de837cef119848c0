package schema

import (
	"cmp"
	"encoding/json"
	"iter"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

type (
	object = map[string]any
	list   = []any
)

// A keyword reads its value v, which stands at the given place of a schema s, into a node.
type keyword struct {
	name    string // empty for what is about several keywords together, and is always called
	compile func(c *compiler, n *node, s object, at string, v any)
}

// keywords are what is asserted and what is refused, in the order in which problems are reported.
var keywords []keyword

func init() { // because what keywords compile may hold every keyword
	keywords = []keyword{
		{"$id", func(c *compiler, n *node, _ object, at string, _ any) {
			if n.where != "" {
				c.nestedID = at
			}
		}},
		{"nullable", func(c *compiler, n *node, _ object, at string, v any) { n.nullable = read[bool](c, at, "boolean", v) }},
		{"type", typeKeyword},
		{"const", func(c *compiler, n *node, _ object, at string, v any) { n.among(list{v}, show(v)) }},
		{"enum", func(c *compiler, n *node, _ object, at string, v any) {
			values := read[list](c, at, "array", v)
			n.among(values, "one of "+join(values, show))
		}},
		{"minLength", count("character", length, "at least", -1)},
		{"maxLength", count("character", length, "at most", 1)},
		{"pattern", pattern},
		{"minimum", compare("at least", -1, -1)},
		{"maximum", compare("at most", 1, 1)},
		{"exclusiveMinimum", compare("more than", -1, 0)},
		{"exclusiveMaximum", compare("less than", 1, 0)},
		{"multipleOf", multipleOf},
		{"minItems", count("item", items, "at least", -1)},
		{"maxItems", count("item", items, "at most", 1)},
		{"", arrays},
		{"contains", contains},
		{"uniqueItems", func(c *compiler, n *node, _ object, at string, v any) {
			if read[bool](c, at, "boolean", v) {
				on(n, (*check).unique)
			}
		}},
		{"minProperties", count("property", members, "at least", -1)},
		{"maxProperties", count("property", members, "at most", 1)},
		{"required", func(c *compiler, n *node, _ object, at string, v any) {
			names := c.strings(at, v)
			on(n, func(k *check, obj object) { k.require(obj, names, "required") })
		}},
		{"properties", properties},
		{"", others},
		{"dependentRequired", func(c *compiler, n *node, _ object, at string, v any) {
			obj := read[object](c, at, "object", v)
			for name, v := range sorted(obj) {
				names := c.strings(pointer(at, name), v)
				on(n, func(k *check, obj object) {
					if _, ok := obj[name]; ok {
						k.require(obj, names, "required when "+cut(name)+" is given")
					}
				})
			}
		}},
		{"dependentSchemas", func(c *compiler, n *node, _ object, at string, v any) {
			for name, sub := range sorted(c.schemas(at, v)) {
				n.apply(func(k *check, v any) {
					if obj, ok := v.(object); ok && has(obj, name) {
						k.value(sub, v)
					}
				}, sub)
			}
		}},
		{"$ref", func(c *compiler, n *node, _ object, at string, v any) { n.all(c.reference(at, v)) }},
		{"allOf", func(c *compiler, n *node, _ object, at string, v any) { n.all(c.list(at, v)...) }},
		{"anyOf", func(c *compiler, n *node, _ object, at string, v any) {
			subs := c.list(at, v)
			n.apply(func(k *check, v any) { k.alternatives(subs, v, false) }, subs...)
		}},
		{"oneOf", func(c *compiler, n *node, _ object, at string, v any) {
			subs := c.list(at, v)
			n.apply(func(k *check, v any) { k.alternatives(subs, v, true) }, subs...)
		}},
		{"not", func(c *compiler, n *node, _ object, at string, v any) {
			sub := c.compile(at, v)
			n.apply(func(k *check, v any) {
				if k.matches(sub, v) {
					k.report("is of a kind that is not allowed")
				}
			}, sub)
		}},
		{"if", conditional},
	}
	for _, name := range []string{"unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef", "dependencies", "extends",
		"disallow", "divisibleBy"} {
		keywords = append(keywords, keyword{name, func(c *compiler, _ *node, _ object, at string, _ any) {
			c.problem(at, "%s is not supported", name)
		}})
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
		n.apply(func(k *check, v any) { k.value(sub, v) }, sub)
	}
}

// among asserts that the value equals one of some.
func (n *node) among(values list, want string) {
	forms := make(map[string]bool, len(values))
	for _, v := range values {
		forms[string(canonical(nil, v))] = true
	}
	n.asserts = append(n.asserts, func(k *check, v any) {
		form := canonical(nil, v)
		if k.spend(len(form) / 64); !forms[string(form)] {
			k.report("got %s, want %s", show(v), want)
		}
	})
}

func typeKeyword(c *compiler, n *node, _ object, at string, v any) {
	names, ok := v.(list)
	if !ok {
		names = list{v}
	}
	for _, name := range names {
		t := typeNamed(name)
		if t == 0 {
			c.problem(at, "%s is no type", show(name))
		}
		n.types |= t
	}
	if len(names) == 0 {
		c.problem(at, "want at least one type")
	}
}

// The sizes that keywords bound; ok is false for values of other types.
func length(v any) (n int, ok bool)  { s, ok := v.(string); return utf8.RuneCountInString(s), ok }
func items(v any) (n int, ok bool)   { l, ok := v.(list); return len(l), ok }
func members(v any) (n int, ok bool) { o, ok := v.(object); return len(o), ok }

// count is a keyword that refuses sizes on one side of a limit: -1 below it, 1 above it.
func count(unit string, size func(any) (int, bool), want string, refused int) func(*compiler, *node, object, string, any) {
	return func(c *compiler, n *node, _ object, at string, v any) {
		limit := c.natural(at, v)
		n.asserts = append(n.asserts, func(k *check, v any) {
			if got, ok := size(v); ok && cmp.Compare(got, limit) == refused {
				k.report("got %s, want %s %d", plural(got, unit), want, limit)
			}
		})
	}
}

// compare is a keyword that refuses numbers for which a comparison with the limit has one of two results.
func compare(want string, refused, too int) func(*compiler, *node, object, string, any) {
	return func(c *compiler, n *node, _ object, at string, v any) {
		text := read[json.Number](c, at, "number", v)
		limit := parseDecimal(text.String())
		on(n, func(k *check, v json.Number) {
			if got := parseDecimal(v.String()).cmp(limit); got == refused || got == too {
				k.report("got %s, want %s %s", cut(v.String()), want, cut(text.String()))
			}
		})
	}
}

func multipleOf(c *compiler, n *node, _ object, at string, v any) {
	text := read[json.Number](c, at, "number", v)
	divisor := parseDecimal(text.String())
	if text != "" && (divisor.sign() <= 0 || len(divisor.digits) > maxDigits) {
		c.problem(at, "want a positive number of at most %d digits", maxDigits)
	}
	on(n, func(k *check, v json.Number) {
		if d := parseDecimal(v.String()); len(d.digits) > maxDigits || !d.multipleOf(divisor) {
			k.report("got %s, want a multiple of %s", cut(v.String()), cut(text.String()))
		}
	})
}

func pattern(c *compiler, n *node, _ object, at string, v any) {
	re := c.pattern(at, v)
	on(n, func(k *check, s string) {
		if !k.match(re, s) {
			k.report("does not match the pattern %s", re)
		}
	})
}

// arrays are prefixItems and items; in draft 7, a list as items and additionalItems.
func arrays(c *compiler, n *node, s object, at string, _ any) {
	at = strings.TrimSuffix(at, "/")
	rest, first := "items", "prefixItems"
	if _, tuple := s["items"].(list); tuple {
		rest, first = "additionalItems", "items"
	}
	var prefix []*node
	if v, ok := s[first]; ok {
		prefix = c.list(pointer(at, first), v)
	}
	var others *node
	if v, ok := s[rest]; ok {
		others = c.compile(pointer(at, rest), v)
	}
	if prefix == nil && others == nil {
		return
	}
	on(n, func(k *check, values list) {
		for i, v := range values {
			switch {
			case k.stopped():
				return
			case i < len(prefix):
				k.within(step{index: i}, prefix[i], v)
			case others != nil:
				k.within(step{index: i}, others, v)
			}
		}
	})
}

func contains(c *compiler, n *node, s object, at string, v any) {
	sub := c.compile(at, v)
	least, most := 1, -1
	at = strings.TrimSuffix(at, "contains")
	if v, ok := s["minContains"]; ok {
		least = c.natural(at+"minContains", v)
	}
	if v, ok := s["maxContains"]; ok {
		most = c.natural(at+"maxContains", v)
	}
	on(n, func(k *check, values list) {
		found := 0
		for i, v := range values {
			trial := check{budget: k.budget, limit: 1, path: slices.Clip(k.path)}
			if trial.within(step{index: i}, sub, v); len(trial.issues) == 0 {
				found++
			}
		}
		switch {
		case found == 0 && least > 0 && !has(s, "minContains"):
			k.report("no item is of the kind that must be among them")
		case found < least:
			k.report("got %s, want at least %d", plural(found, "matching item"), least)
		case most >= 0 && found > most:
			k.report("got %s, want at most %d", plural(found, "matching item"), most)
		}
	})
}

func properties(c *compiler, n *node, _ object, at string, v any) {
	n.properties = c.schemas(at, v)
	names := slices.Sorted(maps.Keys(n.properties))
	on(n, func(k *check, obj object) {
		for _, name := range names {
			if v, ok := obj[name]; ok {
				k.within(step{name: &name}, n.properties[name], v)
			}
		}
	})
}

// others are patternProperties, additionalProperties and propertyNames: about members by their names rather than about
// declared ones.
func others(c *compiler, n *node, s object, at string, _ any) {
	at = strings.TrimSuffix(at, "/")
	optional := func(key string) *node {
		if v, ok := s[key]; ok {
			return c.compile(pointer(at, key), v)
		}
		return nil
	}
	additional, allowed := optional("additionalProperties"), optional("propertyNames")
	type patternNode struct {
		*regexp.Regexp
		*node
	}
	var patterns []patternNode
	if v, ok := s["patternProperties"]; ok {
		at := pointer(at, "patternProperties")
		for pattern, sub := range sorted(c.schemas(at, v)) {
			patterns = append(patterns, patternNode{c.pattern(pointer(at, pattern), pattern), sub})
		}
	}
	if additional == nil && allowed == nil && patterns == nil {
		return
	}
	declared := slices.Sorted(maps.Keys(n.properties))
	on(n, func(k *check, obj object) {
		for _, name := range slices.Sorted(maps.Keys(obj)) {
			known := n.properties[name] != nil
			switch {
			case k.stopped():
				return
			case known && patterns == nil && allowed == nil:
				continue
			case allowed != nil && !k.matches(allowed, name):
				k.at(name, "the name is not allowed")
			}
			for _, p := range patterns {
				if k.match(p.Regexp, name) {
					known = true
					k.within(step{name: &name}, p.node, obj[name])
				}
			}
			switch {
			case known || additional == nil:
			case additional.never && len(declared) > 0:
				k.at(name, "no such property, known are "+join(declared, cut))
			default:
				k.within(step{name: &name}, additional, obj[name])
			}
		}
	})
}

func conditional(c *compiler, n *node, s object, at string, v any) {
	condition, at := c.compile(at, v), strings.TrimSuffix(at, "if")
	branch := map[bool]*node{true: {}, false: {}}
	for matches, key := range map[bool]string{true: "then", false: "else"} {
		if v, ok := s[key]; ok {
			branch[matches] = c.compile(at+key, v)
		}
	}
	n.apply(func(k *check, v any) { k.value(branch[k.matches(condition, v)], v) }, condition, branch[true], branch[false])
}
