package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"agentd/server/canonical"
)

// typeNames are the types of JSON. A number without fraction is an integer and a number.
var typeNames = []string{"null", "boolean", "object", "array", "string", "integer", "number"}

// types are names of types.
type types []string

// String is the names, as in "string or null".
func (t types) String() string { return strings.Join(t, " or ") }

// admits reports whether a value of type got is of one of the types.
func (t types) admits(got string) bool {
	return slices.Contains(t, got) || got == "integer" && slices.Contains(t, "number")
}

// typeOf is the narrowest type of a decoded value.
func typeOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	case json.Number:
		if canonical.ParseDecimal(v.String()).Integer() {
			return "integer"
		}
	}
	return "number"
}

// size is the length of a decoded value itself, without what its items and members hold.
func size(v any) int {
	switch v := v.(type) {
	case string:
		return len(v)
	case json.Number:
		return len(v)
	case []any:
		return len(v)
	case map[string]any:
		return len(v)
	}
	return 0
}

// form appends a form of v that is the same for, and only for, equal values: numbers by value, members in any
// order.
func form(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, 'z')
	case bool:
		return strconv.AppendBool(b, v)
	case string:
		b = strconv.AppendInt(append(b, 's'), int64(len(v)), 10)
		return append(append(b, ':'), v...)
	case json.Number:
		d := canonical.ParseDecimal(v.String())
		b = strconv.AppendBool(append(b, 'd'), d.Negative)
		b = append(b, d.Digits...)
		return strconv.AppendInt(append(b, 'e'), d.Exp, 10)
	case []any:
		b = append(b, '[')
		for _, e := range v {
			b = form(b, e)
		}
		return append(b, ']')
	case map[string]any:
		b = append(b, '{')
		for _, k := range slices.Sorted(maps.Keys(v)) {
			b = form(form(b, k), v[k])
		}
		return append(b, '}')
	}
	return b
}

// Limits of what a message repeats, in characters where it is text. Alternatives nest, so theirs bounds the whole.
const (
	maxShown   = 12  // values or names listed
	maxValue   = 60  // of one value or name
	maxNearest = 300 // of the issues of an alternative
)

// show is v as JSON, shortened, for a message.
func show(v any) string {
	switch v.(type) {
	case []any:
		return "an array"
	case map[string]any:
		return "an object"
	}
	b, _ := json.Marshal(v)
	return cut(string(b))
}

// join lists what show makes of values, as many as a message has room for.
func join[T any](values []T, show func(T) string) string {
	var shown []string
	for _, v := range values[:min(len(values), maxShown)] {
		shown = append(shown, show(v))
	}
	text := strings.Join(shown, ", ")
	if len(values) > maxShown {
		text += fmt.Sprintf(" and %d more", len(values)-maxShown)
	}
	return text
}

func cut(s string) string { return shorten(s, maxValue) }

func shorten(s string, limit int) string {
	if len(s) <= limit || utf8.RuneCountInString(s) <= limit {
		return s
	}
	return string([]rune(s)[:limit]) + "..."
}
