package expr

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"agentd/server/canonical"
)

// Decode reads JSON. A number is an int64 if it fits and has neither fraction nor exponent, else a float64. What is not
// Unicode in a text becomes U+FFFD; of two members with one name the last counts.
func Decode(raw []byte) (any, error) {
	left := MaxValue
	v, err := decode(raw, &left)
	if err != nil {
		return nil, err
	}
	return v, nil
}

// decode reads JSON whose value takes no more memory than is left, and counts what it takes.
func decode(raw []byte, left *int) (any, *Error) {
	if len(raw) > MaxJSON {
		return nil, &Error{Code: CodeFailed, Message: fmt.Sprintf("The JSON has more than %d bytes.", MaxJSON)}
	}
	if !json.Valid(raw) {
		return nil, &Error{Code: CodeFailed, Message: "The text is not JSON."}
	}
	if at := canonical.Deeper(raw, MaxDepth); at >= 0 {
		return nil, &Error{Code: CodeFailed, Offset: at, Message: fmt.Sprintf("The JSON is nested deeper than %d.", MaxDepth)}
	}
	d := decoder{Cursor: canonical.Cursor{Source: raw}, left: left}
	d.Space()
	v := d.value()
	if d.infinite != "" {
		return nil, &Error{Code: CodeFailed, Message: fmt.Sprintf("No double holds the number %.40s.", d.infinite)}
	}
	if *d.left < 0 {
		return nil, &Error{Code: CodeFailed, fatal: true, Message: "The values of the JSON take too much memory.", Hint: "Read less of it."}
	}
	return v, nil
}

// A decoder reads valid JSON as long as bytes are left.
type decoder struct {
	canonical.Cursor
	left     *int
	infinite string // a number that is too large
}

func (d *decoder) value() any {
	begin := d.At
	switch d.Source[begin] {
	case '{':
		fields := map[string]any{}
		for *d.left -= 48; d.More(); {
			if len(fields) == 0 {
				*d.left -= sizeMap - 48
			}
			name := d.Name()
			if *d.left -= sizeEntry + len(name); *d.left < 0 {
				return nil
			}
			fields[name] = d.value()
		}
		return fields
	case '[':
		elements := []any{}
		for *d.left -= 2 * sizeElement; d.More(); {
			if *d.left -= 2 * sizeElement; *d.left < 0 {
				return nil
			}
			elements = append(elements, d.value())
		}
		return elements
	case '"':
		s := d.Text()
		*d.left -= sizeElement + len(s)
		return s
	case 't', 'f':
		return string(d.Scalar()) == "true"
	case 'n':
		d.Scalar()
		return nil
	}
	text := string(d.Scalar())
	*d.left -= 8
	if i, err := strconv.ParseInt(text, 10, 64); err == nil {
		return i
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		d.infinite = text
	}
	return f
}

func fromJSON(c *frame, n *call, a []any) (any, *Error) {
	s := a[0].(string)
	if err := c.make(n.at, len(s)); err != nil {
		return nil, err
	}
	if err := c.scan(n.at, 2*len(s)); err != nil {
		return nil, err
	}
	v, err := decode([]byte(s), &c.bytes)
	if err != nil {
		err.Offset = n.at
		return nil, err
	}
	return v, nil
}

// Encode writes a value as JSON in one form: members in the canonical order of their names, no white space, doubles with a
// fraction or an exponent, timestamps and durations as text. Its errors are [*Error] with [CodeNotSerializable].
func Encode(v any) ([]byte, error) {
	e := encode(v)
	if e.err != nil {
		return nil, e.err
	}
	return e.out, nil
}

// An encoder writes JSON of at most MaxJSON bytes.
type encoder struct {
	out     []byte
	members int // that it has listed, to sort them
	err     *Error
}

func encode(v any) encoder {
	var e encoder
	e.value(v, 0)
	e.bound(0)
	return e
}

