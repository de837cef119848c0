package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"agentd/server"
	"agentd/server/config"
)

// tracingConfig has an agent that calls another agent, a tool that waits for a person and is redirected, and a workflow. %s is
// the address of everything.
const tracingConfig = `{
  "server": {"port": 0, "rateLimit": {"enabled": false}}, "storage": {"path": "x.db"}, "auth": {"kind": "none"},
  "providers": {"web": {"kind": "openai-compatible", "baseUrl": "%[1]s/model", "retries": 0}},
  "tools": {
    "pay": {"kind": "http", "description": "d", "url": "%[1]s/pay", "method": "POST", "approval": "always", "allowHosts": ["%[2]s"]}},
  "workflows": {"flow": {"description": "d", "start": "ask", "nodes": {"ask": {"kind": "agent", "agent": "leaf", "input": "hi", "next": "end"}}}},
  "agents": {
    "boss": {"kind": "llm", "provider": "web", "model": "boss", "tools": ["pay", "workflow:flow"], "subAgents": ["leaf"]},
    "leaf": {"kind": "llm", "provider": "web", "model": "leaf"}}}`

// caller is what a request of one trace carries.
const (
	tracingID     = "4bf92f3577b34da6a3ce929d0e0e4736"
	tracingParent = "00f067aa0ba902b7"
)

// otlpSpans is what an export says, by the ids of the spans.
type otlpSpan struct {
	TraceID, SpanID, ParentSpanID, TraceState, Name string
	Kind, Flags                                     int
	Links                                           []struct{ TraceID, SpanID string }
	Attributes                                      []struct {
		Key   string
		Value struct{ StringValue, IntValue string }
	}
}

func (s *otlpSpan) get(key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value.StringValue + a.Value.IntValue
		}
	}
	return ""
}

func otlpOf(t *testing.T, export string) map[string]*otlpSpan {
	t.Helper()
	all := map[string]*otlpSpan{}
	for line := range strings.Lines(export) {
		var doc struct {
			ResourceSpans []struct{ ScopeSpans []struct{ Spans []*otlpSpan } }
		}
		if err := json.Unmarshal([]byte(line), &doc); err != nil {
			t.Fatalf("the line %s: %v", line, err)
		}
		for _, s := range doc.ResourceSpans[0].ScopeSpans[0].Spans {
			if all[s.SpanID] != nil {
				t.Errorf("the span %s is there twice", s.SpanID)
			}
			all[s.SpanID] = s
		}
	}
	return all
}

