package shape

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
)

// Print returns a value, which a pointer leads to, as indented JSON in the order of the fields, with a line break at its
// end. What is absent is left out; types with JSON methods of their own may hide something.
func (t *Type) Print(from any) []byte {
	var b bytes.Buffer
	if err := json.Indent(&b, appendValue(nil, reflect.ValueOf(from).Elem(), t), "", "  "); err != nil {
		panic("shape: " + err.Error())
	}
	b.WriteByte('\n')
	return b.Bytes()
}

// Check reads a value that was made in Go, which a pointer leads to, as if a document said it, so that the reader collects
// what is wrong with it. No files are read.
func (r *Reader) Check(t *Type, from any) {
	again := reflect.New(t.goType)
	r.Read(appendValue(nil, reflect.ValueOf(from).Elem(), t), t, again.Interface())
}

// appendValue appends v as compact JSON.
func appendValue(b []byte, v reflect.Value, t *Type) []byte {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	switch t.form {
	case formObject:
		if bare := t.stands(v); bare != nil {
			return appendValue(b, v.FieldByIndex(bare.index), bare.typ)
		}
		return appendObject(b, v, t)
	case formList:
		b = append(b, '[')
		for i := range v.Len() {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendValue(b, v.Index(i), t.elem)
		}
		return append(b, ']')
	case formDict:
		b = append(b, '{')
		for i, key := range slices.SortedFunc(slices.Values(v.MapKeys()), compareText) {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(append(b, Encode(key.String())...), ':')
			b = appendValue(b, v.MapIndex(key), t.elem)
		}
		return append(b, '}')
	case formRaw:
		switch raw := v.Bytes(); {
		case len(raw) == 0:
			return append(b, "null"...)
		case json.Valid(raw):
			return append(b, raw...)
		}
		return append(b, Encode(string(v.Bytes()))...)
	case formFloat:
		if math.IsNaN(v.Float()) || math.IsInf(v.Float(), 0) {
			return append(b, Encode(plain(v.Float()))...)
		}
	}
	return append(b, Encode(v.Interface())...)
}

// stands is the field whose value stands for the whole object, because nothing else of it is set; nil if there is none.
func (t *Type) stands(v reflect.Value) *Field {
	if t.bare == nil {
		return nil
	}
	for _, f := range t.fields {
		fv := v.FieldByIndex(f.index)
		isDefault := fv.IsZero() || f.preset && fv.Kind() == reflect.String && fv.String() == f.def
		if !slices.Contains(t.bare, f) && !isDefault {
			return nil
		}
	}
	for _, f := range t.bare {
		if !v.FieldByIndex(f.index).IsZero() {
			return f
		}
	}
	return t.bare[0]
}

func appendObject(b []byte, v reflect.Value, t *Type) []byte {
	kind, empty := t.kindOf(v), len(b)+1
	b = append(b, '{')
	for _, f := range t.fields {
		fv := v.FieldByIndex(f.index)
		if fv.IsZero() && (f.absent() || f.pointer || !f.of(kind)) {
			continue
		}
		value := appendValue(nil, fv, f.typ)
		if f.nested() && string(value) == "{}" {
			continue
		}
		if len(b) > empty {
			b = append(b, ',')
		}
		b = append(append(b, Encode(f.Name)...), ':')
		b = append(b, value...)
	}
	return append(b, '}')
}

// Each calls visit for every text, number and truth value of a value, which a pointer leads to, in the order of the fields.
// What is in an object that a bare text can stand for has the path of that object.
func (t *Type) Each(from any, visit func(path []any, v any)) {
	t.each(reflect.ValueOf(from).Elem(), nil, visit)
}

func (t *Type) each(v reflect.Value, path []any, visit func(path []any, v any)) {
	switch {
	case v.Kind() == reflect.Pointer:
		if !v.IsNil() {
			t.each(v.Elem(), path, visit)
		}
	case t.form == formObject:
		for _, f := range t.fields {
			inner := path
			if t.bare == nil {
				inner = append(slices.Clip(path), f.Name)
			}
			f.typ.each(v.FieldByIndex(f.index), inner, visit)
		}
	case t.form == formList:
		for i := range v.Len() {
			t.elem.each(v.Index(i), append(slices.Clip(path), i), visit)
		}
	case t.form == formDict:
		for _, key := range slices.SortedFunc(slices.Values(v.MapKeys()), compareText) {
			t.elem.each(v.MapIndex(key), append(slices.Clip(path), key.String()), visit)
		}
	default:
		visit(path, v.Interface())
	}
}

func compareText(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) }

// Encode is v as JSON on one line, with <, > and & as they are. It panics on what cannot be encoded, which the program
// itself has made.
func Encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic("shape: " + err.Error())
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
