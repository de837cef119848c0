package config

import (
	"fmt"
	"reflect"
	"strings"
)

// Field documents one leaf of the tree.
type Field struct {
	Path     string   `json:"path"`            // dotted; <id> stands for a key of a map: agents.<id>.model
	Type     string   `json:"type"`            // in words, with its range
	Default  string   `json:"default"`         // as JSON; empty: none
	Required bool     `json:"required"`        // must be given wherever its object is
	Kinds    []string `json:"kinds,omitempty"` // the kinds that it belongs to; empty: all
	Variable string   `json:"variable,omitempty"`
	Doc      string   `json:"doc"`
}

// Fields lists every leaf, in the order of the tree. The caller owns the slice.
func Fields() []Field {
	variables := map[string]string{}
	for _, s := range settings() {
		variables[dotted(s.path)] = s.variable()
	}
	var all []Field
	var walk func(s *shape, path string, kinds []string)
	walk = func(s *shape, path string, kinds []string) {
		for _, f := range s.fields {
			path, kinds := path+f.name, kinds
			if f.kinds != nil {
				kinds = f.kinds
			}
			switch nested := f.nested(); {
			case nested == nil:
				x := Field{Path: path, Type: label(f.shape, &f.rules), Required: f.rules.required, Kinds: kinds, Variable: variables[path], Doc: f.doc}
				if f.hasDef {
					x.Default = f.defaultJSON()
				}
				all = append(all, x)
			case f.shape.form == formDict:
				walk(nested, path+".<id>.", kinds)
			case f.shape.form == formList:
				walk(nested, path+".<n>.", kinds)
			default:
				walk(nested, path+".", kinds)
			}
		}
	}
	walk(tree, "", nil)
	return all
}

// nested is the object whose fields are documented instead of f; nil for a leaf.
func (f *field) nested() *shape {
	switch s := f.shape; {
	case s.form == formObject:
		return s
	case s.elem != nil && s.elem.form == formObject:
		return s.elem
	}
	return nil
}

// label is a type in words.
func label(s *shape, r *rules) string {
	switch s.form {
	case formBool:
		return "true or false"
	case formInt, formFloat:
		word := "whole number"
		if s.form == formFloat {
			word = "number"
		}
		n := r.number
		if s.typ == reflect.TypeFor[Millis]() {
			word, n.hasMax = "milliseconds", n.max != float64(maxMillis)
		}
		return strings.TrimSpace(word + " " + n.String())
	case formText:
		if r.enum != nil {
			return alternatives(r.enum)
		}
		return "text"
	case formList:
		return "list of " + label(s.elem, r)
	case formDict:
		return "map of " + label(s.elem, &rules{})
	case formRaw:
		return "JSON object"
	}
	words, _ := reflect.New(s.typ).Interface().(ownType).form()
	return words
}

// Markdown returns the documentation of every field: one table of the settings, and one for each map section.
func Markdown() string {
	var b strings.Builder
	heading := ""
	for _, f := range Fields() {
		section, title := "", "Settings"
		if before, _, isMap := strings.Cut(f.Path, ".<id>"); isMap {
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
		case f.Required:
			def = "required"
		case f.Default != "":
			def = "`" + f.Default + "`"
		}
		doc := f.Doc
		if f.Kinds != nil {
			doc += " (" + strings.Join(f.Kinds, ", ") + ")"
		}
		name := strings.TrimPrefix(f.Path, section)
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", cell(name), cell(f.Type), cell(def), cell(doc))
	}
	return b.String()
}

func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }
