package schema

import (
	"cmp"
	"math/big"
	"strconv"
	"strings"
)

// A decimal is a JSON number, exactly: digits times ten to the power of exp. Digits has neither leading nor trailing
// zeros, so equal numbers are equal structs; zero has no digits. Nothing is ever expanded, so 1e999999999 costs what
// it is written with.
type decimal struct {
	neg    bool
	digits string
	exp    int64
}

// farExponent stands for exponents beyond what fits: all of them are as good as infinite.
const farExponent = int64(1) << 50

// parseDecimal reads a number that the JSON decoder has accepted.
func parseDecimal(s string) decimal {
	var d decimal
	s, d.neg = strings.CutPrefix(s, "-")
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		d.exp = exponent(s[i+1:])
		s = s[:i]
	}
	if whole, fraction, ok := strings.Cut(s, "."); ok {
		d.exp -= int64(len(fraction))
		s = whole + fraction
	}
	s = strings.TrimLeft(s, "0")
	d.digits = strings.TrimRight(s, "0")
	d.exp += int64(len(s) - len(d.digits))
	if d.digits == "" {
		return decimal{}
	}
	return d
}

func exponent(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64) // the nearest that fits
	return min(max(n, -farExponent), farExponent)
}

func (d decimal) integer() bool { return d.exp >= 0 }

// cmp is negative, zero or positive as a is less than, equal to or greater than b.
func (a decimal) cmp(b decimal) int {
	if a.sign() != b.sign() || a == b {
		return cmp.Compare(a.sign(), b.sign())
	}
	magnitude := cmp.Compare(a.exp+int64(len(a.digits)), b.exp+int64(len(b.digits)))
	return a.sign() * cmp.Or(magnitude, strings.Compare(a.digits, b.digits))
}

func (a decimal) sign() int {
	switch {
	case a.digits == "":
		return 0
	case a.neg:
		return -1
	}
	return 1
}

// maxDigits bounds the numbers that multipleOf divides; division is the one operation here that is not linear.
const maxDigits = 4096

// multipleOf reports whether a is a whole number of steps. Both have at most maxDigits digits; step is positive.
func (a decimal) multipleOf(step decimal) bool {
	if a.digits == "" {
		return true
	}
	shift := a.exp - step.exp
	if shift < 0 {
		return false // a has no trailing zero, so it has no factor of ten to give
	}
	n, _ := new(big.Int).SetString(a.digits, 10)
	m, _ := new(big.Int).SetString(step.digits, 10)
	tens := new(big.Int).Exp(big.NewInt(10), big.NewInt(shift), m)
	return n.Mod(n.Mul(n, tens), m).Sign() == 0
}
