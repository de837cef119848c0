package schema

import (
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A node is one compiled sub-schema. The zero node admits everything.
type node struct {
	where    string // its place in the document
	never    bool   // the schema false
	nullable bool
	ref      *node
	types    types

	enum   map[string]bool // canonical forms; nil when absent
	listed string          // the values of enum, to be shown
	fixed  *string         // canonical form of const
	value  string          // const, to be shown

	minimum, maximum, above, below, multipleOf *quantity
	length                                     bounds
	pattern                                    *regexp.Regexp

	count             bounds
	prefix            []*node
	items             *node
	contains          *node
	matches           bounds
	unique            bool
	members           bounds
	properties        map[string]*node
	names             []string // of properties, sorted
	patterns          []patternNode
	additional        *node
	propertyNames     *node
	required          []string
	dependentRequired map[string][]string
	dependentSchemas  map[string]*node

	anyOf, oneOf, allOf  []*node
	not, iff, then, elze *node
}

type patternNode struct {
	re *regexp.Regexp
	*node
}

// A quantity is a number of the schema, with its text for messages.
type quantity struct {
	decimal
	text string
}

// bounds are an optional lower and an optional upper limit of a count.
type bounds struct {
	min, max         int
	hasLower, capped bool
}

type compiler struct {
	doc      any
	nodes    map[string]*node // by place; entered before they are filled, so that references may loop
	issues   []Issue
	refs     bool   // a $ref was seen
	nestedID string // where an $id below the root was seen
}

func (c *compiler) problem(at, format string, args ...any) {
	if len(c.issues) < maxIssues {
		c.issues = append(c.issues, Issue{Path: at, Message: fmt.Sprintf(format, args...)})
	}
}

// compile returns the node of the schema v, which stands at the given place. It is never nil.
func (c *compiler) compile(at string, v any) *node {
	if n := c.nodes[at]; n != nil {
		return n
	}
	n := &node{where: at}
	if len(c.nodes) >= maxNodes {
		if len(c.nodes) == maxNodes {
			c.problem(at, "the schema has more than %d parts", maxNodes)
			c.nodes[at] = n
		}
		return n
	}
	c.nodes[at] = n
	switch v := v.(type) {
	case bool:
		n.never = !v
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			c.keyword(n, v, key, pointer(at, key), v[key])
		}
		if n.iff == nil {
			n.then, n.elze = nil, nil
		}
	default:
		c.problem(at, "a schema is an object, true or false, got %s", typeOf(v))
	}
	return n
}

func (c *compiler) keyword(n *node, schema map[string]any, key, at string, v any) {
	switch key {
	case "$ref":
		n.ref = c.reference(at, v)
	case "$id":
		if n.where != "" {
			c.nestedID = at
		}
	case "nullable":
		n.nullable = c.boolean(at, v)
	case "type":
		n.types = c.types(at, v)
	case "enum":
		c.enum(n, at, v)
	case "const":
		n.fixed, n.value = new(string(canonical(nil, v))), show(v)
	case "minimum":
		n.minimum = c.number(at, v)
	case "maximum":
		n.maximum = c.number(at, v)
	case "exclusiveMinimum":
		n.above = c.number(at, v)
	case "exclusiveMaximum":
		n.below = c.number(at, v)
	case "multipleOf":
		n.multipleOf = c.number(at, v)
		if d := n.multipleOf; d != nil && (d.sign() <= 0 || len(d.digits) > maxDigits) {
			c.problem(at, "want a positive number of at most %d digits", maxDigits)
		}
	case "minLength":
		c.lower(&n.length, at, v)
	case "maxLength":
		c.upper(&n.length, at, v)
	case "minItems":
		c.lower(&n.count, at, v)
	case "maxItems":
		c.upper(&n.count, at, v)
	case "minContains":
		c.lower(&n.matches, at, v)
	case "maxContains":
		c.upper(&n.matches, at, v)
	case "minProperties":
		c.lower(&n.members, at, v)
	case "maxProperties":
		c.upper(&n.members, at, v)
	case "uniqueItems":
		n.unique = c.boolean(at, v)
	case "pattern":
		n.pattern = c.pattern(at, v)
	case "properties":
		n.properties = c.schemas(at, v)
		n.names = slices.Sorted(maps.Keys(n.properties))
	case "patternProperties":
		for _, p := range slices.Sorted(maps.Keys(c.object(at, v))) {
			if re := c.pattern(pointer(at, p), p); re != nil {
				n.patterns = append(n.patterns, patternNode{re, c.compile(pointer(at, p), v.(map[string]any)[p])})
			}
		}
	case "additionalProperties":
		n.additional = c.compile(at, v)
	case "propertyNames":
		n.propertyNames = c.compile(at, v)
	case "required":
		n.required = c.strings(at, v)
	case "dependentRequired":
		n.dependentRequired = map[string][]string{}
		for k, list := range c.object(at, v) {
			n.dependentRequired[k] = c.strings(pointer(at, k), list)
		}
	case "dependentSchemas":
		n.dependentSchemas = c.schemas(at, v)
	case "items":
		if _, tuple := v.([]any); tuple { // draft 7
			n.prefix = c.list(at, v)
		} else {
			n.items = c.compile(at, v)
		}
	case "additionalItems":
		if _, tuple := schema["items"].([]any); tuple {
			n.items = c.compile(at, v)
		}
	case "prefixItems":
		n.prefix = c.list(at, v)
	case "contains":
		n.contains = c.compile(at, v)
	case "anyOf":
		n.anyOf = c.list(at, v)
	case "oneOf":
		n.oneOf = c.list(at, v)
	case "allOf":
		n.allOf = c.list(at, v)
	case "not":
		n.not = c.compile(at, v)
	case "if":
		n.iff = c.compile(at, v)
	case "then":
		n.then = c.compile(at, v)
	case "else":
		n.elze = c.compile(at, v)
	case "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef", "dependencies", "extends", "disallow", "divisibleBy":
		c.problem(at, "%s is not supported", key)
	}
}

