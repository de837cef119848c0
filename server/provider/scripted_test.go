package provider_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/provider"
)

func scripted(t testing.TB, script string) *provider.Scripted {
	t.Helper()
	s, err := provider.NewScripted("demo", []byte(script))
	if err != nil {
		t.Fatalf("NewScripted(%s) = %v", script, err)
	}
	return s
}

// talk makes a request of lines: "u text", "a text", "c id tool" (a call) and "t id text" (its answer).
func talk(lines ...string) *provider.Request {
	req := &provider.Request{Model: "m"}
	for _, line := range lines {
		kind, rest, _ := strings.Cut(line, " ")
		id, more, _ := strings.Cut(rest, " ")
		switch kind {
		case "u":
			req.Messages = append(req.Messages, message.Message{Role: message.User, Content: message.Text(rest)})
		case "a":
			req.Messages = append(req.Messages, message.Message{Role: message.Assistant, Content: message.Text(rest)})
		case "c":
			req.Messages = append(req.Messages, message.Message{Role: message.Assistant, ToolCalls: []message.ToolCall{{ID: id, Name: more, Args: message.Args("")}}})
		case "t":
			req.Messages = append(req.Messages, message.Message{Role: message.Tool, ToolCallID: id, Content: message.Text(more)})
		}
	}
	return req
}

func TestScriptConditions(t *testing.T) {
	const script = `{"turns":[
		{"when":{"toolName":"pay","lastTool":"^denied"},"text":"pity"},
		{"when":{"toolName":"pay"},"text":"paid: {{lastTool}}"},
		{"when":{"lastTool":"."},"text":"some tool"},
		{"when":{"model":"big"},"text":"big"},
		{"when":{"lastUser":"(?i)hello","step":1},"text":"again"},
		{"when":{"lastUser":"(?i)hello"},"text":"hi"},
		{"when":{"step":2},"text":"third"}
	]}`
	s := scripted(t, script)
	big := talk("u x")
	big.Model = "big"
	for _, tc := range []struct {
		req  *provider.Request
		want string // "" = no turn
	}{
		{talk("u Hello there"), "hi"},
		{talk("u hello", "a hm"), "again"},
		{talk("u x"), ""},
		{talk(), ""},
		{talk("u x", "a 1", "a 2"), "third"},
		{big, "big"},
		{talk("u x", "c c1 pay", "t c1 denied by hand"), "pity"},
		{talk("u x", "c c1 pay", "t c1 12"), "paid: 12"},
		{talk("u x", "c c1 pay", "c c2 look", "t c1 12", "t c2 13"), "some tool"},
		{talk("u x", "c c1 look", "c c2 pay", "t c2 13"), "paid: 13"},
		{talk("u x", "c c1 pay", "t c1 12", "a done", "u hello"), "hi"}, // the tool answered an earlier question
	} {
		res, err := s.Stream(t.Context(), tc.req, ignore)
		if tc.want == "" {
			if e := asError(t, err); e.Kind != fault.InvalidRequest {
				t.Errorf("Stream(%v) = %v, want invalid-request", tc.req.Messages, err)
			}
		} else if err != nil || res.Text != tc.want {
			t.Errorf("Stream(%v) = %+v, %v, want %q", tc.req.Messages, res, err, tc.want)
		}
	}
}

