package openapi

import (
	"encoding"
	"encoding/json"
	"fmt"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A Schemer is a type that knows its own JSON Schema, because its JSON is not what its fields say. OpenAPISchema is
// called on the zero value.
//
// Every other type is described by what encoding/json does with it. Named structs become components. A member is
// required unless its tag says omitempty or omitzero; a pointer that is required may be null. The tag `doc` becomes
// the description, the tag `enum` ("a|b") the allowed values of a string or of a list of strings; the tag `ref`
// names the component that a json.RawMessage holds. Types with JSON
// methods of their own can be anything, but for a [Fielder]; types with text methods are strings.
type Schemer interface{ OpenAPISchema() json.RawMessage }

// A Fielder is a struct with JSON methods that nevertheless write and read what its fields say, and perhaps more.
// OpenAPIFields is not called.
type Fielder interface{ OpenAPIFields() }

const schemaPath = "#/components/schemas/"

// errorSchema is the body of every error. Its codes are listed where they can occur.
const errorSchema = `{"type":"object","required":["error","message"],
	"description":"What every failed request is answered with. Further members depend on the code.",
	"properties":{
		"error":{"type":"string","description":"A stable code."},
		"message":{"type":"string","description":"What went wrong."},
		"hint":{"type":"string","description":"The next thing to do."},
		"issues":{"type":"array","description":"Every problem of the input.","items":{"type":"object","required":["path","message"],
			"properties":{
				"path":{"type":"array","description":"Keys and indices that lead to the bad place, outermost first.",
					"items":{"type":["string","integer"]}},
				"message":{"type":"string"}}}}}}`

// schemas collects the components.
type schemas struct {
	names map[reflect.Type]string
	byKey map[string]any // by name: object, json.RawMessage, or nil while it is made
}

func newSchemas() *schemas {
	return &schemas{
		names: map[reflect.Type]string{},
		byKey: map[string]any{"Error": json.RawMessage(errorSchema)},
	}
}

func (s *schemas) components() object {
	o := object{}
	for _, name := range sortedKeys(s.byKey) {
		o = append(o, member{name, s.byKey[name]})
	}
	return o
}

var (
	timeType       = reflect.TypeFor[time.Time]()
	rawType        = reflect.TypeFor[json.RawMessage]()
	numberType     = reflect.TypeFor[json.Number]()
	schemerType    = reflect.TypeFor[Schemer]()
	fielderType    = reflect.TypeFor[Fielder]()
	jsonInterfaces = []reflect.Type{reflect.TypeFor[json.Marshaler](), reflect.TypeFor[json.Unmarshaler]()}
	textInterfaces = []reflect.Type{reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[encoding.TextUnmarshaler]()}
)

// implements reports whether t or a pointer to it has the methods of one of the interfaces.
func implements(t reflect.Type, interfaces []reflect.Type) bool {
	return slices.ContainsFunc(interfaces, reflect.PointerTo(t).Implements)
}

// of returns the schema of t: a reference for what is a component, the schema itself for the rest.
func (s *schemas) of(t reflect.Type) object {
	switch {
	case t.Kind() == reflect.Pointer:
		return s.of(t.Elem())
	case t == timeType:
		return object{{"type", "string"}, {"format", "date-time"}}
	case t == rawType:
		return object{}
	case t == numberType:
		return object{{"type", "number"}}
	case t.Name() != "" && t.Kind() != reflect.Interface && implements(t, []reflect.Type{schemerType}):
		return s.component(t, func() any { return reflect.New(t).Interface().(Schemer).OpenAPISchema() })
	case implements(t, jsonInterfaces) && !implements(t, []reflect.Type{fielderType}):
		return object{}
	case implements(t, textInterfaces):
		return object{{"type", "string"}}
	}
	switch t.Kind() {
	case reflect.Bool:
		return object{{"type", "boolean"}}
	case reflect.Int64:
		return object{{"type", "integer"}, {"format", "int64"}}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32:
		return object{{"type", "integer"}}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return object{{"type", "integer"}, {"minimum", 0}}
	case reflect.Float32, reflect.Float64:
		return object{{"type", "number"}}
	case reflect.String:
		return object{{"type", "string"}}
	case reflect.Interface:
		return object{}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return object{{"type", "string"}, {"contentEncoding", "base64"}}
		}
		return object{{"type", "array"}, {"items", s.of(t.Elem())}}
	case reflect.Array:
		return object{{"type", "array"}, {"items", s.of(t.Elem())}, {"minItems", t.Len()}, {"maxItems", t.Len()}}
	case reflect.Map:
		return object{{"type", "object"}, {"additionalProperties", s.of(t.Elem())}}
	case reflect.Struct:
		if t.Name() == "" {
			return s.structure(t)
		}
		return s.component(t, func() any { return s.structure(t) })
	}
	panic(fmt.Sprintf("openapi: JSON cannot hold a %v", t))
}

