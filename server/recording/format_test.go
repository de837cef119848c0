package recording

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"agentd/server/fault"
	"agentd/server/fuzztest"
	"agentd/server/message"
)

func say(role message.Role, text string) message.Message {
	return message.Message{Role: role, Content: message.Text(text)}
}

func sample() *Recording {
	rec := &Recording{
		Meta:  Meta{RunID: "r1", AgentID: "clerk", Writer: "test", CreatedAt: "2026-01-02T03:04:05.000Z"},
		Input: &Input{Input: []byte(`"hi"`), UserID: "ann", History: []Past{{Tokens: 5, Message: say(message.User, "before")}}},
		ModelCalls: []ModelCall{
			{StepNumber: 1, Model: "m", MessageCount: 2, Messages: []message.Message{say(message.System, "s"), say(message.User, "hi")},
				Terms:  &Terms{Temperature: new(0.0), Tools: []Tool{{Name: "pay", Input: []byte(`{"a":1}`), SideEffect: "pure"}}},
				Answer: &Answer{Model: "m1", Finish: "tool-calls", ToolCalls: []message.ToolCall{{ID: "c1", Name: "pay", Args: []byte(`{"n":12345678901234567890}`)}}}},
			{StepNumber: 3, Model: "m", MessageCount: 3, Kept: 2, Messages: []message.Message{say(message.Tool, "paid <now>")},
				Failed: []Attempt{{Provider: "p", Model: "m", Code: "capacity", Message: "full"}}, Answer: &Answer{Text: "done", Finish: "stop"}},
		},
		Approvals: []Approval{{StepNumber: 2, ToolCallID: "c1", ToolName: "pay", Granted: new(true), By: "ann"}},
		Result:    &Result{StepNumber: 3, Status: "completed", Output: []byte(`"done"`)},
	}
	for i, o := range []*message.Outcome{
		{ToolCallID: "c0", ToolName: "look", Kind: message.Timeout, Message: "late", Hint: "again", Recoverable: true, RecoveryHint: message.RetryLater},
		nil,
		{ToolCallID: "c2", ToolName: "look", Kind: message.AbortedCall, Message: "aborted"},
		{ToolCallID: "c3", ToolName: "look", Output: []byte(`{"b":1,"a":2}`), DurationMS: 7, ResultHandle: &message.Handle{URI: "svc-spill:r1/c3.json"}, Truncated: true},
	} {
		c := ToolCall{StepNumber: 2, ToolCallID: fmt.Sprintf("c%d", i), ToolName: "look", Args: []byte("{}"), SHA256OfArgs: hashOf(json.RawMessage("{}"))}
		c.settle(o)
		if got := c.outcome(); !reflect.DeepEqual(got, o) {
			panic(fmt.Sprintf("Outcome after Settle(%+v) = %+v", o, got))
		}
		rec.ToolCalls = append(rec.ToolCalls, c)
	}
	return rec
}

