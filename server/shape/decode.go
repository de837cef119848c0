package shape

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"agentd/server/canonical"
	"agentd/server/fault"
)

// A decoder reads sound JSON into a value, for a Reader.
type decoder struct {
	cursor
	r       *Reader
	origin  string
	outside bool // what is read is not from the document
}

// report reports what is wrong with the value at the path.
func (d *decoder) report(at int, format string, args ...any) {
	switch {
	case d.r.Full():
		d.r.more++
		return
	case d.outside:
		at = -1
	}
	d.r.add(problem{at, d.origin, d.path, fmt.Sprintf(format, args...)})
}

// accept reports a message that is not empty.
func (d *decoder) accept(at int, message string) bool {
	if message != "" {
		d.report(at, "%s", message)
	}
	return message == ""
}

// found is the type of the value at the cursor.
func (d *decoder) found() string {
	switch d.Source[d.At] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "text"
	case 't', 'f':
		return "true or false"
	case 'n':
		return "null"
	}
	return "a number"
}

// wanted is what the JSON of a form is.
var wanted = [...]string{formBool: "true or false", formInt: "a whole number", formFloat: "a number", formText: "text", formList: "a list",
	formDict: "an object", formObject: "an object", formRaw: "an object", formOther: "another value"}

// fits reports whether the value at the cursor may be read in a form.
func (d *decoder) fits(form form, r *rules) bool {
	got := d.found()
	switch form {
	case formInt:
		return got == "a number"
	case formRaw:
		return !r.object || got == "an object" || got == "null" && r.null
	case formOther:
		return got != "null"
	}
	return got == wanted[form]
}

// value reads the value at the cursor, and passes it.
func (d *decoder) value(v reflect.Value, t *Type, r *rules) {
	for v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
		t.defaults(v, d.kind(t))
	}
	at, before := d.At, d.r.Count()
	if t.bare != nil { // what stands there replaces the whole default
		v.SetZero()
		t.defaults(v, "")
	}
	if bare := slices.IndexFunc(t.bare, func(f *Field) bool { return d.fits(f.typ.form, &f.rules) }); bare >= 0 {
		f := t.bare[bare]
		d.value(v.FieldByIndex(f.index), f.typ, &f.rules)
		d.settle(v, t, r, at, before)
		return
	}
	if r.lenient && (t.form == formInt || t.form == formFloat) {
		d.amount(v, r)
		return
	}
	if !d.fits(t.form, r) || t.bare != nil && len(t.fields) == 0 {
		d.mismatch(t)
		return
	}
	switch t.form {
	case formBool:
		v.SetBool(string(d.Scalar()) == "true")
	case formInt:
		d.integer(v, r)
	case formFloat:
		f, err := strconv.ParseFloat(string(d.Scalar()), 64)
		if err != nil {
			d.report(at, "want a smaller number")
		} else if d.accept(at, r.checkNumber(f)) {
			v.SetFloat(f)
		}
	case formText:
		if s := d.Text(); d.accept(at, r.checkText(s, d.r.Kept == nil)) {
			v.SetString(s)
		}
	case formList:
		d.list(v, t, r)
	case formDict:
		d.dict(v, t, r)
	case formObject:
		d.object(v, t, r)
	case formRaw:
		null := d.Source[d.At] == 'n' && r.null
		d.unique()
		raw := d.Source[at:d.At:d.At]
		if d.r.File { // which have left spaces
			var compact bytes.Buffer
			json.Compact(&compact, raw) //nolint:errcheck // it is sound
			raw = compact.Bytes()
		}
		if !null {
			v.SetBytes(raw)
		}
	case formOther:
		d.unique()
		if isBytes := v.Kind() == reflect.Slice; isBytes && d.Source[at] != '"' || json.Unmarshal(d.Source[at:d.At], v.Addr().Interface()) != nil {
			d.report(at, "want %s", map[bool]string{false: "another value", true: "base64 text"}[isBytes])
		}
	}
}

func (d *decoder) mismatch(t *Type) {
	want, hint := wanted[t.form], ""
	if t.bare != nil {
		want = t.label
	}
	if d.Source[d.At] == 'n' && len(d.path) > 0 {
		hint = "; leave the key out for its default"
	}
	d.report(d.At, "want %s, got %s%s", want, d.found(), hint)
	d.unique()
}

func (d *decoder) integer(v reflect.Value, r *rules) {
	at := d.At
	text := string(d.Scalar())
	if strings.ContainsAny(text, ".eE") {
		d.report(at, "want a whole number, written with digits only, got %.40s", text)
		return
	}
	i, err := strconv.ParseInt(text, 10, 64)
	if err != nil || d.r.File && (i > maxInteger || i < -maxInteger) || v.OverflowInt(i) {
		d.report(at, "want a smaller number, got %.40s", text)
	} else if d.accept(at, r.checkNumber(float64(i))) {
		v.SetInt(i)
	}
}

func (d *decoder) list(v reflect.Value, t *Type, r *rules) {
	at, item := d.At, *r
	item.size, item.required = bounds{}, false
	count := 0
	items := d.Cursor
	for items.More() {
		count++
		items.Skip()
	}
	if !d.accept(at, r.checkCount(count)) {
		d.At = items.At
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), 0, min(count, 16)))
	for range d.items() {
		if item.lenient && !d.alike(t.elem, &item) {
			d.unique()
			continue
		}
		n, before := v.Len(), d.r.Count()
		v.Grow(1)
		v.SetLen(n + 1)
		v.Index(n).SetZero()
		d.fresh(v.Index(n), t.elem, &item)
		if !d.r.File && d.r.Count() > before { // an item takes far more memory than the bytes of a bad one
			v.SetLen(n)
		}
	}
}

