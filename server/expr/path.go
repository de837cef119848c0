package expr

import "slices"

// A path is a value and what is selected of it, step by step. A variable and its first field are one read.
type path struct {
	at       int
	base     node // or a variable:
	variable string
	key      string
	keys     Keys
	again    bool // a macro may evaluate it several times
	steps    []step
}

// A step selects a field, an element, or applies a method or a macro.
type step struct {
	at   int
	name string // of a field
	key  node   // an index
	call *call  // a method; what stands before it is its first argument
	loop *loop
}

func (s *step) field() bool { return s.key == nil && s.call == nil && s.loop == nil }

// localValue is the variable of a macro, by its slot.
type localValue int

func (n localValue) eval(c *frame) (any, *Error) { return c.locals[n], nil }

// member reads a primary and the selections after it.
func (p *compiler) member() (node, kind) {
	at := p.tok.at
	base, k := p.primary()
	n, isPath := base.(*path)
	if !isPath {
		n = &path{at: at, base: base}
	}
	for p.err == nil {
		at := p.tok.at
		switch {
		case p.accept("."):
			k = p.selection(n, at, k)
		case p.accept("["):
			k = p.index(n, at, k)
		default:
			if n.base == nil {
				p.reads[Read{n.variable, n.key}] = struct{}{}
			} else if len(n.steps) == 0 {
				return n.base, k
			}
			return n, k
		}
	}
	return n, kindAny
}

// selection reads the name after a dot, and the arguments if it is a method.
func (p *compiler) selection(n *path, at int, k kind) kind {
	tok := p.tok
	if tok.kind != tokenField && (tok.kind != tokenName || slices.Contains(literals, tok.text)) {
		p.unexpected("a field or a method")
		return kindAny
	}
	p.advance()
	if tok.kind == tokenName && p.accept("(") {
		return p.method(n, tok, k)
	}
	p.want(tok.at, "What ."+tok.text+" is selected of", k, kindMap)
	p.field(n, tok.at, tok.text)
	return kindAny
}

// field adds the selection of a field with a known name.
func (p *compiler) field(n *path, at int, name string) {
	if n.base != nil || len(n.steps) > 0 || n.key != "" || name == "" {
		n.steps = append(n.steps, step{at: at, name: name})
		return
	}
	if n.keys != nil && !slices.Contains(n.keys, name) {
		p.fail(at, meant(name, slices.Clone(n.keys)), "%s has no %.40s.", n.variable, name)
	}
	n.key, n.at = name, at
}

func (p *compiler) index(n *path, at int, k kind) kind {
	inner, kKey := p.expression()
	p.expect("]")
	if p.err != nil {
		return kindAny
	}
	p.want(at, "What an index is selected of", k, kindList|kindMap)
	switch {
	case k&kindMap == 0:
		p.want(at, "The index of a list", kKey, kindNumber)
	case k&kindList == 0:
		p.want(at, "The key of a map", kKey, kindKey|kindDouble)
	}
	if name, ok := inner.(constant); ok && k&kindMap != 0 {
		if name, ok := name.value.(string); ok {
			p.field(n, at, name)
			return kindAny
		}
	}
	n.steps = append(n.steps, step{at: at, key: inner})
	return kindAny
}

// method reads the arguments of a method or a macro.
func (p *compiler) method(n *path, tok token, k kind) kind {
	f := functions[tok.text]
	if f == nil || f.form&method == 0 {
		hint := meant(tok.text, names(method))
		if f != nil {
			hint = "Write " + f.Usage + "."
		}
		p.fail(tok.at, hint, "There is no method %.40s.", tok.text)
		return kindAny
	}
	if f.form&macro != 0 {
		p.want(tok.at, "What "+tok.text+" goes over", k, kindList|kindMap)
		n.steps = append(n.steps, step{at: tok.at, loop: p.macro(tok)})
		return f.result
	}
	applied, given := p.call(f, tok.at, append([]argument{{at: tok.at, kind: k}}, p.arguments(")")...))
	n.steps = append(n.steps, step{at: tok.at, call: applied})
	return given
}

