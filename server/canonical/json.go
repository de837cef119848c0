package canonical

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Rules say which texts have a canonical form. It has no white space, members in the order of their names as UTF-16 units,
// and texts and numbers as ECMAScript writes them.
type Rules struct {
	Depth int // how many arrays and objects may lie inside each other
	// Loose gives each JSON text a form: of members with one name the last counts, a number that no double holds is
	// Infinity, and what is not Unicode stays as it is. Otherwise all of these are errors, as in RFC 8785.
	Loose bool
	// Exact refuses numbers that a double would change in more than their last digits: those beyond 2^53 that have no
	// double of their own, and those so small that they would be 0.
	Exact bool
}

// Append adds the canonical form of a JSON text. Time is linear in the text for each level of nesting; the members of an
// object are listed to sort them, for which up to fifty bytes of memory are needed for each byte.
func (r Rules) Append(dst, text []byte) ([]byte, error) {
	if !json.Valid(text) {
		return nil, errors.New("it is not JSON")
	}
	w := writer{Rules: r, in: text, out: dst}
	if err := w.value(0); err != nil {
		return nil, err
	}
	return w.out, nil
}

// writer writes the canonical form of valid JSON.
type writer struct {
	Rules
	in      []byte // what is left
	out     []byte
	scratch []byte
}

func (w *writer) value(depth int) error {
	w.space()
	switch c := w.in[0]; c {
	case '{', '[':
		if depth >= w.Depth {
			return fmt.Errorf("it is nested deeper than %d", w.Depth)
		}
		if c == '[' {
			return w.list(depth)
		}
		return w.object(depth)
	case '"':
		s, err := w.text()
		w.out = AppendText(w.out, s)
		return err
	case 't', 'f', 'n':
		n := len("null")
		if c == 'f' {
			n = len("false")
		}
		w.out = append(w.out, w.in[:n]...)
		w.in = w.in[n:]
		return nil
	}
	return w.number()
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

func (w *writer) list(depth int) error {
	w.in = w.in[1:]
	w.out = append(w.out, '[')
	for first := true; w.more(); first = false {
		if !first {
			w.out = append(w.out, ',')
		}
		if err := w.value(depth + 1); err != nil {
			return err
		}
	}
	w.out = append(w.out, ']')
	return nil
}

// member is where the output has a member, its name included.
type member struct {
	name     string
	from, to int
}

func (w *writer) object(depth int) (err error) {
	w.in = w.in[1:]
	w.out = append(w.out, '{')
	begin := len(w.out)
	var members []member
	sorted := true
	for w.more() {
		w.space()
		m := member{from: len(w.out)}
		if m.name, err = w.text(); err != nil {
			return err
		}
		w.out = append(AppendText(w.out, m.name), ':')
		w.space()
		w.in = w.in[1:] // the colon
		if err := w.value(depth + 1); err != nil {
			return err
		}
		m.to = len(w.out)
		w.out = append(w.out, ',')
		sorted = sorted && (members == nil || compare(members[len(members)-1].name, m.name) < 0)
		members = append(members, m)
	}
	if !sorted {
		err = w.sort(begin, members)
	}
	w.out = append(bytes.TrimSuffix(w.out, []byte(",")), '}')
	return err
}

// sort rewrites the members of an object, which end the output. Of several with one name, the last stays.
func (w *writer) sort(begin int, members []member) error {
	slices.SortStableFunc(members, func(a, b member) int { return compare(a.name, b.name) })
	w.scratch = append(w.scratch[:0], w.out[begin:]...)
	w.out = w.out[:begin]
	for i, m := range members {
		if i+1 == len(members) || members[i+1].name != m.name {
			w.out = append(w.out, w.scratch[m.from-begin:m.to-begin]...)
			w.out = append(w.out, ',')
		} else if !w.Loose {
			return fmt.Errorf("the member %.80q is there twice", m.name)
		}
	}
	return nil
}

func (w *writer) number() error {
	end := 0
	for end < len(w.in) && strings.IndexByte("+-.0123456789eE", w.in[end]) >= 0 {
		end++
	}
	text := string(w.in[:end])
	f, _ := strconv.ParseFloat(text, 64) // one that is too large is infinite
	w.in = w.in[end:]
	begin := len(w.out)
	switch infinite := math.IsInf(f, 0); {
	case infinite && !w.Loose:
		return fmt.Errorf("no double holds the number %.40s", text)
	case infinite && f > 0:
		w.out = append(w.out, "Infinity"...)
	case infinite:
		w.out = append(w.out, "-Infinity"...)
	default:
		w.out = appendNumber(w.out, f)
	}
	if w.Exact && (f == 0 || math.Abs(f) >= maxExact) && !sameDecimal(text, string(w.out[begin:])) {
		return fmt.Errorf("the number %.40s has more digits than a double holds", text)
	}
	return nil
}

// maxExact is the integer up to which doubles have all.
const maxExact = 1 << 53

// sameDecimal reports whether two numbers of the same sign are the same.
func sameDecimal(a, b string) bool {
	digitsA, expA := decimal(a)
	digitsB, expB := decimal(b)
	return digitsA == digitsB && (expA == expB || digitsA == "")
}

// decimal is a number's digits without zeros at either end, and the exponent of the last one.
func decimal(s string) (digits string, exp int) {
	mantissa := strings.TrimPrefix(s, "-")
	if i := strings.IndexAny(mantissa, "eE"); i >= 0 {
		exp, _ = strconv.Atoi(mantissa[i+1:]) // where it does not fit, the number is 0 or infinite
		mantissa = mantissa[:i]
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits = strings.TrimLeft(whole+fraction, "0")
	exp -= len(fraction)
	short := strings.TrimRight(digits, "0")
	return short, exp + len(digits) - len(short)
}

// text reads a text. Halves of a surrogate pair that stand alone become the three bytes that UTF-8 does not allow for
// them.
func (w *writer) text() (string, error) {
	s := w.unquote()
	if !w.Loose && !utf8.ValidString(s) {
		return "", fmt.Errorf("the text %.80q is not Unicode", s)
	}
	return s, nil
}

func (w *writer) unquote() string {
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

// AppendText adds a text as ECMAScript quotes it (ECMA-262, QuoteJSONString). Bytes that are not UTF-8 stay as they are,
// but for half a surrogate pair, which is escaped.
func AppendText(dst []byte, s string) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
	done := 0 // what comes before is written
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && c != 0xed {
			continue
		}
		half, isHalf := surrogate(s[i:])
		if c == 0xed && !isHalf {
			continue
		}
		dst = append(dst, s[done:i]...)
		switch short := strings.IndexByte("\b\f\n\r\t\"\\", c); {
		case short >= 0:
			dst = append(dst, '\\', "bfnrt\"\\"[short])
		case isHalf:
			dst = append(dst, '\\', 'u', 'd', digits[half>>8&0xf], digits[half>>4&0xf], digits[half&0xf])
			i += 2
		default:
			dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&0xf])
		}
		done = i + 1
	}
	dst = append(dst, s[done:]...)
	return append(dst, '"')
}
