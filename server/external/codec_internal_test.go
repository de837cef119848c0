package external

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"agentd/server/agent"
	"agentd/server/fault"
	"agentd/server/fuzztest"
)

// all reads every frame as "number type data".
func all(next func() (frame, error)) (got []string, err error) {
	for {
		f, err := next()
		if err == io.EOF {
			return got, nil
		}
		if err != nil {
			return got, err
		}
		_, f.at, _ = strings.Cut(f.at, " ")
		got = append(got, fmt.Sprintf("%s %s %s", f.at, f.typ, f.data))
	}
}

func TestLines(t *testing.T) {
	long := strings.Repeat("x", maxFrame)
	for _, tc := range []struct {
		name, in string
		want     []string
		fails    bool
	}{
		{"nothing", "", nil, false},
		{"lines", "a\nb\n", []string{"1  a", "2  b"}, false},
		{"without the last end", "a\nb", []string{"1  a", "2  b"}, false},
		{"blank lines are counted", "\n \r\na\r\n\n", []string{"3  a"}, false},
		{"the longest", long + "\n" + long, []string{"1  " + long, "2  " + long}, false},
		{"too long", "a\n" + long + "x\nb\n", []string{"1  a"}, true},
		{"too long at the end", long + "x", nil, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := all(lines(strings.NewReader(tc.in)))
			if fmt.Sprint(got) != fmt.Sprint(tc.want) || (err != nil) != tc.fails || err != nil && !fault.Is(err, fault.AgentProtocol) {
				t.Errorf("lines(%.40q) = %.80q, %v; want %.80q, failing %v", tc.in, got, err, tc.want, tc.fails)
			}
		})
	}
}

func TestEvents(t *testing.T) {
	half := strings.Repeat("x", maxFrame/2)
	for _, tc := range []struct {
		name, in string
		want     []string
		fails    bool
	}{
		{"nothing", "", nil, false},
		{"data", "data: a\n\ndata:b\n\n", []string{"1  a", "2  b"}, false},
		{"one space is cut", "data:  {}x\n\n", []string{"1  {}x"}, false},
		{"event", "event: text.delta\ndata: a\n\ndata: b\n\n", []string{"1 text.delta a", "2  b"}, false},
		{"comments and other fields", ": hi\nid: 7\nretry: 5\n:\ndata: a\nfoo\n\n", []string{"1  a"}, false},
		{"several data lines", "data: {\ndata: }\n\n", []string{"1  {\n}"}, false},
		{"CRLF", "event: e\r\ndata: a\r\n\r\ndata: b\r\n\r\n", []string{"1 e a", "2  b"}, false},
		{"CR", "event: e\rdata: a\r\rdata: b\r\r", []string{"1 e a", "2  b"}, false},
		{"byte order mark", "\xEF\xBB\xBFdata: a\n\n", []string{"1  a"}, false},
		{"without data", "event: e\n\ndata\n\ndata: a\n\n", []string{"2  a"}, false},
		{"cut off", "data: a\n\ndata: b\n", []string{"1  a"}, false},
		{"cut off in a line", "data: a\n\ndata: b", []string{"1  a"}, false},
		{"long", "data: " + half + "\n\n", []string{"1  " + half}, false},
		{"line too long", "data: a\n\n:" + half + half + "............\n\n", []string{"1  a"}, true},
		{"event too long", "data: " + half + "x\ndata: " + half + "\n\n", nil, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, in := range []io.Reader{strings.NewReader(tc.in), iotest.OneByteReader(strings.NewReader(tc.in))} {
				got, err := all(events(in))
				if fmt.Sprint(got) != fmt.Sprint(tc.want) || (err != nil) != tc.fails || err != nil && !fault.Is(err, fault.AgentProtocol) {
					t.Errorf("events(%.40q) = %.80q, %v; want %.80q, failing %v", tc.in, got, err, tc.want, tc.fails)
				}
			}
		})
	}
}

