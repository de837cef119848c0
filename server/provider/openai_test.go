package provider_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/provider"
)

func tool(index int, id, name, args string) string {
	b, _ := message.Encode(map[string]any{"choices": []any{map[string]any{"delta": map[string]any{"tool_calls": []any{
		map[string]any{"index": index, "id": id, "type": "function", "function": map[string]any{"name": name, "arguments": args}}}}}}})
	return string(b)
}

func args(index int, more string) string {
	b, _ := message.Encode(map[string]any{"choices": []any{map[string]any{"delta": map[string]any{"tool_calls": []any{
		map[string]any{"index": index, "function": map[string]any{"arguments": more}}}}}}})
	return string(b)
}

func finish(reason string) string {
	return fmt.Sprintf(`{"choices":[{"index":0,"delta":{},"finish_reason":%q}]}`, reason)
}

// trace writes deltas as one line: t text, r reasoning, + a call's start, = more of its arguments.
func trace(deltas []provider.Delta) string {
	var b strings.Builder
	for _, d := range deltas {
		switch d.Kind {
		case provider.TextDelta:
			fmt.Fprintf(&b, "t%q ", d.Text)
		case provider.ReasoningDelta:
			fmt.Fprintf(&b, "r%q ", d.Text)
		case provider.CallStart:
			fmt.Fprintf(&b, "+%s:%s ", d.CallID, d.ToolName)
		case provider.CallDelta:
			fmt.Fprintf(&b, "=%s%s ", d.CallID, d.Text)
		}
	}
	return strings.TrimSpace(b.String())
}

// summary writes what a test compares of a response. Ids that were made for it become NEW.
func summary(r *provider.Response) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %q", r.Finish, r.Text)
	if r.Reasoning != "" {
		fmt.Fprintf(&b, " thought %q", r.Reasoning)
	}
	for _, c := range r.ToolCalls {
		fmt.Fprintf(&b, " %s:%s%s", c.ID, c.Name, c.Args)
	}
	if i := r.Incomplete; i != nil {
		fmt.Fprintf(&b, " cut %s:%s%s", i.CallID, i.ToolName, i.ArgsPrefix)
	}
	u := r.Usage
	if u.Estimated {
		b.WriteString(" ~")
		return b.String()
	}
	fmt.Fprintf(&b, " %d+%d=%d", u.PromptTokens, u.CompletionTokens, u.TotalTokens)
	if u.CachedReadTokens != 0 {
		fmt.Fprintf(&b, "/c%d", u.CachedReadTokens)
	}
	if u.ReasoningTokens != nil {
		fmt.Fprintf(&b, "/r%d", *u.ReasoningTokens)
	}
	return b.String()
}

func minted(id string) bool { return strings.HasPrefix(id, "call_") && len(id) == len("call_")+24 }

