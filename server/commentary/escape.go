package commentary

import (
	"bytes"
	"encoding/hex"
	"unicode/utf8"
)

// unescape returns the text of the body of a JSON string. The text is for searching only: a character that is written
// as two escapes is two U+FFFD in it. Escapes that JSON does not know stay as they are.
func unescape(body []byte) []byte {
	text := make([]byte, 0, len(body))
	for {
		i := bytes.IndexByte(body, '\\')
		if i < 0 {
			return append(text, body...)
		}
		r, n := escape(body[i:])
		text = utf8.AppendRune(append(text, body[:i]...), r)
		body = body[i+n:]
	}
}

// splice copies the body of a JSON string, but for the matches in its text, which put appends to the copy in its own
// way. They are sorted and do not overlap.
func splice(body []byte, matches []span, put func(out, match []byte) []byte) []byte {
	out := make([]byte, 0, len(body)+len(matches)*(len(opener)+len(closer)))
	raw, text := 0, 0 // the same place in the body and in its text
	to := func(place int) int {
		for text < place {
			n, size := 1, 1
			if body[raw] == '\\' {
				var r rune
				r, n = escape(body[raw:])
				size = utf8.RuneLen(r)
			}
			raw, text = raw+n, text+size
		}
		return raw
	}
	for _, m := range matches {
		from := raw
		start, end := to(m.start), to(m.end)
		out = put(append(out, body[from:start]...), body[start:end])
	}
	return append(out, body[raw:]...)
}

// escape returns the character for which the escape at the beginning of raw stands, and the escape's length.
func escape(raw []byte) (r rune, n int) {
	if len(raw) < 2 {
		return '\\', 1
	}
	switch c := raw[1]; c {
	case '"', '\\', '/':
		return rune(c), 2
	case 'n':
		return '\n', 2
	case 't':
		return '\t', 2
	case 'r':
		return '\r', 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'u':
		var unit [2]byte
		if len(raw) < 6 {
			break
		}
		if _, err := hex.Decode(unit[:], raw[2:6]); err != nil {
			break
		}
		if r = rune(unit[0])<<8 | rune(unit[1]); !utf8.ValidRune(r) {
			r = utf8.RuneError
		}
		return r, 6
	}
	return '\\', 1
}
