package gate_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"agentd/server/fuzztest"
	"agentd/server/gate"
)

func fingerprint(method, target, body string) string {
	return hex.EncodeToString(gate.Fingerprint(method, target, []byte(body)))
}

// The vectors come from another program that speaks the same protocol.
func TestFingerprintVectors(t *testing.T) {
	for body, want := range map[string]string{
		`{"b":1,"a":{"y":2,"x":[3,1]}}`: "8d63ae798a08d2c418acbd18e316a77174448647b295ff21ba0720f8d8dde28e",
		"":                              "00ed73fe4460c08d89fe2e41ce79fdff42f47e347c42809b731683f36fad2a18",
	} {
		if got := fingerprint("POST", "/v1/agents/echo/run", body); got != want {
			t.Errorf("Fingerprint(%s) = %s, want %s", body, got, want)
		}
	}
}

func TestFingerprintTellsRequestsApart(t *testing.T) {
	base := fingerprint("POST", "/v1/a", `{"a":1}`)
	for _, other := range []string{
		fingerprint("PUT", "/v1/a", `{"a":1}`), fingerprint("POST", "/v1/b", `{"a":1}`), fingerprint("POST", "/v1/a?x=1", `{"a":1}`),
		fingerprint("POST", "/v1/a", `{"a":2}`), fingerprint("POST", "/v1/a", ``), fingerprint("POST", "/v1/a", `"{\"a\":1}"`),
	} {
		if other == base {
			t.Error("two different requests have one fingerprint")
		}
	}
}

func TestCanonical(t *testing.T) {
	deep := strings.Repeat("[", 64) + strings.Repeat("]", 64)
	for in, want := range map[string]string{
		"":                     `""`,
		" \n ":                 `""`,
		`""`:                   `""`,
		"\t{ } ":               `{}`,
		`[ ]`:                  `[]`,
		` [ 1 , "a" , null ] `: `[1,"a",null]`,
		`{"a":true,"b":false}`: `{"a":true,"b":false}`,
		`{"b":{"d":1,"c":2},"a":[{"z":1,"y":{}}]}`: `{"a":[{"y":{},"z":1}],"b":{"c":2,"d":1}}`,
		`{"":1," ":2}`: `{"":1," ":2}`,

		// Numbers as ECMA-262 prints them.
		`[0,-0,0.0,-0e9]`:                     `[0,0,0,0]`,
		`[1.0,1e2,1E+2,100,-1.50]`:            `[1,100,100,100,-1.5]`,
		`[1e20,1e21,123456789012345680000]`:   `[100000000000000000000,1e+21,123456789012345680000]`,
		`[1e-6,1e-7,1.5e-9,0.000001]`:         `[0.000001,1e-7,1.5e-9,0.000001]`,
		`[9007199254740993,0.1,5e-324,1e300]`: `[9007199254740992,0.1,5e-324,1e+300]`,
		`[1e-400]`:                            `[0]`,

		// Texts as ECMA-262 quotes them.
		`"\u0041\/\b\f\n\r\t\u0001\"\\"`: `"A/\b\f\n\r\t\u0001\"\\"`,
		`"é \u00e9 <\u003c> \u2028"`:     "\"é é <<> \u2028\"",
		`"\ud83d\ude00 😀"`:               `"😀 😀"`,
		"\"\u007f\"":                     "\"\u007f\"",

		// Keys by UTF-16 units: a pair of surrogates comes before U+E000.
		"{\"\ue000\":1,\"\U0001f600\":2,\"z\":3,\"\uffff\":4}": "{\"z\":3,\"\U0001f600\":2,\"\ue000\":1,\"\uffff\":4}",
		`{"é":1,"e\u0301":2,"E":3}`:                            "{\"E\":3,\"e\u0301\":2,\"é\":1}",

		// What has no canonical form is a text, and so is what nests too deep.
		`{"a":1,"b":2,"a":3}`: `"{\"a\":1,\"b\":2,\"a\":3}"`,
		`[1e400]`:             `"[1e400]"`,
		`"\ud83d"`:            `"\"\\ud83d\""`,
		`{"a":1}{"a":1}`:      `"{\"a\":1}{\"a\":1}"`,
		"a\nb":                `"a\nb"`,
		deep:                  deep,
		"[" + deep + "]":      `"[` + deep + `]"`,
	} {
		if got := string(gate.AppendCanonical(nil, []byte(in))); got != want {
			t.Errorf("canonical form of %s = %s, want %s", in, got, want)
		}
	}
}

// FuzzFingerprint holds the canonical form to what it is for: it is JSON that means the same, is its own canonical form,
// and does not depend on white space.
func FuzzFingerprint(f *testing.F) {
	for _, seed := range []string{`{"b":1,"a":{"y":2,"x":[3,1]}}`, ``, `[1e21,-0,"\ud83d\u0000"]`, `{"a":1,"a":[]}`, "{\"\ue000\":1,\"\U0001f600\":2}", `nul`,
		strings.Repeat("[", 100), "\"\xff\xed\xa0\x80\"", `{"\ud800":{},"\udc00":1,"𐀀":null}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		formCost.Check(t, len(in), func() { gate.AppendCanonical(nil, in) })
		out := gate.AppendCanonical(nil, in)
		if len(out) > 7*len(in)+25*bytes.Count(in, []byte("e"))+25*bytes.Count(in, []byte("E"))+2 {
			t.Errorf("canonical form of %d bytes has %d", len(in), len(out))
		}
		if !json.Valid(out) {
			t.Fatalf("canonical form of %q is no JSON: %q", in, out)
		}
		if again := gate.AppendCanonical(nil, out); !bytes.Equal(again, out) && out[0] != '"' {
			t.Errorf("canonical form of %q is %q, and of that %q", in, out, again)
		}
		var indented bytes.Buffer
		if json.Indent(&indented, in, "", " \t") == nil && len(bytes.TrimSpace(in)) > 0 {
			if again := gate.AppendCanonical(nil, indented.Bytes()); !bytes.Equal(again, out) && out[0] != '"' {
				t.Errorf("canonical form of %q is %q, but with white space %q", in, out, again)
			}
		}
	})
}

func BenchmarkFingerprint(b *testing.B) {
	members := make([]string, 10_000)
	for i := range members {
		members[i] = fmt.Sprintf(`"k%d":{"b":[1,2.5,"text"],"a":null}`, len(members)-i)
	}
	for name, body := range map[string]string{"run": `{"input":"hello","sessionId":"s1"}`, "large": "{" + strings.Join(members, ",") + "}",
		"nested": strings.Repeat(`{"b":0,"a":`, 60) + `"` + strings.Repeat("x", 1<<20) + `"` + strings.Repeat("}", 60)} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				gate.Fingerprint("POST", "/v1/agents/echo/run", []byte(body))
			}
		})
	}
}

// formCost is that of Fingerprint's contract.
var formCost = fuzztest.Cost{PerByte: 50}

func TestFingerprintCost(t *testing.T) {
	texts := fuzztest.JSON()
	texts["unsorted"] = fuzztest.Fill(strings.Repeat(`{"b":0,"a":`, 60)+"{", func(i int) string { return fmt.Sprintf(`"k%d":0,`, 1_000_000-i) }, `"":0}`+strings.Repeat("}", 60))
	for name, text := range texts {
		formCost.Check(t, len(text), func() { gate.AppendCanonical(nil, text) })
		if t.Failed() {
			t.Fatal(name)
		}
	}
}
