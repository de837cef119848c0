package provider_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentd/server/fault"
	"agentd/server/fuzztest"
	"agentd/server/message"
	"agentd/server/provider"
)

// FuzzStream checks, for whatever a server answers, that the deltas and the response tell the same story.
func FuzzStream(f *testing.F) {
	for _, s := range []string{
		sse(say("he"), say("llo", "stop"), `{"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":9,"completion_tokens_details":{"reasoning_tokens":5}}}`),
		sse(tool(0, "a", "x", `{"n"`), tool(1, "old", "y", ""), args(1, `{}`), args(0, `:1}`), finish("tool_calls")),
		sse(tool(0, "a", "x", `{"n"`), finish("length")),
		sse(`{"choices":[{"delta":{"content":[{"type":"text","text":"a"}],"reasoning":"b"}}]}`, `{"error":{"message":"x","code":429}}`),
		`{"choices":[{"message":{"content":"hi","tool_calls":[{"function":{"name":"x","arguments":{}}}]}}]}`,
		`{"object":"error"}`, `[{"detail":[{"loc":["a"],"msg":"b"}]}]`,
	} {
		f.Add(200, s)
		f.Add(400, s)
	}
	f.Fuzz(func(t *testing.T, status int, body string) {
		p := mustOpenAI(t, provider.OpenAIOptions{Transport: exchange(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
		})})
		req := hello()
		req.Messages = append(req.Messages, message.Message{Role: message.Assistant, ToolCalls: []message.ToolCall{{ID: "old", Name: "y"}}})
		var text, reasoning strings.Builder
		written := map[string]string{"old": ""}
		res, err := p.Stream(t.Context(), req, func(d provider.Delta) {
			switch d.Kind {
			case provider.TextDelta:
				text.WriteString(d.Text)
			case provider.ReasoningDelta:
				reasoning.WriteString(d.Text)
			case provider.CallStart:
				if _, taken := written[d.CallID]; taken || d.CallID == "" || d.ToolName == "" || strings.Contains(d.CallID, "/") {
					t.Errorf("call %q:%q starts, want a new id and a name", d.CallID, d.ToolName)
				}
				written[d.CallID] = ""
			case provider.CallDelta:
				if _, started := written[d.CallID]; !started || d.Text == "" {
					t.Errorf("delta %q of call %q, want one that started", d.Text, d.CallID)
				}
				written[d.CallID] += d.Text
			default:
				t.Errorf("delta of kind %d", d.Kind)
			}
		})
		if err != nil {
			if e := asError(t, err); res != nil || e.Message == "" || len([]rune(e.Message)) > 400 || fault.ByCode(e.Kind.Code) == nil {
				t.Errorf("Stream() = %v, %v, want a short error of a known kind and no response", res, err)
			}
			return
		}
		if res.Text != text.String() || res.Reasoning != reasoning.String() || res.Finish == "" {
			t.Errorf("Stream() = %+v, want the text %q and reasoning %q of its deltas", res, text.String(), reasoning.String())
		}
		for _, c := range res.ToolCalls {
			if raw, started := written[c.ID]; !started || c.Name == "" || !json.Valid(c.Args) || string(message.Args(raw)) != string(c.Args) {
				t.Errorf("call %+v, want the arguments %q of its deltas", c, raw)
			}
		}
		u := res.Usage
		if u.PromptTokens < 0 || u.CompletionTokens < 0 || u.TotalTokens < 0 || message.Value(u.ReasoningTokens) < 0 {
			t.Errorf("usage = %+v, want no negative counts", u)
		}
	})
}

func FuzzScript(f *testing.F) {
	for _, s := range []string{
		`{"turns":[{"when":{"lastUser":"a","lastTool":"b","toolName":"c","step":0,"model":"m"},"text":"{{lastUser}}"}]}`,
		`{"turns":[{"toolCalls":[{"name":"x","args":{"a":["{{lastUser}}",1.0]}}],"finishReason":"length","usage":{"promptTokens":1}}]}`,
		`{"turns":[{"error":{"kind":"transient","message":"x","afterChunks":1}}],"turns":1}`, `[`, `null`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, script string) {
		s, err := provider.NewScripted("demo", []byte(script))
		if err != nil {
			if e := fault.Of(err); e.Kind != fault.ConfigInvalid || len(e.Issues) == 0 {
				t.Errorf("NewScripted(%q) = %v, want config-invalid with issues", script, err)
			}
			return
		}
		if strings.Contains(script, "elay") {
			return // playing it would take its time
		}
		res, err := s.Stream(t.Context(), talk("u \"quoted\"\n{{lastTool}}"), ignore)
		if err != nil {
			asError(t, err)
			return
		}
		for _, c := range res.ToolCalls {
			if !json.Valid(c.Args) {
				t.Errorf("Stream() of %q calls with %s, want JSON", script, c.Args)
			}
		}
	})
}

