// Package canonical writes JSON in its canonical form (RFC 8785), which is the same for each spelling of a value.
package canonical

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// appendNumber adds a finite number as ECMAScript prints it (ECMA-262, Number::toString): the shortest digits that give
// the same double, with an exponent from 1e21 on and below 1e-6.
func appendNumber(dst []byte, f float64) []byte {
	size := math.Abs(f)
	switch {
	case f == 0:
		return append(dst, '0') // also for -0
	case size >= 1e-6 && size < 1e21:
		return strconv.AppendFloat(dst, f, 'f', -1, 64)
	}
	dst = strconv.AppendFloat(dst, f, 'e', -1, 64)
	if n := len(dst); dst[n-2] == '0' && (dst[n-3] == '-' || dst[n-3] == '+') { // e-07 is e-7
		dst[n-2] = dst[n-1]
		dst = dst[:n-1]
	}
	return dst
}

// compare orders texts by their UTF-16 units. That is the order of their bytes, except among characters from U+D000
// on, whose first byte is 0xed or more.
func compare(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	if n < min(len(a), len(b)) && a[n] >= 0xed && b[n] >= 0xed {
		return cmp.Or(slices.Compare(units(a[n:]), units(b[n:])), strings.Compare(a, b))
	}
	return strings.Compare(a[n:], b[n:])
}

func units(s string) []uint16 {
	var out []uint16
	for len(s) > 0 {
		if half, ok := surrogate(s); ok {
			out, s = append(out, half), s[3:]
			continue
		}
		r, n := utf8.DecodeRuneInString(s)
		out, s = utf16.AppendRune(out, r), s[n:]
	}
	return out
}

// surrogate reads half of a surrogate pair that stands alone at the beginning of a text, in the three bytes that UTF-8
// does not allow for it.
func surrogate(s string) (half uint16, ok bool) {
	if len(s) < 3 || s[0] != 0xed || s[1]&0xe0 != 0xa0 || s[2]&0xc0 != 0x80 {
		return 0, false
	}
	return 0xd000 | uint16(s[1]&0x3f)<<6 | uint16(s[2]&0x3f), true
}
