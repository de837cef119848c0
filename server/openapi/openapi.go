// Package openapi turns a list of operations into an OpenAPI 3.1 document and into Markdown tables.
//
// It is pure: the same operations give the same bytes, in the order in which they were declared. Mistakes in a
// declaration (a tag without a description, an error that answers no request, a type that JSON cannot hold) panic,
// because every start of the program would meet them.
package openapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"agentd/server/fault"
	"agentd/server/shape"
)

// Info is what the document says about the whole API.
type Info struct {
	Title, Version, Description string
	BasePath                    string            // stands before every path; empty for none
	Tags                        map[string]string // what each tag of the operations is about
	Components                  []reflect.Type    // described also where no operation names them
}

// An Operation is one method on one path.
type Operation struct {
	Method    string       // GET, POST, ...
	Path      string       // "/runs/{runId}"; parameters are whole segments
	Summary   string       // one line
	Tag       string       // the group it is listed in
	Public    bool         // needs no token
	Access    string       // what else it needs, in words or as a scope; empty for a token only
	Input     reflect.Type // a struct of parameters (tags path and query) and a Body, whose tag content is the type of text; nil: none
	Body      reflect.Type // of JSON, where Input does not say it
	Responses []Response
	Errors    []*fault.Kind // those that can answer a request; duplicates are listed once
	Effects   bool          // changes something
	Keyed     bool          // takes an Idempotency-Key
}

// A Response is one way in which an operation answers. Several of one status are alternatives.
type Response struct {
	Status      int
	Type        reflect.Type // nil when the body is text, or absent when ContentType is empty too; what each event of a stream holds
	ContentType string       // empty for application/json, when Type is given
	Description string       // empty for the name of the status
}

const (
	jsonType    = "application/json"
	eventStream = "text/event-stream"
)

// Document is the OpenAPI 3.1.0 document of the operations: indented JSON that ends with a newline. The caller owns
// it.
func Document(info Info, ops []Operation) []byte {
	d := &document{schemas: shape.NewComponents("Error", json.RawMessage(errorSchema)), about: info.Tags}
	var order []string
	items := map[string]shape.Object{}
	for _, op := range ops {
		if _, ok := items[op.Path]; !ok {
			order = append(order, op.Path)
		}
		items[op.Path] = append(items[op.Path], strings.ToLower(op.Method), d.operation(op))
	}
	for _, t := range info.Components {
		d.schemas.Of(t)
	}
	paths := shape.Object{}
	for _, p := range order {
		paths = append(paths, p, items[p])
	}

	about := shape.Object{"title", info.Title, "version", info.Version}
	if info.Description != "" {
		about = append(about, "description", info.Description)
	}
	doc := shape.Object{"openapi", "3.1.0", "info", about}
	if info.BasePath != "" {
		doc = append(doc, "servers", []shape.Object{{"url", info.BasePath}})
	}
	if len(d.tags) > 0 {
		doc = append(doc, "tags", d.tags)
	}
	doc = append(doc,
		"security", []shape.Object{{"bearer", []string{}}},
		"paths", paths,
		"components", d.components(ops))

	var b bytes.Buffer
	if err := json.Indent(&b, shape.Encode(doc), "", "  "); err != nil {
		panic(fmt.Sprintf("openapi: a schema is not JSON: %v", err))
	}
	b.WriteByte('\n')
	return b.Bytes()
}

// errorSchema is the body of every error. Its codes are listed where they can occur.
const errorSchema = `{"type":"object","required":["error","message"],
	"description":"What every failed request is answered with. Further members depend on the code.",
	"properties":{
		"error":{"type":"string","description":"A stable code."},
		"message":{"type":"string","description":"What went wrong."},
		"hint":{"type":"string","description":"The next thing to do."},
		"issues":{"type":"array","description":"Every problem of the input.","items":{"type":"object","required":["path","message"],
			"properties":{
				"path":{"type":"array","description":"Keys and indices that lead to the bad place, outermost first.",
					"items":{"type":["string","integer"]}},
				"message":{"type":"string"}}}}}}`

type document struct {
	schemas *shape.Components
	about   map[string]string
	tags    []shape.Object
}

func (d *document) components(ops []Operation) shape.Object {
	c := shape.Object{"schemas", d.schemas.All()}
	if slices.ContainsFunc(ops, func(op Operation) bool { return op.Keyed }) {
		c = append(c, "parameters", shape.Object{"IdempotencyKey", json.RawMessage(idempotencyKey),
			"Traceparent", json.RawMessage(traceparent), "Tracestate", json.RawMessage(tracestate)})
	}
	return append(c, "securitySchemes", json.RawMessage(securitySchemes))
}

const (
	idempotencyKey = `{"name":"Idempotency-Key","in":"header","required":false,
		"description":"Names this request. The same request with the same key has no second effect and gets the first answer again.",
		"schema":{"type":"string","pattern":"^[A-Za-z0-9_:-]{8,255}$"}}`
	traceparent = `{"name":"traceparent","in":"header","required":false,
		"description":"W3C Trace Context: a run that the request starts continues this trace, and one that it resumes refers to it. What is not valid is ignored.",
		"schema":{"type":"string"}}`
	tracestate = `{"name":"tracestate","in":"header","required":false,
		"description":"W3C Trace Context: passed on with the trace, up to 32 members and 512 bytes.","schema":{"type":"string"}}`
	securitySchemes = `{"bearer":{"type":"http","scheme":"bearer","description":"A token of this server."}}`
)
