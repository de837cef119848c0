package tool

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
)

// slot is what a template has in the place of an argument: {name}. Other braces are themselves.
var slot = regexp.MustCompile(`\{([A-Za-z0-9_.-]+)\}`)

// A template is a text with the names of its slots, each once.
type template struct {
	text  string
	slots []string
}

func parseTemplate(text string) template {
	return template{text, slots(text)}
}

// slots are the names of the arguments in a template, each once.
func slots(text string) (names []string) {
	for _, m := range slot.FindAllStringSubmatch(text, -1) {
		if !slices.Contains(names, m[1]) {
			names = append(names, m[1])
		}
	}
	return names
}

// fill replaces the slots by the texts that value gives. It reports false when value does so for any of them.
func (t template) fill(value func(arg string) (string, bool)) (filled string, whole bool) {
	whole = true
	var pairs []string
	for _, name := range t.slots {
		text, ok := value(name)
		whole = whole && ok
		pairs = append(pairs, "{"+name+"}", text)
	}
	return strings.NewReplacer(pairs...).Replace(t.text), whole
}

// fillBody is the template of a body with the arguments in place of its slots. It reports false for a text that is nothing
// but the slot of an absent argument, which is then left out.
func fillBody(node any, args arguments) (any, bool) {
	switch n := node.(type) {
	case string:
		t := parseTemplate(n)
		if len(t.slots) == 1 && n == "{"+t.slots[0]+"}" {
			v, ok := args[t.slots[0]]
			return v, ok
		}
		s, _ := t.fill(args.text)
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

// decodeJSON reads one value and keeps numbers as they are written.
func decodeJSON(raw json.RawMessage) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err = d.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("text follows the value")
	}
	return v, nil
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
