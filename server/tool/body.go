package tool

import (
	"maps"
	"slices"
)

// bodyArgs appends the slots in the texts of a body template.
func bodyArgs(node any, names []string) []string {
	switch n := node.(type) {
	case string:
		for _, p := range parseTemplate(n) {
			if p.arg != "" && !slices.Contains(names, p.arg) {
				names = append(names, p.arg)
			}
		}
	case []any:
		for _, e := range n {
			names = bodyArgs(e, names)
		}
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(n)) {
			names = bodyArgs(n[k], names)
		}
	}
	return names
}

// fillBody is the template with the arguments in place of its slots. It reports false for a text that is
// nothing but the slot of an absent argument, which is then left out.
func fillBody(node any, args arguments) (any, bool) {
	switch n := node.(type) {
	case string:
		t := parseTemplate(n)
		if arg, ok := t.only(); ok {
			v, ok := args[arg]
			return v, ok
		}
		s, _ := t.fill(func(arg string) (string, bool) {
			text, _ := args.text(arg)
			return text, true
		})
		return s, true
	case []any:
		out := make([]any, 0, len(n))
		for _, e := range n {
			if v, ok := fillBody(e, args); ok {
				out = append(out, v)
			}
		}
		return out, true
	case map[string]any:
		out := make(map[string]any, len(n))
		for k, e := range n {
			if v, ok := fillBody(e, args); ok {
				out[k] = v
			}
		}
		return out, true
	}
	return node, true
}
