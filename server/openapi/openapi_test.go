package openapi_test

import (
	"encoding/json"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"agentd/server/fault"
	"agentd/server/golden"
	"agentd/server/openapi"
)

type order struct {
	ID     string          `json:"id"`
	State  string          `json:"state" enum:"open|paid" doc:"where it <stands>"`
	Lines  []line          `json:"lines"`
	Made   time.Time       `json:"made"`
	Paid   *time.Time      `json:"paid"`
	Note   *string         `json:"note,omitempty"`
	Parent *order          `json:"parent,omitempty" doc:"the order that this one replaces"`
	Meta   json.RawMessage `json:"meta,omitempty"`
}

type line struct {
	SKU   string  `json:"sku"`
	Count uint    `json:"count"`
	Price float64 `json:"price"`
}

type newOrder struct {
	Lines []line            `json:"lines"`
	Tags  map[string]string `json:"tags,omitempty"`
}

type page[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"`
}

type filter struct {
	State string `json:"state,omitempty"`
}

var sample = []openapi.Operation{
	{
		Method: "GET", Path: "/orders", Summary: "List the orders", Tag: "Orders", Access: "`orders:read`",
		Input: reflect.TypeFor[struct {
			State string `query:"state" enum:"open|paid" doc:"Only these."`
			Limit int    `query:"limit" check:"1..9"`
		}](),
		Responses: []openapi.Response{{Status: 200, Type: reflect.TypeFor[page[order]]()}},
		Errors:    []*fault.Kind{fault.ConfigInvalid, fault.AuthRequired, fault.AuthExpired, fault.AuthRequired},
	},
	{
		Method: "GET", Path: "/health", Summary: "Tell whether it works", Tag: "Server", Public: true,
		Responses: []openapi.Response{{Status: 200, ContentType: "text/plain", Description: "It works."}},
	},
	{
		Method: "POST", Path: "/orders", Summary: "Place an order", Tag: "Orders",
		Access: "`orders:write`", Effects: true, Keyed: true, Body: reflect.TypeFor[*newOrder](),
		Responses: []openapi.Response{
			{Status: 201, Type: reflect.TypeFor[order](), Description: "It is stored."},
			{Status: 500, Type: reflect.TypeFor[order](), Description: "It failed."},
		},
		Errors: []*fault.Kind{fault.SessionBusy, fault.RunConflict, fault.Internal},
	},
	{
		Method: "DELETE", Path: "/orders/{orderId}/lines/{sku}", Summary: "Drop a | line", Tag: "Orders", Effects: true, Keyed: true,
		Input: reflect.TypeFor[struct {
			SKU string `path:"sku" check:"id"`
		}](),
		Responses: []openapi.Response{{Status: 204}},
		Errors:    []*fault.Kind{fault.NotFound},
	},
	{
		Method: "POST", Path: "/orders/search", Summary: "Find orders", Tag: "Orders", Body: reflect.TypeFor[filter](),
		Responses: []openapi.Response{
			{Status: 200, Type: reflect.TypeFor[page[order]]()},
			{Status: 200, Type: reflect.TypeFor[order](), ContentType: "text/event-stream", Description: "One order in each event."},
		},
	},
}

func TestGolden(t *testing.T) {
	info := openapi.Info{Title: "Shop", Version: "1.2.3", Description: "Sells things.", BasePath: "/v1", Tags: map[string]string{"Orders": "What is sold.", "Server": "How it is."}}
	doc := openapi.Document(info, sample)
	validate(t, doc)
	if again := openapi.Document(info, sample); string(again) != string(doc) {
		t.Error("Document gives other bytes the second time")
	}
	for name, got := range map[string]string{
		"shop.json":   string(doc),
		"routes.md":   openapi.Markdown(sample),
		"failures.md": openapi.ErrorsMarkdown([]*fault.Kind{fault.ConfigInvalid, fault.BindFailed}),
	} {
		golden.Check(t, "testdata/"+name, got)
	}
}

func TestDocumentOfNothing(t *testing.T) {
	validate(t, openapi.Document(openapi.Info{Title: "Empty", Version: "0"}, nil))
}

func TestOperationID(t *testing.T) {
	for in, want := range map[[2]string]string{
		{"GET", "/"}:                                        "get",
		{"POST", "/agents/{id}/run"}:                        "postAgentsByIdRun",
		{"POST", "/session/ws-ticket"}:                      "postSessionWsTicket",
		{"GET", "/openapi.json"}:                            "getOpenapiJson",
		{"PATCH", "/workflows/{id}/checkpoints/{check_id}"}: "patchWorkflowsByIdCheckpointsByCheckId",
	} {
		op := openapi.Operation{Method: in[0], Path: in[1], Responses: []openapi.Response{{Status: 204}}}
		var doc document
		decode(t, openapi.Document(openapi.Info{}, []openapi.Operation{op}), &doc)
		if got := doc.Paths[in[1]][strings.ToLower(in[0])].ID; got != want {
			t.Errorf("operationId of %s %s = %q, want %q", in[0], in[1], got, want)
		}
	}
}