func TestStreamReadsWhatServersSend(t *testing.T) {
	const usage = `{"choices":[],"usage":{"prompt_tokens":40,"completion_tokens":9,"total_tokens":49}}`
	for _, tc := range []struct {
		name, body  string
		deltas, res string
	}{
		{"text and usage after the finish", sse(say("he"), say("llo"), finish("stop"), usage),
			`t"he" t"llo"`, `stop "hello" 40+9=49`},
		{"finish in the only chunk", sse(say("hi", "stop")), `t"hi"`, `stop "hi" ~`},
		{"end of file for [DONE]", "data: " + say("hi", "stop"), `t"hi"`, `stop "hi" ~`},
		{"[DONE] for the finish", sse(say("hi")), `t"hi"`, `stop "hi" ~`},
		{"CRLF, comments, no space, other fields", ": ping\r\n\r\nid: 1\r\nevent: x\r\ndata:" + say("hi", "stop") + "\r\n\r\n: bye\r\n\r\ndata:[DONE]\r\n\r\n",
			`t"hi"`, `stop "hi" ~`},
		{"data on many lines", "data: {\"choices\":[{\"delta\":\ndata: {\"content\":\"a\"},\ndata:\"finish_reason\":\"stop\"}]}\n\n",
			`t"a"`, `stop "a" ~`},
		{"arguments in seven chunks, usage in the last and empty one", sse(tool(0, "c1", "add", ""), args(0, `{"`), args(0, `a":`), args(0, `2`), args(0, `,"b`), args(0, `":2`), args(0, `}`), finish("tool_calls"), usage),
			`+c1:add =c1{" =c1a": =c12 =c1,"b =c1":2 =c1}`, `tool-calls "" c1:add{"a":2,"b":2} 40+9=49`},
		{"parallel calls, interleaved", sse(tool(0, "a", "x", `{"n"`), tool(1, "b", "y", ""), args(1, `{"m":`), args(0, `:1}`), args(1, `2}`), finish("tool_calls")),
			`+a:x =a{"n" +b:y =b{"m": =a:1} =b2}`, `tool-calls "" a:x{"n":1} b:y{"m":2} ~`},
		{"parallel calls, all under index 0", sse(tool(0, "a", "x", `{}`), tool(0, "b", "y", `{"m":2}`), finish("stop")),
			`+a:x =a{} +b:y =b{"m":2}`, `tool-calls "" a:x{} b:y{"m":2} ~`},
		{"no index", sse(`{"choices":[{"delta":{"tool_calls":[{"id":"a","function":{"name":"x","arguments":"{"}}]}}]}`, `{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"}"}}]}}]}`,
			`{"choices":[{"delta":{"tool_calls":[{"id":"b","function":{"name":"y","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}`),
			`+a:x =a{ =a} +b:y =b{}`, `tool-calls "" a:x{} b:y{} ~`},
		{"id and name in every fragment", sse(tool(0, "a", "x", `{"n":`), tool(0, "a", "x", `1}`), finish("tool_calls")),
			`+a:x =a{"n": =a1}`, `tool-calls "" a:x{"n":1} ~`},
		{"name after the arguments began", sse(tool(0, "a", "", `{"n":`), tool(0, "a", "x", `1}`), finish("tool_calls")),
			`+a:x =a{"n":1}`, `tool-calls "" a:x{"n":1} ~`},
		{"no arguments", sse(tool(0, "a", "x", ""), finish("tool_calls")), `+a:x`, `tool-calls "" a:x{} ~`},
		{"broken arguments", sse(tool(0, "a", "x", `{"n":`), finish("tool_calls")), `+a:x =a{"n":`, `tool-calls "" a:x"{\"n\":" ~`},
		{"arguments as an object", sse(`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"x","arguments":{"n":1}}}]},"finish_reason":"tool_calls"}]}`),
			`+a:x =a{"n":1}`, `tool-calls "" a:x{"n":1} ~`},
		{"a call without a name", sse(tool(0, "a", "", "{}"), say("b", "stop")), `t"b"`, `stop "b" ~`},
		{"cut inside a call", sse(tool(0, "a", "x", `{}`), tool(1, "b", "y", `{"m":"lo`), finish("length")),
			`+a:x =a{} +b:y =b{"m":"lo`, `length "" a:x{} cut b:y{"m":"lo ~`},
		{"cut after a call's name", sse(tool(0, "a", "x", ""), finish("length")), `+a:x`, `length "" cut a:x ~`},
		{"cut after a whole call", sse(tool(0, "a", "x", "{}"), finish("length")), `+a:x =a{}`, `length "" a:x{} ~`},
		{"filtered", sse(say("he"), finish("content_filter")), `t"he"`, `content-filter "he" ~`},
		{"a finish nobody knows", sse(say("he", "eos")), `t"he"`, `stop "he" ~`},
		{"reasoning under both names", sse(`{"choices":[{"delta":{"reasoning_content":"hm","reasoning":"hm"}}]}`, `{"choices":[{"delta":{"reasoning":"so"}}]}`, say("4", "stop")),
			`r"hm" r"so" t"4"`, `stop "4" thought "hmso" ~`},
		{"content in parts, nulls, other choices", sse(`{"choices":null,"usage":null}`, `{"choices":[{"index":1,"delta":{"content":"no"}},{"delta":{"content":[{"type":"text","text":"yes"},{"type":"thinking"}],"tool_calls":null,"reasoning":{}}}]}`, finish("stop")),
			`t"yes"`, `stop "yes" ~`},
		{"the whole message again at the end", sse(say("hi"), `{"choices":[{"delta":{},"message":{"content":"hi"},"finish_reason":"stop"}]}`),
			`t"hi"`, `stop "hi" ~`},
		{"plain JSON", `{"model":"m","choices":[{"message":{"content":null,"tool_calls":[{"id":"a","function":{"name":"x","arguments":"{}"}},{"id":"","function":{"name":"y","arguments":"{\"n\":1}"}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}`,
			`+a:x =a{} +NEW:y =NEW{"n":1}`, `tool-calls "" a:x{} NEW:y{"n":1} 1+2=3`},
		{"plain JSON without finish", "\n {\"choices\":[{\"message\":{\"content\":\"hi\"}}]}", `t"hi"`, `stop "hi" ~`},
		{"ids that cannot serve", sse(tool(0, "functions/x:0", "x", "{}"), tool(1, "old", "y", "{}"), tool(2, "dup", "z", "{}"), tool(3, "dup", "z", "{}"), tool(4, "", "w", "{}"), finish("tool_calls")),
			`+NEW:x =NEW{} +NEW:y =NEW{} +dup:z =dup{} +NEW:z =NEW{} +NEW:w =NEW{}`, `tool-calls "" NEW:x{} NEW:y{} dup:z{} NEW:z{} NEW:w{} ~`},
		{"reasoning inside the completion, cached input", sse(say("a", "stop"), `{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":9,"total_tokens":19,"prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":5}}}`),
			`t"a"`, `stop "a" 10+4=19/c4/r5`},
		{"reasoning beside the completion", sse(say("a", "stop"), `{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":9,"total_tokens":24,"completion_tokens_details":{"reasoning_tokens":5}}}`),
			`t"a"`, `stop "a" 10+9=24/r5`},
		{"usage without a total, in odd numbers", sse(`{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":10.0,"completion_tokens":"many","prompt_tokens_details":null}}`),
			`t"a"`, `stop "a" 10+0=10`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, p := newServer(t, nil, reply{body: tc.body})
				req := hello()
				req.Messages = append(req.Messages, message.Message{Role: message.Assistant, ToolCalls: []message.ToolCall{{ID: "old", Name: "y"}}})
				var deltas []provider.Delta
				res, err := p.Stream(t.Context(), req, func(d provider.Delta) { deltas = append(deltas, d) })
				if err != nil {
					t.Fatalf("Stream() = %v", err)
				}
				got, gotDeltas := anonymous(summary(res), deltas), anonymous(trace(deltas), deltas)
				if got != tc.res || gotDeltas != tc.deltas {
					t.Errorf("Stream() = %s after %s\nwant      %s after %s", got, gotDeltas, tc.res, tc.deltas)
				}
			})
		})
	}
}

