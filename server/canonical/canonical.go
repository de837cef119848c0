// Package canonical writes JSON in its canonical form (RFC 8785), which is the same for each spelling of a value.
package canonical

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
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

// Compare orders Unicode texts by their UTF-16 units. That is the order of their bytes, except among characters from
// U+E000 on, whose first byte is 0xee or more.
func Compare(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	if n < min(len(a), len(b)) && a[n] >= 0xee && b[n] >= 0xee {
		return slices.Compare(utf16.Encode([]rune(a[n:])), utf16.Encode([]rune(b[n:])))
	}
	return strings.Compare(a[n:], b[n:])
}