// reference compiles what a $ref points at.
func (c *compiler) reference(at string, v any) *node {
	c.refs = true
	ref, ok := v.(string)
	if !ok {
		c.problem(at, "got %s, want string", typeOf(v))
		return nil
	}
	fragment, local := strings.CutPrefix(ref, "#")
	path, err := url.PathUnescape(fragment)
	if !local || err != nil || path != "" && path[0] != '/' {
		c.problem(at, `%q is not supported, only references like "#/$defs/name"`, ref)
		return nil
	}
	place, target := "", c.doc
	if path != "" {
		for token := range strings.SplitSeq(path[1:], "/") {
			token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
			var found bool
			switch t := target.(type) {
			case map[string]any:
				target, found = t[token]
			case []any:
				if i, err := strconv.Atoi(token); err == nil && i >= 0 && i < len(t) {
					target, token, found = t[i], strconv.Itoa(i), true
				}
			}
			if !found {
				c.problem(at, "%q points at nothing", ref)
				return nil
			}
			place = pointer(place, token)
		}
	}
	return c.compile(place, target)
}

func (c *compiler) types(at string, v any) types {
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	var all types
	for _, name := range list {
		t := typeNamed(name)
		if t == 0 {
			c.problem(at, "%s is no type", show(name))
		}
		all |= t
	}
	if len(list) == 0 {
		c.problem(at, "want at least one type")
	}
	return all
}

func (c *compiler) enum(n *node, at string, v any) {
	list := c.array(at, v)
	n.enum = make(map[string]bool, len(list))
	shown := make([]string, 0, maxShown)
	for _, e := range list {
		n.enum[string(canonical(nil, e))] = true
		if len(shown) < maxShown {
			shown = append(shown, show(e))
		}
	}
	n.listed = strings.Join(shown, ", ")
	if len(list) > maxShown {
		n.listed += fmt.Sprintf(" and %d more", len(list)-maxShown)
	}
}

func (c *compiler) pattern(at string, v any) *regexp.Regexp {
	s, ok := v.(string)
	if !ok {
		c.problem(at, "got %s, want string", typeOf(v))
		return nil
	}
	re, err := regexp.Compile(s)
	if err != nil {
		c.problem(at, "the pattern is not supported: %v", err)
	}
	return re
}

// checkLoops refuses schemas that apply themselves to the same value without end.
func (c *compiler) checkLoops() {
	const open, done = 1, 2
	state := map[*node]int{}
	var visit func(*node)
	visit = func(n *node) {
		if n == nil || state[n] == done {
			return
		}
		if state[n] == open {
			c.problem(n.where, "refers to itself without going into the value")
			return
		}
		state[n] = open
		visit(n.ref)
		for _, list := range [][]*node{n.anyOf, n.oneOf, n.allOf, {n.not, n.iff, n.then, n.elze}} {
			for _, sub := range list {
				visit(sub)
			}
		}
		for _, k := range slices.Sorted(maps.Keys(n.dependentSchemas)) {
			visit(n.dependentSchemas[k])
		}
		state[n] = done
	}
	for _, at := range slices.Sorted(maps.Keys(c.nodes)) {
		visit(c.nodes[at])
	}
}
