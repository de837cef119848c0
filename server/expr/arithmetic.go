package expr

import (
	"math"
	"math/bits"
	"slices"
	"time"
)

// negation is -x, for any number of signs.
type negation struct {
	at    int
	value node
	odd   bool
}

func (n *negation) eval(c *frame) (any, *Error) {
	v, err := n.value.eval(c)
	if err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case int64:
		if v == math.MinInt64 {
			return nil, c.overflow(n.at)
		}
		if n.odd {
			v = -v
		}
		return v, nil
	case float64:
		if n.odd {
			v = -v
		}
		return v, nil
	}
	return nil, c.fail(n.at, "There is no - before %s.", kindOf(v).a())
}

func (c *frame) overflow(at int) *Error {
	e := c.fail(at, "The result is too large for an int.")
	e.Hint = "Compute with doubles: double(x)."
	return e
}

// arithmetic is + - * / and %.
func (c *frame) arithmetic(l *link, v, w any) (any, *Error) {
	switch a := v.(type) {
	case int64:
		if b, ok := w.(int64); ok {
			return c.integers(l, a, b)
		}
	case time.Time:
		switch b := w.(type) {
		case time.Time:
			if l.op == "-" {
				return c.between(l.at, a, b)
			}
		case time.Duration:
			switch {
			case l.op == "+":
				return c.inRange(l.at, a.Add(b))
			case l.op == "-" && b == math.MinInt64:
				return nil, c.tooLong(l.at)
			case l.op == "-":
				return c.inRange(l.at, a.Add(-b))
			}
		}
	case time.Duration:
		switch b := w.(type) {
		case time.Time:
			if l.op == "+" {
				return c.inRange(l.at, b.Add(a))
			}
		case time.Duration:
			if l.op == "+" || l.op == "-" {
				sum, ok := sum(l.op, int64(a), int64(b))
				if !ok {
					return nil, c.tooLong(l.at)
				}
				return time.Duration(sum), nil
			}
		}
	case []any:
		if b, ok := w.([]any); ok && l.op == "+" {
			if err := c.make(l.at, sizeElement*(len(a)+len(b))); err != nil {
				return nil, err
			}
			return slices.Concat(a, b), nil
		}
	}
	if f, ok := doubles(l.op, v, w); ok {
		return f, nil
	}
	return nil, c.noOperator(l, v, w)
}

// sum is a + b or a - b; ok is false if it overflows.
func sum(op string, a, b int64) (s int64, ok bool) {
	if op == "-" {
		s = a - b
		return s, (s < a) == (b > 0)
	}
	s = a + b
	return s, (s > a) == (b > 0)
}

func (c *frame) integers(l *link, a, b int64) (any, *Error) {
	switch l.op {
	case "+", "-":
		if s, ok := sum(l.op, a, b); ok {
			return s, nil
		}
		return nil, c.overflow(l.at)
	case "*":
		high, low := bits.Mul64(uint64(a), uint64(b))
		if a < 0 {
			high -= uint64(b)
		}
		if b < 0 {
			high -= uint64(a)
		}
		if int64(high) != int64(low)>>63 {
			return nil, c.overflow(l.at)
		}
		return int64(low), nil
	}
	if b == 0 {
		return nil, c.fail(l.at, "It divides by zero.")
	}
	if l.op == "%" {
		return a % b, nil
	}
	if a == math.MinInt64 && b == -1 {
		return nil, c.overflow(l.at)
	}
	return a / b, nil
}

// doubles computes with two numbers as doubles; ok is false if there is no such operator.
func doubles(op string, v, w any) (f float64, ok bool) {
	a, okA := toFloat(v)
	b, okB := toFloat(w)
	if !okA || !okB {
		return 0, false
	}
	switch op {
	case "+":
		return a + b, true
	case "-":
		return a - b, true
	case "*":
		return a * b, true
	case "/":
		return a / b, true
	}
	return 0, false
}

// toFloat is a number as a double.
func toFloat(v any) (float64, bool) {
	switch v := v.(type) {
	case int64:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

// Times are those of RFC 3339.
var (
	firstTime = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	lastTime  = time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC)
)

func (c *frame) inRange(at int, t time.Time) (any, *Error) {
	if t.Before(firstTime) || t.After(lastTime) {
		return nil, c.fail(at, "The time is not in the years 1 to 9999.")
	}
	return t.UTC(), nil
}

func (c *frame) tooLong(at int) *Error { return c.fail(at, "The duration is longer than 292 years.") }

func (c *frame) between(at int, a, b time.Time) (any, *Error) {
	d := a.Sub(b) // at most the longest duration
	if !b.Add(d).Equal(a) {
		return nil, c.tooLong(at)
	}
	return d, nil
}