func TestScriptTurns(t *testing.T) {
	for _, tc := range []struct {
		name, turn  string
		deltas, res string
	}{
		{"chunks of eight characters", `"text":"0123456789é"`, `t"01234567" t"89é"`, `stop "0123456789é" 6+3=9`},
		{"chunk size", `"text":"aéb","chunkSize":2`, `t"aé" t"b"`, `stop "aéb" 6+1=7`},
		{"a huge chunk size", `"text":"ab","chunkSize":9007199254740991`, `t"ab"`, `stop "ab" 6+1=7`},
		{"nothing", ``, ``, `stop "" 6+0=6`},
		{"reasoning first", `"text":"4","reasoning":"2+2"`, `r"2+2" t"4"`, `stop "4" thought "2+2" 6+1=8/r1`},
		{"fillings", `"text":"{{lastUser}}|{{lastTool}}|{{other}}","chunkSize":99`, `t"say \"{{lastTool}}\"|o\nk|{{other}}"`, `stop "say \"{{lastTool}}\"|o\nk|{{other}}" 6+8=14`},
		{"calls", `"text":"ok","toolCalls":[{"name":"a","args":{"q": "<{{lastUser}}>", "n": [1.0, {"t":"{{lastTool}}"}]}},{"name":"b"}],"chunkSize":60`,
			`t"ok" +NEW:a =NEW{"q":"<say \"{{lastTool}}\">","n":[1.0,{"t":"o\nk"}]} +NEW:b =NEW{}`,
			`tool-calls "ok" NEW:a{"q":"<say \"{{lastTool}}\">","n":[1.0,{"t":"o\nk"}]} NEW:b{} 6+15=21`},
		{"a call in chunks", `"toolCalls":[{"name":"a","args":{"n":12}}],"chunkSize":4`, `+NEW:a =NEW{"n" =NEW:12}`, `tool-calls "" NEW:a{"n":12} 6+3=9`},
		{"cut off", `"toolCalls":[{"name":"b"},{"name":"a","args":{"n":12}}],"finishReason":"length"`, `+NEW:b =NEW{} +NEW:a =NEW{"n"`, `length "" NEW:b{} cut NEW:a{"n" 6+2=8`},
		{"given finish and usage", `"text":"a","finishReason":"content-filter","usage":{"promptTokens":5,"completionTokens":6,"cachedReadTokens":2,"reasoningTokens":3}`, `t"a"`, `content-filter "a" 5+6=14/c2/r3`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := scripted(t, `{"turns":[{`+tc.turn+`}]}`)
			var deltas []provider.Delta
			res, err := s.Stream(t.Context(), talk("t c1 o\nk", `u say "{{lastTool}}"`), func(d provider.Delta) { deltas = append(deltas, d) })
			if err != nil {
				t.Fatalf("Stream() = %v", err)
			}
			if got := trace(deltas); anonymous(got, deltas) != tc.deltas {
				t.Errorf("deltas = %s, want %s", anonymous(got, deltas), tc.deltas)
			}
			if told := strings.Contains(tc.turn, `"usage"`); res.Usage.Estimated == told {
				t.Errorf("Stream() = usage %+v, want it estimated where the turn has none", res.Usage)
			}
			res.Usage.Estimated = false
			if got := anonymous(summary(res), deltas); got != tc.res {
				t.Errorf("Stream() = %s, want %s", got, tc.res)
			}
			if res.Model != "m" {
				t.Errorf("Stream() = model %q, want m", res.Model)
			}
		})
	}
}

func TestScriptCost(t *testing.T) {
	s := scripted(t, `{"turns":[{"usage":{"totalTokens":9,"cost":{"amount":0.25}}}]}`)
	res, err := s.Stream(t.Context(), talk(), ignore)
	if err != nil || res.Usage.Cost == nil || *res.Usage.Cost != (message.Cost{Amount: 0.25, Currency: "USD"}) || res.Usage.TotalTokens != 9 {
		t.Errorf("Stream() = %+v, %v, want 9 tokens for 0.25 USD", res, err)
	}
}

func TestScriptErrors(t *testing.T) {
	for _, tc := range []struct {
		turn   string
		want   string
		deltas int
	}{
		{`"text":"abcdef","error":{"kind":"rate-limit","message":"slow down"}`, "rate-limit: slow down", 0},
		{`"text":"abcdef","chunkSize":2,"error":{"kind":"transient","message":"gone","afterChunks":2}`, "transient: gone", 2},
		{`"text":"abcdef","chunkSize":2,"error":{"kind":"unknown","message":"late","afterChunks":9}`, "unknown: late", 3},
	} {
		s := scripted(t, `{"turns":[{`+tc.turn+`}]}`)
		deltas := 0
		res, err := s.Stream(t.Context(), talk(), func(provider.Delta) { deltas++ })
		if res != nil || asError(t, err).Error() != tc.want || deltas != tc.deltas {
			t.Errorf("Stream() of %s = %v, %v after %d deltas, want %s after %d", tc.turn, res, err, deltas, tc.want, tc.deltas)
		}
	}
}

func TestScriptDelays(t *testing.T) {
	s := scripted(t, `{"turns":[{"text":"abcdef","chunkSize":2,"delayMs":1000,"chunkDelayMs":100}]}`)
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var at []string
		if _, err := s.Stream(t.Context(), talk(), func(provider.Delta) { at = append(at, time.Since(start).String()) }); err != nil {
			t.Fatalf("Stream() = %v", err)
		}
		if got := fmt.Sprint(at); got != "[1s 1.1s 1.2s]" {
			t.Errorf("deltas came at %s, want [1s 1.1s 1.2s]", got)
		}
	})
	stop := errors.New("the user left")
	for _, after := range []time.Duration{0, 500 * time.Millisecond, 1050 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			if after == 0 {
				cancel(stop)
			} else {
				time.AfterFunc(after, func() { cancel(stop) })
			}
			start := time.Now()
			if _, err := s.Stream(ctx, talk(), ignore); err != stop || time.Since(start) != after {
				t.Errorf("Stream() = %v after %v, want the cause after %v", err, time.Since(start), after)
			}
		})
	}
}

