package provider_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"agentd/server/fault"
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
		p := mustOpenAI(t, provider.OpenAIOptions{Retries: new(0), Transport: exchange(func(r *http.Request) (*http.Response, error) {
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
			if e := asError(t, err); res != nil || e.Message == "" || len([]rune(e.Message)) > 400 || fault.Of(err).Kind.Code != string(e.Kind) {
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
