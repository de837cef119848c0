package expr

import (
	"cmp"
	"iter"
	"math"
	"math/bits"
	"slices"
	"strings"
	"time"
)

// order is how two values compare. With another value, as for NaN and any number, they are in no order.
type order int

const (
	before    order = -1
	equal     order = 0
	after     order = 1
	unordered order = 2
)

func orderOf[T cmp.Ordered](a, b T) order {
	switch {
	case a == b:
		return equal
	case a < b:
		return before
	case a > b:
		return after
	}
	return unordered
}

const two63 = 1 << 63

// compareNumbers compares an int with a double exactly.
func compareNumbers(i int64, f float64) order {
	switch {
	case f >= two63:
		return before
	case f < -two63:
		return after
	case f != f:
		return unordered
	}
	whole := math.Trunc(f)
	if i == int64(whole) {
		return orderOf(whole, f)
	}
	return orderOf(i, int64(whole))
}

// scalars compares two values of types that are in an order; ok is false for others.
func scalars(v, w any) (o order, ok bool) {
	switch a := v.(type) {
	case int64:
		switch b := w.(type) {
		case int64:
			return orderOf(a, b), true
		case float64:
			return compareNumbers(a, b), true
		}
	case float64:
		switch b := w.(type) {
		case float64:
			return orderOf(a, b), true
		case int64:
			return -compareNumbers(b, a), true
		}
	case string:
		if b, ok := w.(string); ok {
			return orderOf(a, b), true
		}
	case bool:
		switch b, ok := w.(bool); {
		case !ok:
		case a == b:
			return equal, true
		case b:
			return before, true
		default:
			return after, true
		}
	case time.Time:
		if b, ok := w.(time.Time); ok {
			return order(a.Compare(b)), true
		}
	case time.Duration:
		if b, ok := w.(time.Duration); ok {
			return orderOf(a, b), true
		}
	}
	return unordered, false
}

// compare is scalars, and counts the operations for reading two texts.
func (c *frame) compare(at int, v, w any) (o order, ok bool, err *Error) {
	if a, isText := v.(string); isText {
		if b, isText := w.(string); isText {
			if err := c.scan(at, min(len(a), len(b))); err != nil {
				return unordered, false, err
			}
		}
	}
	o, ok = scalars(v, w)
	return o, ok, nil
}

// equal compares any two values. Those of different types differ, but for numbers.
func (c *frame) equal(at int, v, w any) (bool, *Error) {
	if o, ok, err := c.compare(at, v, w); ok || err != nil {
		return o == equal, err
	}
	switch a := v.(type) {
	case nil:
		return w == nil, nil
	case Type:
		b, ok := w.(Type)
		return ok && a == b, nil
	case []any:
		b, ok := w.([]any)
		if !ok || len(a) != len(b) {
			return false, nil
		}
		for i := range a {
			if err := c.step(at, 1); err != nil {
				return false, err
			}
			if same, err := c.equal(at, a[i], b[i]); !same || err != nil {
				return false, err
			}
		}
		return true, nil
	}
	if kindOf(v) != kindMap || kindOf(w) != kindMap || length(v) != length(w) {
		return false, nil
	}
	for key, a := range entries(v) {
		if err := c.step(at, 1); err != nil {
			return false, err
		}
		b, ok, err := c.lookUp(at, w, key)
		if !ok || err != nil {
			return false, err
		}
		if same, err := c.equal(at, a, b); !same || err != nil {
			return false, err
		}
	}
	return true, nil
}

// kindKey are the types that keys of maps have.
const kindKey = kindBool | kindInt | kindString

// lookUp returns what a map has under a key, and counts the operations for hashing it. A double is the int that it equals.
func (c *frame) lookUp(at int, m, key any) (v any, ok bool, err *Error) {
	switch k := key.(type) {
	case float64:
		i, whole := exactly(k)
		if !whole {
			return nil, false, nil
		}
		key = i
	case string:
		if err := c.scan(at, len(k)); err != nil {
			return nil, false, err
		}
	}
	switch m := m.(type) {
	case map[string]any:
		if name, isText := key.(string); isText {
			v, ok = m[name]
		}
	case map[any]any:
		if kindOf(key)&kindKey != 0 {
			v, ok = m[key]
		}
	}
	return v, ok, nil
}

// exactly is the int that a double equals.
func exactly(f float64) (i int64, ok bool) {
	i = int64(f)
	return i, f >= -two63 && f < two63 && float64(i) == f
}

// length is the number of elements of a list or a map.
func length(v any) int {
	switch v := v.(type) {
	case []any:
		return len(v)
	case map[string]any:
		return len(v)
	case map[any]any:
		return len(v)
	}
	return 0
}

// entries are the keys and values of a map, in no order.
func entries(m any) iter.Seq2[any, any] {
	return func(yield func(any, any) bool) {
		switch m := m.(type) {
		case map[string]any:
			for key, v := range m {
				if !yield(key, v) {
					return
				}
			}
		case map[any]any:
			for key, v := range m {
				if !yield(key, v) {
					return
				}
			}
		}
	}
}

// keys are the keys of a map in their order: false and true, then numbers, then texts.
func (c *frame) keys(at int, m any) ([]any, *Error) {
	n := length(m)
	if err := c.make(at, 2*sizeElement*n); err != nil {
		return nil, err
	}
	if err := c.step(at, n+n*bits.Len(uint(n))/2); err != nil { // to sort them
		return nil, err
	}
	keys := make([]any, 0, n)
	for key := range entries(m) {
		if s, ok := key.(string); ok {
			if err := c.scan(at, len(s)); err != nil {
				return nil, err
			}
		}
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b any) int {
		if o, ok := scalars(a, b); ok {
			return int(o)
		}
		return cmp.Compare(kindOf(a), kindOf(b))
	})
	return keys, nil
}

// element selects an element of a list or a map.
func (c *frame) element(at int, v, key any) (any, *Error) {
	switch of := v.(type) {
	case []any:
		i, ok := key.(int64)
		if f, isDouble := key.(float64); isDouble {
			i, ok = exactly(f)
		}
		if !ok {
			return nil, c.fail(at, "The index of a list is an int, not %s.", quoted(key))
		}
		if i < 0 || i >= int64(len(of)) {
			err := c.fail(at, "There is no element %d in a list of %d.", i, len(of))
			err.absent = true
			return nil, err
		}
		return of[i], nil
	case map[string]any, map[any]any:
		value, ok, err := c.lookUp(at, of, key)
		if !ok && err == nil {
			err = c.absent(at, key)
		}
		return value, err
	case nil:
		err := c.fail(at, "null has no key %s.", quoted(key))
		err.absent, err.Hint = true, "Write default(..., value), if it may be null."
		return nil, err
	}
	return nil, c.fail(at, "%s has no key %s.", capital(kindOf(v).a()), quoted(key))
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// contains is v in w.
func (c *frame) contains(at int, v, w any) (any, *Error) {
	switch of := w.(type) {
	case []any:
		for _, element := range of {
			if err := c.step(at, 1); err != nil {
				return nil, err
			}
			if same, err := c.equal(at, v, element); same || err != nil {
				return same, err
			}
		}
		return false, nil
	case map[string]any, map[any]any:
		_, ok, err := c.lookUp(at, of, v)
		return ok, err
	}
	return nil, c.fail(at, "There is no in %s.", kindOf(w).a())
}