func TestBody(t *testing.T) {
	image := func(b *message.Bytes) message.Part { return message.Part{Type: "image", Image: b} }
	req := &provider.Request{
		Model: "m",
		Messages: []message.Message{
			{Role: message.System, Content: message.Text("Be <brief>.")},
			{Role: message.User, Content: message.Content{Parts: []message.Part{{Type: "text", Text: "a"}, {Type: "text", Text: "b"}}}},
			{Role: message.User, Content: message.Content{Parts: []message.Part{{Type: "text", Text: "see"},
				image(&message.Bytes{Enc: "base64", Data: []byte("\x89PNG\r\n\x1a\n")}), image(&message.Bytes{Enc: "url", Href: "https://x.test/a.png"})}}},
			{Role: message.Assistant, Content: message.Content{Parts: []message.Part{{Type: "reasoning", Text: "hm"}}}, AgentID: "a", ToolCalls: []message.ToolCall{
				{ID: "c1", Name: "add", Args: json.RawMessage(`{"a":2}`)}, {ID: "c2", Name: "now"}, {ID: "c3", Name: "add", Args: message.Args(`{"a":`)}}},
			{Role: message.Tool, ToolCallID: "c1", Content: message.Text("4")},
			{Role: message.Assistant, Content: message.Text("four")},
		},
		Tools:       []provider.ToolSpec{{Name: "add", Description: "sum", Input: json.RawMessage(`{"type":"object"}`)}, {Name: "now", Input: json.RawMessage(`{"type":"object","properties":{}}`)}},
		ToolChoice:  provider.ToolChoice{Tool: "add"},
		Temperature: new(0.0),
		MaxTokens:   7,
		Output:      &provider.OutputSpec{Name: "the answer/é", Schema: json.RawMessage(`{"type":"object"}`)},
		Meta:        provider.Meta{RunID: "r-secret"},
	}
	want := map[string]string{
		"model":          `"m"`,
		"stream":         `true`,
		"temperature":    `0`,
		"max_tokens":     `7`,
		"stream_options": `{"include_usage":true}`,
		"messages": `[{"role":"system","content":"Be <brief>."},{"role":"user","content":"a\nb"},` +
			`{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}},{"type":"image_url","image_url":{"url":"https://x.test/a.png"}}]},` +
			`{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"add","arguments":"{\"a\":2}"}},{"id":"c2","type":"function","function":{"name":"now","arguments":"{}"}},` +
			`{"id":"c3","type":"function","function":{"name":"add","arguments":"{\"invalidArguments\":\"{\\\"a\\\":\"}"}}]},` +
			`{"role":"tool","content":"4","tool_call_id":"c1"},{"role":"assistant","content":"four"}]`,
		"tools": `[{"function":{"description":"sum","name":"add","parameters":{"type":"object"}},"type":"function"},` +
			`{"function":{"name":"now","parameters":{"type":"object","properties":{}}},"type":"function"}]`,
		"tool_choice":     `{"function":{"name":"add"},"type":"function"}`,
		"response_format": `{"json_schema":{"name":"the_answer__","schema":{"type":"object"},"strict":true},"type":"json_schema"}`,
	}
	synctest.Test(t, func(t *testing.T) {
		s, p := newServer(t, nil, reply{body: sse(say("x", "stop"))})
		if _, err := p.Stream(t.Context(), req, ignore); err != nil {
			t.Fatalf("Stream() = %v", err)
		}
		for k, v := range s.bodies[0] {
			if string(v) != want[k] {
				t.Errorf("body[%s] = %s\nwant %s", k, v, want[k])
			}
		}
		if len(s.bodies[0]) != len(want) {
			t.Errorf("body has %d members, want %d", len(s.bodies[0]), len(want))
		}
	})
}

