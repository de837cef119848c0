package tool

import (
	"context"
	"encoding/json"
	"math/big"
)

// CalculatorName is the name of the tool that [NewCalculator] makes.
const CalculatorName = "calculator"

// NewCalculator makes a tool that computes: {expression} gives {result, exact}. The result is a decimal number as
// text. It is exact as long as only + - * / %, whole powers, abs, min, max, floor, ceil, round and roots of squares
// are used and its digits end; else it is rounded to 15 digits, or to 20 where only its digits do not end. An
// expression has at most 1000 characters, 100 levels, and numbers of at most 4096 bits.
func NewCalculator() Tool {
	return Func(Spec{
		Name: CalculatorName,
		Description: "Computes an arithmetic expression exactly where that is possible. Operators: + - * / % (remainder, with the sign of " +
			"the dividend) ^ (power, right to left) and parentheses. Functions: sqrt abs floor ceil ln log10, round(x) or " +
			"round(x, digits), min and max of any number of values. Constants: pi, e. Write numbers without separators.",
		Input: json.RawMessage(`{"type":"object","properties":{"expression":{"type":"string","minLength":1,"maxLength":1000,` +
			`"description":"for example (19.99 * 3 + 4.50) * 1.19"}},"required":["expression"],"additionalProperties":false}`),
		SideEffect: Pure,
	}, compute)
}

func compute(_ context.Context, call Call) (Result, error) {
	var args struct{ Expression string }
	if err := json.Unmarshal(call.Args, &args); err != nil {
		return Result{}, invalidInput(err.Error(), "")
	}
	v, err := evaluate(args.Expression)
	if err != nil {
		return Result{}, err
	}
	var out struct {
		Result string `json:"result"`
		Exact  bool   `json:"exact"`
	}
	out.Result, out.Exact = v.text()
	return JSON(out)
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