func TestBadScripts(t *testing.T) {
	for _, tc := range []struct {
		script string
		want   []string
	}{
		{`{"turns":[`, []string{`[] script:1:11: is not valid JSON: unexpected end of JSON input`}},
		{"{\"turns\":[\n  {,}]}", []string{`[] script:2:4: is not valid JSON: invalid character ',' looking for beginning of object key string`}},
		{`{"turns":[]} x`, []string{`[] script:1:14: is not valid JSON: invalid character 'x' after top-level value`}},
		{``, []string{`[] script:1:1: is not valid JSON: unexpected end of JSON input`}},
		{`[]`, []string{`[] script:1:1: want an object, got a list`}},
		{`{}`, []string{`[turns] script:1:1: "turns" is missing`}},
		{`{"turns":[]}`, []string{`[turns] script:1:10: want at least one item`}},
		{`{"turns":{},"turns":[{}],"name":1}`, []string{
			`[turns] script:1:10: want a list, got an object`,
			`[turns] script:1:13: duplicate key "turns"; the first is at 1:2`,
			`[name] script:1:26: unknown key "name"`,
		}},
		{`{"turns":[{},{"text":1,"when":{"lastUser":"(","lastTool":[],"step":-1,"model":null,"tool":"x"},"chunkSize":0,"delayMs":600001,"chunkDelayMs":1.5,"finishReason":"done"},7]}`, []string{
			`[turns 1 text] script:1:22: want text, got a number`,
			`[turns 1 when lastTool] script:1:58: want text, got a list`,
			`[turns 1 when step] script:1:68: want a number from 0 up, got -1`,
			`[turns 1 when model] script:1:79: want text, got null; leave the key out for its default`,
			`[turns 1 when tool] script:1:84: unknown key "tool"`,
			`[turns 1 chunkSize] script:1:108: want a number from 1 up, got 0`,
			`[turns 1 delayMs] script:1:120: want a number from 0 to 600000, got 600001`,
			`[turns 1 chunkDelayMs] script:1:142: want a whole number, written with digits only, got 1.5`,
			`[turns 1 finishReason] script:1:161: want stop, length, tool-calls or content-filter, got "done"`,
			`[turns 2] script:1:169: want an object, got a number`,
		}},
		{`{"turns":[{"when":{"lastUser":"a"}}, // fine
			{"when":{"lastTool":"("}}]}`, []string{"[turns 1 when lastTool] script:2:24: want a regular expression: error parsing regexp: missing closing ): `(`"}},
		{`{"turns":[{"toolCalls":[{"args":1},{"name":""}],"usage":{"promptTokens":-1,"tokens":1,"cost":{"amount":"x"}},"error":{"kind":"odd"}}]}`, []string{
			`[turns 0 toolCalls 0 name] script:1:25: "name" is missing`,
			`[turns 0 toolCalls 1 name] script:1:44: is empty`,
			`[turns 0 usage promptTokens] script:1:73: want a number from 0 up, got -1`,
			`[turns 0 usage tokens] script:1:76: unknown key "tokens"`,
			`[turns 0 usage cost amount] script:1:104: want a number, got text`,
			`[turns 0 error kind] script:1:126: want rate-limit, capacity, context-length, transient, invalid-request, unauthorized, content-filter or unknown, got "odd"`,
		}},
	} {
		_, err := provider.NewScripted("demo", []byte(tc.script))
		if !fault.Is(err, fault.ConfigInvalid) {
			t.Errorf("NewScripted(%s) = %v, want config-invalid", tc.script, err)
			continue
		}
		var got []string
		for _, issue := range fault.Of(err).Issues {
			got = append(got, fmt.Sprintf("%v %s", issue.Path, issue.Message))
		}
		if strings.Join(got, "\n") != strings.Join(tc.want, "\n") {
			t.Errorf("NewScripted(%s) =\n%s\nwant\n%s", tc.script, strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
		}
	}
}

// anonymous replaces ids that were made for the response.
func anonymous(s string, deltas []provider.Delta) string {
	for _, d := range deltas {
		if minted(d.CallID) {
			s = strings.ReplaceAll(s, d.CallID, "NEW")
		}
	}
	return s
}

var _ = []provider.Provider{(*provider.Scripted)(nil), (*provider.OpenAI)(nil)}
