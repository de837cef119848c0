package expr

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// A Template is a JSON value whose texts hold expressions: ${ expression }. A text that is one expression and nothing else
// has its value; in a longer text stands the text of the value. It ends at the brace that closes it; $${ is the text ${.
// Names of members are no templates. Several goroutines may use a template at once.
type Template struct {
	root  part
	reads []Read
	fixed bool
}

// CompileText is CompileTemplate for one text.
func CompileText(s string, vars Vars) (*Template, error) { return CompileTemplate(s, vars) }

// CompileTemplate reads and checks all expressions of a value that [Decode] returned. The Path of an [*Error] names the text,
// and its offset is one in that text.
func CompileTemplate(v any, vars Vars) (*Template, error) {
	b := builder{vars: vars, reads: readSet{}}
	root := b.part(v, "", 0)
	if b.err != nil {
		return nil, b.err
	}
	_, fixed := root.(fixedPart)
	return &Template{root, b.reads.sorted(), fixed}, nil
}

// Eval evaluates all expressions, within the bounds of one evaluation. Its error is an [*Error].
func (t *Template) Eval(in Scope) (any, error) {
	v, err := t.root.value(newFrame(in))
	if err != nil {
		return nil, err
	}
	return v, nil
}

// Reads returns what the template reads of its variables, in order of their names.
func (t *Template) Reads() []Read { return slices.Clone(t.reads) }

// Constant reports whether the template has no expressions.
func (t *Template) Constant() bool { return t.fixed }

// A part is a value in a template.
type part interface {
	value(*frame) (any, *Error)
}

// A builder makes parts of a value.
type builder struct {
	vars  Vars
	reads readSet
	err   *Error
}

func (b *builder) part(v any, path string, depth int) part {
	if depth > MaxDepth && b.err == nil {
		b.err = &Error{Path: path, Message: fmt.Sprintf("The template is nested deeper than %d.", MaxDepth)}
	}
	if b.err != nil {
		return fixedPart{}
	}
	switch v := v.(type) {
	case string:
		return b.text(v, path)
	case []any:
		parts, fixed := make(listPart, len(v)), true
		for i, element := range v {
			parts[i] = b.part(element, path+"/"+strconv.Itoa(i), depth+1)
			fixed = fixed && isFixed(parts[i])
		}
		return fold(parts, fixed)
	case map[string]any:
		parts, fixed := make(mapPart, 0, len(v)), true
		for _, name := range slices.Sorted(maps.Keys(v)) {
			member := b.part(v[name], path+"/"+strings.NewReplacer("~", "~0", "/", "~1").Replace(name), depth+1)
			parts = append(parts, memberPart{name, member})
			fixed = fixed && isFixed(member)
		}
		return fold(parts, fixed)
	}
	return fixedPart{v}
}

func isFixed(p part) bool {
	_, ok := p.(fixedPart)
	return ok
}

// fold makes a constant of a part that consists of constants.
func fold(p part, fixed bool) part {
	if !fixed {
		return p
	}
	v, _ := p.value(nil)
	return fixedPart{v}
}

// text reads a text.
func (b *builder) text(s, path string) part {
	var parts []part
	var literal strings.Builder
	flush := func() {
		if literal.Len() > 0 {
			parts = append(parts, fixedPart{literal.String()})
			literal.Reset()
		}
	}
	for i := 0; i < len(s); {
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
				return fixedPart{}
			}
			for _, read := range program.reads {
				b.reads[read] = struct{}{}
			}
			parts = append(parts, &programPart{program, path})
			i = p.tok.at + 1
		default:
			literal.WriteByte(s[i])
			i++
		}
	}
	flush()
	switch {
	case len(parts) == 0:
		return fixedPart{""}
	case len(parts) == 1:
		return parts[0]
	}
	return &textPart{s, path, parts}
}

// fixedPart is a value without expressions.
type fixedPart struct{ constant any }

func (p fixedPart) value(*frame) (any, *Error) { return p.constant, nil }

// programPart is an expression.
type programPart struct {
	program *Program
	path    string
}

func (p *programPart) value(c *frame) (any, *Error) {
	v, err := p.program.eval(c)
	if err != nil {
		err.Path = p.path
	}
	return v, err
}

// textPart is a text of several parts.
type textPart struct {
	src, path string
	parts     []part
}

func (p *textPart) value(c *frame) (any, *Error) {
	var text strings.Builder
	for _, inner := range p.parts {
		v, err := inner.value(c)
		if err != nil {
			return nil, err
		}
		at := 0
		if program, ok := inner.(*programPart); ok {
			at = program.program.from
		}
		s, err := c.text(at, v)
		if err == nil {
			err = c.make(at, len(s))
		}
		if err != nil {
			err.Path = p.path
			return nil, err.place(p.src)
		}
		text.WriteString(s)
	}
	return text.String(), nil
}

type listPart []part

func (p listPart) value(c *frame) (any, *Error) {
	values := make([]any, len(p))
	for i, inner := range p {
		var err *Error
		if values[i], err = inner.value(c); err != nil {
			return nil, err
		}
	}
	return values, nil
}

type memberPart struct {
	name  string
	inner part
}

type mapPart []memberPart

func (p mapPart) value(c *frame) (any, *Error) {
	values := make(map[string]any, len(p))
	for _, member := range p {
		v, err := member.inner.value(c)
		if err != nil {
			return nil, err
		}
		values[member.name] = v
	}
	return values, nil
}
