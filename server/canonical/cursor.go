package canonical

import (
	"bytes"
	"encoding/json"
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

// More moves into the object or list at the cursor, or on from the end of a value in it. It reports whether it found a
// member or an item there; otherwise it passes the closing bracket.
func (c *Cursor) More() bool {
	if b := c.Source[c.At]; b == '{' || b == '[' {
		c.At++
	}
	c.Space()
	switch c.Source[c.At] {
	case ',':
		c.At++
		c.Space()
	case '}', ']':
		c.At++
		return false
	}
	return true
}

// Name returns the name of the member at the cursor, and moves to its value.
func (c *Cursor) Name() string { return string(c.NameBytes()) }

// NameBytes is Name without a copy, as Bytes is Text.
func (c *Cursor) NameBytes() []byte {
	name := c.Bytes()
	c.Space()
	c.At++ // the colon
	c.Space()
	return name
}

// Text returns what a text says. What is not Unicode in it becomes U+FFFD.
func (c *Cursor) Text() string { return string(c.Bytes()) }

// Bytes is Text without a copy: where the text has no escapes, the result is a part of the source.
func (c *Cursor) Bytes() []byte {
	start := c.At
	c.At = EndOfText(c.Source, c.At)
	raw := c.Source[start:c.At]
	if inner := raw[1 : len(raw)-1]; bytes.IndexByte(inner, '\\') < 0 && utf8.Valid(inner) {
		return inner
	}
	var s string
	json.Unmarshal(raw, &s) //nolint:errcheck // it is valid
	return []byte(s)
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
