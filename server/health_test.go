package server_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"agentd/server"
	"agentd/server/health"
	"agentd/triggers"
)

// says asks for the health until it has a text.
func (r *rig) says(want string) {
	r.t.Helper()
	r.eventually("GET", "/v1/health", "", func(a answer) bool {
		if !strings.Contains(a.body, want) {
			time.Sleep(health.Interval / 10)
			return false
		}
		return true
	})
}

// Three calls in a row that fail make a provider a warning, and one that succeeds ends it. The check makes no call.
func TestProviderHealth(t *testing.T) {
	t.Parallel()
	answers := []int{500, 401, 429, 200}
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		status := answers[0]
		answers = answers[1:]
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		io.WriteString(w, `{"id":"1","model":"m","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"Well."}}]}`) //nolint:errcheck // the client may leave
	}))
	defer model.Close()
	r := newRig(t, `{"providers": {"far": {"kind": "openai-compatible", "baseUrl": "`+model.URL+`/v1", "stream": false, "retries": 0}},
		"agents": {"asker": {"kind": "llm", "provider": "far", "model": "m"}}}`, nil)
	ask := func() { r.do("POST", "/v1/agents/asker/run", r.admin, `{"input":"hello"}`) }
	ask()
	ask()
	r.says(`"providers":{"status":"ok","declared":1,"failing":{}}`)
	ask()
	r.says(`"failing":{"far":"rate-limit"}`)
	if len(answers) != 1 {
		t.Errorf("the checks have called the model")
	}
	ask()
	r.says(`"providers":{"status":"ok","declared":1,"failing":{}}`)
}

// Little room on the disk is a warning. So is a database that was written at a time to come.
func TestHealthWarns(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{"health": {"diskWarnThresholdBytes": 4503599627370496}}`, nil)
	r.says(`"storage":{"status":"warn","message":"The file system of the database is nearly full`)
	r.stop()
	r.srv = nil
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(r.cfg.Resolve(r.cfg.Storage.Path), later, later); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.says(`"clock":{"status":"warn","message":"The database was last written at a time that has not come yet`)
}

// A file of secrets that has gone is found before the next start needs it.
func TestSecretsHealth(t *testing.T) {
	t.Setenv("AGENTD_MASTER_PASSPHRASE", "correct horse battery staple")
	r := newRig(t, `{}`, nil)
	r.says(`"secrets":{"status":"ok","activeStore":"encrypted-file"}`) // there is no file yet
	r.stop()
	kept, _, err := server.Secrets(r.cfg, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := kept.Store.Set("key", []byte("hunter2hunter2")); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.says(`"secrets":{"status":"ok","activeStore":"encrypted-file"}`)
	if err := os.Remove(r.cfg.SecretsPath()); err != nil {
		t.Fatal(err)
	}
	r.says(`"secrets":{"status":"warn","message":"The file of secrets cannot be read any more`)
}

// A server that is starting serves, and is not ready.
func TestStartingIsNotReady(t *testing.T) {
	t.Parallel()
	cfg := rigSettings(t, `{}`, nil)
	ask := func(url, path string) (int, string) {
		req, err := http.NewRequest("GET", url+"/v1/health/"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		return answered(t, &http.Client{Timeout: patience}, req)
	}
	srv, err := server.New(server.Options{Config: cfg, Hooks: server.Hooks{OnReady: func(_ context.Context, at server.Address) error {
		if status, body := ask("http://"+at.String(), "ready"); status != 503 || !strings.Contains(body, "starting") {
			t.Errorf("GET /health/ready before the start has ended = %d %s, want 503 and starting", status, body)
		}
		if status, body := ask("http://"+at.String(), "live"); status != 200 {
			t.Errorf("GET /health/live before the start has ended = %d %s, want 200", status, body)
		}
		return nil
	}}})
	if err != nil {
		t.Fatal(err)
	}
	at, err := srv.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Shutdown(context.Background()) //nolint:errcheck // other tests look at it
	if status, body := ask("http://"+at.String(), "ready"); status != 200 || !strings.Contains(body, `"ready"`) {
		t.Errorf("GET /health/ready = %d %s, want 200", status, body)
	}
}

// What has a histogram, a series of its agent or a count in the store is in the metrics once it has happened.
func TestProducers(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{"providers": {"p": {"kind": "scripted", "script": "s.json"}},
		"tools": {"look": {"kind": "exec", "description": "looks", "command": ["true"], "sideEffect": "read-only"}, "pay": {"kind": "exec", "description": "pays", "command": ["true"], "approval": "always"}},
		"agents": {"payer": {"kind": "llm", "provider": "p", "model": "m", "tools": ["look", "pay"]}}}`, fstest.MapFS{"s.json": {Data: []byte(
		`{"turns": [{"when": {"step": 0}, "toolCalls": [{"name": "look", "args": {}}]}, {"when": {"step": 1}, "toolCalls": [{"name": "pay", "args": {}}]}, {"text": "Done."}]}`)}})
	r.do("POST", "/v1/agents/echo/run", r.admin, `{"input":"hello"}`)
	r.do("POST", "/v1/agents/payer/run", r.admin, `{"input":"pay"}`)
	r.eventually("GET", "/v1/metrics", "", func(a answer) bool {
		for _, want := range []string{"svc_approvals_pending 1", `svc_agent_runs_by_agent_total{agent="echo",status="completed"} 1`, "svc_agent_run_latency_seconds_count 1",
			"svc_tool_call_latency_seconds_count 1", `svc_provider_call_latency_seconds_count{model="m"} 2`, "svc_storage_commit_failures_total 0"} {
			if !strings.Contains(a.body, "\n"+want+"\n") {
				return false
			}
		}
		for _, some := range []string{"svc_storage_commit_latency_seconds_count", "svc_storage_changes_total", "svc_http_request_latency_seconds_count", "svc_storage_free_bytes", "process_open_fds", "go_goroutines"} {
			if !strings.Contains(a.body, "\n"+some+" ") || strings.Contains(a.body, "\n"+some+" 0\n") {
				return false
			}
		}
		return true
	})
}

// A trigger that nothing declares any more is reported until it is declared or removed.
func TestTriggersHealth(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{"storage": {"path": "other.db"}}`, nil)
	r.says(`"triggers":{"status":"ok","running":true,"active":0`)
	r.stop()
	srv, err := server.New(server.Options{Config: r.cfg})
	if err != nil {
		t.Fatal(err)
	}
	for _, reg := range testAgents(r.released) {
		if err := srv.Agents().Register(reg); err != nil {
			t.Fatal(err)
		}
	}
	if err := srv.Triggers().Declare("nightly", triggers.Declaration{Kind: "cron", Spec: "0 4 * * *", Agent: "echo"}); err != nil {
		t.Fatal(err)
	}
	if _, err := srv.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := srv.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.says(`"triggers":{"status":"warn","message":"Triggers are stored that nothing declares any more`)
}

// A replay buffer that drops events before their time to make room is a warning.
func TestReplayBufferHealth(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{}`, nil)
	r.says(`"replayBuffer":{"status":"ok"`)
	input := `{"input":"` + strings.Repeat("long ", 600_000) + `"}`
	for range 12 { // the buffer holds 64 MiB
		r.do("POST", "/v1/agents/echo/run", r.admin, input)
	}
	r.says(`"replayBuffer":{"status":"warn","message":"The replay buffer is full`)
}