func TestParseRecord(t *testing.T) {
	for _, tc := range []struct {
		typ, in, want string
	}{
		{"", `{"type":"text.delta","delta":"a<b"}`, `text.delta {"type":"text.delta","delta":"a<b"}`},
		{"", "{ \"type\" : \"my.own\",\r \"n\":[ 1,\n2 ] }", `my.own {"type":"my.own","n":[1,2]}`},
		{"text.delta", `{"delta":"a"}`, `text.delta {"delta":"a","type":"text.delta"}`},
		{"other", `{"type":"text.delta"}`, `text.delta {"type":"text.delta"}`},
		{"", `{"type":"checkpoint","state":{"n": 1}}`, `checkpoint state {"n": 1}`},
		{"", `{"type":"checkpoint","state":null}`, `checkpoint state null`},
		{"", `{"type":"checkpoint"}`, `error is a checkpoint without "state"`},
		{"", `{"type":"result","output":null}`, `result null 0 0 0`},
		{"", `{"type":"result","output":[1],"usage":{"promptTokens":2,"completionTokens":3}}`, `result [1] 2 3 5`},
		{"", `{"type":"result","output":"","usage":{"totalTokens":9}}`, `result "" 0 0 9`},
		{"result", `{"output":1,"usage":null}`, `result 1 0 0 0`},
		{"", `{"type":"result"}`, `error has no "output"`},
		{"", `{"type":"result","output":1,"usage":7}`, `error has a "usage" that is not an object of counts`},
		{"", `{"type":"result","output":1,"usage":{"reasoningTokens":-1}}`, `error has a "usage" with a negative count`},
		{"", `{"type":"approval.request","toolCallId":"c1","toolName":"pay","args":{ "to": 1 },"reason":"much","more":1}`, `approval c1 pay { "to": 1 } much`},
		{"", `{"type":"approval.request","toolCallId":"c1","toolName":"pay","args":null}`, `approval c1 pay null `},
		{"", `{"type":"approval.request"}`, `error asks for an approval but has no "toolCallId" and has no "toolName" and has no "args"`},
		{"", `{"type":"approval.request","toolCallId":1,"toolName":"pay","args":{},"reason":[]}`,
			`error asks for an approval but has a "toolCallId" that is not text and has a "reason" that is not text`},
		{"", `{"delta":"a"}`, `error is not an event: an event has a "type": 1 to 64 characters of A-Z a-z 0-9 . _ - :`},
		{"", `{"type":7}`, `error has a "type" that is not text`},
		{"", `{"type":null}`, `error has a "type" that is not text`},
		{"", `{"type":"agent.end","Type":"harmless"}`, `agent.end {"type":"agent.end","Type":"harmless"}`},
		{"", `{"type":"a\nb"}`, `error is not an event: an event has a "type": 1 to 64 characters of A-Z a-z 0-9 . _ - :`},
		{"", `{"type":"x"} {}`, `error is not JSON: invalid character '{' after top-level value`},
		{"", `hello`, `error is not JSON: invalid character 'h' looking for beginning of value`},
		{"", `[1]`, `error is not a JSON object`},
		{"", `null`, `error is not a JSON object`},
		{"", "{\"type\":\"x\",\"a\":\"\xff\"}", `error is not UTF-8`},
	} {
		rec, err := parseRecord(frame{"line 1", tc.typ, []byte(tc.in)})
		got := rec.event.Type + " " + string(rec.event.Payload)
		switch {
		case err != nil:
			got = "error " + err.Error()
		case rec.event.Type == sayCheckpoint:
			got = "checkpoint state " + string(rec.state)
		case rec.event.Type == sayApproval:
			q := rec.approval
			got = fmt.Sprintf("approval %s %s %s %s", q.ToolCallID, q.ToolName, q.Args, q.Reason)
		case rec.event.Type == sayResult:
			u := rec.result.Usage
			got = fmt.Sprintf("result %s %d %d %d", rec.result.Output, u.PromptTokens, u.CompletionTokens, u.TotalTokens)
		}
		if got != tc.want {
			t.Errorf("parseRecord(%q, %s) = %s, want %s", tc.typ, tc.in, got, tc.want)
		}
	}
}

func TestRequestShape(t *testing.T) {
	in := agent.Input{RunID: "r", AgentID: "a"}
	plain, _ := requestOf(in)
	first := plain
	first.Type = "run"
	again := plain
	again.Type = "resume"
	again.resumption = &resumption{State: nil, Approvals: []decision{}}
	decided := again
	decided.resumption = &resumption{State: json.RawMessage(`[1]`), Approvals: []decision{{"c1", true, ""}, {"c2", false, "no"}}}
	for _, tc := range []struct {
		r    request
		want string
	}{
		{plain, `{"runId":"r","agentId":"a","input":"","messages":[]}`},
		{first, `{"type":"run","runId":"r","agentId":"a","input":"","messages":[]}`},
		{again, `{"type":"resume","runId":"r","agentId":"a","input":"","messages":[],"state":null,"approvals":[]}`},
		{decided, `{"type":"resume","runId":"r","agentId":"a","input":"","messages":[],"state":[1],` +
			`"approvals":[{"toolCallId":"c1","granted":true},{"toolCallId":"c2","granted":false,"reason":"no"}]}`},
	} {
		if got, err := tc.r.encode(); string(got) != tc.want || err != nil {
			t.Errorf("encode(%+v) = %s, %v; want %s", tc.r, got, err, tc.want)
		}
	}
}

