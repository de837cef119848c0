package openapi_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"testing"
	"time"

	"agentd/server/openapi"
	"agentd/server/shape"
)

// describe returns the schema of t in a response, and the components, both without white space.
func describe(t *testing.T, typ reflect.Type) (string, map[string]string) {
	t.Helper()
	b := openapi.Document(openapi.Info{Title: "t", Version: "1"}, []openapi.Operation{{
		Method: "GET", Path: "/", Responses: []openapi.Response{{Status: 200, Type: typ}},
	}})
	validate(t, b)
	var doc struct {
		Paths map[string]map[string]struct {
			Responses map[string]struct {
				Content map[string]struct{ Schema json.RawMessage }
			}
		}
		Components struct{ Schemas map[string]json.RawMessage }
	}
	decode(t, b, &doc)
	parts := map[string]string{}
	for name, schema := range doc.Components.Schemas {
		parts[name] = compact(t, schema)
	}
	return compact(t, doc.Paths["/"]["get"].Responses["200"].Content["application/json"].Schema), parts
}

func compact(t *testing.T, b []byte) string {
	t.Helper()
	var out bytes.Buffer
	if err := json.Compact(&out, b); err != nil {
		t.Fatalf("Compact(%s): %v", b, err)
	}
	return out.String()
}

type colour int

func (colour) MarshalText() ([]byte, error) { return []byte("red"), nil }

type known struct{ A int }

func (known) OpenAPISchema() json.RawMessage {
	return json.RawMessage(`{"type":["string","array"]}`)
}

type open struct {
	A int `json:"a"`
}

func (open) MarshalJSON() ([]byte, error) { return []byte(`{"a":1,"b":2}`), nil }

func TestSchemaOfType(t *testing.T) {
	for _, tc := range []struct {
		typ  reflect.Type
		want string
	}{
		{reflect.TypeFor[bool](), `{"type":"boolean"}`},
		{reflect.TypeFor[int](), `{"type":"integer"}`},
		{reflect.TypeFor[int64](), `{"type":"integer","format":"int64"}`},
		{reflect.TypeFor[uint16](), `{"type":"integer","minimum":0}`},
		{reflect.TypeFor[float32](), `{"type":"number"}`},
		{reflect.TypeFor[json.Number](), `{"type":"number"}`},
		{reflect.TypeFor[string](), `{"type":"string"}`},
		{reflect.TypeFor[**string](), `{"type":"string"}`},
		{reflect.TypeFor[[]byte](), `{"type":"string","contentEncoding":"base64"}`},
		{reflect.TypeFor[json.RawMessage](), `{}`},
		{reflect.TypeFor[any](), `{}`},
		{reflect.TypeFor[shape.Schemer](), `{}`},
		{reflect.TypeFor[time.Time](), `{"type":"string","format":"date-time"}`},
		{reflect.TypeFor[netip.Addr](), `{"type":"string"}`},
		{reflect.TypeFor[colour](), `{"type":"string"}`},
		{reflect.TypeFor[known](), `{"$ref":"#/components/schemas/Known"}`},
		{reflect.TypeFor[[]string](), `{"type":"array","items":{"type":"string"}}`},
		{reflect.TypeFor[[2]bool](), `{"type":"array","items":{"type":"boolean"},"minItems":2,"maxItems":2}`},
		{reflect.TypeFor[map[string][]int](), `{"type":"object","additionalProperties":{"type":"array","items":{"type":"integer"}}}`},
		{reflect.TypeFor[struct {
			A *int    `json:"a"`
			B *int    `json:"b,omitempty"`
			C int     `json:"c,omitzero"`
			D string  `json:"d"`
			E any     `json:"e"`
			F *any    `json:"f"`
			G int     `json:"-"`
			H int     `json:"-,"`
			I *[]int  `json:"i" doc:"numbers"`
			J []known `json:"j"`
			k int
		}](), `{"type":"object","required":["a","d","e","f","-","i","j"],"properties":{` +
			`"a":{"anyOf":[{"type":"integer"},{"type":"null"}]},` +
			`"b":{"type":"integer"},"c":{"type":"integer"},"d":{"type":"string"},"e":{},"f":{},"-":{"type":"integer"},` +
			`"i":{"anyOf":[{"type":"array","items":{"type":"integer"}},{"type":"null"}],"description":"numbers"},` +
			`"j":{"type":"array","items":{"$ref":"#/components/schemas/Known"}}}}`},
		{reflect.TypeFor[struct {
			A string   `enum:"x|y"`
			B []string `enum:"x|y"`
			C *string  `enum:"x|y"`
		}](), `{"type":"object","required":["A","B","C"],"properties":{` +
			`"A":{"type":"string","enum":["x","y"]},` +
			`"B":{"type":"array","items":{"type":"string","enum":["x","y"]}},` +
			`"C":{"anyOf":[{"type":"string","enum":["x","y"]},{"type":"null"}]}}}`},
		{reflect.TypeFor[struct{}](), `{"type":"object","properties":{}}`},
	} {
		if got, _ := describe(t, tc.typ); got != tc.want {
			t.Errorf("schema of %v = %s\nwant %s", tc.typ, got, tc.want)
		}
	}
}

