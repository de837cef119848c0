package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"agentd/server/canon"
)

// maxDepth bounds the nesting of a value that is written in canonical form.
const maxDepth = 100

// Canonical returns a JSON text in its canonical form (RFC 8785): no white space, members in the order of their names
// as UTF-16, numbers and strings as ECMAScript writes them. A name that is there twice and a number that no double
// holds are errors; what is no Unicode in a string becomes U+FFFD. What an object holds is copied at each of at most a
// hundred levels, for which up to three hundred bytes of memory are needed for each byte.
func Canonical(text []byte) ([]byte, error) {
	if !json.Valid(text) {
		return nil, errors.New("it is no JSON")
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	out, err := canonicalNext(nil, dec, 0)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("there is more after the value")
	}
	return out, nil
}

func canonicalNext(dst []byte, dec *json.Decoder, depth int) ([]byte, error) {
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	if depth > maxDepth {
		return nil, fmt.Errorf("it is nested deeper than %d", maxDepth)
	}
	switch tok {
	case json.Delim('{'):
		members := map[string][]byte{}
		for dec.More() {
			tok, err := dec.Token()
			if err != nil {
				return nil, err
			}
			name := tok.(string)
			if _, twice := members[name]; twice {
				return nil, fmt.Errorf("the member %q is there twice", name)
			}
			if members[name], err = canonicalNext(nil, dec, depth+1); err != nil {
				return nil, err
			}
		}
		_, err := dec.Token()
		if err != nil {
			return nil, err
		}
		return appendObject(dst, members, func(dst []byte, v []byte) ([]byte, error) { return append(dst, v...), nil })
	case json.Delim('['):
		dst = append(dst, '[')
		for i := 0; dec.More(); i++ {
			if i > 0 {
				dst = append(dst, ',')
			}
			if dst, err = canonicalNext(dst, dec, depth+1); err != nil {
				return nil, err
			}
		}
		_, err := dec.Token()
		return append(dst, ']'), err
	}
	return appendValue(dst, tok, depth)
}

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
	case json.Number:
		f, err := strconv.ParseFloat(string(v), 64)
		if err != nil {
			return nil, fmt.Errorf("the number %s is none that a double holds", v)
		}
		return appendNumber(dst, f)
	case json.RawMessage:
		b, err := Canonical(v)
		return append(dst, b...), err
	case map[string]any:
		return appendObject(dst, v, func(dst []byte, v any) ([]byte, error) { return appendValue(dst, v, depth+1) })
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

func appendObject[V any](dst []byte, members map[string]V, value func([]byte, V) ([]byte, error)) ([]byte, error) {
	dst = append(dst, '{')
	for i, name := range slices.SortedFunc(maps.Keys(members), canon.Compare) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendString(dst, name), ':')
		var err error
		if dst, err = value(dst, members[name]); err != nil {
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
	return canon.AppendNumber(dst, f), nil
}

const hexDigits = "0123456789abcdef"

// appendString writes a string as JSON.stringify does. Bytes that are no UTF-8 become U+FFFD.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			if r, n := utf8.DecodeRuneInString(s[i:]); r != utf8.RuneError || n > 1 {
				i += n
				continue
			}
			dst = append(append(dst, s[start:i]...), "\uFFFD"...)
			i++
			start = i
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, s[start:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, `\b`...)
		case '\t':
			dst = append(dst, `\t`...)
		case '\n':
			dst = append(dst, `\n`...)
		case '\f':
			dst = append(dst, `\f`...)
		case '\r':
			dst = append(dst, `\r`...)
		default:
			dst = append(dst, `\u00`...)
			dst = append(dst, hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		start = i
	}
	return append(append(dst, s[start:]...), '"')
}
