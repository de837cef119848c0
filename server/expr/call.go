package expr

// call is a call of a function.
type call struct {
	f       *Function
	at      int
	args    []argument
	pattern *pattern // of matches, if it stands in the source
}

// An argument is an expression beside others. An operand has the place of its operator.
type argument struct {
	at   int
	node node // nil for what stands before the dot of a method, which has the place of the method
	kind kind
}

func (n *call) eval(c *frame) (any, *Error) {
	if err := c.step(n.at, 1); err != nil {
		return nil, err
	}
	return c.call(n, nil)
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
	return p.call(f, tok.at, p.arguments(")"))
}

// call checks the arguments of a function.
func (p *compiler) call(f *Function, at int, args []argument) (*call, kind) {
	if least := len(f.params) - f.optional; len(args) < least || len(args) > len(f.params) && !f.rest {
		p.fail(at, "Write "+f.Usage+".", "%s has the wrong number of arguments.", f.Name)
	}
	for i := 0; i < len(args) && p.err == nil; i++ {
		if k := args[i].kind; k&f.param(i) == 0 {
			p.fail(args[i].at, "Write "+f.Usage+".", "%s takes %s here, not %s.", f.Name, f.param(i).a(), k.a())
		}
	}
	n := &call{f: f, at: at, args: args}
	if p.err != nil {
		return n, kindAny
	}
	if f.Name == "matches" {
		if pattern, ok := args[1].node.(constant); ok {
			re, problem := compilePattern(pattern.value.(string))
			if problem != "" {
				p.fail(args[1].at, "", "%s", problem)
			}
			n.pattern = re
		}
	}
	if f.result == 0 { // that of its argument
		return n, args[0].kind & f.params[0]
	}
	return n, f.result
}

// call applies a function to its arguments. The receiver is what stands before the dot of a method.
func (c *frame) call(n *call, receiver any) (any, *Error) {
	base := len(c.args)
	defer func() { c.args = c.args[:base] }()
	for i := range n.args {
		v := receiver
		if inner := n.args[i].node; inner != nil {
			var err *Error
			if v, err = inner.eval(c); err != nil {
				return nil, err
			}
		}
		c.args = append(c.args, v)
	}
	args := c.args[base:]
	for i, v := range args {
		if k := kindOf(v); k&n.f.param(i) == 0 {
			e := c.fail(n.args[i].at, "%s takes %s here, not %s.", n.f.Name, n.f.param(i).a(), k.a())
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
