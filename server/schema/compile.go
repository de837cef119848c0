package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"agentd/server/canonical"
)

// A node is one compiled sub-schema. The zero node admits everything.
type node struct {
	where      string // its place in the document
	never      bool   // the schema false
	nullable   bool
	types      types
	asserts    []func(c *check, v any) // in the order in which they report
	same       []*node                 // those that asserts apply to the same value
	properties map[string]*node
}

// on adds an assertion about values of one Go type.
func on[T any](n *node, assert func(c *check, v T)) {
	n.asserts = append(n.asserts, func(c *check, v any) {
		if v, ok := v.(T); ok {
			assert(c, v)
		}
	})
}

// apply adds an assertion that applies other nodes to the same value.
func (n *node) apply(assert func(c *check, v any), others ...*node) {
	n.asserts, n.same = append(n.asserts, assert), append(n.same, others...)
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
		for _, k := range keywords {
			if value, ok := v[k.name]; ok || k.name == "" {
				k.compile(site{c, n, v, pointer(at, k.name), value})
			}
		}
	default:
		c.problem(at, "a schema is an object, true or false, got %s", typeOf(v))
	}
	return n
}

// A site is where a keyword stands: in a schema, which becomes the node n, at a place, with the value v.
type site struct {
	*compiler
	n      *node
	schema object
	at     string
	v      any
}

// sibling is where another keyword of the same schema stands, if it does.
func (s site) sibling(key string) (site, bool) {
	v, ok := s.schema[key]
	return site{s.compiler, s.n, s.schema, s.at[:strings.LastIndexByte(s.at, '/')+1] + key, v}, ok
}

// under is a part of the value.
func (s site) under(token string, v any) site {
	return site{s.compiler, s.n, s.schema, pointer(s.at, token), v}
}

// read reports a value of another type than a keyword wants.
func read[T any](s site, want string) T {
	t, ok := s.v.(T)
	if !ok {
		s.problem(s.at, "got %s, want %s", typeOf(s.v), want)
	}
	return t
}

func (s site) node() *node { return s.compile(s.at, s.v) }

func (s site) nodes() (out []*node) {
	for i, v := range read[list](s, "array") {
		out = append(out, s.under(strconv.Itoa(i), v).node())
	}
	return out
}

func (s site) named() map[string]*node {
	out := map[string]*node{}
	for name, v := range sorted(read[object](s, "object")) {
		out[name] = s.under(name, v).node()
	}
	return out
}

func (s site) strings() (out []string) {
	for i, v := range read[list](s, "array") {
		out = append(out, read[string](s.under(strconv.Itoa(i), v), "string"))
	}
	return out
}

// number reads a number, with its text for messages.
func (s site) number() (canonical.Decimal, string) {
	text := read[json.Number](s, "number").String()
	return canonical.ParseDecimal(text), cut(text)
}

// natural reads a count. Counts beyond the range of int32 are as good as that.
func (s site) natural() int {
	d, _ := s.number()
	switch {
	case d.Negative || !d.Integer():
		s.problem(s.at, "want an integer of at least 0")
		return 0
	case d.Exp > 10 || d.Exp+int64(len(d.Digits)) > 9:
		return 1<<31 - 1
	}
	n, _ := strconv.Atoi(d.Digits + strings.Repeat("0", int(d.Exp)))
	return n
}

func (s site) pattern(text string) *regexp.Regexp {
	re, err := regexp.Compile(text)
	if err != nil {
		s.problem(s.at, "the pattern is not supported: %v", err)
	}
	return re
}

// reference compiles what a $ref points at.
func (s site) reference() *node {
	s.refs = true
	ref, ok := s.v.(string)
	fragment, local := strings.CutPrefix(ref, "#")
	path, err := url.PathUnescape(fragment)
	switch {
	case !ok:
		s.problem(s.at, "got %s, want string", typeOf(s.v))
		return &node{}
	case !local || err != nil || path != "" && path[0] != '/':
		s.problem(s.at, `%q is not supported, only references like "#/$defs/name"`, ref)
		return &node{}
	}
	place, target := "", s.doc
	for i, token := range strings.Split(path, "/") {
		if i == 0 {
			continue // before the first slash
		}
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
			s.problem(s.at, "%q points at nothing", ref)
			return &node{}
		}
		place = pointer(place, token)
	}
	return s.compile(place, target)
}

// checkLoops refuses schemas that apply themselves to the same value without end.
func (c *compiler) checkLoops() {
	const open, done = 1, 2
	state := map[*node]int{}
	var visit func(*node)
	visit = func(n *node) {
		switch state[n] {
		case done:
			return
		case open:
			c.problem(n.where, "refers to itself without going into the value")
			return
		}
		state[n] = open
		for _, sub := range n.same {
			visit(sub)
		}
		state[n] = done
	}
	for _, at := range slices.Sorted(maps.Keys(c.nodes)) {
		visit(c.nodes[at])
	}
}
