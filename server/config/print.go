package config

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
)

// Print returns the effective configuration as indented JSON in the order of the tree, with a line break at its end.
// Secrets appear as their references, texts from files as they are. Parsing it in the same folder gives the same
// configuration.
func (c *Config) Print() []byte {
	var b bytes.Buffer
	if err := json.Indent(&b, appendValue(nil, reflect.ValueOf(c).Elem(), tree), "", "  "); err != nil {
		// Only a json.RawMessage made in Go can be broken; Validate names it.
		return encode("not printable: " + err.Error())
	}
	b.WriteByte('\n')
	return b.Bytes()
}

// appendValue appends v as compact JSON.
func appendValue(b []byte, v reflect.Value, s *shape) []byte {
	switch s.form {
	case formObject:
		return appendObject(b, v, s)
	case formList:
		b = append(b, '[')
		for i := range v.Len() {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendValue(b, v.Index(i), s.elem)
		}
		return append(b, ']')
	case formDict:
		b = append(b, '{')
		for i, key := range slices.SortedFunc(slices.Values(v.MapKeys()), compareText) {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(append(b, encode(key.String())...), ':')
			b = appendValue(b, v.MapIndex(key), s.elem)
		}
		return append(b, '}')
	case formRaw:
		if v.Len() == 0 {
			return append(b, "null"...)
		}
		return append(b, v.Bytes()...)
	}
	return append(b, encode(v.Interface())...)
}

// appendObject leaves out what is absent or belongs to another kind.
func appendObject(b []byte, v reflect.Value, s *shape) []byte {
	kind, first := s.kindOf(v), true
	b = append(b, '{')
	for _, f := range s.fields {
		fv := v.Field(f.index)
		if !f.of(kind) || fv.IsZero() && f.optional() {
			continue
		}
		if f.pointer {
			fv = fv.Elem()
		}
		value := appendValue(nil, fv, f.shape)
		if f.shape.form == formObject && string(value) == "{}" {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(append(b, encode(f.name)...), ':')
		b = append(b, value...)
	}
	return append(b, '}')
}
