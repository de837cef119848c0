package message_test

import (
	"encoding/json"
	"strings"
	"testing"

	"agentd/server/canonical"
	"agentd/server/message"
)

func TestContentRoundTrip(t *testing.T) {
	for _, in := range []string{
		`"plain <b>"`, `""`,
		`[{"type":"text","text":"a"},{"type":"image","image":{"enc":"base64","data":"iVBORw=="},"mimeType":"image/png"}]`,
		`[{"type":"file","file":{"enc":"url","href":"https://x/a.pdf"},"mimeType":"application/pdf"}]`,
	} {
		var c message.Content
		if err := json.Unmarshal([]byte(in), &c); err != nil {
			t.Errorf("Unmarshal(%s): %v", in, err)
			continue
		}
		if out, err := message.Encode(c); err != nil || string(out) != in {
			t.Errorf("round trip of %s = %s, %v", in, out, err)
		}
	}
	var c message.Content
	if err := json.Unmarshal([]byte(`{"a":1}`), &c); err == nil {
		t.Error("Unmarshal(object) succeeded, want an error")
	}
}

func TestBytesAreAWholeEnvelope(t *testing.T) {
	for _, tc := range []struct {
		in   message.Bytes
		want string
	}{
		{message.Bytes{Enc: "base64", Data: []byte("\x89PNG\xff")}, `{"enc":"base64","data":"iVBOR/8="}`},
		{message.Bytes{Enc: "base64", Data: []byte{}}, `{"enc":"base64","data":""}`},
		{message.Bytes{Enc: "base64"}, `{"enc":"base64","data":""}`},
		{message.Bytes{Data: []byte{0}}, `{"enc":"base64","data":"AA=="}`},
		{message.Bytes{}, `{"enc":"base64","data":""}`},
		{message.Bytes{Enc: "url", Href: "https://x.test/?a&b"}, `{"enc":"url","href":"https://x.test/?a&b"}`},
		{message.Bytes{Href: "https://x.test/"}, `{"enc":"url","href":"https://x.test/"}`},
	} {
		for _, v := range []any{tc.in, &tc.in} {
			if got, err := message.Encode(v); err != nil || string(got) != tc.want {
				t.Errorf("Encode(%+v) = %s, %v, want %s", tc.in, got, err, tc.want)
			}
		}
	}
}

func TestArgs(t *testing.T) {
	for in, want := range map[string]string{"": "{}", "  ": "{}", `{"a":1}`: `{"a":1}`, `{"a":`: `"{\"a\":"`} {
		if got := string(message.Args(in)); got != want {
			t.Errorf("Args(%q) = %s, want %s", in, got, want)
		}
	}
}

func TestDepth(t *testing.T) {
	for in, want := range map[string]int{`{}`: 1, `[[],[[]],{}]`: 3, `{"a":{"]":[1]},"b":[]}`: 3} {
		if canonical.Deeper([]byte(in), want) >= 0 || canonical.Deeper([]byte(in), want-1) < 0 {
			t.Errorf("Deeper(%s) does not find that it has %d levels", in, want)
		}
	}
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	if got := string(message.Args(nested(message.MaxDepth))); got != nested(message.MaxDepth) {
		t.Errorf("Args of MaxDepth levels = %s, want them as they are", got)
	}
	if got := string(message.Args(nested(message.MaxDepth + 1))); got != `"`+nested(message.MaxDepth+1)+`"` {
		t.Errorf("Args of more than MaxDepth levels = %s, want a string", got)
	}
}

func TestUsagePlus(t *testing.T) {
	eur := func(a float64) *message.Cost { return &message.Cost{Amount: a, Currency: "EUR"} }
	usd := &message.Cost{Amount: 1, Currency: "USD"}
	for _, tc := range []struct {
		name string
		a, b message.Usage
		want string
	}{
		{"plain", message.Usage{PromptTokens: 1, CompletionTokens: 2, TotalTokens: 3}, message.Usage{PromptTokens: 10, TotalTokens: 10},
			`{"promptTokens":11,"completionTokens":2,"totalTokens":13,"cachedReadTokens":0,"cacheWriteTokens":0}`},
		{"optional on one side", message.Usage{}, message.Usage{CachedReadTokens: 5},
			`{"promptTokens":0,"completionTokens":0,"totalTokens":0,"cachedReadTokens":5,"cacheWriteTokens":0}`},
		{"same currency", message.Usage{Cost: eur(1)}, message.Usage{Cost: eur(0.5)},
			`{"promptTokens":0,"completionTokens":0,"totalTokens":0,"cachedReadTokens":0,"cacheWriteTokens":0,"cost":{"amount":1.5,"currency":"EUR"}}`},
		{"other currency", message.Usage{Cost: eur(1)}, message.Usage{Cost: usd},
			`{"promptTokens":0,"completionTokens":0,"totalTokens":0,"cachedReadTokens":0,"cacheWriteTokens":0}`},
	} {
		if got, _ := message.Encode(tc.a.Plus(tc.b)); string(got) != tc.want {
			t.Errorf("%s: Plus = %s, want %s", tc.name, got, tc.want)
		}
	}
}

// Images and files come in the form of the chat completions protocol, too.
func TestForeignParts(t *testing.T) {
	for in, want := range map[string]string{
		`{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw=="}}`:                      `{"type":"image","image":{"enc":"base64","data":"iVBORw=="},"mimeType":"image/png"}`,
		`{"type":"image_url","image_url":{"url":"https://x.test/a.png","detail":"low"}}`:                 `{"type":"image","image":{"enc":"url","href":"https://x.test/a.png"}}`,
		`{"type":"file","file":{"filename":"a.pdf","file_data":"data:application/pdf;base64,JVBERi0="}}`: `{"type":"file","file":{"enc":"base64","data":"JVBERi0="},"mimeType":"application/pdf","filename":"a.pdf"}`,
		`{"type":"file","file":{"enc":"base64","data":"JVBERi0="},"mimeType":"application/pdf"}`:         `{"type":"file","file":{"enc":"base64","data":"JVBERi0="},"mimeType":"application/pdf"}`,
		`{"type":"image","image":{"enc":"url","href":"https://x.test/a.png"}}`:                           `{"type":"image","image":{"enc":"url","href":"https://x.test/a.png"}}`,
		`{"type":"image_url","image_url":"https://x.test/a.png"}`:                                        `{"type":"image_url"}`,
	} {
		var p message.Part
		if err := json.Unmarshal([]byte(in), &p); err != nil {
			t.Errorf("Unmarshal(%s) = %v", in, err)
		}
		if got, _ := message.Encode(p); string(got) != want {
			t.Errorf("Unmarshal(%s) = %s, want %s", in, got, want)
		}
	}
}