func BenchmarkStream(b *testing.B) {
	chunks := make([]string, 0, 1001)
	for i := range 1000 {
		chunks = append(chunks, fmt.Sprintf(`{"id":"x","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":"word %d "},"finish_reason":null}]}`, i))
	}
	body := sse(append(chunks, finish("stop"))...)
	p := mustOpenAI(b, provider.OpenAIOptions{Transport: exchange(func(r *http.Request) (*http.Response, error) {
		return answering(strings.NewReader(body))(r)
	})})
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := p.Stream(b.Context(), hello(), ignore); err != nil {
			b.Fatal(err)
		}
	}
}

// FuzzRetryAfter reads how long a server asks to wait, in either of its headers.
func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"", "3", "-1", "1e9", "Inf", "NaN", "0x1p4", "Wed, 21 Oct 2015 07:28:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "0.0000000001", " 5"} {
		f.Add(s, "")
		f.Add("1", s)
	}
	f.Fuzz(func(t *testing.T, after, ms string) {
		p := mustOpenAI(t, provider.OpenAIOptions{Transport: exchange(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 429, Body: http.NoBody, Header: http.Header{"Retry-After": {after}, "Retry-After-Ms": {ms}}, Request: r}, nil
		})})
		_, err := p.Stream(t.Context(), hello(), ignore)
		e := asError(t, err)
		if e.Kind != fault.RateLimit || e.RetryAfter < 0 || e.RetryAfter > 24*time.Hour {
			t.Errorf("Retry-After %q, Retry-After-Ms %q: %s after %v", after, ms, e.Kind.Code, e.RetryAfter)
		}
		if n, err := strconv.ParseUint(after, 10, 16); err == nil && ms == "" && e.RetryAfter != time.Duration(n)*time.Second {
			t.Errorf("Retry-After %q: after %v", after, e.RetryAfter)
		}
		if n, err := strconv.ParseUint(ms, 10, 16); err == nil && n > 0 && e.RetryAfter != time.Duration(n)*time.Millisecond {
			t.Errorf("Retry-After-Ms %q: after %v", ms, e.RetryAfter)
		}
	})
}

// Whatever a model's server sends in one event is read once.
func TestStreamCost(t *testing.T) {
	deep := func(open, inside, shut string, n int) []byte {
		return []byte(strings.Repeat(open, n) + inside + strings.Repeat(shut, n))
	}
	texts := fuzztest.JSON()
	texts["lists of parts"] = deep(`[{"type":"text","text":`, `"x"`, `}]`, 2400)
	texts["parts"] = fuzztest.Fill("[", func(int) string { return `{"type":"text","text":"a"},` }, `{}]`)
	for name, text := range texts {
		for _, form := range []string{`{"choices":[{"delta":{"content":%s}}]}`, `{"choices":[{"delta":{"tool_calls":[{"function":{"name":"x","arguments":%s}}]}}]}`,
			`{"error":{"message":%s}}`, `{"error":%s}`, `{"usage":%s}`, `{"choices":%s}`} {
			chunk := fmt.Sprintf(form, text)
			for _, body := range []string{sse(chunk), chunk} {
				streamCost.Check(t, len(body), func() {
					p := mustOpenAI(t, provider.OpenAIOptions{Transport: answering(strings.NewReader(body))})
					p.Stream(t.Context(), hello(), ignore) //nolint:errcheck // only what it costs counts
				})
				if t.Failed() {
					t.Fatalf("%s in %s", name, form)
				}
			}
		}
	}
}

// streamCost is that of NewOpenAI's contract, and what a provider takes itself.
var streamCost = fuzztest.Cost{PerByte: 450, Base: 512 << 10}
