package openapi

import (
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"agentd/server/shape"
)

func (d *document) operation(op Operation) shape.Object {
	id := operationID(op)
	if d.ids[id] {
		panic("openapi: two operations have the id " + id)
	}
	d.ids[id] = true

	o := shape.Object{"operationId", id}
	if op.Tag != "" {
		o = append(o, "tags", []string{op.Tag})
		if !slices.ContainsFunc(d.tags, func(t shape.Object) bool { return t[1] == op.Tag }) {
			if d.about[op.Tag] == "" {
				panic("openapi: nothing is said about the tag " + op.Tag)
			}
			d.tags = append(d.tags, shape.Object{"name", op.Tag, "description", d.about[op.Tag]})
		}
	}
	o = append(o, "summary", op.Summary)
	text := op.Description
	if op.Access != "" {
		text = strings.TrimPrefix(text+"\n\nAccess: "+op.Access, "\n\n")
	}
	if text != "" {
		o = append(o, "description", text)
	}
	if op.Public {
		o = append(o, "security", []shape.Object{})
	}
	if params := d.params(op); len(params) > 0 {
		o = append(o, "parameters", params)
	}
	body, media := op.Body, ""
	if field, ok := inputField(op.Input, "Body"); ok && body == nil {
		body, media = field.Type, field.Tag.Get("content")
	}
	switch {
	case media != "": // of text
		text := shape.Object{"schema", shape.Object{"type", "string"}}
		o = append(o, "requestBody", shape.Object{"required", true, "content", shape.Object{media, text}})
	case body != nil:
		o = append(o, "requestBody", shape.Object{
			"required", shape.Demands(body), "content", shape.Object{jsonType, shape.Object{"schema", d.schemas.Of(body)}},
		})
	}
	return append(o, "responses", d.responses(op))
}

func inputField(input reflect.Type, name string) (f reflect.StructField, ok bool) {
	if input != nil {
		f, ok = input.FieldByName(name)
	}
	return f, ok
}

// params describes the parameters of a path, which may lack a field, and of a query.
func (d *document) params(op Operation) (out []shape.Object) {
	add := func(in string, f *shape.Field) {
		o := shape.Object{"name", f.Name, "in", in, "required", in == "path"}
		if f.Doc != "" {
			o = append(o, "description", f.Doc)
		}
		out = append(out, append(o, "schema", d.schemas.Param(f)))
	}
	names := pathParams(op.Path)
	if op.Input != nil {
		for _, f := range shape.Params(op.Input, "path") {
			if !slices.Contains(names, f.Name) {
				panic(fmt.Sprintf("openapi: %s has no parameter %s", op.Path, f.Name))
			}
			names = slices.DeleteFunc(names, func(name string) bool { return name == f.Name })
			add("path", f)
		}
	}
	for i, name := range names {
		out = slices.Insert(out, i, shape.Object{"name", name, "in", "path", "required", true, "schema", shape.Object{"type", "string"}})
	}
	if op.Input != nil {
		for _, f := range shape.Params(op.Input, "query") {
			add("query", f)
		}
	}
	if op.Keyed {
		out = append(out, shape.Object{"$ref", "#/components/parameters/IdempotencyKey"})
	}
	return out
}

// An answer is everything that an operation can say with one status.
type answer struct {
	texts []string
	types []string                  // media types, in the order of declaration
	media map[string][]shape.Object // by media type: alternative schemas
}

func (a *answer) add(text, contentType string, schema shape.Object) {
	a.texts = append(a.texts, text)
	if contentType == "" {
		return
	}
	if !slices.Contains(a.types, contentType) {
		a.types = append(a.types, contentType)
	}
	a.media[contentType] = append(a.media[contentType], schema)
}

func (d *document) responses(op Operation) shape.Object {
	answers := map[int]*answer{}
	at := func(status int) *answer {
		if answers[status] == nil {
			answers[status] = &answer{media: map[string][]shape.Object{}}
		}
		return answers[status]
	}
	for _, r := range op.Responses {
		text := r.Description
		if text == "" {
			text = http.StatusText(r.Status)
		}
		switch {
		case r.Type == nil:
			at(r.Status).add(text, r.ContentType, shape.Object{"type", "string"})
		case r.ContentType == "":
			at(r.Status).add(text, jsonType, d.schemas.Of(r.Type))
		case r.ContentType == eventStream:
			events := shape.Object{"type", "string", "contentMediaType", eventStream, "contentSchema", d.schemas.Of(r.Type)}
			at(r.Status).add(text, eventStream, events)
		default:
			at(r.Status).add(text, r.ContentType, d.schemas.Of(r.Type))
		}
	}
	codes := map[int][]string{}
	texts := map[int][]string{}
	for _, k := range op.Errors {
		if k.Status == 0 {
			panic(fmt.Sprintf("openapi: %s %s: %s cannot answer a request", op.Method, op.Path, k.Code))
		}
		if !slices.Contains(codes[k.Status], k.Code) {
			codes[k.Status] = append(codes[k.Status], k.Code)
			texts[k.Status] = append(texts[k.Status], "`"+k.Code+"`: "+k.When)
		}
	}
	for status, list := range codes {
		at(status).add(strings.Join(texts[status], "\n\n"), jsonType, shape.Object{"allOf", []shape.Object{
			{"$ref", shape.ComponentPath + "Error"},
			{"properties", shape.Object{"error", shape.Object{"enum", list}}},
		}})
	}
	if len(answers) == 0 {
		panic(fmt.Sprintf("openapi: %s %s has no response", op.Method, op.Path))
	}

	out := shape.Object{}
	for _, status := range slices.Sorted(maps.Keys(answers)) {
		a := answers[status]
		o := shape.Object{"description", strings.Join(a.texts, "\n\n")}
		content := shape.Object{}
		for _, t := range a.types {
			schema := a.media[t][0]
			if len(a.media[t]) > 1 {
				schema = shape.Object{"anyOf", a.media[t]}
			}
			content = append(content, t, shape.Object{"schema", schema})
		}
		if len(content) > 0 {
			o = append(o, "content", content)
		}
		out = append(out, strconv.Itoa(status), o)
	}
	return out
}
