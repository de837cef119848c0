package shape

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"agentd/server/canonical"
)

// blank returns JSON of JSON with // and /* */ comments and trailing commas: those are spaces there, so that everything
// stands where it stood.
func blank(data []byte) []byte {
	out := bytes.Clone(data)
	comma, before := -1, byte(0) // the comma that nothing has followed yet, and what stands before it
	last := byte(0)              // the last byte that is no space
	for i := 0; i < len(out); {
		end := i + 1
		switch c := out[i]; {
		case c == '"':
			end = endOfText(out, i)
		case bytes.HasPrefix(out[i:], []byte("//")):
			end = whiten(out, i, "\n")
		case bytes.HasPrefix(out[i:], []byte("/*")):
			if !bytes.Contains(out[i+2:], []byte("*/")) {
				return out // a slash is no JSON
			}
			end = whiten(out, i, "*/")
		case c == ',':
			comma, before = i, last
		case (c == '}' || c == ']') && comma >= 0 && bytes.IndexByte([]byte("[{,:"), before) < 0:
			out[comma] = ' '
		}
		if !space(out[i]) {
			if last = out[i]; last != ',' {
				comma = -1
			}
		}
		i = end
	}
	return out
}

// whiten puts spaces in the place of a comment and its end mark, but for line breaks, and returns the index after it.
func whiten(b []byte, i int, mark string) int {
	end := len(b)
	if n := bytes.Index(b[i+2:], []byte(mark)); n >= 0 {
		end = i + 2 + n + len(mark)
	}
	for ; i < end; i++ {
		if b[i] != '\n' {
			b[i] = ' '
		}
	}
	return end
}

func space(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

// endOfText is the index after the text that starts at i, or the length of b where that does not end.
func endOfText(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(b)
}

// sound reports what keeps data from being one JSON value within the limits, and where that is.
func (r *Reader) sound(data []byte) (at int, message string) {
	if !json.Valid(data) {
		var whole json.RawMessage
		err := json.Unmarshal(data, &whole)
		if at = len(data); err == nil {
			return at, ""
		}
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok && err.Error() != "unexpected end of JSON input" {
			at = max(int(syntax.Offset)-1, 0)
		}
		place := ""
		if r.Name == "" {
			place = fmt.Sprintf(" at byte %d", min(at+1, len(data)))
		}
		return at, fmt.Sprintf("is not valid JSON%s: %v", place, err)
	}
	if at = canonical.Deeper(data, r.MaxDepth); at >= 0 {
		return at, fmt.Sprintf("is nested deeper than %d", r.MaxDepth)
	}
	return 0, ""
}

// Objects is how many objects there are in sound JSON, or in lines of it, at all depths.
func Objects(data []byte) (n int) {
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			i = endOfText(data, i) - 1
		case '{':
			n++
		}
	}
	return n
}

// A cursor walks over JSON that is sound.
type cursor struct {
	b    []byte
	i    int
	path []any // of the value at i
}

func (c *cursor) space() {
	for c.i < len(c.b) && space(c.b[c.i]) {
		c.i++
	}
}

// next ends a member or an item, with the comma after it.
func (c *cursor) next() {
	if c.space(); c.b[c.i] == ',' {
		c.i++
		c.space()
	}
}

// members calls each for the members of the object at i, with i at the value, which each passes. at is where the key is.
func (c *cursor) members(each func(key string, at int)) {
	c.i++
	for c.space(); c.b[c.i] != '}'; c.next() {
		at := c.i
		key := c.text()
		c.space()
		c.i++ // the colon
		c.space()
		c.path = append(c.path, key)
		each(key, at)
		c.path = c.path[:len(c.path)-1]
	}
	c.i++
}

// items calls each for the items of the list at i, with i at the item, which each passes.
func (c *cursor) items(each func(n int)) {
	c.i++
	c.space()
	for n := 0; c.b[c.i] != ']'; n++ {
		c.path = append(c.path, n)
		each(n)
		c.path = c.path[:len(c.path)-1]
		c.next()
	}
	c.i++
}

// text passes the text at i.
func (c *cursor) text() (s string) {
	start := c.i
	c.i = endOfText(c.b, c.i)
	raw := c.b[start:c.i]
	if inner := raw[1 : len(raw)-1]; bytes.IndexByte(inner, '\\') < 0 && utf8.Valid(inner) {
		return string(inner)
	}
	json.Unmarshal(raw, &s) //nolint:errcheck // it is valid
	return s
}

// scalar passes the number or word at i.
func (c *cursor) scalar() string {
	start := c.i
	for c.i < len(c.b) && bytes.IndexByte([]byte(" \t\r\n,]}"), c.b[c.i]) < 0 {
		c.i++
	}
	return string(c.b[start:c.i])
}

// skip passes the value at i.
func (c *cursor) skip() {
	switch c.b[c.i] {
	case '"':
		c.i = endOfText(c.b, c.i)
	case '{', '[':
		for depth := 0; ; c.i++ {
			switch c.b[c.i] {
			case '"':
				c.i = endOfText(c.b, c.i) - 1
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					c.i++
					return
				}
			}
		}
	default:
		c.scalar()
	}
}

// find is where the value of a member of the object at i is; -1 where it is not there.
func (c cursor) find(name string) int {
	at := -1
	if c.b[c.i] == '{' {
		c.members(func(key string, _ int) {
			if key == name && at < 0 {
				at = c.i
			}
			c.skip()
		})
	}
	return at
}

// find is where the path, or the nearest part of it that is there, stands in sound JSON.
func find(data []byte, path []any) int {
	c := cursor{b: data}
	for c.space(); len(path) > 0; path = path[1:] {
		at := -1
		switch part := path[0].(type) {
		case string:
			at = c.find(part)
		case int:
			if ahead := c; c.b[c.i] == '[' {
				ahead.items(func(n int) {
					if n == part {
						at = ahead.i
					}
					ahead.skip()
				})
			}
		}
		if at < 0 {
			break
		}
		c.i = at
	}
	return c.i
}
