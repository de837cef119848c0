package secret

import (
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// A span is where something is in a text.
type span struct{ from, to int }

// A view is a text as one sees it who undoes escapes.
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
	maxEscaped = 3  // how many times over a text may be escaped
	maxTorn    = 5  // bytes that are left of an escape where a text was cut off: \u12ab without one
	maxEscape  = 12 // bytes of the longest escape, a pair of surrogates
	maxIndent  = 16 // blanks at the beginning of a line that continues one
)

// escapes are the ways of escaping, by the byte that each escape begins with. decode returns the first escape of a text
// decoded and its length, which is 0 when there is none.
var escapes = []struct {
	mark   byte
	decode func(string) (string, int)
}{{'%', percent}, {'\\', backslash}}

// each calls fn for the view and for those that undo up to levels ways of escaping in it, each also with its lines joined.
func (v view) each(levels int, fn func(view)) {
	fn(v)
	lines, carriages := v.without('\r', func(string) (string, int) { return "", 1 })
	if joined, wrapped := lines.without('\n', wrap); carriages || wrapped {
		fn(joined)
	}
	if levels == 0 {
		return
	}
	for _, e := range escapes {
		if inner, changed := v.without(e.mark, e.decode); changed {
			inner.each(levels-1, fn)
		}
	}
}

// without undoes one way of escaping, and reports whether there was something to undo.
func (v view) without(mark byte, decode func(string) (string, int)) (inner view, changed bool) {
	if strings.IndexByte(v.text, mark) < 0 {
		return v, false
	}
	out, at := make([]byte, 0, len(v.text)), make([]int, 0, len(v.text)+1)
	for i := 0; i < len(v.text); {
		text, n := "", 0
		if v.text[i] == mark {
			text, n = decode(v.text[i:])
		}
		if n == 0 {
			text, n = v.text[i:i+1], 1
		} else {
			changed = true
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

// wrap decodes the end of a line, with the blanks at the beginning of the next, to nothing. An empty line ends a text.
func wrap(s string) (string, int) {
	n := 1
	for n < len(s) && n <= maxIndent && (s[n] == ' ' || s[n] == '\t') {
		n++
	}
	if n < len(s) && s[n] == '\n' {
		return "", 0
	}
	return "", n
}

// percent decodes %41.
func percent(s string) (string, int) {
	if c, ok := code(s, 1, 2); ok {
		return string([]byte{byte(c)}), 3
	}
	return "", 0
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
