package schema

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A check is the application of schemas to one value. Branches (anyOf, not, ...) are checks of their own that share
// the budget.
type check struct {
	*budget
	issues []Issue
	limit  int    // stop at so many issues
	path   []step // where in the value
}

// step is a member's name or, when name is nil, an index.
type step struct {
	name  *string
	index int
}

// budget bounds one Validate. Once exceeded, its issue is the whole answer: a branch cut short must neither match nor
// fail to.
type budget struct {
	steps    int
	nesting  int // sub-schemas being applied inside each other
	exceeded *Issue
}

func (c *check) report(format string, args ...any) {
	if c.spend(4 + len(c.path)); !c.stopped() { // a trial that fails costs its messages
		c.issues = append(c.issues, Issue{Path: c.pointer(), Message: fmt.Sprintf(format, args...)})
	}
}

func (c *check) pointer() string {
	var p []byte
	for _, s := range c.path {
		p = append(p, '/')
		if s.name == nil {
			p = strconv.AppendInt(p, int64(s.index), 10)
		} else {
			p = append(p, pointerEscapes.Replace(cut(*s.name))...)
		}
	}
	return string(p)
}

// stopped reports whether there is nothing more to find out.
func (c *check) stopped() bool { return c.exceeded != nil || len(c.issues) >= c.limit }

func (c *check) spend(steps int) {
	if c.steps -= steps; c.steps < 0 {
		c.exceed("too large to be checked")
	}
}

func (c *check) exceed(message string) {
	if c.exceeded == nil {
		c.exceeded = &Issue{Path: c.pointer(), Message: message}
	}
}

// within applies n to a part of the value.
func (c *check) within(s step, n *node, v any) {
	if len(c.path) >= maxDepth {
		c.exceed(fmt.Sprintf("nested deeper than %d levels", maxDepth))
		return
	}
	c.path = append(c.path, s)
	c.value(n, v)
	c.path = c.path[:len(c.path)-1]
}

// branch applies n to the same value on trial and returns the issues, at most limit.
func (c *check) branch(n *node, v any, limit int) []Issue {
	// Clipped, so that the branch does not write into the path of c.
	trial := check{budget: c.budget, limit: limit, path: slices.Clip(c.path)}
	trial.value(n, v)
	return trial.issues
}

func (c *check) matches(n *node, v any) bool { return len(c.branch(n, v, 1)) == 0 }

func (c *check) value(n *node, v any) {
	c.nesting++
	defer func() { c.nesting-- }()
	if c.nesting > maxNesting {
		c.exceed("too deep to be checked")
	}
	if c.spend(1 + size(v)/64); c.stopped() {
		return
	}
	got := typeOf(v)
	switch {
	case n.never:
		c.report("not allowed")
		return
	case v == nil && n.nullable:
		return
	case n.types != nil && !n.types.admits(got):
		c.report("got %s, want %s", got, n.types)
		return // what else the schema says is about values of its type
	}
	for _, assert := range n.asserts {
		assert(c, v)
	}
}

// match runs a pattern at a price: RE2 takes time in proportion to the text.
func (c *check) match(re *regexp.Regexp, s string) bool {
	c.spend(len(s) / 2)
	return c.exceeded != nil || re.MatchString(s)
}

func plural(n int, unit string) string {
	switch {
	case n == 1:
		return "1 " + unit
	case strings.HasSuffix(unit, "y"):
		return fmt.Sprintf("%d %sies", n, strings.TrimSuffix(unit, "y"))
	}
	return fmt.Sprintf("%d %ss", n, unit)
}

// at reports a problem of a member, which may be missing.
func (c *check) at(name, message string) {
	c.path = append(c.path, step{name: &name})
	c.report("%s", message)
	c.path = c.path[:len(c.path)-1]
}

// require reports members that are missing.
func (c *check) require(obj map[string]any, names []string, message string) {
	for _, name := range names {
		if !has(obj, name) {
			c.at(name, message)
		}
	}
}

func (c *check) unique(list []any) {
	first := make(map[string]int, len(list))
	var buf []byte
	for i, v := range list {
		buf = form(buf[:0], v)
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

// alternatives reports when none of the schemas admits v, or more than one where exactly one should. For none it shows
// what is wrong with the alternative that comes nearest: of the value's type and with the fewest issues.
func (c *check) alternatives(subs []*node, v any, exactlyOne bool) {
	var fits []string
	var nearest []Issue
	var wanted types
	typed := true // every alternative names its types
	for i, sub := range subs {
		issues := c.branch(sub, v, maxIssues)
		if len(issues) == 0 {
			if fits = append(fits, strconv.Itoa(i+1)); !exactlyOne {
				return
			}
			continue
		}
		for _, t := range sub.types {
			if !slices.Contains(wanted, t) {
				wanted = append(wanted, t)
			}
		}
		typed = typed && sub.types != nil
		if sub.types != nil && !sub.types.admits(typeOf(v)) {
			continue
		}
		if nearest == nil || cmp.Compare(len(issues), len(nearest)) < 0 {
			nearest = issues
		}
	}
	switch {
	case len(fits) == 1:
	case len(fits) > 1:
		c.report("fits alternatives %s, want exactly one", strings.Join(fits, ", "))
	case nearest != nil && len(subs) == 1:
		c.issues = append(c.issues, nearest[:min(len(nearest), c.limit-len(c.issues))]...)
	case nearest != nil:
		c.report("fits none of the %d alternatives; nearest: %s", len(subs), shorten(Join(nearest[:min(len(nearest), 3)]), maxNearest))
	case typed:
		c.report("got %s, want %s", typeOf(v), wanted)
	default:
		c.report("fits none of the %d alternatives", len(subs))
	}
}
