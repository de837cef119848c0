package canonical_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"agentd/server/canonical"
	"agentd/server/fuzztest"
)

var strict = canonical.Rules{Depth: 100}

func TestAppend(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		// RFC 8785 section 3.2.2 and 3.2.3.
		{`{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],"string":"\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/","literals":[null,true,false]}`,
			`{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`},
		{`{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}`,
			"{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u0080\":\"Control\",\"ö\":\"Latin Small Letter O With Diaeresis\",\"€\":\"Euro Sign\",\"😀\":\"Emoji: Grinning Face\",\"\ufb33\":\"Hebrew Letter Dalet With Dagesh\"}"},
		// Appendix B.
		{`[0,-0,5e-324,-5e-324,1.7976931348623157e308,9007199254740992,-9007199254740992,295147905179352830000,9.999999999999997e22,1e23,1.0000000000000001e23]`,
			`[0,0,5e-324,-5e-324,1.7976931348623157e+308,9007199254740992,-9007199254740992,295147905179352830000,9.999999999999997e+22,1e+23,1.0000000000000001e+23]`},
		{`[999999999999999700000,1e21,9.999999999999997e-7,0.000001,333333333.3333332,333333333.33333325,-0.0000033333333333333333]`,
			`[999999999999999700000,1e+21,9.999999999999997e-7,0.000001,333333333.3333332,333333333.33333325,-0.0000033333333333333333]`},
		{` { "b" : [ ] , "a" : { } } `, `{"a":{},"b":[]}`},
		{`"\u2028<>&\u007f\b\f\t"`, "\"\u2028<>&\u007f\\b\\f\\t\""},
		{`{"_x":0,"10":0,"9":0,"a":0,"A":0,"run_id":0,"runId":0}`, `{"10":0,"9":0,"A":0,"_x":0,"a":0,"runId":0,"run_id":0}`},
		{`9007199254740993`, `9007199254740992`},
	} {
		got, err := strict.Append(nil, []byte(tc.in))
		if err != nil || string(got) != tc.want {
			t.Errorf("Append(%s) = %s, %v\nwant %s", tc.in, got, err, tc.want)
		}
	}
	for _, in := range []string{``, `{`, `{"a":1,"a":2}`, `[1,]`, `1 2`, `1e400`, `nul`, `{"a" 1}`, strings.Repeat("[", 200) + strings.Repeat("]", 200)} {
		if got, err := strict.Append(nil, []byte(in)); err == nil {
			t.Errorf("Append(%.20s) = %s, want an error", in, got)
		}
	}
}

func FuzzAppend(f *testing.F) {
	for _, seed := range []string{`{"b":1,"a":[1.5e-7,"\ud83d\ude00"]}`, `{"a":{"a":null},"":""}`, `"\ud800"`, `-0.0`, `1e21`, `[[],{}]`, "\"\x80\""} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		appendCost.Check(t, len(in), func() { strict.Append(nil, in) }) //nolint:errcheck // it is looked at below
		out, err := strict.Append(nil, in)
		if err != nil {
			return
		}
		if !json.Valid(out) {
			t.Fatalf("Append(%q) = %q, which is no JSON", in, out)
		}
		again, err := strict.Append(nil, out)
		if err != nil || !bytes.Equal(again, out) {
			t.Fatalf("Append(%q) = %q, %v; want it as it is", out, again, err)
		}
		var v any
		if json.Unmarshal(in, &v) == nil {
			var w any
			if err := json.Unmarshal(out, &w); err != nil {
				t.Fatal(err)
			}
			a, _ := json.Marshal(v)
			b, _ := json.Marshal(w)
			if !bytes.Equal(bytes.ReplaceAll(a, []byte("-0"), []byte("0")), bytes.ReplaceAll(b, []byte("-0"), []byte("0"))) {
				t.Fatalf("Append(%q) = %q, which means something else", in, out)
			}
		}
	})
}

// appendCost is that of Rules.Append.
var appendCost = fuzztest.Cost{PerByte: 50}

func TestAppendCost(t *testing.T) {
	texts := fuzztest.JSON()
	texts["members in objects"] = fuzztest.Fill(strings.Repeat(`{"a":`, 98)+"{", func(i int) string { return fmt.Sprintf(`"k%d":0,`, i) }, `"":0}`+strings.Repeat("}", 98))
	for name, text := range texts {
		appendCost.Check(t, len(text), func() { strict.Append(nil, text) }) //nolint:errcheck // only what it costs counts
		if t.Failed() {
			t.Fatal(name)
		}
	}
}

// TestAppendValue holds the direct way for common values to what is made of their JSON.
func TestAppendValue(t *testing.T) {
	for _, v := range []any{nil, "", "a\xff\"\n\u2028<", true, 0, -1, 1 << 53, 1<<53 + 1, int64(1) << 62, 1e-7, []any{1, "x", nil, map[string]any{"b": 1, "a": []int{2}}},
		map[string]any{"€": 1, "\r": 2, "😀": 3, "\ufb33": 4, "m": map[string]any{"z": json.RawMessage(`{"y":1.0,"x":"\u0061"}`)}}, []string{"b"}, struct{ B, A int }{1, 2}} {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		want, err := strict.Append(nil, text)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := strict.AppendValue(nil, v); err != nil || !bytes.Equal(got, want) {
			t.Errorf("AppendValue(%v) = %s, %v, want %s", v, got, err, want)
		}
	}
	deep := map[string]any{}
	for range 100 {
		deep = map[string]any{"a": deep}
	}
	for _, v := range []any{func() {}, math.Inf(1), math.NaN(), deep, json.RawMessage(`{"a":1,"a":2}`)} {
		if got, err := strict.AppendValue(nil, v); err == nil {
			t.Errorf("AppendValue(%T) = %.40s, want an error", v, got)
		}
	}
}
