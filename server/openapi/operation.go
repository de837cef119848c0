package openapi

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"agentd/server/fault"
	"agentd/server/shape"
)

func (d *document) operation(op Operation) shape.Object {
	o := shape.Object{"operationId", operationID(op)}
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
	if op.Access != "" {
		o = append(o, "description", "Access: "+op.Access)
	}
	if op.Public {
		o = append(o, "security", []shape.Object{})
	}
	if params := d.params(op); len(params) > 0 {
		o = append(o, "parameters", params)
	}
	body := op.Body
	if op.Input != nil && body == nil {
		if field, ok := op.Input.FieldByName("Body"); ok {
			body = field.Type
			if media := field.Tag.Get("content"); media != "" {
				text := shape.Object{"schema", shape.Object{"type", "string"}}
				o = append(o, "requestBody", shape.Object{"required", true, "content", shape.Object{media, text}})
				body = nil
			}
		}
	}
	if body != nil {
		o = append(o, "requestBody", shape.Object{
			"required", shape.Demands(body), "content", shape.Object{jsonType, shape.Object{"schema", d.schemas.Of(body)}},
		})
	}
	return append(o, "responses", d.responses(op))
}

// operationID is the method and the words of the path, a parameter as By and its name: GET /runs/{runId}/state is
// getRunsByRunIdState.
func operationID(op Operation) string {
	id := strings.ToLower(op.Method)
	for segment := range strings.SplitSeq(op.Path, "/") {
		if strings.HasPrefix(segment, "{") {
			id += "By"
		}
		id += shape.Camel(segment)
	}
	return id
}

// params describes the parameters of a path, for which the input may lack a field, and of a query.
func (d *document) params(op Operation) (out []shape.Object) {
	var fields, queries []*shape.Field
	if op.Input != nil {
		fields, queries = shape.Params(op.Input, "path"), shape.Params(op.Input, "query")
	}
	add := func(in string, f *shape.Field) {
		o := shape.Object{"name", f.Name, "in", in, "required", in == "path"}
		if f.Doc != "" {
			o = append(o, "description", f.Doc)
		}
		out = append(out, append(o, "schema", d.schemas.Param(f)))
	}
	for segment := range strings.SplitSeq(op.Path, "/") {
		name, ok := strings.CutPrefix(segment, "{")
		if name = strings.TrimSuffix(name, "}"); !ok {
			continue
		}
		if i := slices.IndexFunc(fields, func(f *shape.Field) bool { return f.Name == name }); i >= 0 {
			add("path", fields[i])
		} else {
			out = append(out, shape.Object{"name", name, "in", "path", "required", true, "schema", shape.Object{"type", "string"}})
		}
	}
	for _, f := range queries {
		add("query", f)
	}
	if op.Keyed {
		for _, name := range []string{"IdempotencyKey", "Traceparent", "Tracestate"} {
			out = append(out, shape.Object{"$ref", "#/components/parameters/" + name})
		}
	}
	return out
}

// An answer is everything that an operation can say with one status.
type answer struct {
	texts []string
	types []string                  // media types, in the order of declaration
	media map[string][]shape.Object // by media type: alternative schemas
}

func (d *document) responses(op Operation) shape.Object {
	answers := map[int]*answer{}
	add := func(status int, text, contentType string, schema shape.Object) {
		a := answers[status]
		if a == nil {
			a = &answer{media: map[string][]shape.Object{}}
			answers[status] = a
		}
		a.texts = append(a.texts, text)
		if contentType != "" && a.media[contentType] == nil {
			a.types = append(a.types, contentType)
		}
		a.media[contentType] = append(a.media[contentType], schema)
	}
	for _, r := range op.Responses {
		text, media, schema := cmp.Or(r.Description, http.StatusText(r.Status)), r.ContentType, shape.Object{"type", "string"}
		switch {
		case r.Type != nil && r.ContentType == eventStream:
			schema = append(schema, "contentMediaType", eventStream, "contentSchema", d.schemas.Of(r.Type))
		case r.Type != nil:
			media, schema = cmp.Or(media, jsonType), d.schemas.Of(r.Type)
		}
		add(r.Status, text, media, schema)
	}
	kinds := map[int][]*fault.Kind{}
	for _, k := range op.Errors {
		if k.Status == 0 {
			panic(fmt.Sprintf("openapi: %s %s: %s cannot answer a request", op.Method, op.Path, k.Code))
		}
		if !slices.Contains(kinds[k.Status], k) {
			kinds[k.Status] = append(kinds[k.Status], k)
		}
	}
	for status, list := range kinds {
		var codes, texts []string
		for _, k := range list {
			codes, texts = append(codes, k.Code), append(texts, "`"+k.Code+"`: "+k.When)
		}
		add(status, strings.Join(texts, "\n\n"), jsonType, shape.Object{"allOf", []shape.Object{
			{"$ref", shape.ComponentPath + "Error"},
			{"properties", shape.Object{"error", shape.Object{"enum", codes}}},
		}})
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