// TestTracing follows a trace through a request, its run, the runs below it, a restart, what they call, and an export.
func TestTracing(t *testing.T) {
	t.Parallel()
	beyond := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if v := r.Header.Get("traceparent") + r.Header.Get("tracestate"); v != "" {
			t.Errorf("a redirect to another host carries %s", v)
		}
		io.WriteString(w, "paid")
	}))
	defer beyond.Close()
	var mu sync.Mutex
	got := map[string][]string{} // traceparent, by path and model
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Model    string
			Messages []struct {
				Role    string
				Content any
			}
		}
		json.NewDecoder(r.Body).Decode(&body) //nolint:errcheck // the tool's is another
		mu.Lock()
		got[r.URL.Path[:4]+body.Model] = append(got[r.URL.Path[:4]+body.Model], r.Header.Get("traceparent"))
		mu.Unlock()
		if v := r.Header.Get("tracestate"); (v == "rojo=1") != strings.Contains(r.Header.Get("traceparent"), tracingID) {
			t.Errorf("%s of %s is sent the tracestate %q", r.URL.Path, body.Model, v)
		}
		if r.URL.Path == "/pay" {
			http.Redirect(w, r, beyond.URL, http.StatusTemporaryRedirect)
			return
		}
		if body.Messages[len(body.Messages)-1].Content == "fail" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		calls := ""
		if body.Model == "boss" && body.Messages[len(body.Messages)-1].Role == "user" {
			for i, name := range []string{"pay", "workflow_flow", "subagent_leaf"} {
				calls += fmt.Sprintf(`,{"id":"c%d","type":"function","function":{"name":%q,"arguments":"{\"input\":\"x\"}"}}`, i, name)
			}
			calls = `,"tool_calls":[` + calls[1:] + `]`
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"model":"m","choices":[{"message":{"role":"assistant","content":"done"%s},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`, calls)
	}))
	defer web.Close()
	cfg, err := config.Parse(fmt.Appendf(nil, tracingConfig, web.URL, strings.TrimPrefix(beyond.URL, "http://")), config.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	var base string
	start := func() *server.Server {
		srv, err := server.New(server.Options{Config: cfg, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		if err != nil {
			t.Fatal(err)
		}
		addr, err := srv.Start(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		base = "http://" + addr.String() + "/v1"
		return srv
	}
	ask := func(method, path, body string, headers ...string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(text)
	}
	send := func(method, path, body string, headers ...string) string {
		t.Helper()
		status, text := ask(method, path, body, headers...)
		if status != http.StatusOK {
			t.Fatalf("%s %s = %d %s, want 200", method, path, status, text)
		}
		return text
	}
	srv := start()
	var run struct {
		RunID, Status string
		Result        struct {
			Output json.RawMessage
			State  struct{ PendingApprovals []struct{ ToolCallID string } }
		}
	}
	text := send("POST", "/agents/boss/run", `{"input":"go"}`, "traceparent", "00-"+tracingID+"-"+tracingParent+"-01", "tracestate", "rojo=1", "X-Request-Id", "first")
	if err := json.Unmarshal([]byte(text), &run); err != nil || len(run.Result.State.PendingApprovals) != 1 {
		t.Fatalf("the run answers %s, want one approval", text)
	}
	if err := srv.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	srv = start()
	defer func() { srv.Shutdown(context.Background()) }() //nolint:errcheck // the test is over
	text = send("POST", "/runs/"+run.RunID+"/resume", fmt.Sprintf(`{"approvals":[{"toolCallId":%q,"granted":true}]}`, run.Result.State.PendingApprovals[0].ToolCallID),
		"traceparent", "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-00", "X-Request-Id", "second")
	if !strings.Contains(text, `"completed"`) {
		t.Fatalf("the resumption answers %s", text)
	}

	export := send("GET", "/spans/export", "")
	if dir := os.Getenv("AGENTD_OTLP"); dir != "" { // where OpenTelemetry's own code is
		file := filepath.Join(t.TempDir(), "spans.jsonl")
		if err := os.WriteFile(file, []byte(export), 0o600); err != nil {
			t.Fatal(err)
		}
		said, err := exec.CommandContext(t.Context(), "node", filepath.Join(dir, "check.cjs"), file).CombinedOutput()
		if err != nil {
			t.Errorf("check.cjs: %v: %s", err, said)
		}
		t.Logf("%s", said)
	}
	all := otlpOf(t, export)
	types := map[string]int{}
	var linked int
	for _, s := range all {
		types[s.get("agentd.span.type")]++
		root := s.ParentSpanID == tracingParent
		if s.TraceID != tracingID || s.TraceState != "rojo=1" || s.Flags&1 == 0 || !root && all[s.ParentSpanID] == nil {
			t.Errorf("a span is %+v, want one of the caller's trace, below another", *s)
		}
		if root && (s.get("run.id") != run.RunID || s.Kind != 2 || s.Flags != 0x301) {
			t.Errorf("the span below the caller's is %+v, want that of the run", *s)
		}
		for _, l := range s.Links {
			linked++
			if l.TraceID != strings.Repeat("a", 32) || l.SpanID != strings.Repeat("b", 16) || s.Name != "resume" {
				t.Errorf("the span %+v is linked", *s)
			}
		}
	}
	if types["agent.run"] != 4 || types["provider.stream"] != 4 || linked != 1 {
		t.Errorf("the export has %v and %d links, want 4 runs and model calls, and a link", types, linked)
	}
	mu.Lock()
	for what, parents := range got {
		for _, parent := range parents {
			id := strings.TrimSuffix(strings.TrimPrefix(parent, "00-"+tracingID+"-"), "-01")
			s := all[id]
			if s == nil {
				t.Errorf("%s is sent %q, which names no span", what, parent)
			} else if typ := s.get("agentd.span.type"); typ != "provider.stream" && typ != "tool.execute" || typ == "tool.execute" != (what == "/pay") {
				t.Errorf("%s is sent the id of %+v", what, *s)
			}
			if s != nil {
				delete(all, id) // each is sent once
			}
		}
	}
	if len(got["/modboss"]) != 2 || len(got["/modleaf"]) != 2 || len(got["/pay"]) != 1 {
		t.Errorf("models and tools were called with %v", got)
	}
	mu.Unlock()

	one := otlpOf(t, send("GET", "/spans/export?runId="+run.RunID, ""))
	if n := len(one); n == 0 || n >= len(all)+5 {
		t.Errorf("the export of the run has %d spans, want fewer than all", n)
	}
	for _, query := range []string{"?until=1", "?since=2100-01-01"} {
		if text := send("GET", "/spans/export"+query, ""); text != "" {
			t.Errorf("the export with %s has %s", query, text)
		}
	}
	// The caller's own headers show in the replay, too, and what is not valid is none.
	if text := send("POST", "/runs/"+run.RunID+"/replay", "{}"); !strings.Contains(text, `"traceId":"`+tracingID+`"`) {
		t.Errorf("the replay is %s", text)
	}
	text = send("POST", "/agents/leaf/run", `{"input":"go"}`, "traceparent", "00-"+tracingID+"-"+tracingParent+"-0", "tracestate", "rojo=1")
	if err := json.Unmarshal([]byte(text), &run); err != nil || run.Status != "completed" || len(got["/modleaf"]) != 3 || strings.Contains(got["/modleaf"][2], tracingID) {
		t.Errorf("a run with a traceparent that is not valid answers %s", text)
	}
	if status, text := ask("POST", "/agents/leaf/run", `{"input":"fail"}`, "traceparent", "00-"+tracingID+"-"+tracingParent+"-01", "tracestate", "rojo=1",
		"X-Request-Id", "third"); status == http.StatusOK {
		t.Errorf("a run whose model fails answers %s", text)
	}
	for _, line := range []string{`msg=request request=first trace=` + tracingID + " ", `msg=request request=second trace=aaaa`,
		`msg="model call failed" request=third trace=` + tracingID + " run="} {
		if !strings.Contains(log.String(), line) {
			t.Errorf("the log lacks %s", line)
		}
	}
}
