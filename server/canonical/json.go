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
// and texts and numbers as ECMAScript writes them. JSON with a repeated name, a number that no double holds or a text that
// is not Unicode has no canonical form.
type Rules struct {
	Depth int // how many arrays and objects may lie inside each other
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
	w := writer{Rules: r, Cursor: Cursor{Source: text}, out: dst}
	w.Space()
	if err := w.value(0); err != nil {
		return nil, err
	}
	return w.out, nil
}

// writer writes the canonical form of valid JSON.
type writer struct {
	Rules
	Cursor
	out     []byte
	scratch []byte
}

// value writes the value at the cursor.
func (w *writer) value(depth int) error {
	at := w.At
	switch c := w.Source[at]; c {
	case '{', '[':
		if depth >= w.Depth {
			return fmt.Errorf("it is nested deeper than %d", w.Depth)
		}
		if c == '{' {
			return w.object(depth)
		}
		w.out = append(w.out, '[')
		for w.More() {
			if err := w.value(depth + 1); err != nil {
				return err
			}
			w.out = append(w.out, ',')
		}
		w.out = append(bytes.TrimSuffix(w.out, []byte(",")), ']')
		return nil
	case '"':
		return w.text(at, w.Text())
	case 't', 'f', 'n':
		w.out = append(w.out, w.Scalar()...)
		return nil
	}
	return w.number(w.Scalar())
}

// text writes the text that stands at an index.
func (w *writer) text(at int, s string) error {
	if strings.ContainsRune(s, utf8.RuneError) && !isUnicode(w.Source[at:EndOfText(w.Source, at)]) {
		return fmt.Errorf("the text %.80q is not Unicode", s)
	}
	w.out = AppendText(w.out, s)
	return nil
}

// isUnicode reports whether a text in JSON is UTF-8 and has no escape of half a surrogate pair alone.
func isUnicode(quoted []byte) bool {
	escape := func(b []byte) rune { // one of UTF-16; -1 where there is none
		if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
			return -1
		}
		n, _ := strconv.ParseUint(string(b[2:6]), 16, 16)
		return rune(n)
	}
	for i := 0; i < len(quoted); {
		switch half := escape(quoted[i:]); {
		case utf16.IsSurrogate(half):
			if utf16.DecodeRune(half, escape(quoted[i+6:])) == utf8.RuneError {
				return false
			}
			i += 12
		case quoted[i] == '\\':
			i += 2
		default:
			i++
		}
	}
	return utf8.Valid(quoted)
}

// member is where the output has a member, its name included.
type member struct {
	name     string
	from, to int
}

func (w *writer) object(depth int) error {
	w.out = append(w.out, '{')
	begin := len(w.out)
	var members []member
	sorted := true
	for w.More() {
		at := w.At
		name := w.Name()
		m := member{name: name, from: len(w.out)}
		if err := w.text(at, name); err != nil {
			return err
		}
		w.out = append(w.out, ':')
		if err := w.value(depth + 1); err != nil {
			return err
		}
		m.to = len(w.out)
		w.out = append(w.out, ',')
		sorted = sorted && (members == nil || Compare(members[len(members)-1].name, name) < 0)
		members = append(members, m)
	}
	if !sorted {
		if err := w.sort(begin, members); err != nil {
			return err
		}
	}
	w.out = append(bytes.TrimSuffix(w.out, []byte(",")), '}')
	return nil
}

// sort rewrites the members of an object, which end the output.
func (w *writer) sort(begin int, members []member) error {
	slices.SortFunc(members, func(a, b member) int { return Compare(a.name, b.name) })
	w.scratch = append(w.scratch[:0], w.out[begin:]...)
	w.out = w.out[:begin]
	for i, m := range members {
		if i > 0 && members[i-1].name == m.name {
			return fmt.Errorf("the member %.80q is there twice", m.name)
		}
		w.out = append(append(w.out, w.scratch[m.from-begin:m.to-begin]...), ',')
	}
	return nil
}

func (w *writer) number(text []byte) error {
	f, _ := strconv.ParseFloat(string(text), 64) // one that is too large is infinite
	if math.IsInf(f, 0) {
		return fmt.Errorf("no double holds the number %.40s", text)
	}
	begin := len(w.out)
	w.out = appendNumber(w.out, f)
	if w.Exact && (f == 0 || math.Abs(f) >= maxExact) && ParseDecimal(string(text)) != ParseDecimal(string(w.out[begin:])) {
		return fmt.Errorf("the number %.40s has more digits than a double holds", text)
	}
	return nil
}

// maxExact is the integer up to which doubles have all.
const maxExact = 1 << 53

// AppendText adds a text as ECMAScript quotes it (ECMA-262, QuoteJSONString). Bytes that are not UTF-8 stay as they are.
func AppendText(dst []byte, s string) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
	done := 0 // what comes before is written
	for i := range len(s) {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[done:i]...)
		if short := strings.IndexByte("\b\f\n\r\t\"\\", c); short >= 0 {
			dst = append(dst, '\\', "bfnrt\"\\"[short])
		} else {
			dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&0xf])
		}
		done = i + 1
	}
	dst = append(dst, s[done:]...)
	return append(dst, '"')
}
