package canonical

import "iter"

// Members yields the names and values of an object in valid JSON; of another value, nothing. Values are parts of the
// text.
func Members(object []byte) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		if len(object) == 0 || object[0] != '{' {
			return
		}
		c := Cursor{Source: object}
		for c.More() {
			name := c.Name()
			start := c.At
			if c.Skip(); !yield(name, object[start:c.At]) {
				return
			}
		}
	}
}

// Elements yields the elements of a list in valid JSON; of another value, nothing.
func Elements(list []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		if len(list) == 0 || list[0] != '[' {
			return
		}
		c := Cursor{Source: list}
		for c.More() {
			start := c.At
			if c.Skip(); !yield(list[start:c.At]) {
				return
			}
		}
	}
}

// Leaves yields what a list in canonical form holds, and what lists in it hold; any other value, and a list that holds
// nothing, is its own only leaf.
func Leaves(value []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		none := true
		for c := (Cursor{Source: value}); c.At < len(value); {
			start := c.At
			if b := value[start]; b == '[' || b == ']' || b == ',' {
				c.At++
				continue
			}
			c.Skip()
			if none = false; !yield(value[start:c.At]) {
				return
			}
		}
		if none {
			yield(value)
		}
	}
}

// Text is what a text in JSON says, and the JSON itself of any other value.
func Text(value []byte) string {
	if len(value) == 0 || value[0] != '"' {
		return string(value)
	}
	return (&Cursor{Source: value}).Text()
}
