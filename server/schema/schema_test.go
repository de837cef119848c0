package schema_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"agentd/server/fuzztest"
	"agentd/server/schema"
)

func mustCompile(t testing.TB, raw string) *schema.Schema {
	t.Helper()
	s, err := schema.Compile(json.RawMessage(raw))
	if err != nil {
		t.Fatalf("Compile(%s): %v", raw, err)
	}
	return s
}

func TestValidate(t *testing.T) {
	for _, tc := range []struct{ schema, value, want string }{
		{`true`, `{"a":[1]}`, ""},
		{`false`, `1`, "not allowed"},
		{`{}`, `null`, ""},
		{`{"type":"string"}`, `1`, "got integer, want string"},
		{`{"type":"integer"}`, `"1"`, "got string, want integer"},
		{`{"type":"integer"}`, `1.0`, ""},
		{`{"type":"integer"}`, `1e3`, ""},
		{`{"type":"integer"}`, `10e-1`, ""},
		{`{"type":"integer"}`, `1.5`, "got number, want integer"},
		{`{"type":"integer"}`, `123456789012345678901234567890`, ""},
		{`{"type":"number"}`, `3`, ""},
		{`{"type":["string","null"]}`, `null`, ""},
		{`{"type":["string","null"]}`, `true`, "got boolean, want string or null"},
		{`{"type":"string","nullable":true,"enum":["a"]}`, `null`, ""},
		{`{"type":"string","nullable":false}`, `null`, "got null, want string"},

		{`{"enum":["a","b",1,null]}`, `1.0`, ""},
		{`{"enum":["staging","prod"]}`, `"dev"`, `got "dev", want one of "staging", "prod"`},
		{`{"enum":[[1,{"a":2}]]}`, `[1.0,{"a":2e0}]`, ""},
		{`{"enum":[]}`, `1`, `got 1, want one of `},
		{`{"const":{"a":[1]}}`, `{"a":[1.00]}`, ""},
		{`{"const":"x"}`, `"y"`, `got "y", want "x"`},
		{`{"const":null}`, `0`, `got 0, want null`},
		{`{"enum":[false]}`, `0`, `got 0, want one of false`},
		{`{"enum":["1"]}`, `1`, `got 1, want one of "1"`},

		{`{"required":["city","n"],"properties":{"n":{"type":"integer"}}}`, `{"n":"x"}`, `/city: required; /n: got string, want integer`},
		{`{"required":["a"]}`, `[]`, ""},
		{`{"properties":{"city":{},"units":{}},"additionalProperties":false}`, `{"citi":1}`, `/citi: no such property, known are city, units`},
		{`{"additionalProperties":false}`, `{"a":1}`, `/a: not allowed`},
		{`{"additionalProperties":{"type":"string"}}`, `{"a":1,"b":"x"}`, `/a: got integer, want string`},
		{`{"properties":{"a":true},"patternProperties":{"^x-":{"type":"integer"}},"additionalProperties":false}`,
			`{"a":1,"x-b":"s","c":1}`, `/c: no such property, known are a; /x-b: got string, want integer`},
		{`{"patternProperties":{"a":{"minimum":1},"^b":false}}`, `{"ba":0}`, `/ba: not allowed; /ba: got 0, want at least 1`},
		{`{"propertyNames":{"pattern":"^[a-z]+$"}}`, `{"ok":1,"No":2}`, `/No: the name is not allowed`},
		{`{"minProperties":1}`, `{}`, `got 0 properties, want at least 1`},
		{`{"maxProperties":1}`, `{"a":1,"b":2}`, `got 2 properties, want at most 1`},
		{`{"dependentRequired":{"card":["name","zip"]}}`, `{"card":1,"zip":2}`, `/name: required when card is given`},
		{`{"dependentRequired":{"card":["name"]}}`, `{}`, ""},
		{`{"dependentSchemas":{"a":{"required":["b"]}}}`, `{"a":1}`, `/b: required`},
		{`{"properties":{"a/b~c":{"type":"null"}}}`, `{"a/b~c":1}`, `/a~1b~0c: got integer, want null`},

		{`{"items":{"type":"integer"}}`, `[1,"x",2,null]`, `/1: got string, want integer; /3: got null, want integer`},
		{`{"prefixItems":[{"type":"string"},{"type":"integer"}],"items":false}`, `["a","b",3]`, `/1: got string, want integer; /2: not allowed`},
		{`{"prefixItems":[{"type":"string"}]}`, `[]`, ""},
		{`{"items":[{"type":"string"}],"additionalItems":{"type":"integer"}}`, `["a","b"]`, `/1: got string, want integer`},
		{`{"items":{"type":"integer"},"additionalItems":false}`, `[1,2]`, ""},
		{`{"contains":{"type":"integer"}}`, `["a"]`, `no item is of the kind that must be among them`},
		{`{"contains":{"const":1},"minContains":2}`, `[1]`, `got 1 matching item, want at least 2`},
		{`{"contains":{"const":1},"minContains":0}`, `[]`, ""},
		{`{"contains":{"const":1},"maxContains":1}`, `[1,1.0]`, `got 2 matching items, want at most 1`},
		{`{"minItems":1,"maxItems":2}`, `[]`, `got 0 items, want at least 1`},
		{`{"minItems":1,"maxItems":2}`, `[1,2,3]`, `got 3 items, want at most 2`},
		{`{"uniqueItems":true}`, `[1,{"a":1,"b":2},"1",{"b":2,"a":1.0}]`, `items 1 and 3 are equal, want all different`},
		{`{"uniqueItems":true}`, `[1,"1",true,"true",null,[1],[[1]],["s1:"],{}]`, ""},

		{`{"minLength":2,"maxLength":3}`, `"é"`, `got 1 character, want at least 2`},
		{`{"maxLength":2}`, `"日本"`, ""},
		{`{"maxLength":2.0}`, `"日本語"`, `got 3 characters, want at most 2`},
		{`{"pattern":"^\\d+$"}`, `"12a"`, `does not match the pattern ^\d+$`},
		{`{"pattern":"b"}`, `"abc"`, ""},
		{`{"format":"email"}`, `"nobody"`, ""},

		{`{"minimum":0.1}`, `0.1`, ""},
		{`{"minimum":0}`, `-1e-400`, `got -1e-400, want at least 0`},
		{`{"maximum":1e400}`, `1e401`, `got 1e401, want at most 1e400`},
		{`{"maximum":9007199254740992}`, `9007199254740993`, `got 9007199254740993, want at most 9007199254740992`},
		{`{"exclusiveMinimum":1}`, `1.0`, `got 1.0, want more than 1`},
		{`{"exclusiveMaximum":-1}`, `-1`, `got -1, want less than -1`},
		{`{"minimum":-5,"maximum":-2}`, `-3.5`, ""},
		{`{"multipleOf":0.01}`, `19.99`, ""},
		{`{"multipleOf":0.01}`, `19.999`, `got 19.999, want a multiple of 0.01`},
		{`{"multipleOf":3}`, `1e999999999999999999999`, `got 1e999999999999999999999, want a multiple of 3`},
		{`{"multipleOf":2}`, `1e999999999999999999999`, ""},
		{`{"multipleOf":7}`, `-21`, ""},
		{`{"multipleOf":7}`, `0`, ""},

		{`{"allOf":[{"required":["a"]},{"required":["b"]}]}`, `{}`, `/a: required; /b: required`},
		{`{"anyOf":[{"type":"string"},{"type":"null"}]}`, `1`, `got integer, want string or null`},
		{`{"anyOf":[{"type":"string"},{"type":"object","required":["a"]}]}`, `{}`, `fits none of the 2 alternatives; nearest: /a: required`},
		{`{"anyOf":[{"const":1},{"const":2}]}`, `2`, ""},
		{`{"anyOf":[{"type":"object","properties":{"o":{"type":"string"}}}]}`, `{"o":1}`, `/o: got integer, want string`},
		{`{"items":{"anyOf":[{"type":"string"},{"items":{"type":"null"}}]}}`, `[[1]]`, `/0: fits none of the 2 alternatives; nearest: /0/0: got integer, want null`},
		{`{"oneOf":[{"minimum":1},{"maximum":5},{"const":3}]}`, `3`, `fits alternatives 1, 2, 3, want exactly one`},
		{`{"oneOf":[{"type":"integer"},{"type":"string"}]}`, `3`, ""},
		{`{"oneOf":[{"properties":{"kind":{"const":"a"}},"required":["x","y"]},{"properties":{"kind":{"const":"b"}},"required":["z"]}]}`,
			`{"kind":"b"}`, `fits none of the 2 alternatives; nearest: /z: required`},
		{`{"not":{"type":"string"}}`, `"x"`, `is of a kind that is not allowed`},
		{`{"not":{"type":"string"}}`, `1`, ""},
		{`{"if":{"properties":{"k":{"const":1}}},"then":{"required":["a"]},"else":{"required":["b"]}}`, `{"k":1}`, `/a: required`},
		{`{"if":{"properties":{"k":{"const":1}}},"then":{"required":["a"]},"else":{"required":["b"]}}`, `{"k":2}`, `/b: required`},
		{`{"then":false,"else":false}`, `1`, ""},

		{`{"$defs":{"n":{"type":"integer"}},"properties":{"a":{"$ref":"#/$defs/n"}}}`, `{"a":"x"}`, `/a: got string, want integer`},
		{`{"$ref":"#/definitions/n%20~1x","definitions":{"n /x":{"type":"null"}}}`, `1`, `got integer, want null`},
		{`{"properties":{"a":{"type":"integer"},"b":{"$ref":"#/properties/a"}}}`, `{"b":null}`, `/b: got null, want integer`},
		{`{"prefixItems":[{"type":"null"},{"$ref":"#/prefixItems/0"}]}`, `[null,1]`, `/1: got integer, want null`},
		{`{"type":"object","properties":{"next":{"$ref":"#"}},"additionalProperties":false}`, `{"next":{"next":{"x":1}}}`,
			`/next/next/x: no such property, known are next`},

		{`{}`, `{"a":`, "not JSON: unexpected EOF"},
		{`{}`, ``, "not JSON: empty"},
		{`{}`, `1 2`, "not JSON: text after the value"},
	} {
		s := mustCompile(t, tc.schema)
		if got := schema.Join(s.Validate(json.RawMessage(tc.value))); got != tc.want {
			t.Errorf("Compile(%s).Validate(%s) = %q, want %q", tc.schema, tc.value, got, tc.want)
		}
	}
}

func TestCompileReportsEveryProblem(t *testing.T) {
	for _, tc := range []struct{ schema, want string }{
		{`[]`, `a schema is an object, true or false, got array`},
		{`{"type":"text","properties":{"a":3},"required":["a",1],"minLength":-1}`,
			`/minLength: want an integer of at least 0; /properties/a: a schema is an object, true or false, got integer; /required/1: got integer, want string; /type: "text" is no type`},
		{`{"required":true}`, `/required: got boolean, want array`},
		{`{"type":[]}`, `/type: want at least one type`},
		{`{"unevaluatedProperties":false,"dependencies":{}}`, `/dependencies: dependencies is not supported; /unevaluatedProperties: unevaluatedProperties is not supported`},
		{`{"pattern":"(?=x)"}`, "/pattern: the pattern is not supported: error parsing regexp: invalid or unsupported Perl syntax: `(?=`"},
		{`{"patternProperties":{"(":true}}`, "/patternProperties/(: the pattern is not supported: error parsing regexp: missing closing ): `(`"},
		{`{"exclusiveMinimum":true}`, `/exclusiveMinimum: got boolean, want number`},
		{`{"multipleOf":0}`, `/multipleOf: want a positive number of at most 4096 digits`},
		{`{"$ref":"other.json#/x"}`, `/$ref: "other.json#/x" is not supported, only references like "#/$defs/name"`},
		{`{"$ref":"#anchor"}`, `/$ref: "#anchor" is not supported, only references like "#/$defs/name"`},
		{`{"$ref":"#/$defs/gone"}`, `/$ref: "#/$defs/gone" points at nothing`},
		{`{"$ref":"#"}`, `refers to itself without going into the value`},
		{`{"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/b"}]},"b":{"not":{"$ref":"#/$defs/a"}}},"items":{"$ref":"#/$defs/a"}}`,
			`/$defs/a: refers to itself without going into the value`},
		{`{"properties":{"a":{"$id":"x"},"b":{"$ref":"#"}}}`, `/properties/a/$id: $id below the root is not supported beside $ref: it changes what references mean`},
		{`{"a":`, `not JSON: unexpected EOF`},
	} {
		_, err := schema.Compile(json.RawMessage(tc.schema))
		var problems *schema.Error
		if !errors.As(err, &problems) {
			t.Errorf("Compile(%s) = %v, want an *Error", tc.schema, err)
		} else if got := schema.Join(problems.Issues); got != tc.want {
			t.Errorf("Compile(%s) = %q, want %q", tc.schema, got, tc.want)
		}
	}
}

func TestAnnotationsAreIgnored(t *testing.T) {
	s := mustCompile(t, `{"$schema":"https://json-schema.org/draft/2020-12/schema","$id":"urn:x","title":"T","description":"D","default":1,
		"examples":[1],"$comment":"c","deprecated":true,"readOnly":true,"format":"date","x-order":1,"type":"integer"}`)
	if got := s.Validate(json.RawMessage(`5`)); got != nil {
		t.Errorf("Validate(5) = %v, want nothing", got)
	}
}

func TestIssuesAreBounded(t *testing.T) {
	s := mustCompile(t, `{"items":{"type":"string"}}`)
	value := json.RawMessage("[" + strings.TrimSuffix(strings.Repeat("1,", 1000), ",") + "]")
	if got := s.Validate(value); len(got) != 20 {
		t.Errorf("Validate(1000 bad items) found %d issues, want 20", len(got))
	}
	s = mustCompile(t, `{"maxLength":1,"enum":["a"]}`)
	for _, is := range s.Validate(json.RawMessage(`"` + strings.Repeat("long ", 10_000) + `"`)) {
		if len(is.Message) > 200 {
			t.Errorf("issue %q has %d bytes, want a short one", is.Message[:50]+"...", len(is.Message))
		}
	}
}

// Each of these would take for ever, or all memory, without the limits.
func TestHostileInputsEnd(t *testing.T) {
	deep := strings.Repeat("[", 5000) + strings.Repeat("]", 5000)
	chain := func(n int) string {
		var b strings.Builder
		b.WriteString(`{"$ref":"#/$defs/d0","$defs":{`)
		for i := range n {
			fmt.Fprintf(&b, `"d%d":{"$ref":"#/$defs/d%d"},`, i, i+1)
		}
		fmt.Fprintf(&b, `"d%d":{"items":{"$ref":"#/$defs/d0"}}}}`, n)
		return b.String()
	}
	for _, tc := range []struct{ name, schema, value, want string }{
		{"recursion", `{"items":{"$ref":"#"}}`, deep, "nested deeper than 128 levels"},
		{"recursion under not", `{"not":{"not":{"items":{"$ref":"#"}}}}`, deep, "nested deeper than 128 levels"},
		{"branching", `{"anyOf":[{"items":{"$ref":"#"},"minItems":9},{"items":{"$ref":"#"},"minItems":9}]}`,
			strings.Repeat("[", 100) + strings.Repeat("]", 100), "too large to be checked"},
		{"long chains", chain(1500), deep, "too deep to be checked"},
		{"pattern on a long text", `{"allOf":[` + strings.TrimSuffix(strings.Repeat(`{"pattern":"(x+x+)+y"},`, 100), ",") + `]}`,
			`"` + strings.Repeat("x", 1<<20) + `"`, "too large to be checked"},
		{"long number", `{"multipleOf":7}`, strings.Repeat("7", 1<<20), "want a multiple of 7"},
	} {
		start := time.Now()
		got := schema.Join(mustCompile(t, tc.schema).Validate(json.RawMessage(tc.value)))
		if !strings.Contains(got, tc.want) {
			t.Errorf("%s: Validate = %q, want %q", tc.name, got, tc.want)
		}
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("%s: Validate took %v", tc.name, took)
		}
	}
	if _, err := schema.Compile(json.RawMessage(`{"anyOf":[` + strings.TrimSuffix(strings.Repeat("{},", 20_000), ",") + `]}`)); err == nil {
		t.Error("Compile(20000 parts) succeeded, want an error")
	}
}

