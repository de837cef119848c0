package runstate

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"agentd/server/fault"
	"agentd/server/message"
)

// Limits of what is read.
const (
	maxDepth   = 32      // child runs within child runs
	maxNesting = 1000    // arrays and objects, so that what is read can be encoded inside something else
	maxIssues  = 100     // that are listed
	maxPaths   = 1 << 16 // bytes in their paths: a long name can be above many problems
)

// Read reads a run's state of any version that the package comment lists and brings it to 1.2.
//
// Errors are [fault.RunStateMalformed], and [fault.RunStateVersionUnsupported] when the state or a pending child run
// of it has a major version above 1. Their issues name the place of every problem; of more than 100 they name the
// first 100 and count the others. Child runs nest at most 32 deep, lists and objects 1000.
//
// The caller bounds the size of data. Time is linear in it, but for a factor of the depth of child runs; memory is at
// worst a hundred bytes per byte, and a dozen for a real state. The result shares nothing with data.
func Read(data []byte) (*State, error) {
	if err := json.Unmarshal(data, new(json.RawMessage)); err != nil {
		at := int64(len(data))
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			at = syntax.Offset
		}
		return nil, malformed(fault.At(fmt.Sprintf("is not valid JSON at byte %d: %v", at, err)))
	}
	if !utf8.Valid(data) {
		return nil, malformed(fault.At("is not UTF-8"))
	}
	doc := value(strings.Trim(string(data), " \t\r\n"))
	r := &reader{}
	(&survey{doc: doc, report: r.report}).value(0)
	if err := r.err(); err != nil {
		return nil, err
	}
	s := r.state(doc)
	if err := r.err(); err != nil {
		return nil, err
	}
	return &s, nil
}

func malformed(issues ...fault.Issue) error {
	e := fault.New(fault.RunStateMalformed, "The run state cannot be read.")
	e.Issues = issues
	return e
}

// A reader reads one document. Its methods read one kind of value each; on a problem they report it and return what
// they have.
type reader struct {
	path  []step
	base  int                        // where in path the state begins that is being read
	extra map[string]json.RawMessage // of that state
	depth int                        // of that state

	issues      []fault.Issue
	paths       int // bytes in their paths, about
	more        int // problems that are not listed
	unsupported bool
}

// A step of a path is a member's name or an element's index, and what [State.Extra] calls it.
type step struct {
	key  any
	name string
}

// report notes a problem at a path.
func (r *reader) report(problem string, path []any) {
	if r.more > 0 || len(r.issues) == maxIssues {
		r.more++
		return
	}
	size := 0
	for _, key := range path {
		if name, ok := key.(string); ok {
			size += len(name)
		}
		size += 8
	}
	if r.paths += size; r.paths > maxPaths {
		r.more++
		return
	}
	r.issues = append(r.issues, fault.At(problem, slices.Clone(path)...))
}

// bad notes a problem of the value that is being read, or of a member of it.
func (r *reader) bad(problem string, member ...any) {
	path := make([]any, 0, len(r.path)+1)
	for _, s := range r.path {
		path = append(path, s.key)
	}
	r.report(problem, append(path, member...))
}

func (r *reader) problems() int { return len(r.issues) + r.more }

func (r *reader) err() error {
	if r.more > 0 {
		r.issues = append(r.issues, fault.At(fmt.Sprintf("has %d more problems, which are not listed", r.more)))
	}
	if len(r.issues) == 0 {
		return nil
	}
	if r.unsupported {
		e := fault.New(fault.RunStateVersionUnsupported, "The run state, or a child run in it, has a major version above 1.")
		e.Issues = r.issues
		return e
	}
	return malformed(r.issues...)
}

// within reads a part of the value that is being read.
func (r *reader) within(key any, name string, read func()) {
	r.path = append(r.path, step{key, name})
	read()
	r.path = r.path[:len(r.path)-1]
}

// fields are the members of an object that nobody has taken yet.
type fields map[string]value

// take returns a member and removes it. It is "" where there is none.
func (f fields) take(name string) value {
	v := f[name]
	delete(f, name)
	return v
}

// object reads an object. What body does not take is unknown and kept.
func (r *reader) object(v value, body func(fields)) {
	if !v.isObject() {
		r.bad("is not an object")
		return
	}
	f := fields{}
	for name, m := range v.members() {
		f[name] = m
	}
	body(f)
	if len(f) == 0 {
		return
	}
	rest := []byte{'{'}
	for name := range v.members() {
		if m, ok := f[name]; ok {
			rest = appendMember(rest, name, m)
		}
	}
	if r.extra == nil {
		r.extra = map[string]json.RawMessage{}
	}
	r.extra[r.pointer()] = value(append(rest, '}')).raw()
}

// pointer names the value that is being read within its state.
func (r *reader) pointer() string {
	var b strings.Builder
	for _, s := range r.path[r.base:] {
		b.WriteByte('/')
		b.WriteString(escape.Replace(s.name))
	}
	return b.String()
}

// need reads a member that has to be there.
func need[T any](r *reader, f fields, name string, read func(value) T) T {
	if f[name].absent() {
		delete(f, name)
		r.bad("is missing", name)
		return *new(T)
	}
	return may(r, f, name, read)
}

// may reads a member; an absent one is the zero value.
func may[T any](r *reader, f fields, name string, read func(value) T) (t T) {
	if v := f.take(name); !v.absent() {
		r.within(name, name, func() { t = read(v) })
	}
	return t
}

// maybe reads a member; an absent one is nil.
func maybe[T any](r *reader, f fields, name string, read func(value) T) *T {
	if f[name].absent() {
		delete(f, name)
		return nil
	}
	return new(may(r, f, name, read))
}

// list reads an array. Extra calls its elements by their identity, or by their index where ids is nil.
func list[T any](r *reader, v value, ids []string, read func(value) T) []T {
	return some(r, v, ids, func(value) bool { return true }, read)
}

// some is list for those elements that fit; it drops the others. What it returns is never nil, and has no elements
// with problems: two bytes of a document would make a whole struct.
func some[T any](r *reader, v value, ids []string, fit func(value) bool, read func(value) T) []T {
	all := []T{}
	if !v.isArray() {
		r.bad("is not a list")
		return all
	}
	i := 0
	for e := range v.elements() {
		if fit(e) {
			r.within(i, nameOf(e, i, ids), func() {
				before := r.problems()
				if t := read(e); r.problems() == before {
					all = append(all, t)
				}
			})
		}
		i++
	}
	return all
}

// orNil makes an empty list nil, which is its form where it is left out when it is empty.
func orNil[T any](all []T) []T {
	if len(all) == 0 {
		return nil
	}
	return all
}

func (r *reader) text(v value) string {
	if !v.isString() {
		r.bad("is not a string")
		return ""
	}
	return v.text()
}

func (r *reader) texts(v value) []string { return list(r, v, nil, r.text) }

func (r *reader) whole(v value) int {
	n, ok := index(string(v))
	if !ok {
		r.bad("is not a whole number")
	}
	return n
}

// args are the arguments of a call. A model that wrote none had them left out by old writers.
func (r *reader) args(f fields) json.RawMessage {
	if v := f.take("args"); v != "" {
		return v.raw()
	}
	return message.Args("")
}

// anything is a member that may hold any JSON.
func anything(f fields, name string) json.RawMessage {
	if v := f.take(name); v != "" {
		return v.raw()
	}
	return nil
}