func TestNothingComesFromTheEnvironment(t *testing.T) {
	a, err := NewHTTP(HTTPOptions{ID: "a", URL: "http://bot.intra/", Timeout: time.Minute, MaxOutput: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if a.o.Transport.(*http.Transport).Proxy != nil {
		t.Error("the default transport asks for a proxy")
	}
}

// checkRecord holds what must be true of whatever a frame is read as.
func checkRecord(t *testing.T, f frame) {
	rec, err := parseRecord(f)
	if err != nil {
		return
	}
	var head map[string]any
	if json.Unmarshal(rec.event.Payload, &head) != nil || head["type"] != rec.event.Type || rec.event.Type == "" {
		t.Errorf("parseRecord(%q) = %q, %s: payload and type differ", f.data, rec.event.Type, rec.event.Payload)
	}
	if bytes.ContainsAny(rec.event.Payload, "\r\n") {
		t.Errorf("parseRecord(%q) = %s: not one line", f.data, rec.event.Payload)
	}
	if rec.event.Type == sayCheckpoint && !json.Valid(rec.state) {
		t.Errorf("parseRecord(%q): state %s is not JSON", f.data, rec.state)
	}
	if rec.event.Type == sayApproval && !json.Valid(rec.approval.Args) {
		t.Errorf("parseRecord(%q): arguments %s are not JSON", f.data, rec.approval.Args)
	}
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("{\"type\":\"text.delta\",\"delta\":\"a\"}\n\r\n{\"type\":\"checkpoint\",\"state\":1}\n{\"type\":\"result\",\"output\":\"x\"}"))
	f.Add([]byte("{\"type\":\"a\",\"Type\":\"b\"}\n[]\nnull\n"))
	f.Add([]byte("{\"type\":\"approval.request\",\"toolCallId\":\"c\",\"toolName\":\"t\",\"args\":{}}\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		next := lines(bytes.NewReader(in))
		seen := 0
		recordCost.Check(t, len(in), func() { readAll(lines(bytes.NewReader(in))) })
		for {
			fr, err := next()
			if err != nil {
				break
			}
			seen += len(fr.data)
			if seen > len(in) || bytes.ContainsRune(fr.data, '\n') {
				t.Fatalf("lines(%q) gave %s: %q", in, fr.at, fr.data)
			}
			checkRecord(t, fr)
		}
	})
}

func FuzzEvents(f *testing.F) {
	f.Add([]byte("event: text.delta\r\ndata: {\"delta\":\"a\"}\r\n\r\n: c\n\ndata: {\ndata: \"type\":\"result\",\"output\":1}\n\n"))
	f.Add([]byte("\xEF\xBB\xBFdata\rdata:x\r\r"))
	f.Fuzz(func(t *testing.T, in []byte) {
		recordCost.Check(t, len(in), func() { readAll(events(bytes.NewReader(in))) })
		whole, err := all(events(bytes.NewReader(in)))
		pieces, err2 := all(events(iotest.OneByteReader(bytes.NewReader(in))))
		if fmt.Sprint(whole, err) != fmt.Sprint(pieces, err2) {
			t.Errorf("events(%q) = %q, %v whole, but %q, %v byte by byte", in, whole, err, pieces, err2)
		}
		for next := events(bytes.NewReader(in)); ; {
			fr, err := next()
			if err != nil {
				break
			}
			checkRecord(t, fr)
		}
	})
}

// recordCost is that of parseRecord's contract.
var recordCost = fuzztest.Cost{PerByte: 100}

func readAll(next func() (frame, error)) {
	for {
		fr, err := next()
		if err != nil {
			return
		}
		parseRecord(fr) //nolint:errcheck // only what it costs counts
	}
}

func TestRecordCost(t *testing.T) {
	for name, text := range fuzztest.JSON() {
		for _, form := range []string{`{"type":"result","output":%s}`, `{"type":"result","output":1,"usage":%s}`, `{"type":%s}`, `{"type":"approval.request","toolCallId":"c","toolName":"t","args":%s}`, `%s`} {
			line := fmt.Appendf(nil, form, bytes.ReplaceAll(text, []byte("\n"), []byte(" ")))
			recordCost.Check(t, len(line), func() { readAll(lines(bytes.NewReader(line))) })
			data := fmt.Appendf(nil, "data: %s\n\n", line)
			recordCost.Check(t, len(data), func() { readAll(events(bytes.NewReader(data))) })
			if t.Failed() {
				t.Fatal(name, form)
			}
		}
	}
}