func FuzzSchema(f *testing.F) {
	for _, s := range []string{
		`{"type":"object","properties":{"a":{"type":"integer","multipleOf":0.1}},"required":["a"],"additionalProperties":false}`,
		`{"anyOf":[{"$ref":"#/$defs/a"},{"items":{"$ref":"#"}}],"$defs":{"a":{"enum":[1,"x",null]}}}`,
		`{"if":{"contains":{"const":1}},"then":{"uniqueItems":true},"else":{"prefixItems":[false],"items":[{}]}}`,
		`{"patternProperties":{"^a":{"minLength":1}},"propertyNames":{"maxLength":3},"oneOf":[true,{"not":{}}]}`,
	} {
		for _, v := range []string{`{"a":1.5}`, `[1,[2,"x"],1e99]`, `"é"`, `-0.0e-1`} {
			f.Add([]byte(s), []byte(v))
		}
	}
	f.Fuzz(func(t *testing.T, raw, value []byte) {
		compileCost.Check(t, len(raw), func() { schema.Compile(raw) }) //nolint:errcheck // it is looked at below
		s, err := schema.Compile(raw)
		if err != nil {
			return
		}
		first := schema.Join(s.Validate(value))
		if again := schema.Join(s.Validate(value)); again != first {
			t.Errorf("Compile(%s).Validate(%s) = %q, then %q", raw, value, first, again)
		}
	})
}

