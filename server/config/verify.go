package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// verify checks a value that may have been made in Go against its tags: what decoding checks in a file.
func verify(v reflect.Value, s *shape, path []any, report func(string, ...any)) {
	kind := s.kindOf(v)
	for _, f := range s.fields {
		fv, path := v.Field(f.index), under(path, f.name)
		switch {
		case !f.of(kind):
			if !fv.IsZero() {
				report(fmt.Sprintf("is not a field of kind %s; it belongs to %s", kind, alternatives(f.kinds)), path...)
			}
			continue
		case fv.IsZero() && f.optional():
			continue
		case f.pointer:
			fv = fv.Elem()
		}
		verifyValue(fv, f.shape, &f.rules, path, report)
	}
}

func verifyValue(v reflect.Value, s *shape, r *rules, path []any, report func(string, ...any)) {
	message := ""
	switch s.form {
	case formInt:
		message = r.checkNumber(float64(v.Int()))
	case formFloat:
		message = r.checkNumber(v.Float())
	case formText:
		message = r.checkText(v.String())
	case formList:
		if r.some && v.Len() == 0 {
			message = "want at least one item"
		}
		for i := range v.Len() {
			verifyValue(v.Index(i), s.elem, r, under(path, i), report)
		}
	case formDict:
		for _, key := range slices.SortedFunc(slices.Values(v.MapKeys()), compareText) {
			path := under(path, key.String())
			if m := r.keys.check(key.String()); m != "" {
				report(fmt.Sprintf("key %s: %s", quoted(key.String()), m), path...)
			}
			elem := reflect.New(s.elem.typ).Elem() // what is in a map has no address
			elem.Set(v.MapIndex(key))
			verifyValue(elem, s.elem, &rules{}, path, report)
		}
	case formObject:
		verify(v, s, path, report)
	case formRaw:
		if b := v.Bytes(); !json.Valid(b) || bytes.TrimSpace(b)[0] != '{' {
			message = "want a JSON object"
		}
	case formOwn:
		if message = v.Addr().Interface().(ownType).check(); message == "" && r.required && v.IsZero() {
			message = "is missing"
		}
	}
	if message != "" {
		report(message, path...)
	}
}

func compareText(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) }