func (d *decoder) dict(v reflect.Value, t *Type, r *rules) {
	v.Set(reflect.MakeMap(v.Type()))
	item := rules{lenient: r.lenient}
	for at, key := range d.each() {
		if item.lenient && !d.alike(t.elem, &item) {
			d.unique()
			continue
		}
		if r.keys != nil {
			if message := r.keys.Check(key); message != "" {
				d.report(at, "key %s: %s", quoted(key), message)
			}
		}
		elem := reflect.New(v.Type().Elem()).Elem()
		d.fresh(elem, t.elem, &item)
		v.SetMapIndex(reflect.ValueOf(key), elem)
	}
}

// fresh reads an item of a list or map, which has its own defaults when it is an object.
func (d *decoder) fresh(v reflect.Value, t *Type, r *rules) {
	if t.preset {
		t.defaults(v, d.kind(t))
	}
	d.value(v, t, r)
}

// kind is the kind that the object at the cursor says it is; "" where it says none that exists.
func (d *decoder) kind(t *Type) string {
	if t.kinds != nil {
		if at := d.find("kind"); at >= 0 && d.Source[at] == '"' {
			ahead := canonical.Cursor{Source: d.Source, At: at}
			if kind := ahead.Text(); slices.Contains(t.kinds, kind) {
				return kind
			}
		}
	}
	return ""
}

func (d *decoder) object(v reflect.Value, t *Type, r *rules) {
	start, kind, before := d.At, d.kind(t), d.r.Count()
	given := make([]string, 0, len(t.fields)) // and what misspelt keys are likely to be: those are not missing as well
	var kept []byte
	for at, key := range d.each() {
		f, begin := t.Field(key), d.At
		switch {
		case f != nil && !f.of(kind):
			d.report(at, "%q is not a field of kind %s; it belongs to %s", key, kind, alternatives(f.kinds))
			d.unique()
		case f != nil && d.absent(f):
			d.unique()
			continue
		case f != nil && d.member(v.FieldByIndex(f.index), f):
		case d.r.Kept != nil:
			d.unique()
			kept = append(append(canonical.AppendText(append(kept, ','), key), ':'), d.Source[begin:d.At]...)
		default:
			key = d.stray(key, at, t.names(kind))
			d.unique()
		}
		given = append(given, key)
	}
	if kept != nil {
		kept[0] = '{'
		d.r.Kept(d.path, append(kept, '}'))
	}
	for _, f := range t.fields {
		if f.rules.given && !slices.Contains(given, f.Name) && f.of(kind) && (t.kinds == nil || kind != "" || f.Name == "kind") {
			d.path = append(d.path, f.Name)
			d.report(start, "%q is missing", f.Name)
			d.path = d.path[:len(d.path)-1]
		}
	}
	d.settle(v, t, r, start, before)
}

// stray reports a key that is not known, and returns the one that was likely meant.
func (d *decoder) stray(key string, at int, known []string) (meant string) {
	if d.r.Unknown != nil {
		if advice := d.r.Unknown(d.path); advice != "" {
			d.report(at, "%s", advice)
			return ""
		}
	}
	if !d.r.Full() {
		meant = fault.Nearest(key, known)
	}
	d.report(at, "unknown key %s%s", quoted(key), DidYouMean(meant))
	return meant
}

// settle lets a value that has been read without a problem say what else is wrong.
func (d *decoder) settle(v reflect.Value, t *Type, r *rules, at, before int) {
	if d.r.Count() > before {
		return
	}
	member, message := "", ""
	if s, ok := v.Addr().Interface().(Settler); ok {
		member, message = s.Settle(d.r.Open)
	} else if d.r.After != nil {
		member, message = d.r.After(d.path, v.Addr().Interface())
	}
	if member != "" {
		d.path = append(d.path, member)
		d.report(cursorAt(d.Source, at, nil).find(member), "%s", message)
		d.path = d.path[:len(d.path)-1]
	} else {
		d.accept(at, message)
	}
	if t.bare != nil && r.required && v.IsZero() && d.r.Count() == before {
		d.report(at, "is empty")
	}
}

// each yields the members of the object at the cursor, which stands at the value then; but it reports keys that repeat,
// and passes their values.
func (d *decoder) each() iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		seen := map[string]int{}
		for at, key := range d.members() {
			if first, again := seen[key]; again {
				where := ""
				if d.r.Name != "" && !d.outside && !d.r.Full() {
					where = "; the first is at " + d.r.place(first)
				}
				d.report(at, "duplicate key %s%s", quoted(key), where)
				d.Skip()
				continue
			}
			if seen[key] = at; !yield(at, key) {
				return
			}
		}
	}
}

// unique passes the value at the cursor, and reports keys that repeat in it.
func (d *decoder) unique() {
	switch d.Source[d.At] {
	case '{':
		for range d.each() {
			d.unique()
		}
	case '[':
		for range d.items() {
			d.unique()
		}
	default:
		d.Skip()
	}
}
