package config

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
)

// tree is the shape of Config: what the tags declare, read once.
var tree = describe(reflect.TypeFor[Config]())

// A shape is a type of the tree.
type shape struct {
	form   form
	typ    reflect.Type
	elem   *shape   // list, dict
	fields []*field // object
	kinds  []string // object with a field named kind: what it may be
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
	formRaw    // json.RawMessage: any JSON object
	formOwn    // a type that reads itself
)

// ownType is a type of the tree that has a JSON form of its own. Its pointer implements it.
type ownType interface {
	decode(l *loader, n *node, path []any) // sets it, or reports what is wrong with the form of n
	check() string                         // what is wrong with its value, or ""
	form() (label string, schema map[string]any)
}

// A field is one member of an object.
type field struct {
	name    string
	index   int // in the struct
	shape   *shape
	rules   rules
	def     string
	hasDef  bool
	pointer bool
	kinds   []string // nil: all
	doc     string
}

// optional reports whether the zero value means absent.
func (f *field) optional() bool { return !f.hasDef && !f.rules.required && f.shape.form != formObject }

// of reports whether the field belongs to a kind; all fields belong to the unknown kind "".
func (f *field) of(kind string) bool {
	return kind == "" || f.kinds == nil || slices.Contains(f.kinds, kind)
}

func describe(t reflect.Type) *shape {
	s := &shape{typ: t}
	switch {
	case reflect.PointerTo(t).Implements(reflect.TypeFor[ownType]()):
		s.form = formOwn
		return s
	case t == reflect.TypeFor[json.RawMessage]():
		s.form = formRaw
		return s
	}
	switch t.Kind() {
	case reflect.Bool:
		s.form = formBool
	case reflect.Int, reflect.Int64:
		s.form = formInt
	case reflect.Float64:
		s.form = formFloat
	case reflect.String:
		s.form = formText
	case reflect.Slice:
		s.form, s.elem = formList, describe(t.Elem())
	case reflect.Map:
		s.form, s.elem = formDict, describe(t.Elem())
	case reflect.Struct:
		s.form = formObject
		for i := range t.NumField() {
			if sf := t.Field(i); sf.IsExported() && sf.Tag.Get("json") != "-" {
				s.fields = append(s.fields, describeField(sf, i))
			}
		}
		if f := s.field("kind"); f != nil && f.rules.required {
			s.kinds = f.rules.enum
		}
	default:
		panic("config: no form for " + t.String())
	}
	return s
}

func describeField(sf reflect.StructField, index int) *field {
	t := sf.Type
	f := &field{name: sf.Tag.Get("json"), index: index, doc: sf.Tag.Get("doc")}
	if t.Kind() == reflect.Pointer {
		f.pointer, t = true, t.Elem()
	}
	f.shape = describe(t)
	f.rules = parseRules(sf.Tag.Get("check"), sf.Tag.Get("enum"))
	f.def, f.hasDef = sf.Tag.Lookup("default")
	if kinds := sf.Tag.Get("for"); kinds != "" {
		f.kinds = strings.Split(kinds, "|")
	}
	if n := &f.rules.number; t == reflect.TypeFor[Millis]() && !n.hasMax {
		n.max, n.hasMax = float64(maxMillis), true
	}
	return f
}

// field finds a field of an object by name; nil if there is none.
func (s *shape) field(name string) *field {
	for _, f := range s.fields {
		if f.name == name {
			return f
		}
	}
	return nil
}

// names lists the fields of a kind.
func (s *shape) names(kind string) []string {
	var names []string
	for _, f := range s.fields {
		if f.of(kind) {
			names = append(names, f.name)
		}
	}
	return names
}

// kindOf reads the kind of an object's value; "" where its type has none or the value is none of them.
func (s *shape) kindOf(v reflect.Value) string {
	if s.kinds == nil {
		return ""
	}
	if kind := v.Field(s.field("kind").index).String(); slices.Contains(s.kinds, kind) {
		return kind
	}
	return ""
}

// A setting is a leaf that one text can set: by a variable or an override.
type setting struct {
	path  []any
	index []int // of nested struct fields
	field *field
}

// settings lists the leaves outside the map sections, in the order of the tree.
func settings() []setting {
	var all []setting
	var walk func(s *shape, path []any, index []int)
	walk = func(s *shape, path []any, index []int) {
		for _, f := range s.fields {
			path, index := under(path, f.name), append(slices.Clip(index), f.index)
			switch {
			case f.shape.form == formObject:
				walk(f.shape, path, index)
			case f.shape.form != formDict && f.name != "$schema":
				all = append(all, setting{path, index, f})
			}
		}
	}
	walk(tree, nil, nil)
	return all
}

// variable is the name of the environment variable.
func (s setting) variable() string {
	return "AGENTD_" + strings.ToUpper(strings.ReplaceAll(dotted(s.path), ".", "_"))
}
