// Package shape reads JSON from outside into Go types, and documents those types: a field is declared once, by its
// struct tag, and from that come decoding with positions, checks, defaults, the JSON Schema and the table of fields.
//
//	json     its name; omitempty and omitzero make it optional in an open schema
//	check    its rules, separated by spaces: required (given, and not empty); given; lenient (see lenient.go); null (null means absent); object (a
//	         json.RawMessage that is an object); a range such as 0..65535, 1.. or >0..1, which of a text bounds the
//	         bytes and of a list the items; the name of a text rule (see [Rule]); keys=RULE for the keys of a map. Text
//	         rules of a list are about each item.
//	enum     the texts that it may be, separated by |
//	for      the kinds that it belongs to, separated by |, in a struct with a required field named kind
//	default  its value where it is absent: text as it is, lists separated by commas, anything else as JSON
//	bare     says that a text or list in the place of the whole object is the value of this field; names the forms of the
//	         object in words. Such a field is a member of the object as well, unless its json tag is "-"
//	ref      the component that a json.RawMessage holds, in an open schema
//	doc      what it does, as one line of prose
//
// The data flow is
//
//	JSON -> blank comments, check syntax and depth (scan.go) -> decode and check (decode.go) -> issues (problem.go)
package shape

import (
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Type is what the tags of a Go type declare. It is immutable.
type Type struct {
	form   form
	goType reflect.Type
	elem   *Type               // of a list or map
	fields []*Field            // of an object
	kinds  []string            // of an object with a required field named kind: what that may be
	bare   []*Field            // fields that a bare text or list stands for
	label  string              // of a type with bare fields: its forms in words
	preset bool                // it, or an object in it, has defaults
	params map[string][]*Field // of the input of a route: by tag
}

type form uint8

const (
	formBool form = iota
	formInt
	formFloat
	formText
	formList
	formDict   // a map with text keys
	formObject // a struct
	formRaw    // json.RawMessage
	formOther  // a type that encoding/json reads and writes by methods of its own, or an interface
)

// A Field is one member of an object, or one parameter of a request.
type Field struct {
	Name     string
	Doc      string
	typ      *Type
	rules    rules
	index    []int // in the struct
	def      string
	preset   bool     // def is its default
	pointer  bool     // its zero value is nil
	optional bool     // an answer may leave it out
	kinds    []string // nil: all
	ref      string
}

// Millis is a time in milliseconds, at most what a [time.Duration] holds.
type Millis int64

const maxMillis = math.MaxInt64 / int64(time.Millisecond)

// Duration is the same time for Go.
func (m Millis) Duration() time.Duration { return time.Duration(m) * time.Millisecond }

// A Settler has more to say about its JSON than tags can. Settle is called on the decoded value; open reads a file that
// the JSON names, and is nil where a value is only checked. A message that is not empty says what is wrong, about the
// named member or, if that is empty, about the whole value.
type Settler interface {
	Settle(open func(file string, limit int64) ([]byte, error)) (member, message string)
}

var types sync.Map // of *Type by reflect.Type: what was described before, without text rules of its own

// Of describes a type. It panics on tags that make no sense.
func Of(t reflect.Type) *Type {
	made, ok := types.Load(t)
	if !ok {
		made, _ = types.LoadOrStore(t, With(t, nil))
	}
	return made.(*Type)
}

// With describes a type whose tags may name further text rules.
func With(t reflect.Type, named map[string]*Rule) *Type {
	return (&describer{named, map[reflect.Type]*Type{}}).describe(t)
}

// Params describes the fields of a struct that have the given tag, which holds their names: path or query.
func Params(t reflect.Type, tag string) []*Field { return Of(t).params[tag] }

type describer struct {
	named map[string]*Rule
	made  map[reflect.Type]*Type
}

var (
	rawType  = reflect.TypeFor[json.RawMessage]()
	timeType = reflect.TypeFor[time.Time]()
)

func (d *describer) describe(goType reflect.Type) *Type {
	for goType.Kind() == reflect.Pointer {
		goType = goType.Elem()
	}
	if t := d.made[goType]; t != nil {
		return t
	}
	t := &Type{goType: goType, form: formOther}
	d.made[goType] = t
	switch kind := goType.Kind(); {
	case goType == rawType:
		t.form = formRaw
	case kind == reflect.Bool:
		t.form = formBool
	case goType.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
	case kind >= reflect.Int && kind <= reflect.Uintptr:
		t.form = formInt
	case kind == reflect.Float32, kind == reflect.Float64:
		t.form = formFloat
	case kind == reflect.String && goType != reflect.TypeFor[json.Number]():
		t.form = formText
	case kind == reflect.Slice && goType.Elem().Kind() != reflect.Uint8, kind == reflect.Array:
		t.form, t.elem = formList, d.describe(goType.Elem())
	case kind == reflect.Map:
		t.form, t.elem = formDict, d.describe(goType.Elem())
	case kind == reflect.Struct && goType != timeType:
		t.form = formObject
		d.object(t)
	}
	return t
}

// object describes the fields that encoding/json writes, in its order, with those of embedded structs.
func (d *describer) object(t *Type) {
	t.params = map[string][]*Field{}
	for _, sf := range reflect.VisibleFields(t.goType) {
		for _, tag := range []string{"path", "query"} {
			if name := sf.Tag.Get(tag); name != "" {
				t.params[tag] = append(t.params[tag], d.field(sf, name))
			}
		}
		name, options, _ := strings.Cut(sf.Tag.Get("json"), ",")
		switch {
		case sf.Anonymous && name != "":
			panic(fmt.Sprintf("shape: %v embeds a struct under a name", t.goType))
		case sf.Anonymous, !sf.IsExported():
			continue
		}
		f := d.field(sf, name)
		f.optional = strings.Contains(options, "omit")
		for n := 1; n < len(sf.Index); n++ {
			f.optional = f.optional || isPointer(t.goType.FieldByIndex(sf.Index[:n]).Type)
		}
		if bare, isBare := sf.Tag.Lookup("bare"); isBare {
			t.bare, t.label = append(t.bare, f), bare
		}
		if sf.Tag.Get("json") == "-" {
			continue
		}
		if t.Field(f.Name) != nil {
			panic(fmt.Sprintf("shape: two fields of %v are called %s", t.goType, f.Name))
		}
		t.fields = append(t.fields, f)
		t.preset = t.preset || f.preset || f.typ.preset
	}
	if f := t.Field("kind"); f != nil && f.rules.required {
		t.kinds = f.rules.enum
	}
}

func isPointer(t reflect.Type) bool { return t.Kind() == reflect.Pointer }

func (d *describer) field(sf reflect.StructField, name string) *Field {
	f := &Field{Name: cmp.Or(name, sf.Name), Doc: sf.Tag.Get("doc"), typ: d.describe(sf.Type), index: sf.Index, pointer: isPointer(sf.Type)}
	f.ref = sf.Tag.Get("ref")
	f.rules = d.rules(sf.Tag.Get("check"), sf.Tag.Get("enum"))
	if item := cmp.Or(f.typ.elem, f.typ); f.rules.enum != nil && item.form != formText {
		panic(fmt.Sprintf("shape: the field %s has an enum, but is no text", f.Name))
	}
	f.def, f.preset = sf.Tag.Lookup("default")
	if kinds := sf.Tag.Get("for"); kinds != "" {
		f.kinds = strings.Split(kinds, "|")
	}
	if n := &f.rules.size; f.typ.goType == reflect.TypeFor[Millis]() && !n.hasMax {
		n.max, n.hasMax = float64(maxMillis), true
	}
	return f
}

// Field finds a field of an object by its name; nil if there is none.
func (t *Type) Field(name string) *Field {
	for _, f := range t.fields {
		if f.Name == name {
			return f
		}
	}
	return nil
}

// names lists the fields of a kind.
func (t *Type) names(kind string) (names []string) {
	for _, f := range t.fields {
		if f.of(kind) {
			names = append(names, f.Name)
		}
	}
	return names
}

// of reports whether the field belongs to a kind; all fields belong to the unknown kind "".
func (f *Field) of(kind string) bool {
	return kind == "" || f.kinds == nil || slices.Contains(f.kinds, kind)
}

// nested reports whether the field is an object that has no form but its members.
func (f *Field) nested() bool { return f.typ.form == formObject && f.typ.bare == nil }

// absent reports whether the zero value of the field means that it is not given.
func (f *Field) absent() bool { return !f.preset && !f.rules.required && !f.nested() }

// kindOf reads the kind of a struct; "" where its type has none or the value is none of them.
func (t *Type) kindOf(v reflect.Value) string {
	if t.kinds != nil {
		if kind := v.FieldByIndex(t.Field("kind").index).String(); slices.Contains(t.kinds, kind) {
			return kind
		}
	}
	return ""
}
