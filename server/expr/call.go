package expr

// call is a call of a function.
type call struct {
	f       *Function
	at      int
	args    []node
	ats     []int    // of the arguments; a receiver has the place of the method
	pattern *pattern // of matches, if it stands in the source
}

func (n *call) eval(c *frame) (any, *Error) {
	if err := c.step(n.at, 1); err != nil {
		return nil, err
	}
	return c.call(n, nil, false)
}

// function reads the arguments of a function whose name has been passed.
func (p *compiler) function(tok token) (node, kind) {
	f := functions[tok.text]
	if f == nil || f.form&global == 0 {
		hint := meant(tok.text, names(global))
		if f != nil {
			hint = "Write " + f.Usage + "."
		}
		p.fail(tok.at, hint, "There is no function %.40s.", tok.text)
		return constant{}, kindAny
	}
	p.expect("(")
	switch tok.text {
	case "has":
		return p.has(), kindBool
	case "default":
		return p.fallback()
	}
	args, kinds, ats := p.until(")")
	return p.call(f, tok.at, args, kinds, ats)
}

// call checks the arguments of a function, and where they stand.
func (p *compiler) call(f *Function, at int, args []node, kinds []kind, ats []int) (node, kind) {
	if p.err != nil {
		return constant{}, kindAny
	}
	least := len(f.params) - f.optional
	if len(args) < least || len(args) > len(f.params) && !f.rest {
		p.fail(at, "Write "+f.Usage+".", "%s has the wrong number of arguments.", f.Name)
		return constant{}, kindAny
	}
	for i, k := range kinds {
		if k&f.param(i) == 0 {
			p.fail(ats[i], "Write "+f.Usage+".", "%s takes %s here, not %s.", f.Name, f.param(i).a(), k.a())
			return constant{}, kindAny
		}
	}
	n := &call{f: f, at: at, args: args, ats: ats}
	if f.Name == "matches" {
		if pattern, ok := args[1].(constant); ok {
			re, problem := compilePattern(pattern.value.(string))
			if problem != "" {
				p.fail(ats[1], "", "%s", problem)
			}
			n.pattern = re
		}
	}
	given := f.result
	if given == 0 { // that of its argument
		given = kinds[0] & f.params[0]
	}
	return n, given
}

// call applies a function to its arguments, after a receiver if it has one.
func (c *frame) call(n *call, receiver any, method bool) (any, *Error) {
	base := len(c.args)
	defer func() { c.args = c.args[:base] }()
	if method {
		c.args = append(c.args, receiver)
	}
	for _, arg := range n.args {
		v, err := arg.eval(c)
		if err != nil {
			return nil, err
		}
		c.args = append(c.args, v)
	}
	args := c.args[base:]
	for i, v := range args {
		if k := kindOf(v); k&n.f.param(i) == 0 {
			e := c.fail(n.ats[i], "%s takes %s here, not %s.", n.f.Name, n.f.param(i).a(), k.a())
			e.Hint = "Write " + n.f.Usage + "."
			return nil, e
		}
		if s, ok := v.(string); ok { // which the function may read
			if err := c.scan(n.at, len(s)); err != nil {
				return nil, err
			}
		}
	}
	return n.f.run(c, n, args)
}
