package server_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"

	"agentd/server"
	"agentd/server/agent"
	"agentd/server/config"
)

// TestRefusedConnectionsAreLogged lets a tool be redirected to a host that nobody has named.
func TestRefusedConnectionsAreLogged(t *testing.T) {
	t.Parallel()
	beyond := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a host was reached that nobody has named") }))
	defer beyond.Close()
	web := httptest.NewServer(http.RedirectHandler(beyond.URL, http.StatusFound))
	defer web.Close()
	cfg, err := config.Parse(fmt.Appendf(nil, `{"storage": {"path": "x.db"}, "auth": {"kind": "none"},
		"providers": {"fake": {"kind": "scripted", "script": "turns.json"}},
		"tools": {"web": {"kind": "http", "description": "d", "sideEffect": "read-only", "url": %q}},
		"agents": {"user": {"kind": "llm", "provider": "fake", "model": "m", "tools": ["web"]}}}`, web.URL), config.Options{Dir: t.TempDir(),
		Files: fstest.MapFS{"turns.json": {Data: []byte(`{"turns": [{"when": {"step": 0}, "toolCalls": [{"name": "web", "args": {}}]}, {"text": "{{lastTool}}"}]}`)}}})
	if err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	local, err := server.Open(t.Context(), server.Options{Config: cfg, Logger: slog.New(slog.NewTextHandler(&log, nil))}, server.Run, false)
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	h, err := local.Engine().Start(t.Context(), agent.StartRequest{AgentID: "user", Input: json.RawMessage(`"go"`)})
	if err != nil {
		t.Fatal(err)
	}
	res, err := h.Wait(t.Context())
	if err != nil || !strings.Contains(string(res.Output), "which is not allowed") {
		t.Errorf("the run ended with %s, %v, want the refusal", res.Output, err)
	}
	if said := log.String(); !strings.Contains(said, `msg="outbound connection refused" setting=tools.web.url target=`+strings.TrimPrefix(beyond.URL, "http://")) {
		t.Errorf("the log tells %q, want the refusal", said)
	}
}
