package shape

import (
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// An Object is a JSON object whose members keep their order: names and values by turns.
type Object []any

// MarshalJSON writes the members in order.
func (o Object) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i := 0; i < len(o); i += 2 {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, Encode(o[i])...), ':'), Encode(o[i+1])...)
	}
	return append(b, '}'), nil
}

// A Schemer is a type that knows its own JSON Schema, because its JSON is not what its fields say. OpenAPISchema is
// called on the zero value. Any other type is described by its fields, whatever JSON methods it has.
type Schemer interface{ OpenAPISchema() json.RawMessage }

// ComponentPath stands before the name of a component in a reference to it.
const ComponentPath = "#/components/schemas/"

// Components makes the JSON Schemas of types as OpenAPI 3.1 has them: named structs are components, a member is required
// unless encoding/json may leave it out, and further members are allowed.
type Components struct {
	closed bool // a schema of a document that is read: without components and further members, and of each kind
	names  map[reflect.Type]string
	byName map[string]any // Object, json.RawMessage, or nil while it is made
}

// NewComponents starts with one component.
func NewComponents(name string, schema json.RawMessage) *Components {
	return &Components{names: map[reflect.Type]string{}, byName: map[string]any{name: schema}}
}

// All returns the components, sorted by their names.
func (c *Components) All() (all Object) {
	for _, name := range slices.Sorted(maps.Keys(c.byName)) {
		all = append(all, name, c.byName[name])
	}
	return all
}

// Of returns the schema of a type: a reference for what is a component, the schema itself for the rest.
func (c *Components) Of(t reflect.Type) Object { return c.of(Of(t), &rules{}) }

// Param returns the schema of a parameter.
func (c *Components) Param(f *Field) Object { return c.of(f.typ, &f.rules) }

// Schema returns the JSON Schema (draft 2020-12) of documents of the type, indented, with a line break at its end. It
// states what tags say, and its members are sorted.
func (t *Type) Schema(title string) []byte {
	s := append((&Components{closed: true}).object(t, ""), "$schema", "https://json-schema.org/draft/2020-12/schema", "title", title)
	var sorted any
	if err := json.Unmarshal(Encode(s), &sorted); err != nil {
		panic("shape: " + err.Error())
	}
	b, _ := json.MarshalIndent(json.RawMessage(Encode(sorted)), "", "  ")
	return append(b, '\n')
}

// has reports whether a type or a pointer to it has the methods of one of the interfaces.
func has(t reflect.Type, interfaces ...reflect.Type) bool {
	return slices.ContainsFunc(interfaces, reflect.PointerTo(t).Implements)
}

var (
	schemerType = reflect.TypeFor[Schemer]()
	textTypes   = []reflect.Type{reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[encoding.TextUnmarshaler]()}
)

func (c *Components) of(t *Type, r *rules) Object {
	switch goType := t.goType; {
	case goType == timeType:
		return Object{"type", "string", "format", "date-time"}
	case goType == reflect.TypeFor[json.Number]():
		return Object{"type", "number"}
	case c.closed, t.form == formRaw:
	case goType.Name() != "" && goType.Kind() != reflect.Interface && has(goType, schemerType):
		return c.component(goType, func() any { return reflect.New(goType).Interface().(Schemer).OpenAPISchema() })
	case has(goType, textTypes...):
		return Object{"type", "string"}
	}
	switch t.form {
	case formBool:
		return Object{"type", "boolean"}
	case formInt:
		s := Object{"type", "integer"}
		switch kind := t.goType.Kind(); {
		case kind == reflect.Int64 && !c.closed:
			s = append(s, "format", "int64")
		case kind >= reflect.Uint && kind <= reflect.Uintptr:
			s = append(s, "minimum", 0)
		}
		return r.size.schema(s, "minimum", "maximum")
	case formFloat:
		return r.size.schema(Object{"type", "number"}, "minimum", "maximum")
	case formText:
		return r.textSchema()
	case formList:
		item := *r
		item.size, item.required = bounds{}, false
		s := r.size.schema(Object{"type", "array", "items", c.of(t.elem, &item)}, "minItems", "maxItems")
		if t.goType.Kind() == reflect.Array {
			s = append(s, "minItems", t.goType.Len(), "maxItems", t.goType.Len())
		}
		return s
	case formDict:
		s := Object{"type", "object"}
		if r.keys != nil {
			s = append(s, "propertyNames", Object{"pattern", r.keys.Pattern.String()})
		}
		return append(s, "additionalProperties", c.of(t.elem, &rules{}))
	case formObject:
		return c.structure(t)
	case formRaw:
		switch {
		case r.object && r.null:
			return Object{"type", []string{"object", "null"}}
		case r.object:
			return Object{"type", "object"}
		}
	case formOther:
		if t.goType.Kind() == reflect.Slice {
			return Object{"type", "string", "contentEncoding", "base64"}
		}
		if t.goType.Kind() != reflect.Interface {
			panic(fmt.Sprintf("shape: JSON cannot hold a %v", t.goType))
		}
	}
	return Object{}
}

