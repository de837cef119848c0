package shape

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"

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
			end = canonical.EndOfText(out, i)
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
		if !bytes.ContainsRune([]byte(" \t\r\n"), rune(out[i])) {
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
			i = canonical.EndOfText(data, i) - 1
		case '{':
			n++
		}
	}
	return n
}

// A cursor walks over JSON that is sound, and knows the path of the value that it stands at.
type cursor struct {
	canonical.Cursor
	path []any
}

func cursorAt(source []byte, i int, path []any) cursor {
	return cursor{canonical.Cursor{Source: source, At: i}, path}
}

// members yields where the members of the object at the cursor begin, and their names. The cursor stands at the value then,
// which the body passes.
func (c *cursor) members() iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		for c.More() {
			at := c.At
			name := c.Name()
			c.path = append(c.path, name)
			more := yield(at, name)
			if c.path = c.path[:len(c.path)-1]; !more {
				return
			}
		}
	}
}

// items yields the indices of the items of the list at the cursor, which stands at the item then. The body passes it.
func (c *cursor) items() iter.Seq[int] {
	return func(yield func(int) bool) {
		for n := 0; c.More(); n++ {
			c.path = append(c.path, n)
			more := yield(n)
			if c.path = c.path[:len(c.path)-1]; !more {
				return
			}
		}
	}
}

// find is where the value of a member of the object at the cursor is; -1 where it is not there.
func (c cursor) find(name string) int {
	if c.Source[c.At] == '{' {
		for c.More() {
			if c.Name() == name {
				return c.At
			}
			c.Skip()
		}
	}
	return -1
}

// find is where the path, or the nearest part of it that is there, stands in sound JSON.
func find(data []byte, path []any) int {
	c := cursorAt(data, 0, nil)
	for c.Space(); len(path) > 0; path = path[1:] {
		at := -1
		switch part := path[0].(type) {
		case string:
			at = c.find(part)
		case int:
			if ahead := c; c.Source[c.At] == '[' {
				for n := 0; ahead.More(); n++ {
					if n == part {
						at = ahead.At
						break
					}
					ahead.Skip()
				}
			}
		}
		if at < 0 {
			break
		}
		c.At = at
	}
	return c.At
}

// within is the index after the part of the JSON text at an index that says the first n bytes. It is the index itself where n
// is negative or no text stands there.
func within(data []byte, at, n int) int {
	if n < 0 || data[at] != '"' {
		return at
	}
	end := canonical.EndOfText(data, at) - 1
	for at++; n > 0 && at < end; {
		if data[at] != '\\' {
			n, at = n-1, at+1
			continue
		}
		next := at + 2
		if data[at+1] == 'u' {
			next = at + 6
			if bytes.HasPrefix(data[next:end], []byte(`\u`)) { // the other half of a pair, or a character of its own
				next += 6
			}
		}
		one := canonical.Cursor{Source: slices.Concat([]byte{'"'}, data[at:next], []byte{'"'})}
		n, at = n-len(one.Bytes()), next
	}
	return at
}
