package shape

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"agentd/server/fault"
)

const maxInteger = 1<<53 - 1

// A Reader reads one document into a value, and collects everything that is wrong with it: bad syntax, unknown, duplicate
// and missing keys, wrong types, and what breaks a rule. Time is linear in the document; memory is too, at most a hundred
// bytes for each byte, besides what the values take.
//
// A document that people write may have comments, trailing commas and a byte order mark. It is UTF-8, and its whole
// numbers are below 2^53, so that every other reader of JSON sees the same ones.
type Reader struct {
	Name     string                                         // of the file; empty for a message, whose problems have no line
	File     bool                                           // people write the document; see below
	MaxBytes int                                            // of the document; 0: the caller bounds it
	MaxDepth int                                            // of arrays and objects in each other
	Unknown  func(path []any) string                        // what to do about a key that is not known; "" or nil: just that
	Open     func(name string, limit int64) ([]byte, error) // reads a file that the document names

	// With Kept, another version of its writer may have made the document: null counts as absent, except for a
	// json.RawMessage; an enum is open; and Kept gets the unknown members of an object, as an object.
	Kept   func(path []any, members []byte)
	Before map[reflect.Type]func(path []any, value []byte) []byte // returns the JSON to read for a member of a type; nil: treat it as unknown
	After  func(path []any, v any) (member, message string)       // the Settle of types that have none; v is a pointer to a struct

	source   []byte // the document
	data     []byte // it without comments; nil until it is found sound
	problems []problem
	more     int               // problems that are not listed
	names    int               // bytes of names in the paths of the problems
	hidden   map[string]bool   // dotted paths of the problems before those of [Reader.Problem]; nil until the first of those
	set      map[string]string // where values come from that are not from the document, by dotted path
}

// Read reads the document into a pointer to a value of the type, whose defaults are already set where it has some. An
// empty document is an empty object where comments are not allowed. It reports whether the document is sound JSON.
func (r *Reader) Read(data []byte, t *Type, into any) bool {
	r.source = data
	switch {
	case r.MaxBytes > 0 && len(data) > r.MaxBytes:
		r.add(problem{at: 0, message: fmt.Sprintf("is larger than %d bytes", r.MaxBytes)})
		return false
	case r.File:
		r.source = bytes.TrimPrefix(data, []byte("\uFEFF"))
		if !utf8.Valid(r.source) {
			r.add(problem{at: bytes.IndexRune(r.source, utf8.RuneError), message: "is not UTF-8"})
			return false
		}
		data = blank(r.source)
	case len(bytes.TrimSpace(data)) == 0:
		data = []byte("{}")
	}
	if at, message := r.sound(data); message != "" {
		r.add(problem{at: at, message: message})
		return false
	}
	r.data = data
	d := decoder{cursor: cursorAt(data, 0, nil), r: r}
	d.Space()
	d.value(reflect.ValueOf(into).Elem(), t, &rules{})
	return true
}

// Decode reads a JSON object from the network into a pointer to a struct.
func Decode(data []byte, into any) []fault.Issue {
	r := Reader{MaxDepth: 200}
	r.Read(data, Of(reflect.TypeOf(into)), into)
	return r.Issues()
}

// Set sets the field at the path below into, a pointer to a struct, to a text from elsewhere: origin names the variable or
// flag. Lists are separated by commas; numbers and the like are JSON.
func (r *Reader) Set(into any, s Setting, text, origin string) {
	if r.set == nil {
		r.set = map[string]string{}
	}
	r.set[Dotted(s.Path)] = origin
	s.Field.set(reflect.ValueOf(into).Elem().FieldByIndex(s.index), text, r, origin, s.Path)
}

// Set sets a field of a struct to a text, and returns what is wrong with that. The empty text leaves an enum as it is.
func (f *Field) Set(object reflect.Value, text string) []fault.Issue {
	if text == "" && f.rules.enum != nil {
		return nil
	}
	r := Reader{}
	f.set(f.Value(object), text, &r, "", []any{f.Name})
	return r.Issues()
}

// Value is the field of a struct.
func (f *Field) Value(object reflect.Value) reflect.Value { return object.FieldByIndex(f.index) }

func (f *Field) set(v reflect.Value, text string, r *Reader, origin string, path []any) {
	if !utf8.ValidString(text) {
		r.add(problem{at: -1, origin: origin, path: path, message: "is not UTF-8"})
		return
	}
	d := decoder{cursor: cursorAt(fromText(f.typ, text), 0, slices.Clone(path)), r: r, origin: origin, outside: true}
	d.value(v, f.typ, &f.rules)
}

// fromText is the JSON of a text from a tag, a variable or a flag. What should be JSON and is not becomes a text, which is
// then of the wrong type.
func fromText(t *Type, text string) []byte {
	switch {
	case t.form == formList:
		items := []string{}
		for item := range strings.SplitSeq(text, ",") {
			items = append(items, strings.TrimSpace(item))
		}
		if strings.TrimSpace(text) == "" {
			items = items[:0]
		}
		return Encode(items)
	case t.form != formText && t.bare == nil && json.Valid([]byte(text)):
		return []byte(strings.TrimSpace(text))
	}
	return Encode(text)
}

// Default sets what the tags of a type say about a value that is not given. It panics on a tag that breaks its own rules.
func (t *Type) Default(into any) { t.defaults(reflect.ValueOf(into).Elem(), "") }

func (t *Type) defaults(v reflect.Value, kind string) {
	if !t.preset {
		return
	}
	for _, f := range t.fields {
		switch {
		case !f.of(kind):
		case f.preset:
			if issues := f.Set(v, f.def); issues != nil {
				panic(fmt.Sprintf("shape: default of %s: %v", f.Name, issues))
			}
		case f.nested() && !f.pointer:
			f.typ.defaults(v.FieldByIndex(f.index), "")
		}
	}
}
