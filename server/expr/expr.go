// Package expr evaluates expressions of a subset of the Common Expression Language (CEL), and templates made of them.
//
// Expressions are total: they have no loops but those over lists and maps, see nothing but the variables that the caller
// gives them, and stop at the bounds below. Results are never read as expressions.
//
// Values are those that JSON has, as [Decode] returns them: nil, bool, int64, float64, string, []any and map[string]any.
// Inside an expression there are also [time.Time], [time.Duration], [Type], and map[any]any with keys of type string, int64
// and bool. Values are shared, never copied: nobody may change one that an expression has read or returned.
package expr

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"agentd/server/fault"
)

// Bounds of an expression, and of one evaluation of an expression or of a template.
const (
	MaxSource  = 8 << 10   // bytes of an expression
	MaxNesting = 100       // parentheses, arguments, indices, lists and maps inside each other
	MaxSteps   = 500_000   // operations; an operation on a long text or list is several
	MaxBytes   = 16 << 20  // of the values that an evaluation makes, those that it drops included
	MaxPattern = 1000      // bytes of a regular expression
	MaxProgram = 5000      // states of a regular expression
	MaxJSON    = 8 << 20   // bytes of a JSON text that Decode reads or Encode writes
	MaxValue   = 128 << 20 // bytes of memory of a value that Decode returns
	MaxDepth   = 500       // lists and maps inside each other, in JSON
)

// Codes of the errors of an evaluation.
const (
	CodeFailed          = "expression-failed"
	CodeNotSerializable = "state-not-serializable"
)

// Error is an error in an expression, a template or JSON.
type Error struct {
	Code    string // of an evaluation: CodeFailed or CodeNotSerializable; empty if the expression does not compile
	Message string // without the place
	Hint    string // the next thing to do, if there is one to name
	Path    string // of the text in a template, as a JSON pointer; empty for the value itself
	Offset  int    // of the bytes before the place
	Line    int    // from 1; 0 if the error has no place
	Column  int    // in characters, from 1

	absent bool // the expression has selected what is not there, or something of null
	fatal  bool // && and || do not absorb it
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.Path != "" {
		fmt.Fprintf(&b, "%s: ", e.Path)
	}
	if e.Line > 0 {
		fmt.Fprintf(&b, "%d:%d: ", e.Line, e.Column)
	}
	b.WriteString(e.Message)
	return b.String()
}

// place completes an error whose offset is one in src.
func (e *Error) place(src string) *Error {
	before := src[:min(e.Offset, len(src))]
	e.Line = 1 + strings.Count(before, "\n")
	e.Column = 1 + utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:])
	return e
}

// Keys are the fields of a variable that an expression may select.
type Keys []string

// Vars are the variables of an expression. Where the keys are nil, it may select any field.
type Vars map[string]Keys

// Scope holds the values of variables. An evaluation asks it for no other names and keys than those in [Program.Reads], and
// once at most for each place in the source that reads one, also inside of macros.
type Scope interface {
	// Value returns a field of a variable; with an empty key, the whole variable. It returns false if that is not there.
	Value(name, key string) (any, bool, error)
}

// Map is a scope that holds its values in memory.
type Map map[string]any

// Value implements [Scope].
func (m Map) Value(name, key string) (any, bool, error) {
	v, ok := m[name]
	if key == "" || !ok {
		return v, ok, nil
	}
	switch fields := v.(type) {
	case map[string]any:
		v, ok = fields[key]
		return v, ok, nil
	case nil:
		return nil, false, nil
	}
	return nil, false, fmt.Errorf("%s is %s, which has no fields", name, kindOf(v).a())
}

// A Read is a variable that an expression reads: one field of it, or the whole, whose Key is empty.
type Read struct{ Var, Key string }

// Program is a checked expression. Several goroutines may use it at once.
type Program struct {
	src   string
	root  node
	kind  kind
	slots int
	reads []Read
}

// Compile reads and checks an expression. It returns an [*Error] for what is no expression or can never have a value: unknown
// names, wrong arguments, operators between types that do not have them.
func Compile(src string, vars Vars) (*Program, error) {
	p := compiler{src: src, vars: vars}
	program := p.program(0, false)
	if p.err != nil {
		return nil, p.err.place(src)
	}
	return program, nil
}

// Condition is Compile for an expression whose value must be true or false.
func Condition(src string, vars Vars) (*Program, error) {
	p, err := Compile(src, vars)
	if err == nil && p.kind&kindBool == 0 {
		return nil, (&Error{Message: fmt.Sprintf("A condition is true or false, and this is %s.", p.kind.a()), Hint: "Compare the value with something."}).place(src)
	}
	return p, err
}

// Reads returns what the program reads of its variables, in order of their names.
func (p *Program) Reads() []Read { return slices.Clone(p.reads) }

// Eval evaluates the program. Its error is an [*Error].
func (p *Program) Eval(in Scope) (any, error) {
	v, err := p.eval(newFrame(in))
	if err != nil {
		return nil, err
	}
	return v, nil
}

// Test evaluates a condition.
func (p *Program) Test(in Scope) (bool, error) {
	v, err := p.Eval(in)
	if err != nil {
		return false, err
	}
	b, ok := v.(bool)
	if !ok {
		return false, (&Error{Code: CodeFailed, Message: fmt.Sprintf("A condition is true or false, and this gave %s.", kindOf(v).a()), Hint: "Compare the value with something."}).place(p.src)
	}
	return b, nil
}

func (p *Program) eval(c *frame) (any, *Error) {
	if len(c.locals) < p.slots {
		c.locals = make([]any, p.slots)
	}
	v, err := p.root.eval(c)
	if err != nil {
		return nil, err.place(p.src)
	}
	return v, nil
}

// A readSet is what a program or a template reads.
type readSet map[Read]struct{}

func (s readSet) sorted() []Read {
	return slices.SortedFunc(maps.Keys(s), func(a, b Read) int {
		return cmp.Or(strings.Compare(a.Var, b.Var), strings.Compare(a.Key, b.Key))
	})
}

// meant is a hint for an unknown name.
func meant(name string, known []string) string {
	slices.Sort(known)
	if near := fault.Nearest(name, known); near != "" {
		return fmt.Sprintf("Did you mean %s?", near)
	}
	if len(known) == 0 {
		return ""
	}
	const shown = 10
	more := ""
	if len(known) > shown {
		known, more = known[:shown], ", ..."
	}
	return "Use one of " + strings.Join(known, ", ") + more + "."
}
