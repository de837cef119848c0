package expr

import (
	"cmp"
	"slices"
)

// A loop is a macro over a list, or over the keys of a map in their order.
type loop struct {
	at     int
	name   string
	slot   int
	test   node // nil for map with two arguments
	result node // of map
}

// macro reads the arguments of a macro, after their opening parenthesis.
func (p *compiler) macro(tok token) *loop {
	name := p.tok
	if name.kind != tokenName || slices.Contains(reserved, name.text) || slices.Contains(literals, name.text) {
		p.unexpected("the name of a variable")
	}
	p.advance()
	p.expect(",")
	n := &loop{at: tok.at, name: tok.text, slot: len(p.locals)}
	p.locals = append(p.locals, local{name.text, n.slot})
	p.slots = max(p.slots, len(p.locals))
	at := p.tok.at
	first, k := p.expression()
	if n.test = first; tok.text == "map" {
		n.test, n.result = nil, first
		if p.accept(",") {
			n.test = first
			n.result, _ = p.expression()
		}
	}
	if n.test != nil {
		p.want(at, "The condition of "+tok.text, k, kindBool)
	}
	p.locals = p.locals[:n.slot]
	p.expect(")")
	return n
}

// run applies the macro to a value.
func (n *loop) run(c *frame, v any) (any, *Error) {
	elements, ok := v.([]any)
	if !ok {
		if kindOf(v) != kindMap {
			return nil, c.fail(n.at, "%s goes over a list or a map, not %s.", n.name, kindOf(v).a())
		}
		var err *Error
		if elements, err = c.keys(n.at, v); err != nil {
			return nil, err
		}
	}
	switch n.name {
	case "all", "exists":
		return n.quantify(c, elements, n.name == "exists")
	case "exists_one":
		found, err := n.collect(c, elements)
		return len(found) == 1, err
	}
	return n.collect(c, elements)
}

// quantify is all and exists. An element that decides makes up for errors of the others.
func (n *loop) quantify(c *frame, elements []any, absorbing bool) (any, *Error) {
	var failed *Error
	for _, element := range elements {
		c.locals[n.slot] = element
		yes, err := c.test(n.at, n.test)
		switch {
		case err != nil && err.fatal:
			return nil, err
		case err != nil:
			failed = cmp.Or(failed, err)
		case yes == absorbing:
			return yes, nil
		}
	}
	if failed != nil {
		return nil, failed
	}
	return !absorbing, nil
}

// collect is map and filter.
func (n *loop) collect(c *frame, elements []any) ([]any, *Error) {
	values := []any{}
	for _, element := range elements {
		c.locals[n.slot] = element
		yes, err := true, (*Error)(nil)
		if n.test != nil {
			yes, err = c.test(n.at, n.test)
		} else {
			err = c.step(n.at, 1)
		}
		if err != nil {
			return nil, err
		}
		if !yes {
			continue
		}
		v := element
		if n.result != nil {
			if v, err = n.result.eval(c); err != nil {
				return nil, err
			}
		}
		if err = c.make(n.at, sizeElement); err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, nil
}
