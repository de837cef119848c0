package server_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"agentd/server"
	"agentd/server/agent"
	"agentd/server/config"
)

// hiddenConfig declares everything that is given a secret and gives it away: %s is the address of gossip.
const hiddenConfig = `{
  "server": {"port": 0, "rateLimit": {"enabled": false}}, "storage": {"path": "data/x.db"}, "auth": {"kind": "none"},
  "providers": {
    "fake": {"kind": "scripted", "script": "turns.json"},
    "body": {"kind": "openai-compatible", "baseUrl": "%[1]s/body/v1", "apiKeyRef": "file:key-provider", "headers": {"X-Other": {"ref": "file:key-header"}}, "retries": 1},
    "stream": {"kind": "openai-compatible", "baseUrl": "%[1]s/stream/v1", "apiKeyRef": "file:key-provider", "retries": 0},
    "text": {"kind": "openai-compatible", "baseUrl": "%[1]s/text/v1", "apiKeyRef": "file:key-provider", "retries": 0}},
  "tools": {
    "program": {"kind": "exec", "description": "d", "sideEffect": "read-only", "command": ["/bin/sh", "-c", "echo \"no luck with $KEY\" >&2; exit 3"],
      "env": {"KEY": {"ref": "file:key-tool"}}},
    "long": {"kind": "exec", "description": "d", "sideEffect": "read-only", "command": ["/bin/sh", "-c", "printf %%s \"$KEY\" >&2; head -c 4080 /dev/zero | tr '\\0' x >&2; exit 3"],
      "env": {"KEY": {"ref": "file:key-tool"}}},
    "web": {"kind": "http", "description": "d", "sideEffect": "read-only", "url": "%[1]s/tool", "headers": {"Authorization": {"ref": "file:key-web"}}},
    "cut": {"kind": "http", "description": "d", "sideEffect": "read-only", "url": "%[1]s/cut", "headers": {"Authorization": {"ref": "file:key-web"}}}},
  "agents": {
    "user": {"kind": "llm", "provider": "fake", "model": "m", "tools": ["program", "long", "web", "cut"], "record": true},
    "body": {"kind": "llm", "provider": "body", "model": "m", "record": true, "fallbacks": [{"provider": "stream", "model": "n"}]},
    "stream": {"kind": "llm", "provider": "stream", "model": "m"},
    "text": {"kind": "llm", "provider": "text", "model": "m"},
    "program": {"kind": "exec", "command": ["/bin/sh", "-c", "echo \"it was $KEY\" >&2; exit 1"], "env": {"KEY": {"ref": "file:key-agent"}}},
    "lines": {"kind": "exec", "protocol": "jsonl", "command": ["/bin/sh", "-c", "echo \"it was $KEY\" >&2; exit 1"], "env": {"KEY": {"ref": "file:key-agent"}}},
    "web": {"kind": "http", "url": "%[1]s/agent", "headers": {"X-Key": {"ref": "file:key-http"}}, "hmacRef": "file:key-hmac"}}}`

const hiddenTurns = `{"turns": [
  {"when": {"step": 0}, "toolCalls": [{"name": "program", "args": {}}, {"name": "long", "args": {}}, {"name": "web", "args": {}}, {"name": "cut", "args": {}}]},
  {"text": "done"}]}`

// gossip answers every request with an error that tells its credentials, in every way it can think of.
func gossip(w http.ResponseWriter, r *http.Request) {
	said := ""
	for _, name := range []string{"Authorization", "X-Other", "X-Key"} {
		if v := strings.TrimPrefix(r.Header.Get(name), "Bearer "); v != "" {
			said += fmt.Sprintf(" %s, %s, %s, %s;", v, base64.StdEncoding.EncodeToString([]byte("me:"+v)), url.QueryEscape(v), base64.RawURLEncoding.EncodeToString([]byte(v)))
		}
	}
	message, _ := json.Marshal(map[string]any{"error": map[string]string{"message": said}})
	switch part := strings.Split(r.URL.Path, "/")[1]; part {
	case "stream":
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: %s\n\n", message)
	case "body":
		w.WriteHeader(http.StatusServiceUnavailable) // which is tried again, and then left to the fallback
		w.Write(message)
	case "cut": // what is read of it ends within the secret
		w.WriteHeader(http.StatusForbidden)
		io.WriteString(w, strings.Repeat("x", 2<<10-15)+r.Header.Get("Authorization"))
	default:
		w.WriteHeader(http.StatusForbidden)
		io.WriteString(w, said)
	}
}

