package expr

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// size counts.
func size(_ *frame, _ *call, a []any) (any, *Error) {
	s, ok := a[0].(string)
	if !ok {
		return int64(length(a[0])), nil
	}
	return int64(utf8.RuneCountInString(s)), nil
}

// question is a function that says whether a text has something to do with another.
func question(holds func(s, part string) bool) body {
	return func(_ *frame, _ *call, a []any) (any, *Error) { return holds(a[0].(string), a[1].(string)), nil }
}

// offset is where the character with an index begins in a text. Indices go from 0 to the number of characters.
func (c *frame) offset(n *call, s string, index any) (int, *Error) {
	i := index.(int64)
	if i >= 0 {
		for at := range s {
			if i == 0 {
				return at, nil
			}
			i--
		}
	}
	if i != 0 {
		return 0, c.fail(n.at, "The index %d is not in the text.", index)
	}
	return len(s), nil
}

func charAt(c *frame, n *call, a []any) (any, *Error) {
	s := a[0].(string)
	at, err := c.offset(n, s, a[1])
	if err != nil {
		return nil, err
	}
	_, width := utf8.DecodeRuneInString(s[at:])
	return s[at : at+width], nil
}

func indexOf(c *frame, n *call, a []any) (any, *Error) {
	s, part, from := a[0].(string), a[1].(string), 0
	if len(a) > 2 {
		var err *Error
		if from, err = c.offset(n, s, a[2]); err != nil {
			return nil, err
		}
	}
	i := strings.Index(s[from:], part)
	if i < 0 {
		return int64(-1), nil
	}
	return int64(utf8.RuneCountInString(s[:from+i])), nil
}

func lastIndexOf(c *frame, n *call, a []any) (any, *Error) {
	s, part := a[0].(string), a[1].(string)
	if len(a) > 2 {
		from, err := c.offset(n, s, a[2])
		if err != nil {
			return nil, err
		}
		s = s[:min(len(s), from+len(part))]
	}
	i := strings.LastIndex(s, part)
	if i < 0 {
		return int64(-1), nil
	}
	return int64(utf8.RuneCountInString(s[:i])), nil
}

func join(c *frame, n *call, a []any) (any, *Error) {
	list, separator := a[0].([]any), ""
	if len(a) > 1 {
		separator = a[1].(string)
	}
	parts := make([]string, 0, min(len(list), 1000))
	for i, v := range list {
		s, ok := v.(string)
		if !ok {
			return nil, c.fail(n.at, "join takes a list of texts, and element %d is %s.", i, kindOf(v).a())
		}
		if err := c.make(n.at, sizeElement+len(s)+len(separator)); err != nil {
			return nil, err
		}
		if err := c.step(n.at, 1); err != nil {
			return nil, err
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, separator), nil
}

// limit is the limit that a function may have as its argument; -1 for none.
func limit(a []any, i int) int {
	if len(a) > i {
		return int(max(-1, min(a[i].(int64), MaxBytes)))
	}
	return -1
}

func split(c *frame, n *call, a []any) (any, *Error) {
	s, separator := a[0].(string), a[1].(string)
	count := utf8.RuneCountInString(s) // of its parts
	if separator != "" {
		count = strings.Count(s, separator) + 1
	}
	if most := limit(a, 2); most >= 0 {
		count = min(count, most)
	}
	if err := c.make(n.at, 3*sizeElement*count); err != nil {
		return nil, err
	}
	if err := c.step(n.at, count/2); err != nil {
		return nil, err
	}
	parts := make([]any, 0, count)
	for _, part := range strings.SplitN(s, separator, count) {
		parts = append(parts, part)
	}
	return parts, nil
}

func replace(c *frame, n *call, a []any) (any, *Error) {
	s, old, with, most := a[0].(string), a[1].(string), a[2].(string), limit(a, 3)
	count := strings.Count(s, old)
	if most >= 0 {
		count = min(count, most)
	}
	// The product fits: each factor is at most MaxBytes.
	if err := c.make(n.at, len(s)+count*max(0, len(with)-len(old))); err != nil {
		return nil, err
	}
	if err := c.step(n.at, count/2); err != nil {
		return nil, err
	}
	return strings.Replace(s, old, with, most), nil
}

func substring(c *frame, n *call, a []any) (any, *Error) {
	s := a[0].(string)
	from, err := c.offset(n, s, a[1])
	if err != nil {
		return nil, err
	}
	to := len(s)
	if len(a) > 2 {
		if to, err = c.offset(n, s, a[2]); err != nil {
			return nil, err
		}
	}
	if to < from {
		return nil, c.fail(n.at, "The text from %d to %d ends before it begins.", a[1], a[2])
	}
	return s[from:to], nil
}

// ascii makes small letters of capital ones from first to last, or the other way round.
func ascii(first, last byte) body {
	return func(c *frame, n *call, a []any) (any, *Error) {
		s := a[0].(string)
		if err := c.make(n.at, len(s)); err != nil {
			return nil, err
		}
		b := []byte(s)
		for i, letter := range b {
			if letter >= first && letter <= last {
				b[i] = letter ^ 0x20
			}
		}
		return string(b), nil
	}
}

func trim(_ *frame, _ *call, a []any) (any, *Error) { return strings.TrimSpace(a[0].(string)), nil }

func reverse(c *frame, n *call, a []any) (any, *Error) {
	s := a[0].(string)
	if err := c.make(n.at, 5*len(s)); err != nil {
		return nil, err
	}
	runes := []rune(s)
	slices.Reverse(runes)
	return string(runes), nil
}
