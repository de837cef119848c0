package shape

import (
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// A lenient member is absent where its value is not of its type. A lenient list or map leaves out such items, and objects
// in it that lack a member with the rule given. A lenient number is what old counters hold: a number, the text of one, or
// true for 1; anything else is 0. It is stored as an amount: not below 0, and a whole one is cut at 2^53-1.

// absent reports whether the value at the cursor counts as absent.
func (d *decoder) absent(f *Field) bool {
	null := d.Source[d.At] == 'n' && d.r.Kept != nil && f.typ.form != formRaw
	items := f.typ.form == formList || f.typ.form == formDict
	return null || f.rules.lenient && !items && !d.alike(f.typ, &f.rules)
}

// alike reports whether the value at the cursor is of a type, and has what must be given where that is an object.
func (d *decoder) alike(t *Type, r *rules) bool {
	if t.form == formInt || t.form == formFloat {
		return true
	}
	return d.fits(t.form, r) && !slices.ContainsFunc(t.fields, func(f *Field) bool {
		if !f.rules.given {
			return false
		}
		inner := *d
		inner.At = d.find(f.Name)
		return inner.At < 0 || !inner.fits(f.typ.form, &f.rules)
	})
}

// amount reads a lenient number.
func (d *decoder) amount(v reflect.Value, r *rules) {
	at, text := d.At, "0"
	switch d.found() {
	case "text":
		text = strings.TrimSpace(d.Text())
	case "true or false":
		if string(d.Scalar()) == "true" {
			text = "1"
		}
	case "a number":
		text = string(d.Scalar())
	default:
		d.unique()
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
		n = 0
	}
	if !d.accept(at, r.checkNumber(n)) {
		return
	}
	if v.CanInt() {
		v.SetInt(int64(min(max(n, 0), maxInteger)))
	} else {
		v.SetFloat(max(n, 0))
	}
}

// member reads the value at the cursor of a field. It reports false where that counts as unknown.
func (d *decoder) member(v reflect.Value, f *Field) bool {
	if before := d.r.Before[f.typ.goType]; before != nil {
		ahead := d.cursor
		ahead.Skip()
		value := d.Source[d.At:ahead.At]
		read := before(d.path, value)
		if read == nil {
			return false
		}
		if &read[0] != &value[0] {
			d.At = ahead.At
			d = &decoder{cursor: cursorAt(read, 0, d.path), r: d.r, outside: true}
		}
	}
	d.value(v, f.typ, &f.rules)
	return true
}