func (n *path) eval(c *frame) (any, *Error) {
	v, _, err := n.find(c)
	return v, err
}

// find evaluates a path. If something that it selects is absent, it returns the number of that step, from 1, 0 being the
// variable and its field; of other errors it returns -1.
func (n *path) find(c *frame) (v any, missing int, err *Error) {
	if err = c.step(n.at, 1); err != nil {
		return nil, -1, err
	}
	if n.base != nil {
		v, err = n.base.eval(c)
	} else if v, err = n.load(c); err != nil && err.absent {
		return nil, 0, err
	}
	if err != nil {
		return nil, -1, err
	}
	for i := range n.steps {
		s := &n.steps[i]
		if err = c.step(s.at, 1); err != nil {
			return nil, -1, err
		}
		switch {
		case s.call != nil:
			v, err = c.call(s.call, v)
		case s.loop != nil:
			v, err = s.loop.run(c, v)
		case s.key != nil:
			var key any
			if key, err = s.key.eval(c); err != nil {
				return nil, -1, err
			}
			if v, err = c.element(s.at, v, key); err != nil && err.absent {
				return nil, i + 1, err
			}
		default:
			if m, ok := v.(map[string]any); ok {
				if v, ok = m[s.name]; ok {
					continue
				}
				return nil, i + 1, c.absent(s.at, s.name)
			}
			if v, err = c.element(s.at, v, s.name); err != nil && err.absent {
				return nil, i + 1, err
			}
		}
		if err != nil {
			return nil, -1, err
		}
	}
	return v, -1, nil
}

// load returns the variable of a path, or its first field. What a macro may need again is kept: the scope may have to decode it.
func (n *path) load(c *frame) (any, *Error) {
	if !n.again {
		return n.read(c)
	}
	kept, ok := c.kept[n]
	if !ok {
		kept.value, kept.err = n.read(c)
		if c.kept == nil {
			c.kept = map[*path]loaded{}
		}
		c.kept[n] = kept
	}
	return kept.value, kept.err
}

// loaded is what a scope has given for a path.
type loaded struct {
	value any
	err   *Error
}

func (n *path) read(c *frame) (any, *Error) {
	v, ok, err := c.in.Value(n.variable, n.key)
	switch {
	case err != nil:
		return nil, c.fail(n.at, "%v", err)
	case ok:
		return v, nil
	case n.key != "":
		return nil, c.absent(n.at, n.key)
	}
	e := c.fail(n.at, "%s has no value here.", n.variable)
	e.absent = true
	return nil, e
}

// has is has(x.y): whether x has the field y. null has none.
type has struct {
	path *path
}

func (p *compiler) has() node {
	at := p.tok.at
	arg, _ := p.expression()
	p.expect(")")
	n, ok := arg.(*path)
	if ok = ok && (len(n.steps) == 0 && n.key != "" || len(n.steps) > 0 && n.steps[len(n.steps)-1].field()); !ok && p.err == nil {
		p.fail(at, "Write has(x.field).", "has takes the selection of a field.")
	}
	return &has{n}
}

func (n *has) eval(c *frame) (any, *Error) {
	_, missing, err := n.path.find(c)
	if missing == len(n.path.steps) {
		return false, nil
	}
	return err == nil, err
}

// fallback is default(x, y).
type fallback struct {
	value, otherwise node
}

func (p *compiler) fallback() (node, kind) {
	value, k := p.expression()
	p.expect(",")
	otherwise, kOther := p.expression()
	p.expect(")")
	return &fallback{value, otherwise}, k&^kindNull | kOther
}

func (n *fallback) eval(c *frame) (v any, err *Error) {
	missing := -1
	if selected, ok := n.value.(*path); ok {
		v, missing, err = selected.find(c)
	} else {
		v, err = n.value.eval(c)
	}
	switch {
	case missing >= 0, err == nil && v == nil:
		return n.otherwise.eval(c)
	}
	return v, err
}
