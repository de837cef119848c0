package tool

import (
	"encoding/json"
	"regexp"
)

// slot is what a template has in the place of an argument: {name}. Other braces are themselves.
var slot = regexp.MustCompile(`\{([A-Za-z0-9_.-]+)\}`)

// slots are the names of the arguments in a template.
func slots(template string) (names []string) {
	for _, m := range slot.FindAllStringSubmatch(template, -1) {
		names = append(names, m[1])
	}
	return names
}

// fill replaces the slots of a template by the texts that value gives. It reports false when value does so for any of them.
func fill(template string, value func(arg string) (string, bool)) (filled string, whole bool) {
	whole = true
	filled = slot.ReplaceAllStringFunc(template, func(s string) string {
		text, ok := value(s[1 : len(s)-1])
		whole = whole && ok
		return text
	})
	return filled, whole
}

// fillBody is the template of a body with the arguments in place of its slots. It reports false for a text that is nothing
// but the slot of an absent argument, which is then left out.
func fillBody(node any, args arguments) (any, bool) {
	switch n := node.(type) {
	case string:
		if n != "" && n == slot.FindString(n) {
			v, ok := args[n[1:len(n)-1]]
			return v, ok
		}
		s, _ := fill(n, args.text)
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

// arguments are the members of a call's arguments, as the model wrote them. A null counts as absent.
type arguments map[string]json.RawMessage

func parseArguments(raw json.RawMessage) (arguments, error) {
	var a arguments
	if err := json.Unmarshal(raw, &a); err != nil {
		return nil, invalidInput("The arguments are not a JSON object.", "")
	}
	for name, v := range a {
		if string(v) == "null" {
			delete(a, name)
		}
	}
	return a, nil
}

// text is an argument as text: a string's value, or the JSON of anything else.
func (a arguments) text(name string) (string, bool) {
	v, ok := a[name]
	var s string
	if json.Unmarshal(v, &s) != nil {
		s = string(v)
	}
	return s, ok
}
