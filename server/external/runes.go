package external

import "unicode/utf8"

// runes cuts a stream of bytes at the boundaries of UTF-8 characters. Each invalid byte becomes U+FFFD. However the
// stream is cut into pushes, the texts together are the same.
type runes struct {
	held []byte // the beginning of a character, at most 3 bytes
}

// push returns all complete characters so far.
func (r *runes) push(p []byte) string {
	b := append(r.held, p...)
	cut := len(b)
	for i := len(b) - 1; i >= 0 && i >= len(b)-utf8.UTFMax+1; i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				cut = i
			}
			break
		}
	}
	text := valid(b[:cut])
	r.held = append([]byte(nil), b[cut:]...)
	return text
}

// rest returns what was held back for a character that never came whole.
func (r *runes) rest() string {
	text := valid(r.held)
	r.held = nil
	return text
}

func valid(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	return string([]rune(string(b))) // the conversion makes U+FFFD of each invalid byte
}
