package expr

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// A node is a part of a program.
type node interface {
	eval(*frame) (any, *Error)
}

// A frame is one evaluation.
type frame struct {
	in     Scope
	steps  int // that are left
	bytes  int
	locals []any // the variables of macros, by slot
	args   []any // of the calls that are being made
	last   *pattern
	kept   map[*path]loaded
	zones  map[string]*time.Location
	few    [3]any
}

func newFrame(in Scope) *frame {
	c := &frame{in: in, steps: MaxSteps, bytes: MaxBytes}
	c.locals = c.few[:]
	return c
}

func (c *frame) fail(at int, format string, args ...any) *Error {
	return &Error{Code: CodeFailed, Offset: at, Message: fmt.Sprintf(format, args...)}
}

func (c *frame) absent(at int, key any) *Error {
	e := c.fail(at, "There is no key %s.", quoted(key))
	e.absent, e.Hint = true, "Test it with has(...), or write default(..., value)."
	return e
}

// quoted is a value in a message: itself if it is short, otherwise its type.
func quoted(v any) string {
	switch kindOf(v) {
	case kindString:
		return fmt.Sprintf("%.40q", v)
	case kindNull, kindBool, kindInt, kindDouble:
		return fmt.Sprint(v)
	}
	return kindOf(v).a()
}

// step counts n operations.
func (c *frame) step(at, n int) *Error {
	if c.steps -= n; c.steps < 0 {
		c.steps = 0
		return &Error{Code: CodeFailed, Offset: at, fatal: true, Message: fmt.Sprintf("The expression takes more than %d operations.", MaxSteps), Hint: "Read less, or split it into several steps."}
	}
	return nil
}

// scan counts the operations for reading n bytes.
func (c *frame) scan(at, n int) *Error { return c.step(at, n>>6) }

// make counts n bytes of a value before it is made, and the operations for that.
func (c *frame) make(at, n int) *Error {
	if c.bytes -= n; c.bytes < 0 {
		c.bytes = 0
		return &Error{Code: CodeFailed, Offset: at, fatal: true, Message: fmt.Sprintf("The values of the expression have more than %d bytes.", MaxBytes), Hint: "Make shorter texts and lists, or split it into several steps."}
	}
	return c.scan(at, n)
}

// Sizes of values, about.
const (
	sizeElement = 16 // of a list
	sizeEntry   = 64 // of a map
	sizeMap     = 320
)

// logic is operands with && or || between them. An operand that decides makes up for errors of the others.
type logic struct {
	absorbing bool // the value that decides
	operands  []argument
}

func (n *logic) eval(c *frame) (any, *Error) {
	var failed *Error
	for i := range n.operands {
		operand := &n.operands[i]
		if err := c.step(operand.at, 1); err != nil {
			return nil, err
		}
		v, err := operand.node.eval(c)
		b, ok := v.(bool)
		switch {
		case err != nil && err.fatal:
			return nil, err
		case err == nil && !ok:
			err = c.fail(operand.at, "There is no && or || of %s.", kindOf(v).a())
			fallthrough
		case err != nil:
			failed = cmp.Or(failed, err)
		case b == n.absorbing:
			return b, nil
		}
	}
	if failed != nil {
		return nil, failed
	}
	return !n.absorbing, nil
}

// conditional is a ? b : c ? d : e.
type conditional struct {
	arms      []arm
	otherwise node
}

type arm struct {
	at             int
	condition, out node
}

func (n *conditional) eval(c *frame) (any, *Error) {
	for i := range n.arms {
		a := &n.arms[i]
		v, err := c.test(a.at, a.condition)
		if err != nil {
			return nil, err
		}
		if v {
			return a.out.eval(c)
		}
	}
	return n.otherwise.eval(c)
}

// test evaluates what must be true or false.
func (c *frame) test(at int, n node) (bool, *Error) {
	if err := c.step(at, 1); err != nil {
		return false, err
	}
	v, err := n.eval(c)
	if err != nil {
		return false, err
	}
	b, ok := v.(bool)
	if !ok {
		return false, c.fail(at, "A condition is true or false, and this is %s.", kindOf(v).a())
	}
	return b, nil
}

