package canonical

import "iter"

// Members yields the names and values of an object in canonical form, or another one without white space; of another value, nothing. Values are parts of the
// text, and so nothing is copied but names with escapes.
func Members(object []byte) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		if len(object) == 0 || object[0] != '{' {
			return
		}
		for rest := object[1:]; len(rest) > 1; {
			n := element(rest)
			name := rest[:n]
			rest = rest[min(n+1, len(rest)):] // the colon
			n = element(rest)
			if !yield(Text(name), rest[:n]) {
				return
			}
			rest = rest[min(n+1, len(rest)):]
		}
	}
}

// Elements yields the elements of a list in canonical form; of another value, nothing.
func Elements(list []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		if len(list) == 0 || list[0] != '[' {
			return
		}
		for rest := list[1:]; len(rest) > 1; {
			n := element(rest)
			if !yield(rest[:n]) {
				return
			}
			rest = rest[min(n+1, len(rest)):]
		}
	}
}

// Leaves yields what a list in canonical form holds, and what lists in it hold; any other value, and a list that holds
// nothing, is its own only leaf.
func Leaves(value []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		none := true
		for rest := value; len(rest) > 0; {
			if c := rest[0]; c == '[' || c == ']' || c == ',' {
				rest = rest[1:]
				continue
			}
			n := max(element(rest), 1)
			none = false
			if !yield(rest[:n]) {
				return
			}
			rest = rest[n:]
		}
		if none {
			yield(value)
		}
	}
}

// Text is what a text in canonical form says, and the form itself of any other value.
func Text(value []byte) string {
	if len(value) < 2 || value[0] != '"' {
		return string(value)
	}
	w := writer{in: value}
	return w.unquote()
}

// element is the length of the value, or of the name, at the beginning of canonical text.
func element(text []byte) int {
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth--; depth < 0 {
				return i
			}
		case (c == ',' || c == ':') && depth == 0:
			return i
		}
	}
	return len(text)
}
