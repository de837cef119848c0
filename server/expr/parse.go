package expr

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// A compiler turns an expression into nodes in one pass, and checks it on the way. After the first error it reads nothing
// more: all tokens are the end.
type compiler struct {
	src    string
	from   int // where the expression begins in it
	vars   Vars
	tok    token
	next   int // where the token after tok is read
	depth  int
	locals []local
	slots  int
	reads  readSet
	err    *Error
}

// A local is the variable of a macro.
type local struct {
	name string
	slot int
}

func (p *compiler) fail(at int, hint, format string, args ...any) {
	if p.err == nil {
		p.err = &Error{Offset: at, Message: fmt.Sprintf(format, args...), Hint: hint}
	}
	p.tok = token{kind: tokenEnd, at: at}
}

// program reads the expression at an index. One inside a template ends at the brace that closes it, which becomes the
// current token.
func (p *compiler) program(from int, inside bool) *Program {
	p.from, p.next, p.reads = from, from, readSet{}
	p.advance()
	root, k := p.expression()
	switch {
	case p.err != nil:
	case inside && !p.is("}"):
		p.unexpected("an operator or }")
	case !inside && p.tok.kind != tokenEnd:
		p.unexpected("an operator")
	}
	return &Program{src: p.src, root: root, kind: k, slots: p.slots, reads: p.reads.sorted()}
}

// advance moves to the next token.
func (p *compiler) advance() {
	if p.err != nil {
		return
	}
	tok, next, err := scan(p.src, p.next)
	switch {
	case err != nil:
		p.fail(err.Offset, err.Hint, "%s", err.Message)
	case next-p.from > MaxSource:
		p.fail(p.from, "Split it into several steps.", "An expression has at most %d bytes.", MaxSource)
	case !utf8.ValidString(p.src[p.next:next]):
		p.fail(p.next, "", "The expression is not UTF-8.")
	default:
		p.tok, p.next = tok, next
	}
}

func (p *compiler) is(op string) bool { return p.tok.kind == tokenOperator && p.tok.text == op }

// accept passes an operator if it is there.
func (p *compiler) accept(op string) bool {
	if !p.is(op) {
		return false
	}
	p.advance()
	return true
}

func (p *compiler) expect(op string) {
	if !p.accept(op) {
		p.unexpected(op)
	}
}

func (p *compiler) unexpected(want string) {
	switch tok := p.tok; {
	case tok.kind == tokenEnd:
		p.fail(tok.at, "", "The expression ends where %s is expected.", want)
	case tok.kind == tokenLiteral:
		p.fail(tok.at, "", "A literal stands where %s is expected.", want)
	case tok.text == "?":
		p.fail(tok.at, "Optional values are no part of these expressions.", "? stands where %s is expected.", want)
	case tok.text == "{":
		p.fail(tok.at, "", "There are no messages.")
	default:
		p.fail(tok.at, "", "%.40s stands where %s is expected.", tok.text, want)
	}
}

// expression reads a condition with its alternatives, or anything else. Everything that nests comes here for each level.
func (p *compiler) expression() (node, kind) {
	if p.depth++; p.depth > MaxNesting {
		p.fail(p.tok.at, "Split it into several steps.", "An expression has at most %d levels inside each other.", MaxNesting)
	}
	defer func() { p.depth-- }()
	first, k := p.binary(0)
	if !p.is("?") {
		return first, k
	}
	n, all := &conditional{}, kind(0)
	for at := p.tok.at; p.accept("?"); at = p.tok.at {
		p.want(at, "The condition before ?", k, kindBool)
		then, kThen := p.binary(0)
		p.expect(":")
		n.arms, all = append(n.arms, arm{at, first, then}), all|kThen
		first, k = p.binary(0)
	}
	n.otherwise = first
	return n, all | k
}

// want checks what is known of an operand.
func (p *compiler) want(at int, what string, got, want kind) {
	if got&want == 0 && p.err == nil {
		p.fail(at, "", "%s is %s, and must be %s.", what, got.a(), want.a())
	}
}

// levels are the operators between two operands, those first that bind least.
var levels = [...][]string{{"||"}, {"&&"}, {"<", "<=", ">", ">=", "==", "!=", "in"}, {"+", "-"}, {"*", "/", "%"}}

// operator returns the operator of a level at which the compiler stands, or "".
func (p *compiler) operator(level int) string {
	if (p.tok.kind == tokenOperator || p.tok.kind == tokenName && p.tok.text == "in") && slices.Contains(levels[level], p.tok.text) {
		return p.tok.text
	}
	return ""
}

// binary reads operands of one level with operators between them, and keeps them in a list: a long sum is not deep.
func (p *compiler) binary(level int) (node, kind) {
	if level == len(levels) {
		return p.unary()
	}
	first, k := p.binary(level + 1)
	op := p.operator(level)
	if op == "" {
		return first, k
	}
	if level < 2 {
		n := &logic{absorbing: op == "||", operands: []argument{{p.tok.at, first, k}}}
		for at := p.tok.at; p.accept(op); at = p.tok.at {
			p.want(at, "What stands before "+op, k, kindBool)
			var operand node
			operand, k = p.binary(level + 1)
			p.want(at, "What stands after "+op, k, kindBool)
			n.operands = append(n.operands, argument{at, operand, k})
		}
		return n, kindBool
	}
	n := &chain{first: first}
	for ; op != ""; op = p.operator(level) {
		at := p.tok.at
		p.advance()
		operand, r := p.binary(level + 1)
		given := results(op, k, r)
		if given == 0 {
			p.fail(at, "", "There is no %s between %s and %s.", op, k.a(), r.a())
		}
		n.links, k = append(n.links, link{at, op, operand}), given
	}
	return n, k
}

