package tool

import (
	"encoding/json"
	"regexp"
	"strings"
)

// A template is a text with slots: {name} stands for the argument of that name. Other braces are themselves.
type template []piece

// A piece is a literal text or, when arg is set, a slot.
type piece struct{ literal, arg string }

var slot = regexp.MustCompile(`\{([A-Za-z0-9_.-]+)\}`)

func parseTemplate(s string) template {
	var t template
	at := 0
	for _, m := range slot.FindAllStringSubmatchIndex(s, -1) {
		if m[0] > at {
			t = append(t, piece{literal: s[at:m[0]]})
		}
		t = append(t, piece{arg: s[m[2]:m[3]]})
		at = m[1]
	}
	if at < len(s) {
		t = append(t, piece{literal: s[at:]})
	}
	return t
}

// only is the argument that the template consists of, if it is nothing but one slot.
func (t template) only() (arg string, ok bool) {
	if len(t) == 1 && t[0].arg != "" {
		return t[0].arg, true
	}
	return "", false
}

// fill replaces the slots by the texts that value gives. It reports false when value does so for any of them.
func (t template) fill(value func(arg string) (string, bool)) (string, bool) {
	var b strings.Builder
	for _, p := range t {
		text, ok := p.literal, true
		if p.arg != "" {
			text, ok = value(p.arg)
		}
		if !ok {
			return "", false
		}
		b.WriteString(text)
	}
	return b.String(), true
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
	if !ok {
		return "", false
	}
	return plain(v), true
}

func plain(v json.RawMessage) string {
	var s string
	if json.Unmarshal(v, &s) == nil {
		return s
	}
	return string(v)
}
