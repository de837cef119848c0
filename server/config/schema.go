package config

import (
	"encoding/json"
	"reflect"
	"strings"
)

// Schema returns the JSON Schema (draft 2020-12) of the file, indented, with a line break at its end. It covers what
// tags say; references between parts of the file are checked by loading it only.
func Schema() []byte {
	s := objectSchema(tree, "")
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = "Configuration of agentd"
	b, err := json.MarshalIndent(json.RawMessage(encode(s)), "", "  ")
	if err != nil {
		panic("config: " + err.Error())
	}
	return append(b, '\n')
}

// objectSchema is the schema of an object, of one kind where it has kinds.
func objectSchema(s *shape, kind string) map[string]any {
	properties := map[string]any{}
	var required []string
	for _, f := range s.fields {
		if !f.of(kind) {
			continue
		}
		p := valueSchema(f.shape, &f.rules)
		if f.name == "kind" && kind != "" {
			p = map[string]any{"const": kind}
		}
		p["description"] = f.doc
		if f.hasDef {
			p["default"] = json.RawMessage(f.defaultJSON())
		}
		if f.rules.required {
			required = append(required, f.name)
		}
		properties[f.name] = p
	}
	schema := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if required != nil {
		schema["required"] = required
	}
	return schema
}

func valueSchema(s *shape, r *rules) map[string]any {
	switch s.form {
	case formBool:
		return map[string]any{"type": "boolean"}
	case formInt:
		return r.number.schema("integer")
	case formFloat:
		return r.number.schema("number")
	case formText:
		return r.textSchema()
	case formList:
		schema := map[string]any{"type": "array", "items": valueSchema(s.elem, r)}
		if r.some {
			schema["minItems"] = 1
		}
		return schema
	case formDict:
		return map[string]any{
			"type":                 "object",
			"propertyNames":        map[string]any{"pattern": r.keys.pattern.String()},
			"additionalProperties": valueSchema(s.elem, &rules{}),
		}
	case formObject:
		if s.kinds == nil {
			return objectSchema(s, "")
		}
		var kinds []any
		for _, kind := range s.kinds {
			kinds = append(kinds, objectSchema(s, kind))
		}
		return map[string]any{"oneOf": kinds}
	case formRaw:
		if r.null {
			return map[string]any{"type": []string{"object", "null"}}
		}
		return map[string]any{"type": "object"}
	}
	_, schema := reflect.New(s.typ).Interface().(ownType).form()
	return schema
}

func (b bounds) schema(typ string) map[string]any {
	s := map[string]any{"type": typ}
	switch {
	case b.hasMin && b.exclusive:
		s["exclusiveMinimum"] = b.min
	case b.hasMin:
		s["minimum"] = b.min
	}
	if b.hasMax {
		s["maximum"] = b.max
	}
	return s
}

func (r *rules) textSchema() map[string]any {
	s := map[string]any{"type": "string"}
	switch {
	case r.enum != nil:
		return map[string]any{"enum": r.enum}
	case r.text != nil:
		s["pattern"] = r.text.pattern.String()
	case r.required:
		s["minLength"] = 1
	}
	return s
}

// defaultJSON is the default as JSON.
func (f *field) defaultJSON() string {
	v := reflect.New(f.shape.typ).Elem()
	(&loader{}).value(v, f.shape, &f.rules, fromText(f.shape, f.def), nil)
	return strings.TrimSpace(string(appendValue(nil, v, f.shape)))
}
