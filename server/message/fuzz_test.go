package message_test

import (
	"bytes"
	"encoding/json"
	"testing"

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
		if got := message.Args(raw); !json.Valid(got) || message.Depth(got) > message.MaxDepth {
			t.Errorf("Args(%q) = %q", raw, got)
		}
	})
}
