package agent

import (
	"encoding/json"
	"strings"
	"testing"

	"agentd/server/fault"
	"agentd/server/fuzztest"
	"agentd/server/message"
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
		fuzztest.Cost{PerByte: 800}.Check(t, len(input), func() { (&LLM{}).accept(input) }) //nolint:errcheck // it is looked at below
		form, err := (&LLM{}).accept(input)
		if err != nil {
			if e := fault.Of(err); e.Kind != fault.ConfigInvalid || len(e.Issues) == 0 {
				t.Errorf("accept(%s) = %v, want config-invalid with issues", input, err)
			}
			return
		}
		list, err := inputMessages(form, input)
		if err != nil || len(list) == 0 {
			t.Fatalf("inputMessages(%q, %s) = %v, %v", form, input, list, err)
		}
		// Written as messages, it is the same input.
		written, err := message.Encode(list)
		if err != nil {
			t.Fatal(err)
		}
		if form, err := (&LLM{}).accept(written); err != nil || form != "messages" {
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
		if !json.Valid(when) || !json.Valid(args) {
			return
		}
		if message.Depth(when) <= 64 {
			fuzztest.Cost{PerByte: 500}.Check(t, len(when)+len(args), func() { whenMatches(when, args) })
		}
		var conditions, given map[string]json.RawMessage
		if json.Unmarshal(when, &conditions) != nil || json.Unmarshal(args, &given) != nil {
			if !whenMatches(when, args) {
				t.Errorf("whenMatches(%s, %s) = false, though nobody can tell", when, args)
			}
			return
		}
		got := whenMatches(when, args)
		for name := range conditions {
			if _, ok := given[name]; !ok && got {
				t.Errorf("whenMatches(%s, %s) = true without %q", when, args, name)
			}
		}
		if len(conditions) == 0 && !got {
			t.Errorf("whenMatches(%s, %s) = false without a condition", when, args)
		}
		// Arguments match themselves, but for lists, which are alternatives.
		if !strings.Contains(string(args), "[") && !whenMatches(args, args) {
			t.Errorf("whenMatches(%s, the same) = false", args)
		}
	})
}

func TestWhenCost(t *testing.T) {
	for name, text := range fuzztest.JSON() {
		if message.Depth(text) > 200 {
			continue // conditions come from the configuration, which nests 64 deep, and arguments nest as deep as a message may
		}
		for _, pair := range [][2]string{{`{"a":` + string(text) + `}`, `{"a":"x"}`}, {`{"a":["*x"]}`, `{"a":` + string(text) + `}`}} {
			fuzztest.Cost{PerByte: 500, Time: 2e9}.Check(t, len(text), func() { whenMatches(json.RawMessage(pair[0]), json.RawMessage(pair[1])) })
			if t.Failed() {
				t.Fatal(name)
			}
		}
	}
}
