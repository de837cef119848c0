package tool

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	maxExpression = 1000 // bytes
	maxLevels     = 100  // of parentheses, signs and powers inside each other
)

// evaluate computes an expression:
//
//	sum     = product { ("+" | "-") product }
//	product = sign { ("*" | "/" | "%") sign }
//	sign    = ("-" | "+") sign | power
//	power   = atom [ "^" sign ]
//	atom    = number | "(" sum ")" | constant | function "(" sum { "," sum } ")"
//
// So -2^2 is -4, 2^3^2 is 2^9 and 2^-1 is 0.5. Errors are an [*Error] and name the character, counted from 1.
func evaluate(s string) (number, error) {
	if len(s) > maxExpression {
		return number{}, invalidInput(fmt.Sprintf("The expression has more than %d characters.", maxExpression), "")
	}
	p := expression{rest: s, all: s}
	v, err := p.sum()
	if err != nil {
		return number{}, err
	}
	if p.next() != 0 {
		return number{}, p.fail("an operator is expected")
	}
	return v, nil
}

type expression struct {
	all, rest string
	levels    int
}

func (p *expression) fail(format string, args ...any) error {
	at := utf8.RuneCountInString(p.all[:len(p.all)-len(p.rest)]) + 1
	return invalidInput(fmt.Sprintf("At character %d: %s.", at, fmt.Sprintf(format, args...)), "")
}

// next is the first byte that is not space; 0 at the end.
func (p *expression) next() byte {
	p.rest = strings.TrimLeft(p.rest, " \t\r\n")
	if p.rest == "" {
		return 0
	}
	return p.rest[0]
}

func (p *expression) take(c byte) bool {
	if p.next() != c {
		return false
	}
	p.rest = p.rest[1:]
	return true
}

func (p *expression) sum() (number, error)     { return p.chain("+-", p.product) }
func (p *expression) product() (number, error) { return p.chain("*/%", p.sign) }

// chain reads operands with operators between them, and computes from left to right.
func (p *expression) chain(operators string, operand func() (number, error)) (number, error) {
	v, err := operand()
	for err == nil {
		op := p.next()
		if op == 0 || strings.IndexByte(operators, op) < 0 {
			return v, nil
		}
		here := *p
		p.rest = p.rest[1:]
		var w number
		if w, err = operand(); err != nil {
			break
		}
		if v, err = binary(op, v, w); err != nil {
			err = here.fail("%v", err)
		}
	}
	return number{}, err
}

func (p *expression) sign() (number, error) {
	if p.levels++; p.levels > maxLevels {
		return number{}, p.fail("more than %d levels inside each other", maxLevels)
	}
	defer func() { p.levels-- }()
	switch {
	case p.take('-'):
		v, err := p.sign()
		if err == nil {
			v.r = new(big.Rat).Neg(v.r)
		}
		return v, err
	case p.take('+'):
		return p.sign()
	}
	v, err := p.atom()
	here := *p
	if err != nil || !p.take('^') {
		return v, err
	}
	w, err := p.sign()
	if err != nil {
		return number{}, err
	}
	if v, err = power(v, w); err != nil {
		err = here.fail("%v", err)
	}
	return v, err
}

func (p *expression) atom() (number, error) {
	switch c := p.next(); {
	case c == 0:
		return number{}, p.fail("the expression ends where a number is expected")
	case c >= '0' && c <= '9' || c == '.':
		return p.literal()
	case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
		return p.named()
	case p.take('('):
		v, err := p.sum()
		if err == nil && !p.take(')') {
			err = p.fail("a closing parenthesis is missing")
		}
		return v, err
	}
	return number{}, p.fail("a number is expected")
}

func (p *expression) literal() (number, error) {
	digits := func(s string) int { return len(s) - len(strings.TrimLeft(s, "0123456789")) }
	s := p.rest
	n := digits(s)
	if mantissa := n; n < len(s) && s[n] == '.' {
		n += 1 + digits(s[n+1:])
		if n == mantissa+1 && mantissa == 0 {
			return number{}, p.fail("a number is expected")
		}
	}
	if n < len(s) && (s[n] == 'e' || s[n] == 'E') {
		e := n + 1
		if e < len(s) && (s[e] == '+' || s[e] == '-') {
			e++
		}
		if d := digits(s[e:]); d > 0 { // else the e is something else
			if x, err := strconv.Atoi(s[e : e+d]); err != nil || x > maxBits {
				return number{}, p.fail("the exponent is too large")
			}
			n = e + d
		}
	}
	r, ok := new(big.Rat).SetString(s[:n])
	if !ok {
		return number{}, p.fail("a number is expected")
	}
	v, err := number{r, true}.bounded()
	if err != nil {
		return number{}, p.fail("%v", err)
	}
	p.rest = s[n:]
	return v, nil
}

// named reads a constant or a call of a function.
func (p *expression) named() (number, error) {
	here := *p
	n := 0
	for n < len(p.rest) && (p.rest[n]|0x20 >= 'a' && p.rest[n]|0x20 <= 'z' || p.rest[n] >= '0' && p.rest[n] <= '9') {
		n++
	}
	name := strings.ToLower(p.rest[:n])
	p.rest = p.rest[n:]
	if c, ok := constants[name]; ok {
		return float(c)
	}
	f, ok := functions[name]
	if !ok {
		return number{}, here.fail("%.40q is neither a function nor a constant", name)
	}
	if !p.take('(') {
		return number{}, p.fail("%s needs its arguments in parentheses", name)
	}
	var args []number
	for {
		v, err := p.sum()
		if err != nil {
			return number{}, err
		}
		args = append(args, v)
		if p.take(')') {
			break
		}
		if !p.take(',') {
			return number{}, p.fail("a comma or a closing parenthesis is missing")
		}
	}
	if len(args) < f.min || f.max > 0 && len(args) > f.max {
		return number{}, here.fail("%s does not take %d arguments", name, len(args))
	}
	v, err := f.apply(args)
	if err != nil {
		err = here.fail("%v", err)
	}
	return v, err
}
