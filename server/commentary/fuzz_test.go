package commentary_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"agentd/server/commentary"
	"agentd/server/fuzztest"
)

// words are what matches, near misses and envelopes are made of.
var words = []string{
	`{`, `}`, `"type"`, `:`, `,`, `"tool.call.start"`, `"tool.call.delta"`, `"tool.call.end"`, `"tool.execute.end"`,
	`"agent.fanout.spawned"`, `"agent.fanout.merged"`, `"context.compacted"`, `"agent.model.fellback"`,
	`{"type":"tool.call.start"`, `{"type":"tool.call.delta"`, `{"type":"tool.call.end"`, `{"type":"tool.execute.end"`,
	`{"type":"agent.fanout.spawned"`, `{"type":"context.compacted"`, `{"type":"agent.model.fellback"`,
	`"toolName"`, `"toolName":"x"`, `"argsDelta"`, `"finalArgs"`, `"result"`, `"result":`, `"originalTokens"`, `"fromModel"`,
	`"toolName":`, `"`, `""`, " ", "\n", "\u00a0", "\ufeff", "\u0085", opener, closer, "<", "x", "😀", `\`, "\x00",
	`{"type":"agent.fanout.merged"}`, `{"type":"tool.call.end","finalArgs":1}`, `{"ty`, `pe":"tool.call.end","finalArgs"}`,
}

// escaped writes a text as a JSON string, choosing among the ways to write each character.
func escaped(rnd *rand.Rand, text string) string {
	var b strings.Builder
	for _, r := range text {
		hex := "\\u%04x"
		if rnd.IntN(2) == 0 {
			hex = "\\u%04X"
		}
		switch short := strings.IndexRune("\"\\/\b\f\n\r\t", r); {
		case rnd.IntN(8) == 0 && r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, hex+hex, high, low)
		case r < 0x20 && short < 0 || rnd.IntN(8) == 0 && r <= 0xffff:
			fmt.Fprintf(&b, hex, r)
		case short >= 0 && (r != '/' || rnd.IntN(2) == 0):
			b.WriteByte('\\')
			b.WriteByte(`"\/bfnrt`[short])
		default:
			b.WriteRune(r)
		}
	}
	return `"` + b.String() + `"`
}

// check compares what becomes of a text with the reference, and treats it a second time.
func check(t *testing.T, rnd *rand.Rand, text string) {
	t.Helper()
	for _, policy := range []commentary.Policy{commentary.Wrap, commentary.Strip} {
		s := commentary.New(policy, defaults)
		payload := json.RawMessage(`{"x":[` + escaped(rnd, text) + `]}`)
		after, d := s.Payload("text.delta", payload)
		want, reasons := reference(policy, text)
		var got struct{ X []string }
		if err := json.Unmarshal(after, &got); err != nil || len(got.X) != 1 || got.X[0] != want {
			t.Fatalf("%s: Payload(%s) = %s, %v, want %q in it", policy, payload, after, err, want)
		}
		var why []string
		if d != nil {
			why = d.Reasons
		}
		if !slices.Equal(why, reasons) {
			t.Fatalf("%s: Payload(%s) has the reasons %q, want %q", policy, payload, why, reasons)
		}
		if again, d := s.Payload("text.delta", after); d != nil {
			t.Fatalf("%s: Payload(%s) = %s the second time, want nothing to treat", policy, after, again)
		}
	}
}

func TestAsTheReference(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 5_000 {
		var text strings.Builder
		for range rnd.IntN(24) {
			text.WriteString(words[rnd.IntN(len(words))])
		}
		check(t, rnd, text.String())
	}
}

func FuzzText(f *testing.F) {
	for _, word := range words {
		f.Add(word+words[0]+word, uint64(len(word)))
	}
	f.Add(`{"type":"tool.call.end",`+closer+`{"type":"tool.call.end","finalArgs":1}`, uint64(1))
	f.Fuzz(func(t *testing.T, text string, seed uint64) {
		if utf8.ValidString(text) {
			check(t, rand.New(rand.NewPCG(seed, 0)), text)
		}
	})
}

