package expr

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// A Template is a JSON value whose texts hold expressions: ${ expression }. A text that is one expression and nothing else
// has its value; in a longer text stands the text of the value. It ends at the brace that closes it; $${ is the text ${.
// Names of members are no templates. Several goroutines may use a template at once.
type Template struct {
	root  node
	reads []Read
}

// CompileTemplate reads and checks all expressions of a value that [Decode] returned. The Path of an [*Error] names the text,
// and its offset is one in that text.
func CompileTemplate(v any, vars Vars) (*Template, error) {
	b := builder{vars: vars, reads: readSet{}}
	root := b.value(v, "")
	if b.err != nil {
		return nil, b.err
	}
	return &Template{root, b.reads.sorted()}, nil
}

// Eval evaluates all expressions, within the bounds of one evaluation. Its error is an [*Error].
func (t *Template) Eval(in Scope) (any, error) {
	v, err := t.root.eval(newFrame(in))
	if err != nil {
		return nil, err
	}
	return v, nil
}

// Reads returns what the template reads of its variables, in order of their names.
func (t *Template) Reads() []Read { return slices.Clone(t.reads) }

// Constant reports whether the template has no expressions.
func (t *Template) Constant() bool {
	_, ok := t.root.(constant)
	return ok
}

// Text reports whether the value is always a text: the template is one, and not a single expression.
func (t *Template) Text() bool {
	switch n := t.root.(type) {
	case constant:
		_, ok := n.value.(string)
		return ok
	case *textTemplate:
		return len(n.parts) > 1
	}
	return false
}

// A builder makes nodes of a value. After the first error they have no meaning.
type builder struct {
	vars  Vars
	reads readSet
	err   *Error
}

// value returns a constant for what has no expressions.
func (b *builder) value(v any, path string) node {
	switch v := v.(type) {
	case string:
		return b.text(v, path)
	case []any:
		nodes, constants := make(listTemplate, len(v)), make([]any, 0, len(v))
		for i, element := range v {
			nodes[i] = b.value(element, path+"/"+strconv.Itoa(i))
			if c, ok := nodes[i].(constant); ok {
				constants = append(constants, c.value)
			}
		}
		if len(constants) < len(v) {
			return nodes
		}
		return constant{constants}
	case map[string]any:
		members, constants := make(mapTemplate, 0, len(v)), make(map[string]any, len(v))
		for _, name := range slices.Sorted(maps.Keys(v)) {
			inner := b.value(v[name], path+"/"+strings.NewReplacer("~", "~0", "/", "~1").Replace(name))
			members = append(members, member{name, inner})
			if c, ok := inner.(constant); ok {
				constants[name] = c.value
			}
		}
		if len(constants) < len(v) {
			return members
		}
		return constant{constants}
	}
	return constant{v}
}

// text reads a text.
func (b *builder) text(s, path string) node {
	n := &textTemplate{src: s, path: path}
	var literal strings.Builder
	flush := func() {
		if literal.Len() > 0 {
			n.parts = append(n.parts, part{0, constant{literal.String()}})
			literal.Reset()
		}
	}
	for i := 0; i < len(s) && b.err == nil; {
		switch {
		case strings.HasPrefix(s[i:], "$${"):
			literal.WriteString("${")
			i += 3
		case strings.HasPrefix(s[i:], "${"):
			flush()
			p := compiler{src: s, vars: b.vars}
			program := p.program(i+2, true)
			if p.err != nil {
				b.err = p.err.place(s)
				b.err.Path = path
			}
			maps.Copy(b.reads, p.reads)
			n.parts = append(n.parts, part{i + 2, program})
			i = p.tok.at + 1
		default:
			literal.WriteByte(s[i])
			i++
		}
	}
	if len(n.parts) == 0 {
		return constant{literal.String()}
	}
	flush()
	return n
}

// textTemplate is a text with expressions.
type textTemplate struct {
	src, path string
	parts     []part
}

// A part is a text, or an expression that begins at an index.
type part struct {
	at   int
	node node
}

func (n *textTemplate) eval(c *frame) (any, *Error) {
	v, err := n.value(c)
	if err != nil {
		err.Path = n.path
		return nil, err.place(n.src)
	}
	return v, nil
}

func (n *textTemplate) value(c *frame) (any, *Error) {
	if len(n.parts) == 1 {
		return n.parts[0].node.eval(c)
	}
	var text strings.Builder
	for _, p := range n.parts {
		v, err := p.node.eval(c)
		if err != nil {
			return nil, err
		}
		s, err := c.text(p.at, v)
		if err == nil {
			err = c.make(p.at, len(s))
		}
		if err != nil {
			return nil, err
		}
		text.WriteString(s)
	}
	return text.String(), nil
}

type listTemplate []node

func (n listTemplate) eval(c *frame) (any, *Error) {
	values := make([]any, len(n))
	for i, inner := range n {
		var err *Error
		if values[i], err = inner.eval(c); err != nil {
			return nil, err
		}
	}
	return values, nil
}

type member struct {
	name  string
	inner node
}

type mapTemplate []member

func (n mapTemplate) eval(c *frame) (any, *Error) {
	values := make(map[string]any, len(n))
	for _, m := range n {
		v, err := m.inner.eval(c)
		if err != nil {
			return nil, err
		}
		values[m.name] = v
	}
	return values, nil
}
