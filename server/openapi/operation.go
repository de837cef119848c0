package openapi

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

func (d *document) operation(op Operation) object {
	id := operationID(op)
	if d.ids[id] {
		panic("openapi: two operations have the id " + id)
	}
	d.ids[id] = true

	o := object{{"operationId", id}}
	if op.Tag != "" {
		o = append(o, member{"tags", []string{op.Tag}})
		if !slices.ContainsFunc(d.tags, func(t object) bool { return t[0].value == op.Tag }) {
			if d.about[op.Tag] == "" {
				panic("openapi: nothing is said about the tag " + op.Tag)
			}
			d.tags = append(d.tags, object{{"name", op.Tag}, {"description", d.about[op.Tag]}})
		}
	}
	o = append(o, member{"summary", op.Summary})
	text := op.Description
	if op.Access != "" {
		text = strings.TrimPrefix(text+"\n\nAccess: "+op.Access, "\n\n")
	}
	if text != "" {
		o = append(o, member{"description", text})
	}
	if op.Public {
		o = append(o, member{"security", []object{}})
	}
	if params := d.params(op); len(params) > 0 {
		o = append(o, member{"parameters", params})
	}
	switch {
	case op.BodyType != "":
		o = append(o, member{"requestBody", object{
			{"required", true},
			{"content", object{{op.BodyType, object{{"schema", object{{"type", "string"}}}}}}},
		}})
	case op.Body != nil:
		o = append(o, member{"requestBody", object{
			{"required", demands(op.Body)},
			{"content", object{{jsonType, object{{"schema", d.schemas.of(op.Body)}}}}},
		}})
	}
	return append(o, member{"responses", d.responses(op)})
}

func (d *document) params(op Operation) []object {
	all := op.Params
	inPath := pathParams(op.Path)
	for _, name := range slices.Backward(inPath) {
		if !slices.ContainsFunc(op.Params, func(p Param) bool { return p.In == "path" && p.Name == name }) {
			all = slices.Insert(slices.Clone(all), 0, Param{In: "path", Name: name})
		}
	}
	var out []object
	seen := map[[2]string]bool{}
	for _, p := range all {
		key := [2]string{p.In, p.Name}
		if p.In != "path" && p.In != "query" && p.In != "header" || seen[key] ||
			p.In == "path" && !slices.Contains(inPath, p.Name) {
			panic(fmt.Sprintf("openapi: %s %s: bad parameter %s %q", op.Method, op.Path, p.In, p.Name))
		}
		seen[key] = true
		o := object{{"name", p.Name}, {"in", p.In}, {"required", p.Required || p.In == "path"}}
		if p.Doc != "" {
			o = append(o, member{"description", p.Doc})
		}
		switch {
		case p.Schema != nil:
			o = append(o, member{"schema", p.Schema})
		case p.Type != nil:
			o = append(o, member{"schema", d.schemas.of(p.Type)})
		default:
			o = append(o, member{"schema", object{{"type", "string"}}})
		}
		out = append(out, o)
	}
	if op.Keyed {
		out = append(out, object{{"$ref", "#/components/parameters/IdempotencyKey"}})
	}
	return out
}

// An answer is everything that an operation can say with one status.
type answer struct {
	texts []string
	types []string            // media types, in the order of declaration
	media map[string][]object // by media type: alternative schemas
}

func (a *answer) add(text, contentType string, schema object) {
	a.texts = append(a.texts, text)
	if contentType == "" {
		return
	}
	if !slices.Contains(a.types, contentType) {
		a.types = append(a.types, contentType)
	}
	a.media[contentType] = append(a.media[contentType], schema)
}

func (d *document) responses(op Operation) object {
	answers := map[int]*answer{}
	at := func(status int) *answer {
		if answers[status] == nil {
			answers[status] = &answer{media: map[string][]object{}}
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
			at(r.Status).add(text, r.ContentType, object{{"type", "string"}})
		case r.ContentType == "":
			at(r.Status).add(text, jsonType, d.schemas.of(r.Type))
		case r.ContentType == eventStream:
			at(r.Status).add(text, eventStream, object{{"type", "string"}, {"contentMediaType", eventStream}, {"contentSchema", d.schemas.of(r.Type)}})
		default:
			at(r.Status).add(text, r.ContentType, d.schemas.of(r.Type))
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
		at(status).add(strings.Join(texts[status], "\n\n"), jsonType, object{{"allOf", []object{
			{{"$ref", schemaPath + "Error"}},
			{{"properties", object{{"error", object{{"enum", list}}}}}},
		}}})
	}
	if len(answers) == 0 {
		panic(fmt.Sprintf("openapi: %s %s has no response", op.Method, op.Path))
	}

	out := object{}
	for _, status := range sortedKeys(answers) {
		a := answers[status]
		o := object{{"description", strings.Join(a.texts, "\n\n")}}
		content := object{}
		for _, t := range a.types {
			schema := a.media[t][0]
			if len(a.media[t]) > 1 {
				schema = object{{"anyOf", a.media[t]}}
			}
			content = append(content, member{t, object{{"schema", schema}}})
		}
		if len(content) > 0 {
			o = append(o, member{"content", content})
		}
		out = append(out, member{strconv.Itoa(status), o})
	}
	return out
}
