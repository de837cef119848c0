package config

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"agentd/server/fault"
)

const (
	maxInteger = 1<<53 - 1 // the largest whole number that every JSON reader keeps exact
	maxKey     = 256       // bytes of a wrong key whose value is still looked at
)

// value decodes n into v. What is wrong is reported, and v keeps what it had.
func (l *loader) value(v reflect.Value, s *shape, r *rules, n *node, path []any) {
	l.note(s, n, path)
	switch s.form {
	case formBool:
		if l.expect(n, boolNode, path, "") {
			v.SetBool(n.text == "true")
		}
	case formInt:
		l.integer(v, r, n, path)
	case formFloat:
		if !l.expect(n, numberNode, path, "") {
			return
		}
		f, err := strconv.ParseFloat(n.text, 64)
		if err != nil {
			l.report(n.pos, path, "want a smaller number")
		} else if l.accept(n, path, r.checkNumber(f)) {
			v.SetFloat(f)
		}
	case formText:
		if l.expect(n, stringNode, path, "") && l.accept(n, path, r.checkText(n.text)) {
			v.SetString(n.text)
		}
	case formList:
		l.list(v, s, r, n, path)
	case formDict:
		l.dict(v, s, r, n, path)
	case formObject:
		l.object(v, s, n, path)
	case formRaw:
		if n.kind == nullNode && r.null {
			v.SetZero()
		} else if l.expect(n, objectNode, path, "a JSON object") {
			v.SetBytes(n.appendJSON(nil))
		}
	case formOwn:
		own, before := v.Addr().Interface().(ownType), l.count()
		if own.decode(l, n, path); l.count() > before {
			return
		}
		if l.accept(n, path, own.check()) && r.required && v.IsZero() {
			l.report(n.pos, path, "is empty")
		}
	}
}

// expect reports a value of the wrong type. want is how the message names the right one; "" takes the kind's name.
func (l *loader) expect(n *node, kind nodeKind, path []any, want string) bool {
	if n.kind == kind {
		return true
	}
	if want == "" {
		want = kind.String()
	}
	message := fmt.Sprintf("want %s, got %v", want, n.kind)
	if n.kind == nullNode {
		message += "; leave the key out for its default"
	}
	l.report(n.pos, path, message)
	return false
}

// accept reports a message that is not empty.
func (l *loader) accept(n *node, path []any, message string) bool {
	if message != "" {
		l.report(n.pos, path, message)
	}
	return message == ""
}

func (l *loader) integer(v reflect.Value, r *rules, n *node, path []any) {
	if !l.expect(n, numberNode, path, "a whole number") {
		return
	}
	if strings.ContainsAny(n.text, ".eE") {
		l.report(n.pos, path, fmt.Sprintf("want a whole number, written with digits only, got %.40s", n.text))
		return
	}
	i, err := strconv.ParseInt(n.text, 10, 64)
	if err != nil || i > maxInteger || i < -maxInteger || v.OverflowInt(i) {
		l.report(n.pos, path, fmt.Sprintf("want a smaller number, got %.40s", n.text))
	} else if l.accept(n, path, r.checkNumber(float64(i))) {
		v.SetInt(i)
	}
}

func (l *loader) list(v reflect.Value, s *shape, r *rules, n *node, path []any) {
	if !l.expect(n, arrayNode, path, "") {
		return
	}
	if r.some && len(n.items) == 0 {
		l.report(n.pos, path, "want at least one item")
		return
	}
	items := reflect.MakeSlice(s.typ, len(n.items), len(n.items))
	for i, item := range n.items {
		l.fresh(items.Index(i), s.elem, r, item, under(path, i))
	}
	v.Set(items)
}

func (l *loader) dict(v reflect.Value, s *shape, r *rules, n *node, path []any) {
	if !l.expect(n, objectNode, path, "") {
		return
	}
	entries := reflect.MakeMapWithSize(s.typ, len(n.members))
	for _, m := range n.members {
		path := under(path, m.key)
		if message := r.keys.check(m.key); message != "" {
			l.report(m.pos, path, fmt.Sprintf("key %s: %s", quoted(m.key), message))
			if len(m.key) > maxKey {
				continue // every path below would repeat it
			}
		}
		elem := reflect.New(s.elem.typ).Elem()
		l.fresh(elem, s.elem, &rules{}, m.value, path)
		entries.SetMapIndex(reflect.ValueOf(m.key), elem)
	}
	v.Set(entries)
}

