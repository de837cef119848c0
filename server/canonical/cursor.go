package canonical

import (
	"bytes"
	"encoding/json"
	"iter"
	"unicode/utf8"
)

// A Cursor walks over valid JSON. Its methods pass the value that it stands at.
type Cursor struct {
	Source []byte
	At     int
}

// Space passes white space.
func (c *Cursor) Space() {
	for c.At < len(c.Source) && (c.Source[c.At] == ' ' || c.Source[c.At] == '\t' || c.Source[c.At] == '\n' || c.Source[c.At] == '\r') {
		c.At++
	}
}

// next ends a member or an item, with the comma after it.
func (c *Cursor) next() {
	if c.Space(); c.Source[c.At] == ',' {
		c.At++
		c.Space()
	}
}

// Members yields where the members of the object begin, and their names. The cursor stands at the value then, which the
// body passes.
func (c *Cursor) Members() iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		c.At++
		for c.Space(); c.Source[c.At] != '}'; c.next() {
			at := c.At
			name := c.Text()
			c.Space()
			c.At++ // the colon
			if c.Space(); !yield(at, name) {
				return
			}
		}
		c.At++
	}
}

// Items yields the indices of the items of the list. The cursor stands at the item then, which the body passes.
func (c *Cursor) Items() iter.Seq[int] {
	return func(yield func(int) bool) {
		c.At++
		c.Space()
		for n := 0; c.Source[c.At] != ']'; n++ {
			if !yield(n) {
				return
			}
			c.next()
		}
		c.At++
	}
}

// Text returns what a text says. What is not Unicode in it becomes U+FFFD.
func (c *Cursor) Text() (s string) {
	start := c.At
	c.At = EndOfText(c.Source, c.At)
	raw := c.Source[start:c.At]
	if inner := raw[1 : len(raw)-1]; bytes.IndexByte(inner, '\\') < 0 && utf8.Valid(inner) {
		return string(inner)
	}
	json.Unmarshal(raw, &s) //nolint:errcheck // it is valid
	return s
}

// Scalar returns a number or a word.
func (c *Cursor) Scalar() []byte {
	start := c.At
	for c.At < len(c.Source) && bytes.IndexByte([]byte(" \t\r\n,]}"), c.Source[c.At]) < 0 {
		c.At++
	}
	return c.Source[start:c.At]
}

// Skip passes any value.
func (c *Cursor) Skip() {
	switch c.Source[c.At] {
	case '"':
		c.At = EndOfText(c.Source, c.At)
	case '{', '[':
		for depth := 0; ; c.At++ {
			switch c.Source[c.At] {
			case '"':
				c.At = EndOfText(c.Source, c.At) - 1
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					c.At++
					return
				}
			}
		}
	default:
		c.Scalar()
	}
}

// EndOfText returns the index after the text that starts at i, or the length of the source where it does not end.
func EndOfText(source []byte, i int) int {
	for i++; i < len(source); i++ {
		switch source[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(source)
}

// Deeper returns where, in valid JSON, arrays and objects begin to nest deeper than max; -1 if they do nowhere.
func Deeper(valid []byte, max int) int {
	depth := 0
	for i := 0; i < len(valid); i++ {
		switch valid[i] {
		case '"':
			i = EndOfText(valid, i) - 1
		case '{', '[':
			if depth++; depth > max {
				return i
			}
		case '}', ']':
			depth--
		}
	}
	return -1
}