// FuzzPayload checks what must hold for every payload, valid or not.
func FuzzPayload(f *testing.F) {
	f.Add([]byte(`{"type":"text.delta","delta":"{\"type\":\"tool.call.end\",\"finalArgs\":1}","n":[1e400,null,{"\"type\"":"\ud800\u0022\\"}]}`))
	f.Add([]byte(`["{\u0022\u0074ype\":\"agent.fanout.merged\"}` + "\xff" + `"`))
	f.Add([]byte(`"` + opener + `{\"type\":\"agent.fanout.merged\"}` + closer + `{\"ty{\"type\":\"agent.fanout.merged\"}pe\":\"agent.fanout.merged\"}"`))
	f.Add([]byte(`"\`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		before := bytes.Clone(payload)
		for _, policy := range []commentary.Policy{commentary.Wrap, commentary.Strip} {
			s := commentary.New(policy, defaults)
			fuzztest.Cost{PerByte: 32}.Check(t, len(payload), func() { s.Payload("text.delta", payload) })
			after, d := s.Payload("text.delta", payload)
			if !bytes.Equal(payload, before) {
				t.Fatalf("%s: Payload(%q) changed its argument to %q", policy, before, payload)
			}
			if d == nil {
				if !bytes.Equal(after, before) {
					t.Fatalf("%s: Payload(%q) = %q without a decision", policy, before, after)
				}
				continue
			}
			if !sameShape(t, before, after) {
				t.Fatalf("%s: Payload(%q) = %q, want only strings to differ", policy, before, after)
			}
			if again, d := s.Payload("text.delta", after); d != nil {
				t.Fatalf("%s: Payload(%q) = %q the second time, want nothing to treat", policy, after, again)
			}
		}
	})
}

// sameShape reports whether two JSON texts have the same tokens but for the values of strings.
func sameShape(t *testing.T, before, after []byte) bool {
	return reflect.DeepEqual(shape(t, before), shape(t, after))
}

// shape lists the tokens of a JSON text, with "" for the value of a string.
func shape(t *testing.T, data []byte) (tokens []any) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var object []bool // for each level
	key := false
	for {
		tok, err := dec.Token()
		if err != nil {
			if !json.Valid(data) {
				t.Fatalf("%q is not valid JSON: %v", data, err)
			}
			return tokens
		}
		if _, ok := tok.(string); ok && !key {
			tok = ""
		}
		tokens = append(tokens, tok)
		switch tok {
		case json.Delim('{'), json.Delim('['):
			object = append(object, tok == json.Delim('{'))
			key = tok == json.Delim('{')
			continue
		case json.Delim('}'), json.Delim(']'):
			object = object[:len(object)-1]
			key = false
		}
		key = len(object) > 0 && object[len(object)-1] && !key
	}
}

func TestPayloadCost(t *testing.T) {
	texts := fuzztest.JSON()
	for name, unit := range map[string]string{"heads": `{\"type\":\"tool.call.start\",`, "braces": `{\"type\":`, "marks": opener, "ends": closer, "events": `{\"type\":\"agent.fanout.merged\"}`,
		"markers": `{\"type\":\"tool.call.start\",\"toolName\":`, "spaces": `{\"type\"\u0020` + strings.Repeat(" ", 50)} {
		texts[name] = fuzztest.Fill(`{"type":"text.delta","delta":"`, func(int) string { return unit }, `"}`)
	}
	for name, text := range texts {
		for _, policy := range []commentary.Policy{commentary.Wrap, commentary.Strip} {
			s := commentary.New(policy, defaults)
			fuzztest.Cost{PerByte: 32}.Check(t, len(text), func() { s.Payload("text.delta", text) })
			if t.Failed() {
				t.Fatal(policy, name)
			}
		}
	}
}