func TestMistakesPanic(t *testing.T) {
	good := openapi.Operation{Method: "GET", Path: "/a/{id}", Responses: []openapi.Response{{Status: 204}}}
	for name, change := range map[string]func(*openapi.Operation){
		"error of start-up": func(op *openapi.Operation) { op.Errors = []*fault.Kind{fault.BindFailed} },
		"function":          func(op *openapi.Operation) { op.Body = reflect.TypeFor[func()]() },
		"enum of numbers": func(op *openapi.Operation) {
			op.Body = reflect.TypeFor[struct {
				N int `enum:"1|2"`
			}]()
		},
		"tag": func(op *openapi.Operation) { op.Tag = "unheard of" },
	} {
		bad := good
		change(&bad)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: Document did not panic", name)
				}
			}()
			openapi.Document(openapi.Info{}, []openapi.Operation{bad})
		}()
	}
}

// document is the part of an OpenAPI document that the checks read.
type document struct {
	OpenAPI string
	Info    struct{ Title, Version string }
	Paths   map[string]map[string]struct {
		ID          string `json:"operationId"`
		Parameters  []parameter
		RequestBody *struct{ Content map[string]any }
		Responses   map[string]struct{ Description string }
	}
	Components struct {
		Schemas    map[string]any
		Parameters map[string]parameter
	}
}

type parameter struct {
	Ref, Name, In string
	Required      bool
	Schema        any
}

func (p *parameter) UnmarshalJSON(b []byte) error {
	type plain parameter
	aux := struct {
		*plain
		Ref string `json:"$ref"`
	}{plain: (*plain)(p)}
	err := json.Unmarshal(b, &aux)
	p.Ref = aux.Ref
	return err
}

func decode(t *testing.T, b []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatalf("Unmarshal(%s): %v", b, err)
	}
}

// validate checks the structure of a document: its version, that references lead somewhere, that path parameters are
// declared, that ids are unique, and that schemas are schemas.
func validate(t *testing.T, b []byte) {
	t.Helper()
	var doc document
	var tree any
	decode(t, b, &doc)
	decode(t, b, &tree)
	if doc.OpenAPI != "3.1.0" || doc.Info.Title == "" || doc.Info.Version == "" || doc.Paths == nil {
		t.Errorf("document has no version, title or paths:\n%s", b)
	}
	checkRefs(t, tree, tree)
	for name, schema := range doc.Components.Schemas {
		if !regexp.MustCompile(`^[a-zA-Z0-9._-]+$`).MatchString(name) {
			t.Errorf("component %q has a name that is not allowed", name)
		}
		checkSchema(t, name, schema)
	}
	ids := map[string]bool{}
	for path, item := range doc.Paths {
		for method, op := range item {
			if op.ID == "" || ids[op.ID] {
				t.Errorf("%s %s: operationId %q is empty or taken", method, path, op.ID)
			}
			ids[op.ID] = true
			if len(op.Responses) == 0 {
				t.Errorf("%s %s: no responses", method, path)
			}
			for status, r := range op.Responses {
				if !regexp.MustCompile(`^[1-5]\d\d$`).MatchString(status) || r.Description == "" {
					t.Errorf("%s %s: response %q is no status or has no description", method, path, status)
				}
			}
			var declared, used []string
			for _, p := range op.Parameters {
				if p.Ref != "" {
					p = doc.Components.Parameters[strings.TrimPrefix(p.Ref, "#/components/parameters/")]
				}
				if p.Name == "" || p.Schema == nil || p.In == "path" && !p.Required {
					t.Errorf("%s %s: bad parameter %+v", method, path, p)
				}
				if p.In == "path" {
					declared = append(declared, p.Name)
				}
			}
			for _, m := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(path, -1) {
				used = append(used, m[1])
			}
			if slices.Sort(declared); !slices.Equal(declared, slices.Sorted(slices.Values(used))) {
				t.Errorf("%s %s: declares the path parameters %q, uses %q", method, path, declared, used)
			}
		}
	}
}

func checkRefs(t *testing.T, tree, node any) {
	t.Helper()
	switch node := node.(type) {
	case []any:
		for _, v := range node {
			checkRefs(t, tree, v)
		}
	case map[string]any:
		if ref, ok := node["$ref"].(string); ok {
			at := tree
			for key := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
				m, _ := at.(map[string]any)
				at = m[key]
			}
			if at == nil {
				t.Errorf("$ref %q leads nowhere", ref)
			}
		}
		for _, v := range node {
			checkRefs(t, tree, v)
		}
	}
}

func checkSchema(t *testing.T, where string, node any) {
	t.Helper()
	schema, ok := node.(map[string]any)
	if !ok {
		t.Errorf("%s: %v is no schema", where, node)
		return
	}
	if typ, ok := schema["type"].(string); ok && !slices.Contains([]string{"object", "array", "string", "integer", "number", "boolean", "null"}, typ) {
		t.Errorf("%s: %q is no type", where, typ)
	}
	properties, _ := schema["properties"].(map[string]any)
	required, _ := schema["required"].([]any)
	for _, name := range required {
		if properties[name.(string)] == nil {
			t.Errorf("%s: %v is required, but is no property", where, name)
		}
	}
	for name, p := range properties {
		checkSchema(t, where+"."+name, p)
	}
	for _, key := range []string{"items", "additionalProperties"} {
		if sub, ok := schema[key]; ok {
			checkSchema(t, where+"."+key, sub)
		}
	}
}
