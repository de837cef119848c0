package message_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"agentd/server/canonical"
	"agentd/server/fuzztest"
	"agentd/server/message"
)

// FuzzMessage reads messages as clients send them: what can be read can be written, and that is read the same.
func FuzzMessage(f *testing.F) {
	for _, s := range []string{
		`{"role":"user","content":"x","userId":"u"}`, `{"role":"assistant","content":null,"toolCalls":[{"toolCallId":"c","toolName":"t","args":{}}]}`,
		`{"content":[{"type":"text","text":"a"},{"type":"image","image":{"enc":"base64","data":"AAE="}},{"type":"file","file":{"href":"http://x"}}]}`,
		`{"content":[{"type":"reasoning","meta":{"a":[1e999,-0]}}]}`, `{"content":[]}`, `{"content":7}`, `{"content":[null]}`, `{"content":[{"image":{}}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		messageCost.Check(t, len(b), func() { json.Unmarshal(b, new(message.Message)) }) //nolint:errcheck // it is looked at below
		var first, second message.Message
		if json.Unmarshal(b, &first) != nil {
			return
		}
		once, err := message.Encode(first)
		if err != nil {
			t.Fatalf("Encode(what %q gave) = %v", b, err)
		}
		if err := json.Unmarshal(once, &second); err != nil {
			t.Fatalf("%q is not read again: %v", once, err)
		}
		if twice, err := message.Encode(second); err != nil || !bytes.Equal(once, twice) {
			t.Errorf("written once %q, twice %q, %v", once, twice, err)
		}
	})
}

// FuzzArgs makes arguments of what models write.
func FuzzArgs(f *testing.F) {
	for _, s := range []string{"", " {} ", `{"a":"\""}`, `{"a":`, "[[[]]]", "\xff", `"\ud800"`, "nul"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		fuzztest.Cost{PerByte: 32}.Check(t, len(raw), func() { message.Args(raw) })
		if got := message.Args(raw); !json.Valid(got) || canonical.Deeper(got, message.MaxDepth) >= 0 {
			t.Errorf("Args(%q) = %q", raw, got)
		}
	})
}

// messageCost is that of Message's contract.
var messageCost = fuzztest.Cost{PerByte: 500}

func TestMessageCost(t *testing.T) {
	for name, text := range fuzztest.JSON() {
		for _, form := range []string{`{"role":"user","content":%s}`, `{"role":"assistant","content":"","toolCalls":%s}`, `{"role":"user","content":[{"type":"image","image":%s}]}`} {
			b := fmt.Appendf(nil, form, text)
			messageCost.Check(t, len(b), func() { json.Unmarshal(b, new(message.Message)) }) //nolint:errcheck // only what it costs counts
			if t.Failed() {
				t.Fatal(name, form)
			}
		}
		fuzztest.Cost{PerByte: 32}.Check(t, len(text), func() { message.Args(string(text)) })
	}
}

// FuzzAppendText: a text is written as the encoder writes it.
func FuzzAppendText(f *testing.F) {
	for _, s := range []string{"", "plain é", `"\`, "a\nb\x00\x7f", "<&>", "\u2028", "\u2029x", "\xff", "\xed\xa0\x80", "\U0001F600"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		want, err := message.Encode(s)
		if got := message.AppendText([]byte("x"), s); err != nil || string(got) != "x"+string(want) {
			t.Errorf("AppendText(x, %q) = %s, want x%s", s, got, want)
		}
	})
}
