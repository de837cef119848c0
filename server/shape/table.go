package shape

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// A Setting is a leaf that one text can set: by a variable or a flag. Leaves below maps and lists are not settings.
type Setting struct {
	Path  []any
	Field *Field
	index []int // of nested struct fields
}

// Settings lists the settings of a type, in the order of its fields.
func (t *Type) Settings() (all []Setting) {
	for _, f := range t.fields {
		switch {
		case f.nested():
			for _, s := range f.typ.Settings() {
				all = append(all, Setting{append([]any{f.Name}, s.Path...), s.Field, slices.Concat(f.index, s.index)})
			}
		case f.typ.form != formDict:
			all = append(all, Setting{[]any{f.Name}, f, f.index})
		}
	}
	return all
}

// A Row documents one leaf.
type Row struct {
	Path     string   // dotted; <id> stands for a key of a map, <n> for an index
	Type     string   // in words, with its range
	Default  string   // as JSON; empty: none
	Required bool     // must be given wherever its object is
	Kinds    []string // the kinds that it belongs to; empty: all
	Doc      string
}

// Rows lists every leaf, in the order of the fields. The caller owns the slice.
func (t *Type) Rows() []Row { return t.rows("", nil) }

func (t *Type) rows(path string, kinds []string) (all []Row) {
	for _, f := range t.fields {
		path, kinds := path+f.Name, kinds
		if f.kinds != nil {
			kinds = f.kinds
		}
		isObject := func(t *Type) bool { return t != nil && t.form == formObject && t.bare == nil }
		switch {
		case f.nested():
			all = append(all, f.typ.rows(path+".", kinds)...)
		case isObject(f.typ.elem) && f.typ.form == formDict:
			all = append(all, f.typ.elem.rows(path+".<id>.", kinds)...)
		case isObject(f.typ.elem):
			all = append(all, f.typ.elem.rows(path+".<n>.", kinds)...)
		default:
			row := Row{Path: path, Type: label(f.typ, &f.rules), Required: f.rules.required, Kinds: kinds, Doc: f.Doc}
			if f.preset {
				row.Default = f.defaultJSON()
			}
			all = append(all, row)
		}
	}
	return all
}

// defaultJSON is the default as JSON.
func (f *Field) defaultJSON() string {
	v := reflect.New(f.typ.goType).Elem()
	f.set(v, f.def, &Reader{}, "", nil)
	return string(appendValue(nil, v, f.typ))
}

// label is a type in words.
func label(t *Type, r *rules) string {
	switch {
	case t.label != "":
		return t.label
	case t.form == formText && r.enum != nil:
		return alternatives(r.enum)
	case t.form == formText && r.text != nil && r.text.Label != "":
		return r.text.Label
	case t.form == formText:
		return "text"
	case t.form == formList:
		return "list of " + label(t.elem, r)
	case t.form == formDict:
		return "map of " + label(t.elem, &rules{})
	case t.form == formRaw && r.object:
		return "JSON object"
	case t.form == formRaw:
		return "any JSON"
	case t.goType == reflect.TypeFor[Millis]():
		size := r.size
		size.hasMax = size.max != float64(maxMillis)
		return strings.TrimSpace("milliseconds " + size.String())
	case t.form == formInt:
		return strings.TrimSpace("whole number " + r.size.String())
	case t.form == formFloat:
		return strings.TrimSpace("number " + r.size.String())
	}
	return wanted[t.form]
}

// Markdown returns the documentation of every leaf: one table of the settings, and one for each map of objects.
func (t *Type) Markdown() string {
	var b strings.Builder
	heading := ""
	for _, row := range t.Rows() {
		section, title := "", "Settings"
		if before, _, isMap := strings.Cut(row.Path, ".<id>"); isMap {
			section = before + ".<id>."
			title = "`" + before + ".<id>`"
		}
		if title != heading {
			if heading != "" {
				b.WriteByte('\n')
			}
			heading = title
			fmt.Fprintf(&b, "### %s\n\n| Field | Type | Default | Meaning |\n|---|---|---|---|\n", title)
		}
		def := ""
		switch {
		case row.Required:
			def = "required"
		case row.Default != "":
			def = "`" + row.Default + "`"
		}
		doc := row.Doc
		if row.Kinds != nil {
			doc += " (" + strings.Join(row.Kinds, ", ") + ")"
		}
		cells := []any{strings.TrimPrefix(row.Path, section), row.Type, def, doc}
		for i, cell := range cells {
			cells[i] = strings.ReplaceAll(cell.(string), "|", `\|`)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", cells...)
	}
	return b.String()
}
