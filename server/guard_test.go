package server_test

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"

	"agentd/server"
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
	inside := &http.Client{Transport: &http.Transport{DialContext: local.Dial}}
	res, err := inside.Post("http://inside/v1/agents/user/run", "application/json", strings.NewReader(`{"input":"go"}`))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(text), "which is not allowed") {
		t.Errorf("the run ended with %d %s, %v, want the refusal", res.StatusCode, text, err)
	}
	inside.CloseIdleConnections()
	if said := log.String(); !strings.Contains(said, `msg="outbound connection refused" request=`) || !strings.Contains(said, ` setting=tools.web.url target=`+strings.TrimPrefix(beyond.URL, "http://")) {
		t.Errorf("the log tells %q, want the refusal", said)
	}
}