func BenchmarkValidate(b *testing.B) {
	s := mustCompile(b, `{"type":"object","properties":{"city":{"type":"string","minLength":1},"units":{"enum":["metric","imperial"]},
		"days":{"type":"integer","minimum":1,"maximum":14},"tags":{"type":"array","items":{"type":"string"},"maxItems":10}},
		"required":["city"],"additionalProperties":false}`)
	args := json.RawMessage(`{"city":"Lisbon","units":"metric","days":3,"tags":["rain","wind"]}`)
	b.ReportAllocs()
	for b.Loop() {
		if issues := s.Validate(args); issues != nil {
			b.Fatal(issues)
		}
	}
}

// compileCost is that of Compile's contract.
var compileCost = fuzztest.Cost{PerByte: 600, Base: 1 << 20, Time: time.Second}

func TestCost(t *testing.T) {
	loop, err := schema.Compile([]byte(`{"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"items":{"$ref":"#/$defs/a"},"additionalProperties":{"$ref":"#/$defs/a"}},{"items":{"$ref":"#/$defs/a"},"uniqueItems":true}],"not":{"const":7}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range fuzztest.JSON() {
		for _, form := range []string{`%s`, `{"properties":%s}`, `{"anyOf":%s}`, `{"enum":%s}`, `{"const":%s}`, `{"required":%s}`, `{"minLength":%s}`, `{"pattern":%s}`, `{"multipleOf":%s}`} {
			raw := fmt.Appendf(nil, form, text)
			compileCost.Check(t, len(raw), func() { schema.Compile(raw) }) //nolint:errcheck // only what it costs counts
			if t.Failed() {
				t.Fatal(name, form)
			}
		}
		// Two million steps, of which some make a message that nobody gets to see.
		fuzztest.Cost{PerByte: 4000, Base: 1 << 20, Time: 5 * time.Second}.Check(t, len(text), func() { loop.Validate(text) })
		if t.Failed() {
			t.Fatal(name)
		}
	}
}