func (e *encoder) fail(format string, args ...any) {
	if e.err == nil {
		e.err = &Error{Code: CodeNotSerializable, Message: fmt.Sprintf(format, args...)}
	}
}

// text writes a text. Its bytes are counted before they are written.
func (e *encoder) text(s string) {
	if e.bound(len(s)); e.err != nil {
		return
	}
	e.grow(len(s) + 2)
	e.out = canonical.AppendText(e.out, s)
}

// grow makes room for n bytes, and doubles the room if there is none.
func (e *encoder) grow(n int) {
	if cap(e.out)-len(e.out) < n {
		e.out = slices.Grow(e.out, max(n, cap(e.out), 64))
	}
}

// bound fails if n more bytes are too many.
func (e *encoder) bound(n int) {
	if len(e.out)+n > MaxJSON {
		e.fail("The JSON of the value has more than %d bytes.", MaxJSON)
	}
}

func (e *encoder) value(v any, depth int) {
	e.bound(0)
	if depth == MaxDepth && kindOf(v)&(kindList|kindMap) != 0 {
		e.fail("The value is nested deeper than %d.", MaxDepth)
	}
	if e.err != nil {
		return
	}
	e.grow(32)
	switch v := v.(type) {
	case nil:
		e.out = append(e.out, "null"...)
	case bool:
		e.out = strconv.AppendBool(e.out, v)
	case int64:
		e.out = strconv.AppendInt(e.out, v, 10)
	case float64:
		if v-v != 0 {
			e.fail("JSON has no number for %v.", v)
			return
		}
		e.out = appendDouble(e.out, v)
	case string:
		e.text(v)
	case time.Time:
		e.text(timeText(v))
	case time.Duration:
		e.text(durationText(v))
	case []any:
		e.out = append(e.out, '[')
		for i, element := range v {
			if i > 0 {
				e.out = append(e.out, ',')
			}
			if e.value(element, depth+1); e.err != nil {
				return
			}
		}
		e.out = append(e.out, ']')
	case map[string]any:
		e.object(v, depth)
	case map[any]any:
		e.members += len(v)
		fields := make(map[string]any, len(v))
		for key, value := range v {
			name := fmt.Sprint(key)
			if _, twice := fields[name]; twice {
				e.fail("Two keys of a map have the text %.40q.", name)
				return
			}
			fields[name] = value
		}
		e.object(fields, depth)
	default:
		e.fail("JSON has nothing for %s.", kindOf(v).a())
	}
}

// appendDouble adds a finite double as JSON that is not read as an int: with a fraction or an exponent.
func appendDouble(dst []byte, f float64) []byte {
	if size := math.Abs(f); size != 0 && (size < 1e-6 || size >= 1e21) {
		return strconv.AppendFloat(dst, f, 'e', -1, 64)
	}
	dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
	if f == math.Trunc(f) {
		dst = append(dst, ".0"...)
	}
	return dst
}

func (e *encoder) object(fields map[string]any, depth int) {
	e.members += len(fields)
	e.out = append(e.out, '{')
	for i, name := range slices.SortedFunc(maps.Keys(fields), canonical.Compare) {
		if i > 0 {
			e.out = append(e.out, ',')
		}
		e.text(name)
		e.out = append(e.out, ':')
		if e.value(fields[name], depth+1); e.err != nil {
			return
		}
	}
	e.out = append(e.out, '}')
}

// text is what a template inserts for a value.
func (c *frame) text(at int, v any) (string, *Error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case time.Time:
		return timeText(v), nil
	case time.Duration:
		return durationText(v), nil
	}
	e := encode(v)
	err := c.make(at, len(e.out)) // which counts also where the value has no JSON
	if err == nil {
		err = c.step(at, max(3*len(e.out)>>6, 2*e.members))
	}
	if e.err != nil {
		e.err.Offset, e.err.fatal = at, err != nil
		err = e.err
	}
	if err != nil {
		return "", err
	}
	return string(e.out), nil
}

func toText(c *frame, n *call, a []any) (any, *Error) { return c.text(n.at, a[0]) }
