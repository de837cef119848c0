// Package strict reads JSON that others send, and finds everything that is wrong with it.
package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"agentd/server/fault"
	"agentd/server/message"
)

// maxDepth bounds the nesting of a body.
const maxDepth = 200

// Decode reads a JSON object into a pointer to a struct and returns every problem: bad syntax, trailing data, unknown,
// duplicate and missing keys, wrong types, null where a value is needed, texts that are too short; of more than 100, the
// first 100. An empty body is {}.
//
// Field tags: `json` names the key; `min` is the least length of a text or list, or the least number, and `max` the
// greatest number; `required` says that the key must be there. A field of type json.RawMessage takes any value without duplicate keys.
func Decode(data []byte, into any) []fault.Issue {
	if len(bytes.TrimSpace(data)) == 0 {
		data = []byte("{}")
	}
	if problem := wellFormed(data); problem != "" {
		return []fault.Issue{fault.At(problem)}
	}
	d := decoder{}
	d.value(data, reflect.ValueOf(into).Elem(), "", nil)
	return d.issues
}

// wellFormed reports what keeps data from being one JSON value of bounded depth.
func wellFormed(data []byte) string {
	var whole json.RawMessage
	if err := json.Unmarshal(data, &whole); err != nil {
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			return fmt.Sprintf("is not valid JSON at byte %d: %s", syntax.Offset, syntax.Error())
		}
		return "is not valid JSON: " + err.Error()
	}
	if message.Depth(data) > maxDepth {
		return fmt.Sprintf("is nested more than %d levels deep", maxDepth)
	}
	return ""
}

type decoder struct{ issues []fault.Issue }

// maxIssues bounds an answer that a large body could make many times as large as itself.
const maxIssues = 100

func (d *decoder) fail(path []any, format string, args ...any) {
	if len(d.issues) == maxIssues {
		return
	}
	d.issues = append(d.issues, fault.At(fmt.Sprintf(format, args...), path...))
}

var rawType = reflect.TypeFor[json.RawMessage]()

// value decodes well-formed JSON.
func (d *decoder) value(data []byte, v reflect.Value, tag reflect.StructTag, path []any) {
	data = bytes.TrimSpace(data)
	if v.Type() == rawType {
		v.SetBytes(data)
		if data[0] == '{' || data[0] == '[' {
			d.unique(json.NewDecoder(bytes.NewReader(data)), path)
		}
		return
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	if string(data) == "null" {
		d.fail(path, "is null")
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.object(data, v, path)
	case reflect.Slice:
		d.list(data, v, tag, path)
	default:
		if err := json.Unmarshal(data, v.Addr().Interface()); err != nil {
			d.fail(path, "is not %s", noun(v))
			return
		}
		low, high := Bound(tag, "min"), Bound(tag, "max")
		switch {
		case low != nil && v.Kind() == reflect.String && int64(len(v.String())) < *low:
			d.fail(path, "has at least %d character(s)", *low)
		case low != nil && v.CanInt() && v.Int() < *low:
			d.fail(path, "is at least %d", *low)
		case high != nil && v.CanInt() && v.Int() > *high:
			d.fail(path, "is at most %d", *high)
		}
		if allowed := tag.Get("enum"); allowed != "" && v.Kind() == reflect.String && !slices.Contains(strings.Split(allowed, "|"), v.String()) {
			d.fail(path, "is one of %s", strings.ReplaceAll(allowed, "|", ", "))
		}
	}
}

// unique reports keys that repeat inside a value of any form.
func (d *decoder) unique(dec *json.Decoder, path []any) {
	t, _ := dec.Token() // the whole is known to be well-formed
	switch t {
	case json.Delim('{'):
		seen := map[string]bool{}
		for dec.More() {
			k, _ := dec.Token()
			key := k.(string)
			at := append(slices.Clip(path), key)
			if seen[key] {
				d.fail(at, "is there twice")
			}
			seen[key] = true
			d.unique(dec, at)
		}
		dec.Token() //nolint:errcheck
	case json.Delim('['):
		for i := 0; dec.More(); i++ {
			d.unique(dec, append(slices.Clip(path), i))
		}
		dec.Token() //nolint:errcheck
	}
}

func noun(v reflect.Value) string {
	switch v.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Struct:
		return "an object"
	case reflect.Slice:
		return "a list"
	}
	return "a whole number"
}

func (d *decoder) list(data []byte, v reflect.Value, tag reflect.StructTag, path []any) {
	var items []json.RawMessage
	if json.Unmarshal(data, &items) != nil {
		d.fail(path, "is not a list")
		return
	}
	if low := Bound(tag, "min"); low != nil && int64(len(items)) < *low {
		d.fail(path, "has at least %d item(s)", *low)
	}
	v.Set(reflect.MakeSlice(v.Type(), len(items), len(items)))
	for i, item := range items {
		d.value(item, v.Index(i), reflect.StructTag(strings.ReplaceAll(string(tag), "min:", "-:")), append(slices.Clip(path), i))
	}
}

// object decodes the members of an object one by one, so that keys that repeat are seen.
func (d *decoder) object(data []byte, v reflect.Value, path []any) {
	dec := json.NewDecoder(bytes.NewReader(data))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		d.fail(path, "is not an object")
		return
	}
	fields := map[string]int{}
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		fields[name] = i
	}
	seen := map[string]bool{}
	for dec.More() {
		t, _ := dec.Token()
		key := t.(string)
		var raw json.RawMessage
		dec.Decode(&raw) //nolint:errcheck // the whole is known to be well-formed
		at := append(slices.Clip(path), key)
		i, known := fields[key]
		switch {
		case seen[key]:
			d.fail(at, "is there twice")
		case !known:
			d.fail(at, "is not a known key")
		default:
			d.value(raw, v.Field(i), v.Type().Field(i).Tag, at)
		}
		seen[key] = true
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); f.Tag.Get("required") != "" && !seen[name] {
			d.fail(append(slices.Clip(path), name), "is required")
		}
	}
}

// Bound is the number that a tag names; nil when it names none.
func Bound(tag reflect.StructTag, name string) *int64 {
	n, err := strconv.ParseInt(tag.Get(name), 10, 64)
	if err != nil {
		return nil
	}
	return &n
}
