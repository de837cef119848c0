package canonical

import (
	"cmp"
	"strconv"
	"strings"
)

// A Decimal is a JSON number, exactly: Digits times ten to the power of Exp. Digits has neither leading nor trailing
// zeros, so equal numbers are equal structs; zero has no digits. Nothing is ever expanded, so 1e999999999 costs what
// it is written with.
type Decimal struct {
	Negative bool
	Digits   string
	Exp      int64
}

// farExponent stands for exponents beyond what fits: all of them are as good as infinite.
const farExponent = int64(1) << 50

// ParseDecimal reads a number that the JSON decoder has accepted.
func ParseDecimal(s string) Decimal {
	var d Decimal
	s, d.Negative = strings.CutPrefix(s, "-")
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		d.Exp = exponent(s[i+1:])
		s = s[:i]
	}
	if whole, fraction, ok := strings.Cut(s, "."); ok {
		d.Exp -= int64(len(fraction))
		s = whole + fraction
	}
	s = strings.TrimLeft(s, "0")
	d.Digits = strings.TrimRight(s, "0")
	d.Exp += int64(len(s) - len(d.Digits))
	if d.Digits == "" {
		return Decimal{}
	}
	return d
}

func exponent(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64) // the nearest that fits
	return min(max(n, -farExponent), farExponent)
}

// Integer reports whether it is a whole number.
func (d Decimal) Integer() bool { return d.Exp >= 0 }

// Cmp is negative, zero or positive as a is less than, equal to or greater than b.
func (a Decimal) Cmp(b Decimal) int {
	if a.Sign() != b.Sign() || a == b {
		return cmp.Compare(a.Sign(), b.Sign())
	}
	magnitude := cmp.Compare(a.Exp+int64(len(a.Digits)), b.Exp+int64(len(b.Digits)))
	return a.Sign() * cmp.Or(magnitude, strings.Compare(a.Digits, b.Digits))
}

// Sign is -1, 0 or 1.
func (a Decimal) Sign() int {
	switch {
	case a.Digits == "":
		return 0
	case a.Negative:
		return -1
	}
	return 1
}
