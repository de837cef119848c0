package transcript_test

import (
	"reflect"
	"strings"
	"testing"

	"agentd/server/fuzztest"
	"agentd/server/message"
	"agentd/server/transcript"
	"agentd/store"
)

func TestID(t *testing.T) {
	for id, want := range map[string][2]int64{"msg-1-0": {1, 0}, "msg-z-12": {35, 12}, "msg-10-7": {36, 7}} {
		if got := transcript.ID(want[0], int(want[1])); got != id {
			t.Errorf("ID(%d, %d) = %s, want %s", want[0], want[1], got, id)
		}
		if run, index, ok := transcript.ParseID(id); run != want[0] || int64(index) != want[1] || !ok {
			t.Errorf("ParseID(%q) = %d, %d, %v, want %v", id, run, index, ok, want)
		}
	}
	for _, id := range []string{"", "msg-", "msg-1", "msg-1-", "msg--1", "1-0", "msg-01-0", "msg-1-00", "msg-Z-1", "msg-1--1", "msg--1-1", "msg-+1-1", "msg-0-1",
		"msg-1-0-0", "msg-zzzzzzzzzzzzzzzz-0", "msg-1-0 "} {
		if run, index, ok := transcript.ParseID(id); ok {
			t.Errorf("ParseID(%q) = %d, %d, true, want false", id, run, index)
		}
	}
}

// TestBody: what a tool message says is kept, in whatever words.
func TestBody(t *testing.T) {
	o := &message.Outcome{ToolCallID: "c", ToolName: "t", Kind: message.Timeout, Message: "Too late."}
	plain := message.Message{Role: message.Tool, ToolCallID: "c", Content: message.Text("Alas.")}
	for name, tc := range map[string]struct {
		msg  message.Message
		o    *message.Outcome
		kept bool // the words
	}{
		"a user":               {message.Message{Role: message.User, UserID: "u", Content: message.Text("hi")}, nil, false},
		"an outcome":           {transcript.Answer(o), o, false},
		"other words":          {plain, o, true},
		"parts":                {message.Message{Role: message.Tool, ToolCallID: "c", Content: message.Content{Parts: []message.Part{{Type: "text", Text: "a"}}}}, o, true},
		"nothing but the text": {plain, transcript.Outcome(plain, "t"), false},
		"blank":                {message.Message{Role: message.Tool, ToolCallID: "c"}, transcript.Outcome(message.Message{Role: message.Tool, ToolCallID: "c"}, "t"), true},
	} {
		body, err := transcript.Body(tc.msg, tc.o)
		if err != nil || strings.Contains(string(body), `"told"`) != tc.kept {
			t.Errorf("%s: Body = %s, %v; want the words kept: %v", name, body, err, tc.kept)
		}
		msg, got, err := transcript.Decode(store.Message{Role: string(tc.msg.Role), Body: body})
		if err != nil || !reflect.DeepEqual(msg, tc.msg) || !reflect.DeepEqual(got, tc.o) {
			t.Errorf("%s: Decode(%s) = %+v, %+v, %v", name, body, msg, got, err)
		}
	}
}

func FuzzParseID(f *testing.F) {
	f.Add("msg-1-0")
	f.Add("msg-zz-99999")
	f.Add("msg-1-")
	f.Fuzz(func(t *testing.T, id string) {
		fuzztest.Check(t, len(id), func() { transcript.ParseID(id) })
		run, index, ok := transcript.ParseID(id)
		if ok && (run < 1 || index < 0 || transcript.ID(run, index) != id) {
			t.Errorf("ParseID(%q) = %d, %d, true", id, run, index)
		}
	})
}
