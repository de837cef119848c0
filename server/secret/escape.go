package secret

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// A span is where something is in a text.
type span struct{ from, to int }

// A view is a text whose escapes may be undone.
type view struct {
	text string
	at   []int // where each byte, and the end, is in the text itself; nil: at the same place
}

// span is where a part of the view is in the text itself.
func (v view) span(from, to int) span {
	if v.at == nil {
		return span{from, to}
	}
	return span{v.at[from], v.at[to]}
}

const (
	maxEscaped = 4  // how many times over escapes are undone: one that was escaped three times may be broken into lines
	maxTorn    = 5  // bytes that are left of an escape where a text was cut off: \u12ab without one
	maxEscape  = 12 // bytes of the longest escape, a pair of surrogates
	maxIndent  = 16 // blanks at the beginning of a line that continues one
)

// views are a text, and what undoing its escapes makes of it, again and again.
func views(text string) []view {
	all := []view{{text: text}}
	for len(all) <= maxEscaped {
		inner, changed := all[len(all)-1].unescaped()
		if !changed {
			break
		}
		all = append(all, inner)
	}
	return all
}

// unescaped undoes every escape of the view once, and joins its lines.
func (v view) unescaped() (inner view, changed bool) {
	if !slices.ContainsFunc([]byte("%\\\r\n"), func(c byte) bool { return strings.IndexByte(v.text, c) >= 0 }) {
		return v, false
	}
	out, at := make([]byte, 0, len(v.text)), make([]int, 0, len(v.text)+1)
	for i := 0; i < len(v.text); {
		text, n := unescape(v.text[i:])
		if changed = changed || n > 0; n == 0 {
			text, n = v.text[i:i+1], 1
		}
		out = append(out, text...)
		for range len(text) {
			at = append(at, v.span(i, i).from)
		}
		i += n
	}
	at = append(at, v.span(len(v.text), len(v.text)).to)
	return view{string(out), at}, changed
}

// unescape decodes the escape or the break of a line that a text begins with, and returns its length; 0: there is none.
func unescape(s string) (string, int) {
	switch s[0] {
	case '%':
		if c, ok := code(s, 1, 2); ok {
			return string([]byte{byte(c)}), 3
		}
	case '\\':
		return backslash(s)
	case '\r':
		return "", 1
	case '\n': // with the blanks at the beginning of the next line; an empty line ends a text
		n := 1
		for n < len(s) && n <= maxIndent && strings.IndexByte(" \t\r", s[n]) >= 0 {
			n++
		}
		if n == len(s) || s[n] != '\n' {
			return "", n
		}
	}
	return "", 0
}

// ends are where the view may end: at its end, and before what may be left there of an escape.
func (v view) ends() []int {
	last := max(0, len(v.text)-maxEscape)
	if torn := strings.IndexAny(v.text[last:], `%\`); torn >= 0 {
		return []int{len(v.text), last + torn}
	}
	return []int{len(v.text)}
}

// starts are where the view may start: at its start, and behind what may be left there of an escape.
func (v view) starts() []int {
	all := []int{0}
	for i := 0; i < min(maxTorn, len(v.text)) && strings.IndexByte(`0123456789abcdefABCDEFunrt"\/`, v.text[i]) >= 0; i++ {
		all = append(all, i+1)
	}
	return all
}

// backslash decodes an escape of JSON, or of a text in Go or C.
func backslash(s string) (string, int) {
	if len(s) < 2 {
		return "", 0
	}
	if i := strings.IndexByte(`"\/'bfnrtav`, s[1]); i >= 0 {
		return "\"\\/'\b\f\n\r\t\a\v"[i : i+1], 2
	}
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[1]]
	if digits == 0 {
		return "", 0
	}
	c, ok := code(s, 2, digits)
	switch {
	case !ok:
		return "", 0
	case digits == 2:
		return string([]byte{byte(c)}), 4
	case utf16.IsSurrogate(rune(c)) && strings.HasPrefix(s[6:], `\u`):
		if low, ok := code(s, 8, 4); ok {
			if r := utf16.DecodeRune(rune(c), rune(low)); r != utf8.RuneError {
				return string(r), 12
			}
		}
	}
	return string(rune(c)), 2 + digits
}

// code is the number that n hexadecimal digits of a text mean.
func code(s string, from, n int) (uint32, bool) {
	if len(s) < from+n {
		return 0, false
	}
	c, err := strconv.ParseUint(s[from:from+n], 16, 32)
	return uint32(c), err == nil
}