// schema adds the bounds to a schema, under the names of the keywords for its type.
func (b bounds) schema(s Object, min, max string) Object {
	if b.exclusive {
		min = "exclusiveMinimum"
	}
	if b.hasMin {
		s = append(s, min, json.Number(plain(b.min)))
	}
	if b.hasMax {
		s = append(s, max, json.Number(plain(b.max)))
	}
	return s
}

func (r *rules) textSchema() Object {
	s := Object{"type", "string"}
	switch {
	case r.enum != nil:
		s = append(s, "enum", r.enum)
	case r.text != nil:
		s = append(s, "pattern", r.text.Pattern.String())
	case r.required && !r.size.hasMin:
		s = append(s, "minLength", 1)
	}
	return r.size.schema(s, "minLength", "maxLength")
}

// component names a type, which breaks the circle of one that holds itself, and then makes its schema.
func (c *Components) component(t reflect.Type, make func() any) Object {
	name, ok := c.names[t]
	if !ok {
		name = c.free(t)
		c.names[t], c.byName[name] = name, nil
		c.byName[name] = make()
	}
	return Object{"$ref", ComponentPath + name}
}

var packagePath = regexp.MustCompile(`[\w.~%-]+(/[\w.~%-]+)*\.`)

// free returns the name of a type as a component: its own, with its package's name before it where another type has that
// already. Type arguments lose their package paths: Page[agentd/server/rest.Run] is PageRun.
func (c *Components) free(t reflect.Type) string {
	name := Camel(packagePath.ReplaceAllString(t.Name(), ""))
	if _, taken := c.byName[name]; !taken {
		return name
	}
	name = Camel(path.Base(t.PkgPath())) + name
	if _, taken := c.byName[name]; taken {
		panic("shape: two types are called " + name)
	}
	return name
}

// Camel joins the words of s, each with a capital letter, and drops what is neither letter nor digit.
func Camel(s string) string {
	var b strings.Builder
	for word := range strings.FieldsFuncSeq(s, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}

// structure is the schema of a struct: of any of its kinds, and of what may stand for it.
func (c *Components) structure(t *Type) Object {
	var forms []Object
	for _, f := range t.bare {
		forms = append(forms, c.of(f.typ, &f.rules))
	}
	switch {
	case !c.closed && t.goType.Name() != "":
		return c.component(t.goType, func() any { return c.object(t, "") })
	case !c.closed || len(t.bare) == 0 && t.kinds == nil:
		return c.object(t, "")
	case len(t.bare) > 0:
		if len(t.fields) > 0 {
			forms = append(forms, c.object(t, ""))
		}
		if len(forms) == 1 {
			return forms[0]
		}
		return Object{"anyOf", forms}
	}
	for _, kind := range t.kinds {
		forms = append(forms, c.object(t, kind))
	}
	return Object{"oneOf", forms}
}

// object is the schema of an object, of one kind where that is not empty.
func (c *Components) object(t *Type, kind string) Object {
	properties, required := Object{}, []string{}
	for _, f := range t.fields {
		if f.of(kind) {
			properties = append(properties, f.Name, c.property(f, kind))
			if f.rules.required || !c.closed && !f.optional {
				required = append(required, f.Name)
			}
		}
	}
	s := Object{"type", "object"}
	if len(required) > 0 {
		s = append(s, "required", required)
	}
	if s = append(s, "properties", properties); c.closed {
		s = append(s, "additionalProperties", false)
	}
	return s
}

func (c *Components) property(f *Field, kind string) Object {
	s := c.of(f.typ, &f.rules)
	switch {
	case c.closed && f.Name == "kind" && kind != "":
		s = Object{"const", kind}
	case !c.closed && f.ref != "":
		s = Object{"$ref", ComponentPath + f.ref}
	case !c.closed && f.pointer && !f.optional && len(s) > 0: // an empty schema allows null already
		s = Object{"anyOf", []Object{s, {"type", "null"}}}
	}
	if f.Doc != "" {
		s = append(s, "description", f.Doc)
	}
	if c.closed && f.preset {
		s = append(s, "default", json.RawMessage(f.defaultJSON()))
	}
	return s
}

// Demands reports whether a body of a type must be sent: an absent body is read as an empty object.
func Demands(goType reflect.Type) bool {
	switch t := Of(goType); t.form {
	case formRaw, formDict:
		return false
	case formObject:
		return slices.ContainsFunc(t.fields, func(f *Field) bool { return !f.optional })
	default:
		return goType.Kind() != reflect.Interface
	}
}