type tree struct {
	Left  *tree   `json:"left"`
	Kids  []*tree `json:"kids,omitempty"`
	Value any     `json:"value"`
}

type URL struct{ Text string }

func TestComponents(t *testing.T) {
	type Error struct{ A URL }
	for _, tc := range []struct {
		typ  reflect.Type
		ref  string
		want map[string]string
	}{
		{reflect.TypeFor[tree](), "Tree", map[string]string{
			"Tree": `{"type":"object","required":["left","value"],"properties":{` +
				`"left":{"anyOf":[{"$ref":"#/components/schemas/Tree"},{"type":"null"}]},` +
				`"kids":{"type":"array","items":{"$ref":"#/components/schemas/Tree"}},"value":{}}}`,
		}},
		{reflect.TypeFor[known](), "Known", map[string]string{"Known": `{"type":["string","array"]}`}},
		{reflect.TypeFor[open](), "Open", map[string]string{
			"Open": `{"type":"object","required":["a"],"properties":{"a":{"type":"integer"}}}`,
		}},
		{reflect.TypeFor[page[map[string]URL]](), "PageMapStringURL", map[string]string{
			"PageMapStringURL": `{"type":"object","required":["items"],"properties":{` +
				`"items":{"type":"array","items":{"type":"object","additionalProperties":{"$ref":"#/components/schemas/URL"}}},` +
				`"next":{"type":"string"}}}`,
			"URL": `{"type":"object","required":["Text"],"properties":{"Text":{"type":"string"}}}`,
		}},
		// A name that is taken gets its package's name: Error is the body of every failure.
		{reflect.TypeFor[Error](), "OpenapiTestError", map[string]string{
			"OpenapiTestError": `{"type":"object","required":["A"],"properties":{"A":{"$ref":"#/components/schemas/URL"}}}`,
			"URL":              `{"type":"object","required":["Text"],"properties":{"Text":{"type":"string"}}}`,
		}},
	} {
		got, parts := describe(t, tc.typ)
		delete(parts, "Error")
		if want := `{"$ref":"#/components/schemas/` + tc.ref + `"}`; got != want || !maps.Equal(parts, tc.want) {
			t.Errorf("schema of %v = %s with %q\nwant %s with %q", tc.typ, got, parts, want, tc.want)
		}
	}
	_, parts := describe(t, reflect.TypeFor[struct {
		A URL
		B url.URL
	}]())
	if got, want := slices.Sorted(maps.Keys(parts)), []string{"Error", "URL", "UrlURL", "Userinfo"}; !slices.Equal(got, want) {
		t.Errorf("components = %q, want %q", got, want)
	}
}

type inner struct {
	A, B int
	C    int `json:"c"`
}

type other struct{ B, D int }

type self struct {
	*self
	Z int
}

// The properties are those that encoding/json writes, in its order, whatever is embedded in what.
func TestEmbeddingAgreesWithEncodingJSON(t *testing.T) {
	for _, v := range []any{
		struct {
			inner
			A string
		}{},
		struct {
			inner
			other
		}{},
		struct {
			First int
			*inner
			Last int
		}{inner: &inner{}},
		struct {
			colour
			URL
		}{},
		self{},
	} {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		schema, parts := describe(t, reflect.TypeOf(v))
		if part, ok := parts["Self"]; ok {
			schema = part
		}
		var got struct{ Properties json.RawMessage }
		decode(t, []byte(schema), &got)
		if g, w := keys(t, got.Properties), keys(t, b); !slices.Equal(g, w) {
			t.Errorf("properties of %T = %q, want those of %s", v, g, b)
		}
	}

	got, _ := describe(t, reflect.TypeFor[struct {
		First int
		*other
	}]())
	want := `{"type":"object","required":["First"],"properties":{"First":{"type":"integer"},"B":{"type":"integer"},"D":{"type":"integer"}}}`
	if got != want {
		t.Errorf("schema with an embedded pointer = %s, want %s", got, want)
	}
}

// keys are the names of an object's members, in order.
func keys(t *testing.T, b []byte) []string {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.Token()
	var names []string
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		names = append(names, name.(string))
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
	}
	return names
}