func TestBodySmall(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*provider.Request)
		member string
		want   string // "" = absent
	}{
		{"no tools, no choice", func(r *provider.Request) { r.ToolChoice.Mode = "required" }, "tool_choice", ""},
		{"no tools", func(*provider.Request) {}, "tools", ""},
		{"choice left to the model", func(r *provider.Request) { r.Tools = []provider.ToolSpec{{Name: "x"}} }, "tool_choice", ""},
		{"choice required", func(r *provider.Request) {
			r.Tools, r.ToolChoice.Mode = []provider.ToolSpec{{Name: "x"}}, "required"
		}, "tool_choice", `"required"`},
		{"usage is asked for", func(*provider.Request) {}, "stream_options", `{"include_usage":true}`},
		{"no temperature", func(*provider.Request) {}, "temperature", ""},
		{"no limit", func(*provider.Request) {}, "max_tokens", ""},
	} {
		req := hello()
		tc.change(req)
		var body map[string]json.RawMessage
		p := mustOpenAI(t, provider.OpenAIOptions{Transport: exchange(func(r *http.Request) (*http.Response, error) {
			b, _ := io.ReadAll(r.Body)
			_ = json.Unmarshal(b, &body)
			return answering(strings.NewReader(sse(say("x", "stop"))))(r)
		})})
		if _, err := p.Stream(t.Context(), req, ignore); err != nil {
			t.Fatalf("%s: Stream() = %v", tc.name, err)
		}
		if got := string(body[tc.member]); got != tc.want {
			t.Errorf("%s: body[%s] = %s, want %s", tc.name, tc.member, got, tc.want)
		}
	}
}