type not struct {
	at    int
	value node
	odd   bool
}

func (n *not) eval(c *frame) (any, *Error) {
	v, err := c.test(n.at, n.value)
	if err != nil {
		return nil, err
	}
	return v != n.odd, nil
}

// list is [a, b].
type list struct {
	at       int
	elements []argument
}

func (n *list) eval(c *frame) (any, *Error) {
	if err := c.make(n.at, sizeElement*len(n.elements)); err != nil {
		return nil, err
	}
	values := make([]any, len(n.elements))
	for i, element := range n.elements {
		err := c.step(n.at, 1)
		if err == nil {
			values[i], err = element.node.eval(c)
		}
		if err != nil {
			return nil, err
		}
	}
	return values, nil
}

// mapping is {a: b}.
type mapping struct {
	at      int
	entries []entry
}

type entry struct {
	at         int
	key, value node
}

func (n *mapping) eval(c *frame) (any, *Error) {
	if err := c.make(n.at, sizeMap+sizeEntry*len(n.entries)); err != nil {
		return nil, err
	}
	fields, texts := make(map[any]any, len(n.entries)), true
	for i := range n.entries {
		e := &n.entries[i]
		if err := c.step(e.at, 1); err != nil {
			return nil, err
		}
		key, err := e.key.eval(c)
		if err != nil {
			return nil, err
		}
		if kindOf(key)&kindKey == 0 {
			return nil, c.fail(e.at, "The key of a map is %s, not %s.", kindKey.a(), kindOf(key).a())
		}
		value, err := e.value.eval(c)
		if err != nil {
			return nil, err
		}
		text, isText := key.(string)
		if err := c.scan(e.at, 2*len(text)); err != nil { // to hash it
			return nil, err
		}
		if _, twice := fields[key]; twice {
			return nil, c.fail(e.at, "The map has the key %s twice.", quoted(key))
		}
		fields[key], texts = value, texts && isText
	}
	if !texts {
		return fields, nil
	}
	named := make(map[string]any, len(fields))
	for key, value := range fields {
		named[key.(string)] = value
	}
	return named, nil
}

// chain is operands with operators of one level between them.
type chain struct {
	first node
	links []link
}

type link struct {
	at      int
	op      string
	operand node
}

func (n *chain) eval(c *frame) (any, *Error) {
	v, err := n.first.eval(c)
	if err != nil {
		return nil, err
	}
	var parts []string // whose sum is v: a text is put together once
	for i := range n.links {
		l := &n.links[i]
		if err := c.step(l.at, 1); err != nil {
			return nil, err
		}
		r, err := l.operand.eval(c)
		if err != nil {
			return nil, err
		}
		if text, ok := r.(string); ok && l.op == "+" {
			first, _ := v.(string)
			if _, ok := v.(string); ok && parts == nil {
				parts = append(make([]string, 0, len(n.links)+1), first)
			}
			if parts != nil {
				if err := c.make(l.at, len(first)+len(text)); err != nil {
					return nil, err
				}
				parts, v = append(parts, text), ""
				continue
			}
		}
		if parts != nil {
			v, parts = strings.Join(parts, ""), nil
		}
		if v, err = c.operate(l, v, r); err != nil {
			return nil, err
		}
	}
	if parts != nil {
		return strings.Join(parts, ""), nil
	}
	return v, nil
}

func (c *frame) operate(l *link, v, w any) (any, *Error) {
	switch l.op {
	case "==", "!=":
		same, err := c.equal(l.at, v, w)
		return same == (l.op == "=="), err
	case "in":
		return c.contains(l.at, v, w)
	case "<", "<=", ">", ">=":
		order, ok, err := c.compare(l.at, v, w)
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		switch l.op {
		case "<":
			return order == before, nil
		case "<=":
			return order == before || order == equal, nil
		case ">":
			return order == after, nil
		}
		return order == after || order == equal, nil
	default:
		return c.arithmetic(l, v, w)
	}
	return nil, c.noOperator(l, v, w)
}

func (c *frame) noOperator(l *link, v, w any) *Error {
	return c.fail(l.at, "There is no %s between %s and %s.", l.op, kindOf(v).a(), kindOf(w).a())
}