// fresh decodes an item of a list or map, which has its own defaults when it is an object.
func (l *loader) fresh(v reflect.Value, s *shape, r *rules, n *node, path []any) {
	if s.form == formObject {
		applyDefaults(v, s, s.kindIn(n))
	}
	l.value(v, s, r, n, path)
}

// kindIn is the kind that n says it is; "" where it says none that exists.
func (s *shape) kindIn(n *node) string {
	if kind := n.member("kind"); kind != nil && kind.kind == stringNode && slices.Contains(s.kinds, kind.text) {
		return kind.text
	}
	return ""
}

func (l *loader) object(v reflect.Value, s *shape, n *node, path []any) {
	if !l.expect(n, objectNode, path, "") {
		return
	}
	kind := s.kindIn(n)
	given := map[string]bool{}
	for _, m := range n.members {
		path := under(path, m.key)
		f := s.field(m.key)
		switch {
		case f == nil && len(path) == 1 && later(m.key) != "":
			l.report(m.pos, path, later(m.key))
		case f == nil && l.problems.full():
			l.report(m.pos, path, "unknown key")
		case f == nil:
			best := fault.Nearest(m.key, s.names(kind))
			given[best] = true // a misspelt key is not missing as well
			l.report(m.pos, path, "unknown key "+quoted(m.key)+didYouMean(best))
		case !f.of(kind):
			l.report(m.pos, path, fmt.Sprintf("%q is not a field of kind %s; it belongs to %s", m.key, kind, alternatives(f.kinds)))
		default:
			given[m.key] = true
			l.member(v.Field(f.index), f, m.value, path)
		}
	}
	if l.partial {
		return
	}
	for _, f := range s.fields {
		if f.rules.required && !given[f.name] && f.of(kind) && (s.kinds == nil || kind != "" || f.name == "kind") {
			l.report(n.pos, under(path, f.name), fmt.Sprintf("%q is missing", f.name))
		}
	}
}

// member decodes one field of an object.
func (l *loader) member(v reflect.Value, f *field, n *node, path []any) {
	if !f.pointer {
		l.value(v, f.shape, &f.rules, n, path)
		return
	}
	p := reflect.New(f.shape.typ)
	before := l.count()
	if l.value(p.Elem(), f.shape, &f.rules, n, path); l.count() == before {
		v.Set(p)
	}
}

// single returns the text of the only member of an object {key: "text"}; ok is false after a report.
func (l *loader) single(n *node, key string, path []any) (value *node, ok bool) {
	for _, m := range n.members {
		if m.key != key {
			l.report(m.pos, under(path, m.key), fmt.Sprintf("unknown key %s; want %q only", quoted(m.key), key))
			return nil, false
		}
	}
	if value = n.member(key); value == nil {
		l.report(n.pos, path, fmt.Sprintf("%q is missing", key))
	}
	return value, value != nil
}

// fromText makes a node of a text from a tag, a variable or a flag: lists are separated by commas, numbers and the
// like are JSON, and what is not becomes a text, whose type is then refused.
func fromText(s *shape, text string) *node {
	switch {
	case s.form == formText, s.form == formOwn:
		return &node{kind: stringNode, text: text}
	case s.form == formList:
		n := &node{kind: arrayNode}
		if strings.TrimSpace(text) == "" {
			return n
		}
		for item := range strings.SplitSeq(text, ",") {
			n.items = append(n.items, &node{kind: stringNode, text: strings.TrimSpace(item)})
		}
		return n
	}
	sound := json.Valid([]byte(text))
	n, _ := parse([]byte(text), func(pos, []any, string) { sound = false })
	if !sound {
		return &node{kind: stringNode, text: text}
	}
	n.clearPos()
	return n
}

// clearPos forgets places, which mean nothing outside a file.
func (n *node) clearPos() {
	n.pos = pos{}
	for _, item := range n.items {
		item.clearPos()
	}
	for _, m := range n.members {
		m.value.clearPos()
	}
}

// applyDefaults sets the fields of an object, and of the objects in it, to what their tags say. It panics on a tag
// that breaks its own rules.
func applyDefaults(v reflect.Value, s *shape, kind string) {
	for _, f := range s.fields {
		switch fv := v.Field(f.index); {
		case !f.of(kind):
		case f.hasDef:
			var l loader
			if l.value(fv, f.shape, &f.rules, fromText(f.shape, f.def), nil); l.count() > 0 {
				panic(fmt.Sprintf("config: default of %s: %v", f.name, l.problems.list))
			}
		case f.shape.form == formObject:
			applyDefaults(fv, f.shape, "")
		}
	}
}
