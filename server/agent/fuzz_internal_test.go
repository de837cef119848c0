package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"agentd/server/canonical"
	"agentd/server/fault"
	"agentd/server/fuzztest"
	"agentd/server/message"
	"agentd/server/tool"
)

// FuzzInput reads what a run of a model's agent is started with: text, a message or messages.
func FuzzInput(f *testing.F) {
	for _, s := range []string{`"hi"`, `[{"role":"user","content":"x"}]`, `{"role":"assistant","content":[{"type":"image"},{"type":"file","file":{"enc":"url"}}]}`, `[]`, `[null]`, `{}`, `7`, `null`,
		`[{"role":"user","content":"x"},{"role":"assistant","content":"","toolCalls":[{"toolCallId":"c","toolName":"t","args":{}}]}]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		if !json.Valid(input) {
			return // the body that it comes in is no JSON
		}
		// A message has two bytes at least, and it is a struct.
		fuzztest.Cost{PerByte: 800}.Check(t, len(input), func() { (llm{&LLM{CallerInstructions: true}}).Accept(input) }) //nolint:errcheck // it is looked at below
		as, err := (llm{&LLM{CallerInstructions: true}}).Accept(input)
		if err != nil {
			if e := fault.Of(err); e.Kind != fault.ConfigInvalid || len(e.Issues) == 0 {
				t.Errorf("accept(%s) = %v, want config-invalid with issues", input, err)
			}
			return
		}
		list, err := form{}.Input(as, input)
		if err != nil || len(list) == 0 {
			t.Fatalf("Input(%q, %s) = %v, %v", as, input, list, err)
		}
		// Written as messages, it is the same input.
		written, err := message.Encode(list)
		if err != nil {
			t.Fatal(err)
		}
		if form, err := (llm{&LLM{CallerInstructions: true}}).Accept(written); err != nil || form != "messages" {
			t.Errorf("accept(%s) = %q, %v, though accept(%s) takes it", written, form, err, input)
		}
	})
}

// FuzzWhen decides whether a call needs an approval by its arguments.
func FuzzWhen(f *testing.F) {
	f.Add([]byte(`{"to":["a*",1],"n":1e2}`), []byte(`{"to":"abc","n":100}`))
	f.Add([]byte(`{"a":{"b":[1]}}`), []byte(`{"a":{"b":[1.0]}}`))
	f.Add([]byte(`{"a":[[["*"]]]}`), []byte(`{"a":null}`))
	f.Add([]byte(`{}`), []byte(`[]`))
	f.Fuzz(func(t *testing.T, when, args []byte) {
		args, err := message.Arguments(args)
		if err != nil {
			return // the call is refused
		}
		if canonical.Deeper(when, 64) < 0 {
			fuzztest.Cost{PerByte: 50, Time: 1e9}.Check(t, len(when)+len(args), func() { whenMatches(when, args) })
		}
		got := whenMatches(when, args)
		form, err := message.Arguments(when)
		if err != nil || form[0] != '{' || args[0] != '{' {
			if !got {
				t.Errorf("whenMatches(%s, %s) = false, though nobody can tell", when, args)
			}
			return
		}
		conditions := 0
		for name := range canonical.Members(form) {
			conditions++
			there := false
			for member := range canonical.Members(args) {
				there = there || strings.EqualFold(member, name)
			}
			if !there && got {
				t.Errorf("whenMatches(%s, %s) = true without %q", when, args, name)
			}
		}
		if conditions == 0 && !got {
			t.Errorf("whenMatches(%s, %s) = false without a condition", when, args)
		}
		if !whenMatches(args, args) {
			t.Errorf("whenMatches(%s, the same) = false", args)
		}
	})
}

func TestWhenCost(t *testing.T) {
	for name, text := range fuzztest.JSON() {
		if canonical.Deeper(text, 200) >= 0 {
			continue // conditions come from the configuration, which nests 64 deep, and arguments nest as deep as a message may
		}
		for _, pair := range [][2]string{{`{"a":` + string(text) + `}`, `{"a":"x"}`}, {`{"a":["*x"]}`, `{"a":` + string(text) + `}`}} {
			args, err := message.Arguments([]byte(pair[1]))
			if err != nil {
				continue // the call is refused
			}
			fuzztest.Cost{PerByte: 50, Time: 1e9}.Check(t, len(text), func() { whenMatches(json.RawMessage(pair[0]), args) })
			if t.Failed() {
				t.Fatal(name)
			}
		}
	}
}

// FuzzSpelling holds the verdict on a call, and what is dispatched of it, to the value of its arguments.
func FuzzSpelling(f *testing.F) {
	for _, args := range []string{`{"env":"prod"}`, `{"env":["dev",["prod"]]}`, `{"env":{"a":"prod"},"amount":100}`, `{"amount":1e2,"ENV":null}`, `{"env":"\ud83d\ude00"}`, `{"x":[1,2.50,[]]}`} {
		f.Add([]byte(args), uint64(7))
	}
	set, err := tool.NewSet(tool.Func(tool.Spec{Name: "t", Input: json.RawMessage(`true`)}, nil))
	if err != nil {
		f.Fatal(err)
	}
	pattern := func(text string) Pattern {
		p, err := ParsePattern(text)
		if err != nil {
			f.Fatal(err)
		}
		return p
	}
	a := &LLM{Tools: set, Policy: Policy{Deny: []Pattern{pattern("t:env=*prod*")}, Ask: []Pattern{pattern("t:to=100")}, Allow: []Pattern{pattern("t:env=dev*")},
		Tools: map[string]Gate{"t": {When: json.RawMessage(`{"amount":[100,{"a":[1.0]},"*x"]}`)}}}}
	f.Fuzz(func(t *testing.T, args []byte, seed uint64) {
		var value any
		dec := json.NewDecoder(bytes.NewReader(args))
		dec.UseNumber()
		if !json.Valid(args) || dec.Decode(&value) != nil {
			return
		}
		plain := a.Judge(message.ToolCall{ID: "c", Name: "t", Args: args})
		if plain.Refusal != nil && plain.Refusal.Kind == message.InvalidInput {
			return
		}
		other := spell(nil, value, rand.New(rand.NewPCG(seed, 0)))
		got := a.Judge(message.ToolCall{ID: "c", Name: "t", Args: other})
		if !bytes.Equal(got.Args, plain.Args) || got.Gated != plain.Gated || (got.Refusal == nil) != (plain.Refusal == nil) {
			t.Fatalf("judge(%s) = %s, gated %t, refused %v;\nand spelt %s: %s, gated %t, refused %v", args, plain.Args, plain.Gated, plain.Refusal, other, got.Args, got.Gated, got.Refusal)
		}
		if again, err := message.Arguments(got.Args); err != nil || !bytes.Equal(again, got.Args) {
			t.Fatalf("%s is dispatched, and its canonical form is %s, %v", got.Args, again, err)
		}
	})
}

// spell writes a value in one of its spellings.
func spell(b []byte, v any, r *rand.Rand) []byte {
	space := func() { b = append(b, []string{"", " ", "\n\t", "  "}[r.IntN(4)]...) }
	text := func(s string) {
		b = append(b, '"')
		for _, u := range utf16.Encode([]rune(s)) {
			if u < ' ' || u > '~' || u == '"' || u == '\\' || r.IntN(2) == 0 {
				b = fmt.Appendf(b, []string{"\\u%04x", "\\u%04X"}[r.IntN(2)], u)
			} else {
				b = append(b, byte(u))
			}
		}
		b = append(b, '"')
	}
	space()
	switch v := v.(type) {
	case string:
		text(v)
	case json.Number:
		switch s := v.String(); {
		case strings.ContainsAny(s, "eE"):
			b = append(b, strings.ToUpper(s)...)
		case strings.Contains(s, "."):
			b = append(b, s+strings.Repeat("0", r.IntN(3))...)
		default:
			b = append(b, s+[]string{"", ".0", "e0", "E+0", ".00e-0"}[r.IntN(5)]...)
		}
	case []any:
		b = append(b, '[')
		for i, e := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = spell(b, e, r)
		}
		b = append(b, ']')
	case map[string]any:
		b = append(b, '{')
		names := slices.Sorted(maps.Keys(v))
		r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		for i, name := range names {
			if i > 0 {
				b = append(b, ',')
			}
			space()
			text(name)
			space()
			b = spell(append(b, ':'), v[name], r)
		}
		b = append(b, '}')
	default:
		b = fmt.Appendf(b, "%s", map[any]string{nil: "null", true: "true", false: "false"}[v])
	}
	space()
	return b
}
