package openapi

import (
	"reflect"
	"slices"
	"strings"
)

// A field is a member of a struct's JSON object.
type field struct {
	name     string
	typ      reflect.Type
	omitted  bool // the tag says omitempty or omitzero
	optional bool // omitted, or reached through an embedded pointer, which may be nil
	quoted   bool // the tag says string
	doc      string
	enum     string
	ref      string

	depth  int  // embedded structs between it and the outer one
	tagged bool // the tag gives the name
}

// hides reports whether f is written instead of g, which has the same name.
func (f field) hides(g field) bool {
	return f.depth < g.depth || f.depth == g.depth && f.tagged && !g.tagged
}

// fieldsOf returns the members that encoding/json writes for a struct, in its order. Of several with one name it
// writes the one that hides all the others, or none.
func fieldsOf(t reflect.Type) []field {
	all := collect(nil, t, field{}, nil)
	var out []field
	for i, f := range all {
		hidden := false
		for j, g := range all {
			hidden = hidden || i != j && f.name == g.name && !f.hides(g)
		}
		if !hidden {
			out = append(out, f)
		}
	}
	return out
}

// collect appends the fields of t and of the structs embedded in it. outer gives the depth and whether all of them
// are optional; chain holds the structs around t, so that one that embeds itself ends.
func collect(list []field, t reflect.Type, outer field, chain []reflect.Type) []field {
	if slices.Contains(chain, t) {
		return list
	}
	chain = append(slices.Clone(chain), t)
	for sf := range t.Fields() {
		tag := sf.Tag.Get("json")
		base := sf.Type
		if base.Kind() == reflect.Pointer {
			base = base.Elem()
		}
		embeds := sf.Anonymous && base.Kind() == reflect.Struct
		if tag == "-" || !sf.IsExported() && !embeds {
			continue
		}
		name, options, _ := strings.Cut(tag, ",")
		if embeds && name == "" {
			inner := field{depth: outer.depth + 1, optional: outer.optional || sf.Type.Kind() == reflect.Pointer}
			list = collect(list, base, inner, chain)
			continue
		}
		has := func(option string) bool { return slices.Contains(strings.Split(options, ","), option) }
		f := field{
			name: name, typ: sf.Type, doc: sf.Tag.Get("doc"), enum: sf.Tag.Get("enum"), ref: sf.Tag.Get("ref"),
			omitted: has("omitempty") || has("omitzero"),
			quoted:  has("string") && isScalar(base.Kind()),
			depth:   outer.depth, tagged: name != "",
		}
		f.optional = f.omitted || outer.optional
		if name == "" {
			f.name = sf.Name
		}
		list = append(list, f)
	}
	return list
}

// isScalar reports whether the string option of a tag has an effect on this kind.
func isScalar(k reflect.Kind) bool {
	return k >= reflect.Bool && k <= reflect.Float64 || k == reflect.String
}
