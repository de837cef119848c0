package stream

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"agentd/server/fuzztest"
	"agentd/server/message"
)

// FuzzRequest reads frames of clients. What is taken has an id that can be echoed, or is a notification; what is refused
// is told in JSON.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{
		`{"v":"1","jsonrpc":"2.0","id":1,"method":"ping"}`,
		`{"v":"1","jsonrpc":"2.0","id":"a","method":"initialize","params":{"clientInfo":{"name":"n","version":"1"},"capabilities":{}}}`,
		`{"v":"1","jsonrpc":"2.0","id":9007199254740993,"method":"subscription.subscribe","params":{"subject":"session:s/events","sinceEventId":"x"}}`,
		`{"v":"1","jsonrpc":"2.0","id":1e3,"method":"subscription.unsubscribe","params":{"subscriptionId":"s"}}`,
		`{"v":"1","jsonrpc":"2.0","id":-0.0,"method":"run.cancel","params":{"runId":"r","onPendingApprovals":"preserve"}}`,
		`{"v":"1","jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"1"}}`,
		`{"v":"2","jsonrpc":"1.0","id":null,"method":"","params":[]}`,
		`[{"v":"1"}]`, `{"id":"\ud800"}`, `{"id":{},"id":1}`, `"`, ``, strings.Repeat("[", 100), `{"params":` + strings.Repeat(`{"a":`, 50) + `1` + strings.Repeat("}", 51),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		frameCost.Check(t, len(frame), func() { parseRequest(frame) })
		r, refusal := parseRequest(frame)
		var answer any
		switch {
		case refusal == nil && r.method != methodCancelled && !legalID(r.id):
			t.Errorf("parseRequest(%q) takes the id %q", frame, r.id)
		case refusal == nil && (r.params == nil || !json.Valid(frame)):
			t.Errorf("parseRequest(%q) = %+v", frame, r)
		case refusal == nil:
			answer = rpcAnswer{"1", "2.0", r.id, ponged{true}, nil}
		case r == nil:
			answer = rpcAnswer{"1", "2.0", nil, nil, refusal}
		default:
			answer = rpcAnswer{"1", "2.0", r.id, nil, refusal}
		}
		if b, err := message.Encode(answer); err != nil || !json.Valid(b) {
			t.Errorf("the answer to %q is %q, %v", frame, b, err)
		}
	})
}

// frameCost is that of shape.Decode, for the frame and for its parameters.
var frameCost = fuzztest.Cost{PerByte: 200}

func TestRequestCost(t *testing.T) {
	for name, text := range fuzztest.JSON() {
		for _, form := range []string{`{"v":"1","jsonrpc":"2.0","id":1,"method":"initialize","params":%s}`, `{"v":"1","jsonrpc":"2.0","id":%s,"method":"ping"}`, `%s`,
			`{"v":"1","jsonrpc":"2.0","id":1,"method":"initialize","params":{"clientInfo":{"name":"n","version":"1"},"capabilities":%s}}`} {
			frame := fmt.Appendf(nil, form, text)
			frameCost.Check(t, len(frame), func() { parseRequest(frame) })
			if t.Failed() {
				t.Fatal(name, form)
			}
		}
	}
}
