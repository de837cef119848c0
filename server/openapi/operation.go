package openapi

import (
	"fmt"
	"maps"
	"net/http"
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
	switch {
	case op.BodyType != "":
		o = append(o, "requestBody", shape.Object{
			"required", true,
			"content", shape.Object{op.BodyType, shape.Object{"schema", shape.Object{"type", "string"}}},
		})
	case op.Body != nil:
		o = append(o, "requestBody", shape.Object{
			"required", shape.Demands(op.Body),
			"content", shape.Object{jsonType, shape.Object{"schema", d.schemas.Of(op.Body)}},
		})
	}
	return append(o, "responses", d.responses(op))
}

func (d *document) params(op Operation) []shape.Object {
	all := op.Params
	inPath := pathParams(op.Path)
	for _, name := range slices.Backward(inPath) {
		if !slices.ContainsFunc(op.Params, func(p Param) bool { return p.In == "path" && p.Name == name }) {
			all = slices.Insert(slices.Clone(all), 0, Param{In: "path", Name: name})
		}
	}
	var out []shape.Object
	seen := map[[2]string]bool{}
	for _, p := range all {
		key := [2]string{p.In, p.Name}
		if p.In != "path" && p.In != "query" && p.In != "header" || seen[key] ||
			p.In == "path" && !slices.Contains(inPath, p.Name) {
			panic(fmt.Sprintf("openapi: %s %s: bad parameter %s %q", op.Method, op.Path, p.In, p.Name))
		}
		seen[key] = true
		o := shape.Object{"name", p.Name, "in", p.In, "required", p.Required || p.In == "path"}
		if p.Doc != "" {
			o = append(o, "description", p.Doc)
		}
		switch {
		case p.Schema != nil:
			o = append(o, "schema", p.Schema)
		case p.Type != nil:
			o = append(o, "schema", d.schemas.Of(p.Type))
		default:
			o = append(o, "schema", shape.Object{"type", "string"})
		}
		out = append(out, o)
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
			at(r.Status).add(text, eventStream, shape.Object{"type", "string", "contentMediaType", eventStream, "contentSchema", d.schemas.Of(r.Type)})
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
