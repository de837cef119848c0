// Package openapi turns a list of operations into an OpenAPI 3.1 document and into Markdown tables.
//
// It is pure: the same operations give the same bytes, in the order in which they were declared. Mistakes in a
// declaration (two operations with one id, a parameter that is not in the path, a tag that nothing is said about, a type
// that JSON cannot hold) panic,
// because they are mistakes of the program and every start of it would meet them.
package openapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	"agentd/server/fault"
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
	Method      string // GET, POST, ...
	Path        string // "/runs/{runId}"; parameters are whole segments
	Summary     string // one line
	Description string
	Tag         string // the group it is listed in
	Public      bool   // needs no token
	Access      string // what else it needs, in words or as a scope; empty for a token only
	Params      []Param
	Body        reflect.Type // nil for none; a pointer is the same as what it points to
	BodyType    string       // media type of a body that is text, and then always required; empty for JSON
	Responses   []Response
	Errors      []*fault.Kind // those that can answer a request; duplicates are listed once
	Effects     bool          // changes something
	Keyed       bool          // takes an Idempotency-Key
}

// A Param is a parameter of an operation. A path parameter without a Param of its own is documented as a string.
type Param struct {
	In       string          // path, query or header
	Name     string          // as in the path, the query or the header
	Type     reflect.Type    // nil for a string
	Schema   json.RawMessage // JSON Schema to use instead of Type's
	Required bool            // path parameters always are
	Doc      string
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
	d := &document{schemas: newSchemas(), ids: map[string]bool{}, about: info.Tags}
	var order []string
	items := map[string]object{}
	for _, op := range ops {
		if _, ok := items[op.Path]; !ok {
			order = append(order, op.Path)
		}
		items[op.Path] = append(items[op.Path], member{method(op), d.operation(op)})
	}
	for _, t := range info.Components {
		d.schemas.of(t)
	}
	paths := object{}
	for _, p := range order {
		paths = append(paths, member{p, items[p]})
	}

	about := object{{"title", info.Title}, {"version", info.Version}}
	if info.Description != "" {
		about = append(about, member{"description", info.Description})
	}
	doc := object{{"openapi", "3.1.0"}, {"info", about}}
	if info.BasePath != "" {
		doc = append(doc, member{"servers", []object{{{"url", info.BasePath}}}})
	}
	if len(d.tags) > 0 {
		doc = append(doc, member{"tags", d.tags})
	}
	doc = append(doc,
		member{"security", []object{{{"bearer", []string{}}}}},
		member{"paths", paths},
		member{"components", d.components(ops)})

	var b bytes.Buffer
	if err := json.Indent(&b, encode(doc), "", "  "); err != nil {
		panic(fmt.Sprintf("openapi: a schema is not JSON: %v", err))
	}
	b.WriteByte('\n')
	return b.Bytes()
}

type document struct {
	schemas *schemas
	ids     map[string]bool
	about   map[string]string
	tags    []object
}

func (d *document) components(ops []Operation) object {
	c := object{{"schemas", d.schemas.components()}}
	if slices.ContainsFunc(ops, func(op Operation) bool { return op.Keyed }) {
		c = append(c, member{"parameters", object{{"IdempotencyKey", json.RawMessage(idempotencyKey)}}})
	}
	return append(c, member{"securitySchemes", json.RawMessage(securitySchemes)})
}

const (
	idempotencyKey = `{"name":"Idempotency-Key","in":"header","required":false,
		"description":"Names this request. The same request with the same key has no second effect and gets the first answer again.",
		"schema":{"type":"string","pattern":"^[A-Za-z0-9_:-]{8,255}$"}}`
	securitySchemes = `{"bearer":{"type":"http","scheme":"bearer","description":"A token of this server."}}`
)
