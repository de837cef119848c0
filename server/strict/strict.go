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
// first 100, and of those with long names above them as many as have 64 KiB of names, but at least one. An empty body is {}.
//
// Field tags: `json` names the key; `min` is the least length of a text or list, or the least number, and `max` the
// greatest number or length, of which a list is not read any further; `required` says that the key must be there. A field of type json.RawMessage takes any value without duplicate keys.
//
// The caller bounds the size of data. Time is linear in it. Memory is too, at most a hundred bytes for each byte: the
// tokens of a value of any form are looked at one by one.
func Decode(data []byte, into any) []fault.Issue {
	if len(bytes.TrimSpace(data)) == 0 {
		data = []byte("{}")
	}
	if problem := wellFormed(data); problem != "" {
		return []fault.Issue{fault.At(problem)}
	}
	d := decoder{}
	d.value(data, reflect.ValueOf(into).Elem(), "")
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

type decoder struct {
	path   []any // of the value that is being read
	issues []fault.Issue
	names  int // bytes of the names in the paths of the issues
}

// Bounds of an answer that a large body could make many times as large as itself.
const (
	maxIssues = 100
	maxNames  = 64 << 10 // a long name can be above many problems
)

// fail reports a problem of the value that is being read. The first is always listed.
func (d *decoder) fail(format string, args ...any) {
	if len(d.issues) == maxIssues || d.names > maxNames {
		return
	}
	for _, part := range d.path {
		if name, ok := part.(string); ok {
			d.names += len(name)
		}
	}
	if d.issues == nil || d.names <= maxNames {
		d.issues = append(d.issues, fault.At(fmt.Sprintf(format, args...), slices.Clone(d.path)...))
	}
}

// within reads a part of the value that is being read.
func (d *decoder) within(part any, read func()) {
	d.path = append(d.path, part)
	read()
	d.path = d.path[:len(d.path)-1]
}

var rawType = reflect.TypeFor[json.RawMessage]()

// value decodes well-formed JSON.
func (d *decoder) value(data []byte, v reflect.Value, tag reflect.StructTag) {
	data = bytes.TrimSpace(data)
	if v.Type() == rawType {
		v.SetBytes(data)
		if data[0] == '{' || data[0] == '[' {
			d.unique(json.NewDecoder(bytes.NewReader(data)))
		}
		return
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	if string(data) == "null" {
		d.fail("is null")
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.object(data, v)
	case reflect.Slice:
		d.list(data, v, tag)
	default:
		if err := json.Unmarshal(data, v.Addr().Interface()); err != nil {
			d.fail("is not %s", noun(v))
			return
		}
		low, high := Bound(tag, "min"), Bound(tag, "max")
		switch {
		case low != nil && v.Kind() == reflect.String && int64(len(v.String())) < *low:
			d.fail("has at least %d character(s)", *low)
		case high != nil && v.Kind() == reflect.String && int64(len(v.String())) > *high:
			d.fail("has at most %d bytes", *high)
		case low != nil && v.CanInt() && v.Int() < *low:
			d.fail("is at least %d", *low)
		case high != nil && v.CanInt() && v.Int() > *high:
			d.fail("is at most %d", *high)
		}
		if allowed := tag.Get("enum"); allowed != "" && v.Kind() == reflect.String && !slices.Contains(strings.Split(allowed, "|"), v.String()) {
			d.fail("is one of %s", strings.ReplaceAll(allowed, "|", ", "))
		}
	}
}

// unique reports keys that repeat inside a value of any form.
func (d *decoder) unique(dec *json.Decoder) {
	t, _ := dec.Token() // the whole is known to be well-formed
	switch t {
	case json.Delim('{'):
		seen := map[string]bool{}
		for dec.More() {
			k, _ := dec.Token()
			key := k.(string)
			d.within(key, func() {
				if seen[key] {
					d.fail("is there twice")
				}
				seen[key] = true
				d.unique(dec)
			})
		}
		dec.Token() //nolint:errcheck
	case json.Delim('['):
		for i := 0; dec.More(); i++ {
			d.within(i, func() { d.unique(dec) })
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

func (d *decoder) list(data []byte, v reflect.Value, tag reflect.StructTag) {
	if data[0] != '[' {
		d.fail("is not a list")
		return
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.Token() //nolint:errcheck // the whole is known to be well-formed
	var items []json.RawMessage
	for high := Bound(tag, "max"); dec.More(); {
		if high != nil && int64(len(items)) == *high {
			d.fail("has at most %d item(s)", *high)
			return
		}
		var item json.RawMessage
		dec.Decode(&item) //nolint:errcheck // as above
		items = append(items, item)
	}
	if low := Bound(tag, "min"); low != nil && int64(len(items)) < *low {
		d.fail("has at least %d item(s)", *low)
	}
	v.Set(reflect.MakeSlice(v.Type(), len(items), len(items)))
	tag = reflect.StructTag(strings.NewReplacer("min:", "-:", "max:", "-:").Replace(string(tag)))
	for i, item := range items {
		d.within(i, func() { d.value(item, v.Index(i), tag) })
	}
}

// object decodes the members of an object one by one, so that keys that repeat are seen.
func (d *decoder) object(data []byte, v reflect.Value) {
	dec := json.NewDecoder(bytes.NewReader(data))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		d.fail("is not an object")
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
		i, known := fields[key]
		d.within(key, func() {
			switch {
			case seen[key]:
				d.fail("is there twice")
			case !known:
				d.fail("is not a known key")
			default:
				d.value(raw, v.Field(i), v.Type().Field(i).Tag)
			}
		})
		seen[key] = true
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); f.Tag.Get("required") != "" && !seen[name] {
			d.within(name, func() { d.fail("is required") })
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
