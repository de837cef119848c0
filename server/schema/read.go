package schema

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// The readers of keyword values: each reports a value of the wrong type and returns what can be used of it.

func (c *compiler) schemas(at string, v any) map[string]*node {
	obj := c.object(at, v)
	out := make(map[string]*node, len(obj))
	for _, k := range slices.Sorted(maps.Keys(obj)) {
		out[k] = c.compile(pointer(at, k), obj[k])
	}
	return out
}

func (c *compiler) list(at string, v any) []*node {
	list := c.array(at, v)
	out := make([]*node, len(list))
	for i, e := range list {
		out[i] = c.compile(pointer(at, strconv.Itoa(i)), e)
	}
	return out
}

func (c *compiler) strings(at string, v any) []string {
	var out []string
	for i, e := range c.array(at, v) {
		s, ok := e.(string)
		if !ok {
			c.problem(pointer(at, strconv.Itoa(i)), "got %s, want string", typeOf(e))
			continue
		}
		out = append(out, s)
	}
	return out
}

func (c *compiler) array(at string, v any) []any {
	list, ok := v.([]any)
	if !ok {
		c.problem(at, "got %s, want array", typeOf(v))
	}
	return list
}

func (c *compiler) object(at string, v any) map[string]any {
	obj, ok := v.(map[string]any)
	if !ok {
		c.problem(at, "got %s, want object", typeOf(v))
	}
	return obj
}

func (c *compiler) boolean(at string, v any) bool {
	b, ok := v.(bool)
	if !ok {
		c.problem(at, "got %s, want boolean", typeOf(v))
	}
	return b
}

func (c *compiler) number(at string, v any) *quantity {
	n, ok := v.(json.Number)
	if !ok {
		c.problem(at, "got %s, want number", typeOf(v))
		return nil
	}
	return &quantity{parseDecimal(n.String()), cut(n.String())}
}

func (c *compiler) lower(b *bounds, at string, v any) { b.min, b.hasLower = c.natural(at, v), true }
func (c *compiler) upper(b *bounds, at string, v any) { b.max, b.capped = c.natural(at, v), true }

// natural reads a count. Counts beyond the range of int32 are as good as that.
func (c *compiler) natural(at string, v any) int {
	d := c.number(at, v)
	if d == nil {
		return 0
	}
	if d.neg || !d.integer() {
		c.problem(at, "want an integer of at least 0")
		return 0
	}
	if d.exp > 10 || d.exp+int64(len(d.digits)) > 9 {
		return 1<<31 - 1
	}
	n, _ := strconv.Atoi(d.digits + strings.Repeat("0", int(d.exp)))
	return n
}
