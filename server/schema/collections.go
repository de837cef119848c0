package schema

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

func (c *check) array(n *node, list []any) {
	c.bounds(n.count, len(list), "item")
	for i, v := range list {
		if c.stopped() {
			return
		}
		switch {
		case i < len(n.prefix):
			c.within(step{index: i}, n.prefix[i], v)
		case n.items != nil:
			c.within(step{index: i}, n.items, v)
		}
	}
	if n.contains != nil {
		c.contains(n, list)
	}
	if n.unique {
		c.unique(list)
	}
}

func (c *check) contains(n *node, list []any) {
	found := 0
	for i, v := range list {
		trial := check{budget: c.budget, limit: 1, path: slices.Clip(c.path)}
		if trial.within(step{index: i}, n.contains, v); len(trial.issues) == 0 {
			found++
		}
	}
	if n.matches.hasLower || n.matches.capped {
		c.bounds(n.matches, found, "matching item")
	}
	if !n.matches.hasLower && found == 0 { // minContains is 1 unless it says otherwise
		c.report("no item is of the kind that must be among them")
	}
}

func (c *check) unique(list []any) {
	first := make(map[string]int, len(list))
	var buf []byte
	for i, v := range list {
		buf = canonical(buf[:0], v)
		if c.spend(1 + len(buf)/64); c.stopped() {
			return
		}
		if j, seen := first[string(buf)]; seen {
			c.report("items %d and %d are equal, want all different", j, i)
			return
		}
		first[string(buf)] = i
	}
}

func (c *check) object(n *node, obj map[string]any) {
	c.bounds(n.members, len(obj), "property")
	for _, name := range n.required {
		if _, ok := obj[name]; !ok {
			c.missing(name, "required")
		}
	}
	for _, name := range n.names {
		if v, ok := obj[name]; ok {
			c.within(step{name: &name}, n.properties[name], v)
		}
	}
	if n.additional != nil || n.patterns != nil || n.propertyNames != nil {
		c.others(n, obj)
	}
	for _, name := range slices.Sorted(maps.Keys(n.dependentRequired)) {
		if _, ok := obj[name]; !ok {
			continue
		}
		for _, other := range n.dependentRequired[name] {
			if _, ok := obj[other]; !ok {
				c.missing(other, "required when "+cut(name)+" is given")
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(n.dependentSchemas)) {
		if _, ok := obj[name]; ok {
			c.value(n.dependentSchemas[name], obj)
		}
	}
}

func (c *check) missing(name, message string) {
	c.path = append(c.path, step{name: &name})
	c.report("%s", message)
	c.path = c.path[:len(c.path)-1]
}

// others applies what a schema says about members by their names rather than about declared ones.
func (c *check) others(n *node, obj map[string]any) {
	var names []string
	for name := range obj {
		if n.properties[name] == nil || n.patterns != nil || n.propertyNames != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if c.stopped() {
			return
		}
		if n.propertyNames != nil && !c.matches(n.propertyNames, name) {
			c.missing(name, "the name is not allowed")
		}
		known := n.properties[name] != nil
		for _, p := range n.patterns {
			if c.match(p.re, name) {
				known = true
				c.within(step{name: &name}, p.node, obj[name])
			}
		}
		switch {
		case known || n.additional == nil:
		case n.additional.never && len(n.names) > 0:
			c.missing(name, "no such property, known are "+cutList(n.names))
		default:
			c.within(step{name: &name}, n.additional, obj[name])
		}
	}
}

func cutList(names []string) string {
	shown := make([]string, 0, maxShown)
	for _, name := range names[:min(len(names), maxShown)] {
		shown = append(shown, cut(name))
	}
	s := strings.Join(shown, ", ")
	if len(names) > maxShown {
		s += fmt.Sprintf(" and %d more", len(names)-maxShown)
	}
	return s
}