// TestSecretsStayHidden plants secrets wherever a configuration can put them, lets everything fail that is given one, and
// looks for them in all that the server says, logs and keeps.
func TestSecretsStayHidden(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	web := httptest.NewServer(http.HandlerFunc(gossip))
	defer web.Close()
	secrets := map[string]string{}
	for _, name := range []string{"provider", "header", "tool", "web", "agent", "http", "hmac"} {
		secrets[name] = "k+/" + rand.Text() + "=?&~" + rand.Text()
		if err := os.WriteFile(filepath.Join(dir, "key-"+name), []byte(secrets[name]+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "turns.json"), []byte(hiddenTurns), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Parse(fmt.Appendf(nil, hiddenConfig, web.URL), config.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	srv, err := server.New(server.Options{Config: cfg, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		t.Fatal(err)
	}
	for id, run := range map[string]func(context.Context, agent.Input) (agent.Result, error){
		"go": func(context.Context, agent.Input) (agent.Result, error) {
			return agent.Result{}, errors.New("refused: " + secrets["agent"])
		},
		"boom": func(context.Context, agent.Input) (agent.Result, error) { panic("with " + secrets["agent"]) }, // which only the log tells
	} {
		if err := srv.Agents().Register(agent.Registration{ID: id, Agent: plain{id, run}}); err != nil {
			t.Fatal(err)
		}
	}
	addr, err := srv.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]string{}
	ask := func(method, path, body string) string {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr.String()+"/v1"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode == 404 || resp.StatusCode == 400 {
			t.Fatalf("%s %s = %d %s, %v", method, path, resp.StatusCode, b, err)
		}
		said[method+" "+path] += string(b)
		return string(b)
	}
	for _, reg := range srv.Agents().Agents() {
		var run struct{ RunID string }
		if err := json.Unmarshal([]byte(ask("POST", "/agents/"+reg.ID+"/run", `{"input": "go", "sessionId": "`+reg.ID+`"}`)), &run); err != nil || run.RunID == "" {
			t.Fatalf("the run of %s has no id (%v)", reg.ID, err)
		}
		state := ask("GET", "/runs/"+run.RunID+"/state", "")
		if reg.ID != "boom" && !strings.Contains(state, "[REDACTED]") {
			t.Errorf("the run of %s tells nothing that was hidden: %s", reg.ID, state)
		}
		ask("GET", "/runs/"+run.RunID+"/events", "")
		ask("POST", "/runs/"+run.RunID+"/replay", `{"raw": true}`)
		ask("GET", "/sessions/"+reg.ID+"/messages", "")
		if reg.LLM != nil && reg.LLM.NewTape != nil {
			ask("GET", "/runs/"+run.RunID+"/cassette", "")
		}
	}
	for _, path := range []string{"/health", "/health/secrets", "/metrics", "/runs", "/agents", "/openapi.json"} {
		ask("GET", path, "")
	}
	if err := srv.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	said["the log"] = log.String()
	for _, part := range []string{"model call failed", "with [REDACTED]"} {
		if !strings.Contains(said["the log"], part) {
			t.Errorf("the log lacks %q:\n%s", part, said["the log"])
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "data", "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files of the database: %v", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		said[file] = string(b)
	}
	for where, text := range said {
		for name, value := range secrets {
			if piece := pieceOf(text, value); piece != "" {
				t.Errorf("%s tells %q of the secret %s", where, piece, name)
			}
		}
	}
}

// pieceOf finds 8 bytes of a secret, or of a form of it, in a text.
func pieceOf(text, value string) string {
	forms := []string{value, url.QueryEscape(value), base64.StdEncoding.EncodeToString([]byte("me:" + value))[8:], base64.RawURLEncoding.EncodeToString([]byte(value))}
	for _, form := range forms {
		for i := range len(form) - 8 {
			if strings.Contains(text, form[i:i+8]) {
				return form[i : i+8]
			}
		}
	}
	return ""
}

// lockedBuffer is what a log has written so far.
type lockedBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
