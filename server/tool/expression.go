package tool

import (
	"cmp"
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	maxExpression = 1000 // bytes
	maxLevels     = 100  // of parentheses, signs and powers inside each other
)

var (
	literal    = regexp.MustCompile(`^(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?(\d+))?`)
	identifier = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]*`)
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
	v := p.sum()
	if p.next() != 0 {
		p.fail(p.rest, "an operator is expected")
	}
	return v, p.err
}

// An expression is what of a text has not been read. After the first error nothing is left to read.
type expression struct {
	all, rest string
	levels    int
	err       error
}

// fail notes the first error, at the beginning of rest.
func (p *expression) fail(rest, format string, args ...any) number {
	if p.err == nil {
		at := utf8.RuneCountInString(p.all[:len(p.all)-len(rest)]) + 1
		p.err = invalidInput(fmt.Sprintf("At character %d: %s.", at, fmt.Sprintf(format, args...)), "")
	}
	p.rest = ""
	return number{new(big.Rat), true}
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
	taken := p.next() == c
	if taken {
		p.rest = p.rest[1:]
	}
	return taken
}

func (p *expression) sum() number     { return p.chain("+-", p.product) }
func (p *expression) product() number { return p.chain("*/%", p.sign) }

// chain reads operands with operators between them, and computes from left to right.
func (p *expression) chain(operators string, operand func() number) number {
	v := operand()
	for op := p.next(); op != 0 && strings.IndexByte(operators, op) >= 0; op = p.next() {
		v = p.operate(op, v, operand)
	}
	return v
}

// operate computes v, the operator that stands next, and the operand after it.
func (p *expression) operate(op byte, v number, operand func() number) number {
	here := p.rest
	p.rest = p.rest[1:]
	w := operand()
	if p.err != nil {
		return v
	}
	v, err := binary(op, v, w)
	if err != nil {
		return p.fail(here, "%v", err)
	}
	return v
}

func (p *expression) sign() number {
	if p.levels == maxLevels {
		return p.fail(p.rest, "more than %d levels inside each other", maxLevels)
	}
	p.levels++
	defer func() { p.levels-- }()
	switch {
	case p.take('-'):
		v := p.sign()
		return number{new(big.Rat).Neg(v.r), v.exact}
	case p.take('+'):
		return p.sign()
	}
	v := p.atom()
	if p.next() == '^' {
		v = p.operate('^', v, p.sign)
	}
	return v
}

func (p *expression) atom() number {
	if p.next() == 0 {
		return p.fail(p.rest, "the expression ends where a number is expected")
	}
	if p.take('(') {
		v := p.sum()
		if !p.take(')') {
			return p.fail(p.rest, "a closing parenthesis is missing")
		}
		return v
	}
	if name := identifier.FindString(p.rest); name != "" {
		return p.named(name)
	}
	m := literal.FindStringSubmatch(p.rest)
	if m == nil {
		return p.fail(p.rest, "a number is expected")
	}
	if exponent, err := strconv.Atoi(cmp.Or(m[1], "0")); err != nil || exponent > maxBits {
		return p.fail(p.rest, "the exponent is too large")
	}
	r, _ := new(big.Rat).SetString(m[0])
	v, err := number{r, true}.bounded()
	if err != nil {
		return p.fail(p.rest, "%v", err)
	}
	p.rest = p.rest[len(m[0]):]
	return v
}

// named reads a constant or a call of a function.
func (p *expression) named(name string) number {
	here := p.rest
	p.rest = p.rest[len(name):]
	name = strings.ToLower(name)
	if c, ok := constants[name]; ok {
		return number{new(big.Rat).SetFloat64(c), false}
	}
	f, ok := functions[name]
	if !ok {
		return p.fail(here, "%.40q is neither a function nor a constant", name)
	}
	if !p.take('(') {
		return p.fail(p.rest, "%s needs its arguments in parentheses", name)
	}
	args := []number{p.sum()}
	for p.take(',') {
		args = append(args, p.sum())
	}
	if !p.take(')') {
		return p.fail(p.rest, "a comma or a closing parenthesis is missing")
	}
	if len(args) < f.min || f.max > 0 && len(args) > f.max {
		return p.fail(here, "%s does not take %d arguments", name, len(args))
	}
	v, err := f.apply(args)
	if err != nil {
		return p.fail(here, "%v", err)
	}
	return v
}