// A server that cannot stream tool calls is asked for whole answers.
func TestWholeAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newServer(t, func(o *provider.OpenAIOptions) { o.Whole = true }, reply{body: `{"choices":[{"message":{"content":"hm",
			"tool_calls":[{"id":"a","type":"function","function":{"name":"x","arguments":"{\"n\": 1}"}}]},"finish_reason":"tool_calls"}]}`})
		req := hello()
		req.Messages[0].Content.Parts = []message.Part{{Type: "text", Text: "see"}, {Type: "file", File: &message.Bytes{Enc: "base64", Data: []byte("%PDF-")}, Filename: "a.pdf", MimeType: "application/pdf"},
			{Type: "image", Image: &message.Bytes{Enc: "base64", Data: []byte("\x89PNG\r\n\x1a\n")}}}
		req.Tools = []provider.ToolSpec{{Name: "x", Input: json.RawMessage(`{"type":"object"}`)}}
		var deltas []provider.Delta
		res, err := p.Stream(t.Context(), req, func(d provider.Delta) { deltas = append(deltas, d) })
		if err != nil {
			t.Fatal(err)
		}
		if got, want := summary(res), `tool-calls "hm" a:x{"n": 1} ~`; got != want || len(deltas) != 3 {
			t.Errorf("Stream() = %s after %d deltas, want %s after 3", got, len(deltas), want)
		}
		// "see" and the tool have 21 characters, each part with media is estimated at 765; hm, x and {"n": 1} have 11.
		if u := res.Usage; u.PromptTokens != 6+2*765 || u.CompletionTokens != 3 || u.TotalTokens != u.PromptTokens+3 {
			t.Errorf("Stream() = usage %+v, want 1536 and 3", u)
		}
		body := s.bodies[0]
		if string(body["stream"]) != "false" || body["stream_options"] != nil {
			t.Errorf("stream is %s and stream_options %s, want false and none", body["stream"], body["stream_options"])
		}
		const file = `{"type":"file","file":{"filename":"a.pdf","file_data":"data:application/pdf;base64,JVBERi0="}}`
		if !strings.Contains(string(body["messages"]), file) {
			t.Errorf("messages = %s, want %s in them", body["messages"], file)
		}
	})
}

func TestRequestsThatCannotBeSent(t *testing.T) {
	for name, change := range map[string]func(*provider.Request){
		"role":   func(r *provider.Request) { r.Messages[0].Role = "oracle" },
		"audio":  func(r *provider.Request) { r.Messages[0].Content.Parts = []message.Part{{Type: "audio"}} },
		"schema": func(r *provider.Request) { r.Tools = []provider.ToolSpec{{Name: "x", Input: json.RawMessage("{")}} },
	} {
		req := hello()
		change(req)
		p := mustOpenAI(t, provider.OpenAIOptions{Transport: exchange(func(*http.Request) (*http.Response, error) {
			t.Errorf("%s: a request was sent", name)
			return nil, errors.New("no")
		})})
		_, err := p.Stream(t.Context(), req, ignore)
		if e := asError(t, err); e.Kind != fault.InvalidRequest {
			t.Errorf("%s: Stream() = %v, want invalid-request", name, err)
		}
	}
}