func file(t testing.TB, rec *Recording) string {
	t.Helper()
	var b bytes.Buffer
	if err := rec.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestRoundTrip(t *testing.T) {
	rec := sample()
	text := file(t, rec)
	got, err := Read(strings.NewReader(text))
	if err != nil {
		t.Fatalf("Read: %v\n%s", err, text)
	}
	for i := range rec.ModelCalls { // Write sets the kinds of lines
		rec.ModelCalls[i].Kind = "model-call"
	}
	if !reflect.DeepEqual(got, rec) {
		t.Errorf("Read(Write(r)) =\n%+v, want\n%+v", got, rec)
	}
	var kinds []string
	for line := range strings.Lines(text) {
		var head struct{ Kind string }
		json.Unmarshal([]byte(line), &head)
		kinds = append(kinds, head.Kind)
	}
	want := "meta input model-call approval tool-call tool-call tool-call tool-call model-call result footer"
	if got := strings.Join(kinds, " "); got != want {
		t.Errorf("lines = %s, want %s", got, want)
	}
	q := got.ModelCalls[1].Request(got.ModelCalls[0].Request(Request{}))
	if len(q.Messages) != 3 || q.Tools[0].Name != "pay" || q.Messages[2].Content.Text != "paid <now>" {
		t.Errorf("the second Request = %+v, want three messages and the terms of the first", q)
	}
}

func TestToolCallStatus(t *testing.T) {
	var got []string
	for _, c := range sample().ToolCalls {
		got = append(got, c.Status)
	}
	if want := []string{"failed", "cancelled", "cancelled", "completed"}; !reflect.DeepEqual(got, want) {
		t.Errorf("statuses = %v, want %v", got, want)
	}
	other := ToolCall{ToolCallID: "x", Status: "budget-exceeded"}
	if o := other.outcome(); o == nil || o.Kind != message.ExecutionFailed {
		t.Errorf("Outcome of a call that another writer calls budget-exceeded = %+v, want execution_failed", o)
	}
}

// sealed is a file of lines, with a footer that fits.
func sealed(lines ...string) string {
	body, sum, calls := "", sha256.New(), 0
	for i, l := range lines {
		body += l + "\n"
		if i > 0 {
			sum.Write([]byte(l + "\n"))
			calls += strings.Count(l, `"kind":"tool-call"`)
		}
	}
	return body + fmt.Sprintf(`{"kind":"footer","recordCount":%d,"toolCallCount":%d,"checksum":"sha256:%s","writtenAtIso":""}`+"\n",
		len(lines)+1, calls, hex.EncodeToString(sum.Sum(nil)))
}

const meta = `{"kind":"meta","version":"1.0","format":"svc-tool-cassette","createdAt":"","writer":"w","runId":"r","sessionId":"s"}`

func call(step int, id string) string {
	return fmt.Sprintf(`{"kind":"tool-call","stepNumber":%d,"toolCallId":%q,"toolName":"t","args":{},"status":"completed"}`, step, id)
}

func TestReadRefuses(t *testing.T) {
	version := func(v string) string { return sealed(strings.Replace(meta, "1.0", v, 1)) }
	good := sealed(meta, call(1, "a"), call(1, "b"), call(2, "a"))
	for _, tc := range []struct {
		name, file string
		want       *fault.Kind // nil: it is read
		part       string      // of the message
	}{
		{"a good one", good, nil, ""},
		{"empty lines", strings.ReplaceAll(good, "\n", "\n\n"), nil, ""},
		{"no end of the last line", strings.TrimSuffix(good, "\n"), nil, ""},
		{"a later minor version", version("1.7"), nil, ""},
		{"the major version before", version("0.9"), nil, ""},
		{"nothing", "", fault.CassetteInvalid, "It is empty."},
		{"no JSON", "hello\n", fault.CassetteInvalid, "Line 1 is no JSON object with a kind."},
		{"a list", "[]\n", fault.CassetteInvalid, "Line 1 is no JSON object"},
		{"no meta line", sealed(call(1, "a")), fault.CassetteInvalid, `first line is a "tool-call", want meta`},
		{"two meta lines", sealed(meta, meta), fault.CassetteInvalid, "Line 2 is a second meta line."},
		{"another format", sealed(strings.Replace(meta, "svc-tool-cassette", "svc-session-export", 1)), fault.CassetteInvalid, `"svc-session-export"`},
		{"no version", version("x"), fault.CassetteInvalid, `Its version is "x".`},
		{"a newer version", version("2.0"), fault.CassetteTooNew, `"2.0"`},
		{"a version before the first", version("-2.0"), fault.CassetteInvalid, ""},
		{"cut off", strings.Join([]string{meta, call(1, "a")}, "\n"), fault.CassetteInvalid, "It is cut off"},
		{"more after the footer", good + call(3, "z") + "\n", fault.CassetteInvalid, "Line 6 comes after the footer."},
		{"a line of wrong types", sealed(meta, `{"kind":"tool-call","stepNumber":"one"}`), fault.CassetteInvalid, `Line 2 has a "stepNumber" that cannot be a string.`},
		{"a call without id", sealed(meta, `{"kind":"tool-call","stepNumber":1}`), fault.CassetteInvalid, "Line 2 names no tool call."},
		{"steps backwards", sealed(meta, call(2, "a"), call(1, "b")), fault.CassetteCursorViolation, "goes back from step 2 to step 1"},
		{"a call twice", sealed(meta, call(1, "a"), call(1, "a")), fault.CassetteCursorViolation, `repeats the call "a" of step 1`},
		{"a model call twice", sealed(meta, `{"kind":"model-call","stepNumber":1}`, `{"kind":"model-call","stepNumber":1}`), fault.CassetteCursorViolation, "repeats the model call of step 1"},
		{"kept messages that are not there", sealed(meta, `{"kind":"model-call","stepNumber":1,"kept":1}`), fault.CassetteInvalid, "keeps 1 messages of the 0 before"},
		{"two inputs", sealed(meta, `{"kind":"input"}`, `{"kind":"input"}`), fault.CassetteInvalid, "second input line"},
		{"two results", sealed(meta, `{"kind":"result"}`, `{"kind":"result"}`), fault.CassetteInvalid, "second result line"},
		{"a changed line", strings.Replace(good, `"args":{}`, `"args":[]`, 1), fault.CassetteChecksum, "its checksum does not match"},
		{"a missing line", strings.Replace(good, call(2, "a")+"\n", "", 1), fault.CassetteInvalid, "its footer counts 5"},
		{"a wrong count of calls", strings.Replace(good, `"toolCallCount":3`, `"toolCallCount":2`, 1), fault.CassetteInvalid, "counts 2"},
		{"a count of the body alone", strings.Replace(good, `"recordCount":5`, `"recordCount":3`, 1), nil, ""},
	} {
		_, err := Read(strings.NewReader(tc.file))
		if tc.want == nil && err != nil || tc.want != nil && (!fault.Is(err, tc.want) || !strings.Contains(err.Error(), tc.part)) {
			t.Errorf("Read(%s) = %v, want %v with %q", tc.name, err, tc.want, tc.part)
		}
	}
}

func TestReadSkipsWhatItDoesNotKnow(t *testing.T) {
	rec, err := Read(strings.NewReader(sealed(meta, `{"kind":"audit"}`, `{"kind":"hologram","x":1}`, call(1, "a"))))
	if err != nil || len(rec.ToolCalls) != 1 || len(rec.Warnings) != 1 || !strings.Contains(rec.Warnings[0], `line 3 is of the kind "hologram"`) {
		t.Errorf("Read = %+v, %v; want one call and a warning of line 3", rec, err)
	}
}

// endless is a line without end.
type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'x'
	}
	return len(b), nil
}

