package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"agentd/server/canonical"
)

// maxDepth bounds the nesting of a value that is written in canonical form.
const maxDepth = 100

// form is the canonical form of what the chain holds.
var form = canonical.Rules{Depth: maxDepth}

// Canonical returns a JSON text in its canonical form (RFC 8785): no white space, members in the order of their names
// as UTF-16, numbers and texts as ECMAScript writes them. A name that is there twice, a number that no double holds and a
// text that is not Unicode are errors. Up to fifty bytes of memory are needed for each byte.
func Canonical(text []byte) ([]byte, error) { return form.Append(nil, text) }

// appendValue adds a value in canonical form: what [json.Unmarshal] makes of JSON, integers, raw JSON, and maps and
// lists of those.
func appendValue(dst []byte, v any, depth int) ([]byte, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("it is nested deeper than %d", maxDepth)
	}
	switch v := v.(type) {
	case nil:
		return append(dst, "null"...), nil
	case bool:
		return strconv.AppendBool(dst, v), nil
	case string:
		return appendString(dst, v), nil
	case int:
		return appendInt(dst, int64(v))
	case int64:
		return appendInt(dst, v)
	case float64:
		return appendNumber(dst, v)
	case json.RawMessage:
		b, err := Canonical(v)
		return append(dst, b...), err
	case map[string]any:
		return appendObject(dst, v, depth)
	case []any:
		dst = append(dst, '[')
		for i, e := range v {
			if i > 0 {
				dst = append(dst, ',')
			}
			var err error
			if dst, err = appendValue(dst, e, depth+1); err != nil {
				return nil, err
			}
		}
		return append(dst, ']'), nil
	}
	b, err := json.Marshal(v)
	if err == nil {
		b, err = Canonical(b)
	}
	return append(dst, b...), err
}

func appendObject(dst []byte, members map[string]any, depth int) ([]byte, error) {
	dst = append(dst, '{')
	for i, name := range slices.SortedFunc(maps.Keys(members), canonical.Compare) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendString(dst, name), ':')
		var err error
		if dst, err = appendValue(dst, members[name], depth+1); err != nil {
			return nil, err
		}
	}
	return append(dst, '}'), nil
}

// maxExact is the largest integer up to which doubles have all.
const maxExact = 1 << 53

func appendInt(dst []byte, n int64) ([]byte, error) {
	if n > maxExact || n < -maxExact {
		return appendNumber(dst, float64(n))
	}
	return strconv.AppendInt(dst, n, 10), nil
}

func appendNumber(dst []byte, f float64) ([]byte, error) {
	if math.IsInf(f, 0) || math.IsNaN(f) {
		return nil, errors.New("a number is not finite")
	}
	return canonical.AppendNumber(dst, f), nil
}

// appendString writes a string as JSON.stringify does. Bytes that are no UTF-8 become U+FFFD.
func appendString(dst []byte, s string) []byte {
	return canonical.AppendText(dst, strings.ToValidUTF8(s, "\uFFFD"))
}
