package graph

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"agentd/server/canonical"
	"agentd/server/expr"
	"agentd/server/shape"
)

// Merge says how a value that a node saves becomes the value of a key.
type Merge string

// The ways to merge.
const (
	Replace Merge = "replace" // the new value
	Append  Merge = "append"  // the old list and the elements of the new one; what is no list is one element
	Sum     Merge = "sum"     // of numbers
	Max     Merge = "max"     // of numbers or of texts; null is no value
	Min     Merge = "min"
	Union   Merge = "union"   // like append, without elements that are equal to earlier ones
	Shallow Merge = "shallow" // the old object with the members of the new one
)

// merges holds what a key starts with, which type the old value has, and the function of each way to merge.
var merges = map[Merge]struct {
	initial, old string
	merge        func(old, value json.RawMessage) (merged, delta json.RawMessage, err error)
}{
	Replace: {"null", "", func(_, value json.RawMessage) (json.RawMessage, json.RawMessage, error) { return value, value, nil }},
	Append:  {"[]", "a list", appendTo},
	Sum:     {"0", "a number", sum},
	Max: {"null", "", func(old, value json.RawMessage) (json.RawMessage, json.RawMessage, error) {
		return extreme(old, value, 1)
	}},
	Min: {"null", "", func(old, value json.RawMessage) (json.RawMessage, json.RawMessage, error) {
		return extreme(old, value, -1)
	}},
	Union:   {"[]", "a list", union},
	Shallow: {"{}", "an object", shallow},
}

// Of merges a value into the old one; both are JSON. The delta is what a step keeps of that: merged into the same old value,
// it gives the same result.
func (m Merge) Of(old, value json.RawMessage) (merged, delta json.RawMessage, err error) {
	row := merges[m]
	if row.old != "" && found(old) != row.old {
		err = fmt.Errorf("the key holds %s, want %s", found(old), row.old)
	} else {
		merged, delta, err = row.merge(old, value)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("cannot merge with %s: %w", m, err)
	}
	return merged, delta, nil
}

// found is the type of a value in words.
func found(raw json.RawMessage) string {
	switch first := append(bytes.TrimSpace(raw), 'n')[0]; first {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a text"
	case 't', 'f':
		return "true or false"
	case 'n':
		return "null"
	}
	return "a number"
}

// inner is the inside of a list, without spaces around it.
func inner(list json.RawMessage) []byte {
	list = bytes.TrimSpace(list)
	return bytes.TrimSpace(list[1 : len(list)-1])
}

// listed is a value as a list: itself, or a list of it.
func listed(value json.RawMessage) json.RawMessage {
	if found(value) == "a list" {
		return value
	}
	return slices.Concat([]byte{'['}, value, []byte{']'})
}

func appendTo(old, value json.RawMessage) (merged, delta json.RawMessage, err error) {
	delta = listed(value)
	before, after := inner(old), inner(delta)
	comma := []byte{','}
	if len(before) == 0 || len(after) == 0 {
		comma = nil
	}
	return slices.Concat([]byte{'['}, before, comma, after, []byte{']'}), delta, nil
}

func union(old, value json.RawMessage) (merged, delta json.RawMessage, err error) {
	var before, after []json.RawMessage
	if err := json.Unmarshal(old, &before); err != nil {
		return nil, nil, err
	}
	if err := json.Unmarshal(listed(value), &after); err != nil {
		return nil, nil, err
	}
	seen := map[string]bool{}
	for _, v := range before {
		seen[identity(v)] = true
	}
	added := []json.RawMessage{}
	for _, v := range after {
		if id := identity(v); !seen[id] {
			seen[id] = true
			added = append(added, v)
		}
	}
	return appendTo(old, shape.Encode(added))
}

// identity is the same for, and only for, equal values: numbers by value, members in any order.
func identity(raw json.RawMessage) string {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	d.Decode(&v) //nolint:errcheck // it has been read before
	return string(shape.Encode(exact(v)))
}

// exact writes each number in v in one way.
func exact(v any) any {
	switch v := v.(type) {
	case json.Number:
		n := canonical.ParseDecimal(string(v))
		sign := ""
		if n.Negative {
			sign = "-"
		}
		return json.Number(fmt.Sprintf("%s%se%d", sign, cmp.Or(n.Digits, "0"), n.Exp))
	case []any:
		for i := range v {
			v[i] = exact(v[i])
		}
	case map[string]any:
		for name := range v {
			v[name] = exact(v[name])
		}
	}
	return v
}

func sum(old, value json.RawMessage) (merged, delta json.RawMessage, err error) {
	if found(value) != "a number" {
		return nil, nil, fmt.Errorf("the value is %s, want a number", found(value))
	}
	a, b, err := pair(old, value)
	if err != nil {
		return nil, nil, err
	}
	var result any
	if x, y, whole := integers(a, b); whole {
		if y > 0 && x > math.MaxInt64-y || y < 0 && x < math.MinInt64-y {
			return nil, nil, fmt.Errorf("the sum does not fit 64 bits")
		}
		result = x + y
	} else {
		result = double(a) + double(b)
	}
	merged, err = expr.Encode(result) // fails for infinity
	return merged, value, err
}

// extreme keeps the value that compares to the other one as sign says.
func extreme(old, value json.RawMessage, sign int) (merged, delta json.RawMessage, err error) {
	if got := found(value); got != "a number" && got != "a text" {
		return nil, nil, fmt.Errorf("the value is %s, want a number or a text", got)
	}
	if found(old) == "null" {
		return value, value, nil
	}
	if found(old) != found(value) {
		return nil, nil, fmt.Errorf("the value is %s, and the key holds %s", found(value), found(old))
	}
	a, b, err := pair(old, value)
	if err != nil {
		return nil, nil, err
	}
	order := 0
	if text, ok := a.(string); ok {
		order = cmp.Compare(b.(string), text)
	} else if x, y, whole := integers(a, b); whole {
		order = cmp.Compare(y, x)
	} else {
		order = cmp.Compare(double(b), double(a))
	}
	if order == sign {
		return value, value, nil
	}
	return old, value, nil
}

func pair(old, value json.RawMessage) (a, b any, err error) {
	if a, err = expr.Decode(old); err == nil {
		b, err = expr.Decode(value)
	}
	return a, b, err
}

func integers(a, b any) (x, y int64, whole bool) {
	x, first := a.(int64)
	y, second := b.(int64)
	return x, y, first && second
}

func double(v any) float64 {
	if i, ok := v.(int64); ok {
		return float64(i)
	}
	return v.(float64)
}

func shallow(old, value json.RawMessage) (merged, delta json.RawMessage, err error) {
	if found(value) != "an object" {
		return nil, nil, fmt.Errorf("the value is %s, want an object", found(value))
	}
	var members map[string]json.RawMessage
	if err = json.Unmarshal(old, &members); err == nil {
		err = json.Unmarshal(value, &members)
	}
	if err != nil {
		return nil, nil, err
	}
	return shape.Encode(members), value, nil
}