func TestReadIsBounded(t *testing.T) {
	if _, err := Read(endless{}); !fault.Is(err, fault.CassetteInvalid) || !strings.Contains(err.Error(), "longer than 64 MiB") {
		t.Errorf("Read of a line without end = %v, want cassette-invalid", err)
	}
}

func TestHash(t *testing.T) {
	same := func(a, b string) bool { return hashOf(json.RawMessage(a)) == hashOf(json.RawMessage(b)) }
	for _, tc := range []struct {
		a, b string
		want bool
	}{
		{`{"a":1,"b":{"c":2,"d":3}}`, ` {"b": {"d":3, "c":2}, "a":1}`, true},
		{`[1,2]`, `[2,1]`, false},
		{`12345678901234567890`, `12345678901234567891`, false},
		{`"<a>"`, `"\u003ca\u003e"`, true},
	} {
		if got := same(tc.a, tc.b); got != tc.want {
			t.Errorf("Hash(%s) == Hash(%s) is %v, want %v", tc.a, tc.b, got, tc.want)
		}
	}
	if got, want := hashOf(map[string]int{"a": 1}), "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"; got != want {
		t.Errorf(`Hash({"a":1}) = %s, want %s`, got, want)
	}
}

func TestRequestHash(t *testing.T) {
	hash := func(runID string, edit func(*Request)) string {
		q := Request{Messages: []message.Message{say(message.Tool, "see svc-spill:"+runID+"/c.txt")}, Terms: Terms{Tools: []Tool{{Name: "t", Description: "d"}}}}
		if edit != nil {
			edit(&q)
		}
		return q.Hash("run-1", "run-2")
	}
	base := hash("run-1", nil)
	for name, tc := range map[string]struct {
		runID string
		edit  func(*Request)
		same  bool
	}{
		"the other run":      {"run-2", nil, true},
		"another run":        {"run-3", nil, false},
		"who speaks":         {"run-1", func(q *Request) { q.Messages[0].AgentID, q.Messages[0].UserID = "a", "u" }, true},
		"side effects":       {"run-1", func(q *Request) { q.Tools[0].SideEffect = "pure" }, true},
		"description":        {"run-1", func(q *Request) { q.Tools[0].Description = "e" }, false},
		"temperature of 0":   {"run-1", func(q *Request) { q.Temperature = new(0.0) }, false},
		"form of the answer": {"run-1", func(q *Request) { q.Output = &Output{} }, false},
	} {
		if got := hash(tc.runID, tc.edit) == base; got != tc.same {
			t.Errorf("Hash with %s is the same: %v, want %v", name, got, tc.same)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(sealed(meta, call(1, "a"))))
	f.Add([]byte(file(f, sample())))
	f.Add([]byte(meta + "\n" + `{"kind":"model-call","stepNumber":1,"kept":-1,"messages":[{}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		readCost.Check(t, len(data), func() { Read(bytes.NewReader(data)) }) //nolint:errcheck // it is looked at below
		rec, err := Read(bytes.NewReader(data))
		if err != nil {
			return
		}
		var q Request
		for _, c := range rec.ModelCalls[:min(100, len(rec.ModelCalls))] {
			if q = c.Request(q); len(q.Messages) != c.Kept+len(c.Messages) {
				t.Errorf("Request has %d messages, want %d and %d", len(q.Messages), c.Kept, len(c.Messages))
			}
		}
		var b bytes.Buffer
		if err := rec.Write(&b); err != nil {
			return // raw JSON of a line may be absent, which does not encode
		}
		if _, err := Read(&b); err != nil {
			t.Errorf("Read(Write(Read(%q))) = %v", data, err)
		}
	})
}

// readCost is that of Read's contract.
var readCost = fuzztest.Cost{PerByte: 500, Base: 256 << 10}

func TestReadCost(t *testing.T) {
	for name, text := range fuzztest.JSON() {
		for _, line := range []string{`{"kind":"model-call","stepNumber":1,"messages":%s}`, `{"kind":"tool-call","toolCallId":"c","toolName":"t","args":%s}`, `{"kind":"x","x":%s}`, `{"kind":%s}`} {
			file := fmt.Appendf([]byte(meta+"\n"), line, text)
			readCost.Check(t, len(file), func() { Read(bytes.NewReader(file)) }) //nolint:errcheck // only what it costs counts
			if t.Failed() {
				t.Fatal(name, line)
			}
		}
	}
	lines := fuzztest.Fill(meta+"\n", func(int) string { return `{"kind":"model-call","stepNumber":1}` + "\n" }, "")
	readCost.Check(t, len(lines), func() { Read(bytes.NewReader(lines)) }) //nolint:errcheck // only what it costs counts
}
