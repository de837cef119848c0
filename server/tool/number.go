package tool

import (
	"errors"
	"math"
	"math/big"
	"slices"
)

// maxBits bounds the numerator and the denominator of a number, and so the work of every operation.
const maxBits = 4096

// A number is a rational. One that is not exact holds the value of a float64, and so does what is made of it.
type number struct {
	r     *big.Rat
	exact bool
}

var (
	errTooLarge = errors.New("the number is too large")
	errZero     = errors.New("division by zero")
	errDomain   = errors.New("there is no such real number")
)

func float(f float64) (number, error) {
	switch {
	case math.IsNaN(f):
		return number{}, errDomain
	case math.IsInf(f, 0):
		return number{}, errTooLarge
	}
	return number{new(big.Rat).SetFloat64(f), false}, nil
}

// bounded is v as the result of an operation: rounded if it is not exact, refused if it is too long.
func (v number) bounded() (number, error) {
	if !v.exact {
		return float(v.float())
	}
	if v.r.Num().BitLen() > maxBits || v.r.Denom().BitLen() > maxBits {
		return number{}, errTooLarge
	}
	return v, nil
}

func (v number) float() float64 {
	f, _ := v.r.Float64()
	return f
}

// text is the number in decimal, and whether that is all of it.
func (v number) text() (string, bool) {
	const shownFraction, endless, inexact = 50, 20, 15
	digits := inexact
	if v.exact {
		n, ends := v.r.FloatPrec()
		if ends && n <= shownFraction {
			return v.r.FloatString(n), true
		}
		digits = endless
	} else if v.r.IsInt() && v.r.Num().BitLen() <= 53 {
		return v.r.FloatString(0), false
	}
	return new(big.Float).SetPrec(2*maxBits).SetRat(v.r).Text('g', digits), false
}

func binary(op byte, v, w number) (number, error) {
	if w.r.Sign() == 0 && (op == '/' || op == '%') {
		return number{}, errZero
	}
	r := new(big.Rat)
	switch op {
	case '+':
		r.Add(v.r, w.r)
	case '-':
		r.Sub(v.r, w.r)
	case '*':
		r.Mul(v.r, w.r)
	case '/':
		r.Quo(v.r, w.r)
	case '%':
		times := new(big.Rat).Quo(v.r, w.r)
		whole := new(big.Int).Quo(times.Num(), times.Denom()) // towards zero
		r.Sub(v.r, r.Mul(w.r, times.SetInt(whole)))
	case '^':
		return power(v, w)
	}
	return number{r, v.exact && w.exact}.bounded()
}

// power is exact for whole exponents as long as the result is not too long.
func power(v, w number) (number, error) {
	if v.r.Sign() == 0 && w.r.Sign() < 0 {
		return number{}, errZero
	}
	if v.exact && w.exact && w.r.IsInt() {
		bits, size := max(v.r.Num().BitLen(), v.r.Denom().BitLen()), new(big.Int).Abs(w.r.Num())
		if bits <= 1 && size.BitLen() > 1 { // of 0, 1 and -1 it only matters whether the exponent is odd
			size.SetInt64(2 - int64(size.Bit(0)))
		}
		if size.IsInt64() && size.Int64() <= int64(maxBits/max(1, bits-1)+1) {
			r := new(big.Rat).SetFrac(new(big.Int).Exp(v.r.Num(), size, nil), new(big.Int).Exp(v.r.Denom(), size, nil))
			if w.r.Sign() < 0 {
				r.Inv(r)
			}
			return number{r, true}.bounded()
		}
	}
	return float(math.Pow(v.float(), w.float()))
}

var constants = map[string]float64{"pi": math.Pi, "e": math.E}

var functions = map[string]struct {
	min, max int // of arguments; max 0: any number
	apply    func(args []number) (number, error)
}{
	"sqrt":  {1, 1, sqrt},
	"abs":   {1, 1, func(a []number) (number, error) { return number{new(big.Rat).Abs(a[0].r), a[0].exact}, nil }},
	"floor": {1, 1, func(a []number) (number, error) { return number{floor(a[0].r), a[0].exact}, nil }},
	"ceil":  {1, 1, func(a []number) (number, error) { return number{negative(floor(negative(a[0].r))), a[0].exact}, nil }},
	"round": {1, 2, round},
	"min":   {1, 0, func(a []number) (number, error) { return slices.MinFunc(a, compare), nil }},
	"max":   {1, 0, func(a []number) (number, error) { return slices.MaxFunc(a, compare), nil }},
	"ln":    {1, 1, func(a []number) (number, error) { return logarithm(math.Log, a[0]) }},
	"log10": {1, 1, func(a []number) (number, error) { return logarithm(math.Log10, a[0]) }},
}

func compare(v, w number) int { return v.r.Cmp(w.r) }

func negative(r *big.Rat) *big.Rat { return new(big.Rat).Neg(r) }

func logarithm(log func(float64) float64, v number) (number, error) {
	if v.r.Sign() <= 0 {
		return number{}, errDomain
	}
	return float(log(v.float()))
}

// sqrt is exact for the squares of rationals.
func sqrt(args []number) (number, error) {
	v := args[0]
	if v.r.Sign() < 0 {
		return number{}, errDomain
	}
	if v.exact {
		n, d := new(big.Int).Sqrt(v.r.Num()), new(big.Int).Sqrt(v.r.Denom())
		root := new(big.Rat).SetFrac(n, d)
		if new(big.Rat).Mul(root, root).Cmp(v.r) == 0 {
			return number{root, true}, nil
		}
	}
	return float(math.Sqrt(v.float()))
}

func floor(r *big.Rat) *big.Rat {
	return new(big.Rat).SetInt(new(big.Int).Div(r.Num(), r.Denom())) // the denominator is positive
}

// round rounds half away from zero, to a whole number or to as many decimals as the second argument says.
func round(args []number) (number, error) {
	v, scale := args[0], big.NewRat(1, 1)
	if len(args) == 2 {
		const most = 50
		digits := args[1].r
		if !digits.IsInt() || digits.Sign() < 0 || digits.Cmp(big.NewRat(most, 1)) > 0 {
			return number{}, errors.New("digits is a whole number from 0 to 50")
		}
		scale.SetInt(new(big.Int).Exp(big.NewInt(10), digits.Num(), nil))
	}
	r := new(big.Rat).Mul(new(big.Rat).Abs(v.r), scale)
	r = floor(r.Add(r, big.NewRat(1, 2)))
	r.Quo(r, scale)
	if v.r.Sign() < 0 {
		r.Neg(r)
	}
	return number{r, v.exact}.bounded()
}