// component names t, which breaks the circle of a type that holds itself, and then makes its schema.
func (s *schemas) component(t reflect.Type, make func() any) object {
	name, ok := s.names[t]
	if !ok {
		name = s.free(t)
		s.names[t], s.byKey[name] = name, nil
		s.byKey[name] = make()
	}
	return object{{"$ref", schemaPath + name}}
}

var packagePath = regexp.MustCompile(`[\w.~%-]+(/[\w.~%-]+)*\.`)

// free returns the name of t in the document: that of the type, with its package's name before it when another type
// has that already. Type arguments lose their package paths: Page[agentd/server/rest.Run] is PageRun.
func (s *schemas) free(t reflect.Type) string {
	name := camel(packagePath.ReplaceAllString(t.Name(), ""))
	if _, taken := s.byKey[name]; !taken {
		return name
	}
	name = camel(path.Base(t.PkgPath())) + name
	if _, taken := s.byKey[name]; taken {
		panic(fmt.Sprintf("openapi: two types are called %s", name))
	}
	return name
}

// demands reports whether a body of this type must be sent: an absent body is read as an empty object.
func demands(t reflect.Type) bool {
	switch {
	case t.Kind() == reflect.Pointer:
		return demands(t.Elem())
	case t == rawType, t.Kind() == reflect.Interface, t.Kind() == reflect.Map:
		return false
	case t.Kind() == reflect.Struct:
		return slices.ContainsFunc(fieldsOf(t), func(f field) bool { return !f.optional })
	}
	return true
}

func (s *schemas) structure(t reflect.Type) object {
	properties, required := object{}, []string{}
	for _, f := range fieldsOf(t) {
		properties = append(properties, member{f.name, s.property(f)})
		if !f.optional {
			required = append(required, f.name)
		}
	}
	o := object{{"type", "object"}}
	if len(required) > 0 {
		o = append(o, member{"required", required})
	}
	return append(o, member{"properties", properties})
}

func (s *schemas) property(f field) object {
	schema := s.of(f.typ)
	if f.ref != "" {
		schema = object{{"$ref", schemaPath + f.ref}}
	}
	if f.quoted {
		schema = object{{"type", "string"}}
	}
	if f.enum != "" {
		schema = limit(schema, strings.Split(f.enum, "|"))
	}
	// An empty schema allows null already.
	if f.typ.Kind() == reflect.Pointer && !f.omitted && len(schema) > 0 {
		schema = object{{"anyOf", []object{schema, {{"type", "null"}}}}}
	}
	if f.doc != "" {
		schema = append(schema, member{"description", f.doc})
	}
	return schema
}

// limit adds the allowed values to the schema of a string or of a list of strings.
func limit(schema object, values []string) object {
	for i, m := range schema {
		switch {
		case m.name == "type" && m.value == "string":
			return append(schema, member{"enum", values})
		case m.name == "items":
			schema[i].value = limit(m.value.(object), values)
			return schema
		}
	}
	panic(fmt.Sprintf("openapi: enum %q stands on what is no string", values))
}
