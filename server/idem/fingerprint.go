package idem

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"agentd/server/canon"
)

// maxDepth is how deep a body may nest for its form to be looked through. What is deeper is taken as text.
const maxDepth = 64

// Fingerprint is the SHA-256 of a request: method, a space, its target, a line feed and the canonical form of its body.
// The target is the path with the query, if there is one.
//
// The canonical form of JSON has no white space, members sorted by the UTF-16 units of their keys, and texts and numbers
// as JavaScript prints them, so that it does not tell which program wrote the body. Anything else counts as one JSON
// text; so does no body at all, as the empty one. The members of an object are listed to sort them, for which up to
// fifty bytes of memory are needed for each byte.
func Fingerprint(method, target string, body []byte) [sha256.Size]byte {
	b := make([]byte, 0, len(method)+len(target)+len(body)+4)
	b = append(b, method...)
	b = append(b, ' ')
	b = append(b, target...)
	b = append(b, '\n')
	return sha256.Sum256(appendCanonical(b, body))
}

// appendCanonical appends the canonical form of a body.
func appendCanonical(to, body []byte) []byte {
	if body = bytes.TrimSpace(body); len(body) == 0 {
		return append(to, `""`...)
	}
	if json.Valid(body) {
		w := writer{in: body, out: to}
		if w.value(0) {
			return w.out
		}
	}
	return appendText(to, string(body))
}

// writer writes the canonical form of valid JSON.
type writer struct {
	in      []byte // what is left
	out     []byte
	scratch []byte
}

// value writes one value. It reports false when the value is nested too deep; then out is of no use.
func (w *writer) value(depth int) bool {
	w.space()
	switch w.in[0] {
	case '{':
		return depth < maxDepth && w.object(depth)
	case '[':
		return depth < maxDepth && w.list(depth)
	case '"':
		w.out = appendText(w.out, w.text())
	case 't', 'f', 'n':
		n := len("null")
		if w.in[0] == 'f' {
			n = len("false")
		}
		w.out = append(w.out, w.in[:n]...)
		w.in = w.in[n:]
	default:
		w.number()
	}
	return true
}

func (w *writer) space() {
	if w.in[0] <= ' ' {
		w.in = bytes.TrimLeft(w.in, " \t\r\n")
	}
}

// more skips a comma and reports whether another element comes; else it skips what closes the list or object.
func (w *writer) more() bool {
	w.space()
	c := w.in[0]
	if c == ',' || c == '}' || c == ']' {
		w.in = w.in[1:]
	}
	return c != '}' && c != ']'
}

func (w *writer) list(depth int) bool {
	w.in = w.in[1:]
	w.out = append(w.out, '[')
	for first := true; w.more(); first = false {
		if !first {
			w.out = append(w.out, ',')
		}
		if !w.value(depth + 1) {
			return false
		}
	}
	w.out = append(w.out, ']')
	return true
}

// member is where the output has a member, its key included.
type member struct {
	key      string
	from, to int
}

func (w *writer) object(depth int) bool {
	w.in = w.in[1:]
	w.out = append(w.out, '{')
	begin := len(w.out)
	var members []member
	sorted := true
	for w.more() {
		w.space()
		m := member{key: w.text(), from: len(w.out)}
		w.out = append(appendText(w.out, m.key), ':')
		w.space()
		w.in = w.in[1:] // the colon
		if !w.value(depth + 1) {
			return false
		}
		m.to = len(w.out)
		w.out = append(w.out, ',')
		sorted = sorted && (members == nil || canon.Compare(members[len(members)-1].key, m.key) < 0)
		members = append(members, m)
	}
	if !sorted {
		w.sort(begin, members)
	}
	w.out = append(bytes.TrimSuffix(w.out, []byte(",")), '}')
	return true
}

// sort rewrites the members of an object, which end the output. Of several with one key, the last counts.
func (w *writer) sort(begin int, members []member) {
	slices.SortStableFunc(members, func(a, b member) int { return canon.Compare(a.key, b.key) })
	w.scratch = append(w.scratch[:0], w.out[begin:]...)
	w.out = w.out[:begin]
	for i, m := range members {
		if i+1 == len(members) || members[i+1].key != m.key {
			w.out = append(w.out, w.scratch[m.from-begin:m.to-begin]...)
			w.out = append(w.out, ',')
		}
	}
}

// number writes a number as JavaScript prints it.
func (w *writer) number() {
	end := 0
	for end < len(w.in) && strings.IndexByte("+-.0123456789eE", w.in[end]) >= 0 {
		end++
	}
	f, _ := strconv.ParseFloat(string(w.in[:end]), 64) // too large is infinite
	w.in = w.in[end:]
	switch {
	case math.IsInf(f, 1):
		w.out = append(w.out, "Infinity"...)
	case math.IsInf(f, -1):
		w.out = append(w.out, "-Infinity"...)
	default:
		w.out = canon.AppendNumber(w.out, f)
	}
}

// text reads a text. Halves of a surrogate pair that stand alone are kept, in the three bytes that UTF-8 does not allow
// for them.
func (w *writer) text() string {
	rest := w.in[1:]
	end := bytes.IndexAny(rest, `"\`)
	if rest[end] == '"' {
		w.in = rest[end+1:]
		return string(rest[:end])
	}
	var b []byte
	for {
		b = append(b, rest[:end]...)
		if rest = rest[end:]; rest[0] == '"' {
			w.in = rest[1:]
			return string(b)
		}
		if c := rest[1]; c != 'u' {
			b = append(b, unescape(c))
			rest = rest[2:]
		} else {
			r := hex(rest[2:6])
			rest = rest[6:]
			if utf16.IsSurrogate(r) && len(rest) >= 6 && rest[0] == '\\' && rest[1] == 'u' {
				if pair := utf16.DecodeRune(r, hex(rest[2:6])); pair != utf8.RuneError {
					r, rest = pair, rest[6:]
				}
			}
			if utf16.IsSurrogate(r) {
				b = append(b, byte(0xe0|r>>12), byte(0x80|r>>6&0x3f), byte(0x80|r&0x3f))
			} else {
				b = utf8.AppendRune(b, r)
			}
		}
		end = bytes.IndexAny(rest, `"\`)
	}
}

func unescape(c byte) byte {
	if i := strings.IndexByte("bfnrt", c); i >= 0 {
		return "\b\f\n\r\t"[i]
	}
	return c // a quote or a slash of either kind
}

func hex(digits []byte) rune {
	n, _ := strconv.ParseUint(string(digits), 16, 16) // the whole is known to be valid
	return rune(n)
}

// appendText writes a text as JavaScript does (ECMA-262, QuoteJSONString). Bytes that are not UTF-8 stay as they are.
func appendText(to []byte, s string) []byte {
	const digits = "0123456789abcdef"
	to = append(to, '"')
	done := 0 // what comes before is written
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && c != 0xed {
			continue
		}
		half, isHalf := canon.Surrogate(s[i:])
		if c == 0xed && !isHalf {
			continue
		}
		to = append(to, s[done:i]...)
		switch short := strings.IndexByte("\b\f\n\r\t\"\\", c); {
		case short >= 0:
			to = append(to, '\\', "bfnrt\"\\"[short])
		case isHalf:
			to = append(to, '\\', 'u', 'd', digits[half>>8&0xf], digits[half>>4&0xf], digits[half&0xf])
			i += 2
		default:
			to = append(to, '\\', 'u', '0', '0', digits[c>>4], digits[c&0xf])
		}
		done = i + 1
	}
	to = append(to, s[done:]...)
	return append(to, '"')
}