func TestURLAndHeaders(t *testing.T) {
	for base, want := range map[string]string{
		"http://h:8000":     "http://h:8000/v1/chat/completions",
		"http://h/":         "http://h/v1/chat/completions",
		"http://h/v1":       "http://h/v1/chat/completions",
		"https://h/api/v1/": "https://h/api/v1/chat/completions",
		"https://h/openai":  "https://h/openai/v1/chat/completions",
		"https://h/v1beta/openai/chat/completions": "https://h/v1beta/openai/chat/completions",
		"https://h/d/chat/completions/?api=2":      "https://h/d/chat/completions?api=2",
		"https://h/a%2Fb/v1?api=2":                 "https://h/a%2Fb/v1/chat/completions?api=2",
	} {
		for _, key := range []string{"", " k-1\n"} {
			var sent *http.Request
			p := mustOpenAI(t, provider.OpenAIOptions{
				BaseURL: base, Headers: map[string]string{"X-Team": "ops"},
				APIKey: key,
				Transport: exchange(func(r *http.Request) (*http.Response, error) {
					sent = r
					return answering(strings.NewReader(sse(say("x", "stop"))))(r)
				}),
			})
			if _, err := p.Stream(t.Context(), hello(), ignore); err != nil {
				t.Fatalf("Stream() = %v", err)
			}
			if got := sent.URL.String(); got != want {
				t.Errorf("URL of %q = %s, want %s", base, got, want)
			}
			auth, has := sent.Header["Authorization"]
			if key == "" && has || key != "" && !slices.Equal(auth, []string{"Bearer k-1"}) {
				t.Errorf("Authorization with key %q = %q", key, auth)
			}
			if got := sent.Header.Get("X-Team"); got != "ops" {
				t.Errorf("X-Team = %q, want ops", got)
			}
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, base := range []string{"", "h:8000", "http://", "http://h\x7f"} {
		_, err := provider.NewOpenAI(provider.OpenAIOptions{BaseURL: base, Headers: map[string]string{"bad name": "x", "X-Ok": "a\nb", "X-Fine": "x"}})
		f := fault.Of(err)
		if f == nil || f.Kind != fault.ConfigInvalid || len(f.Issues) != 3 {
			t.Errorf("NewOpenAI(%q) = %v, want config-invalid with 3 issues", base, err)
		}
	}
}

func TestOwnTransport(t *testing.T) {
	var encoding string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		encoding = r.Header.Get("Accept-Encoding")
		io.WriteString(w, sse(say("hi", "stop")))
	}))
	defer srv.Close()
	p := mustOpenAI(t, provider.OpenAIOptions{BaseURL: srv.URL})
	defer p.Close()
	if res, err := p.Stream(t.Context(), hello(), ignore); err != nil || res.Text != "hi" || encoding != "" {
		t.Errorf("Stream() = %+v, %v with Accept-Encoding %q, want an uncompressed hi", res, err, encoding)
	}
}

func TestResponseIsPriced(t *testing.T) {
	body := sse(`{"model":"m-20250930","choices":[{"delta":{"content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1000000,"total_tokens":1000000}}`)
	for name, want := range map[string]float64{"m": 3, "other": 3, "dear": 9} {
		p := mustOpenAI(t, provider.OpenAIOptions{Prices: provider.Prices{"m": {Input: 3}, "dear": {Input: 9}}, Transport: answering(strings.NewReader(body))})
		req := hello()
		req.Model = name
		res, err := p.Stream(t.Context(), req, ignore)
		if err != nil || res.Model != "m-20250930" || res.Usage.Cost == nil || res.Usage.Cost.Amount != want {
			t.Errorf("Stream(%s) = %+v, %v, want a cost of %v", name, res, err, want)
		}
	}
}

func mustOpenAI(t testing.TB, o provider.OpenAIOptions) *provider.OpenAI {
	t.Helper()
	if o.Name == "" {
		o.Name = "local"
	}
	o.BaseURL = cmp.Or(o.BaseURL, "http://model.test/v1")
	o.Timeout, o.IdleTimeout = cmp.Or(o.Timeout, 2*time.Minute), cmp.Or(o.IdleTimeout, time.Minute)
	p, err := provider.NewOpenAI(o)
	if err != nil {
		t.Fatalf("NewOpenAI() = %v", err)
	}
	return p
}