// unary reads signs or negations, and what they stand before.
func (p *compiler) unary() (node, kind) {
	at, op, count := p.tok.at, p.tok.text, 0
	for (op == "-" || op == "!") && p.accept(op) {
		count++
	}
	if op == "-" && count > 0 { // the last sign is a part of a number
		switch v := p.tok.value.(type) {
		case uint64:
			p.tok.value, count = -int64(v), count-1
		case float64:
			p.tok.value, count = -v, count-1
		}
	}
	n, k := p.member()
	switch {
	case count == 0:
		return n, k
	case op == "!":
		p.want(at, "What stands after !", k, kindBool)
		return &not{at, n, count%2 == 1}, kindBool
	}
	p.want(at, "What stands after -", k, kindNumber)
	return &negation{at, n, count%2 == 1}, k & kindNumber
}

// constant is a value that stands in the source.
type constant struct{ value any }

func (n constant) eval(*frame) (any, *Error) { return n.value, nil }

// primary reads what no operator is a part of.
func (p *compiler) primary() (node, kind) {
	tok := p.tok
	switch {
	case tok.kind == tokenLiteral:
		v := tok.value
		if u, ok := v.(uint64); ok { // without a minus
			if v = int64(u); u == 1<<63 {
				p.fail(tok.at, "Write a double, such as 1e20.", "The number is too large for an int.")
			}
		}
		p.advance()
		return constant{v}, kindOf(v)
	case tok.kind == tokenName:
		p.advance()
		return p.named(tok)
	case p.accept("."):
		if tok = p.tok; tok.kind != tokenName {
			p.unexpected("a name")
		}
		p.advance()
		return p.variable(tok)
	case p.accept("("):
		n, k := p.expression()
		p.expect(")")
		return n, k
	case p.accept("["):
		return &list{tok.at, p.arguments("]")}, kindList
	case p.accept("{"):
		return p.mapping(tok.at), kindMap
	}
	p.unexpected("a value")
	return constant{}, kindAny
}

// until reads what stands between commas, up to a closing bracket. A comma may follow the last.
func (p *compiler) until(closing string, read func(at int)) {
	for !p.accept(closing) && p.err == nil {
		if read(p.tok.at); !p.accept(",") {
			p.expect(closing)
			return
		}
	}
}

func (p *compiler) arguments(closing string) (all []argument) {
	p.until(closing, func(at int) {
		n, k := p.expression()
		all = append(all, argument{at, n, k})
	})
	return all
}

func (p *compiler) mapping(at int) node {
	n := &mapping{at: at}
	p.until("}", func(at int) {
		key, k := p.expression()
		p.want(at, "The key", k, kindKey)
		p.expect(":")
		value, _ := p.expression()
		n.entries = append(n.entries, entry{at, key, value})
	})
	return n
}

// literals are words that are not even names of fields.
var literals = []string{"true", "false", "null", "in"}

// reserved are names that no variable can have.
var reserved = strings.Fields("as break const continue else for function if import in let loop package namespace return var void while")

// named reads what begins with a name that has been passed.
func (p *compiler) named(tok token) (node, kind) {
	switch tok.text {
	case "true", "false":
		return constant{tok.text == "true"}, kindBool
	case "null":
		return constant{nil}, kindNull
	}
	if slices.Contains(reserved, tok.text) {
		p.fail(tok.at, "", "%s is a reserved word.", tok.text)
	}
	if p.is("(") {
		return p.function(tok)
	}
	for i := len(p.locals) - 1; i >= 0; i-- {
		if l := p.locals[i]; l.name == tok.text {
			return &path{base: localValue(l.slot), at: tok.at}, kindAny
		}
	}
	return p.variable(tok)
}

// variable reads a variable that the caller gives, or the name of a type or of a function that has a dot.
func (p *compiler) variable(tok token) (node, kind) {
	if keys, ok := p.vars[tok.text]; ok {
		return &path{variable: tok.text, keys: keys, at: tok.at, again: len(p.locals) > 0}, kindAny
	}
	name := tok
	if tok.text == "math" || tok.text == "google" {
		for p.accept(".") && p.tok.kind == tokenName {
			name.text += "." + p.tok.text
			p.advance()
		}
		if p.is("(") {
			return p.function(name)
		}
	}
	if slices.Contains(typeNames[:], Type(name.text)) {
		return constant{Type(name.text)}, kindType
	}
	if p.is("{") {
		p.fail(tok.at, "", "There are no messages.")
	}
	known := slices.Collect(maps.Keys(p.vars))
	for _, l := range p.locals {
		known = append(known, l.name)
	}
	if functions[name.text] != nil {
		p.fail(tok.at, "Write its arguments in parentheses after it.", "%s is a function.", name.text)
	}
	p.fail(tok.at, meant(name.text, known), "There is no variable %.40s.", name.text)
	return constant{}, kindAny
}
