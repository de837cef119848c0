package cli_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"agentd/store"
)

// frame is an event of a run as a server sends it: number 3, or the first transient one after it, 3.1.
func frame(number, payload string) string {
	var head struct{ Type string }
	if err := json.Unmarshal([]byte(payload), &head); err != nil {
		panic(err)
	}
	id := fmt.Sprintf("evt-r-run1-%s", number)
	return fmt.Sprintf("event: %s\nid: %s\ndata: {\"v\":\"1\",\"kind\":\"event\",\"eventId\":%q,\"type\":%q,\"payload\":%s}\n\n", head.Type, id, id, head.Type, payload)
}

func lifecycle(status, reason string) string {
	return fmt.Sprintf("event: lifecycle\ndata: {\"v\":\"1\",\"kind\":\"lifecycle\",\"status\":%q,\"reason\":%q}\n\n", status, reason)
}

func end(result string) string {
	return frame("9", `{"type":"agent.end","runId":"run1","result":`+result+`}`)
}

// TestRunOfOtherServers runs against servers that answer what ours does only at bad times, or never.
func TestRunOfOtherServers(t *testing.T) {
	const start = "POST /v1/agents/a/stream"
	const again = "GET /v1/runs/run1/events"
	hello := frame("1", `{"type":"agent.start","runId":"run1"}`) + ": keep-alive\n\n" + frame("2", `{"type":"text.complete","text":"hello"}`)
	for name, tc := range map[string]struct {
		streams        map[string]string // by request; the answer is an event stream
		status         int               // of answers that are none
		answer         string
		code           int
		stdout, stderr string
	}{
		"completed": {streams: map[string]string{start: hello + end(`{"status":"completed","output":"hello"}`) + lifecycle("completed", "")}, stdout: "hello"},
		"waits for approval": {streams: map[string]string{start: hello +
			end(`{"status":"awaiting_approval","state":{"pendingApprovals":[{"toolCallId":"c1","toolName":"deploy","args":{"env":"prod"}}]}}`) + lifecycle("paused", "")},
			code: 3, stdout: "hello", stderr: "deploy waits for approval:\n  {\n    \"env\": \"prod\"\n  }\n  call: c1\n"},
		"fails with a code of a later version": {streams: map[string]string{start: end(`{"status":"failed","error":{"code":"moon-phase","message":"Wrong phase.","hint":"Wait."}}`) + lifecycle("failed", "")},
			code: 1, stderr: "agentd: moon-phase: Wrong phase.\n  hint: Wait.\n"},
		"another model takes over": {streams: map[string]string{start: frame("1", `{"type":"agent.start","runId":"run1"}`) + frame("1.1", `{"type":"text.delta","delta":"hal"}`) +
			frame("2", `{"type":"agent.model.fellback","from":"x","to":"y"}`) + frame("3", `{"type":"text.complete","text":"hello"}`) + end(`{"status":"completed"}`) + lifecycle("completed", "")},
			stdout: "hal\nhello"},
		"cut off and resumed": {streams: map[string]string{start: hello, again: frame("3", `{"type":"text.complete","text":"bye"}`) + end(`{"status":"completed"}`) + lifecycle("completed", "")},
			stdout: "hello\nbye"},
		"cut off for good": {streams: map[string]string{start: hello, again: ""}, code: 1, stdout: "hello", stderr: "Run run1 continues there"},
		"cut off, and not ours any more": {streams: map[string]string{start: hello}, status: 403, answer: `{"error":"scope-denied","message":"No."}`,
			code: 1, stdout: "hello", stderr: "agentd: scope-denied: No."},
		"stops": {streams: map[string]string{start: hello + lifecycle("aborted", "server-shutdown")}, code: 1, stdout: "hello",
			stderr: "agentd: server-draining: The server stops. Run run1 continues when it is back."},
		"no event":      {streams: map[string]string{start: "data: hello\n\n"}, code: 1, stderr: "does not send events of agentd"},
		"no token":      {status: 401, answer: `{"error":"auth-required","message":"None."}`, code: 1, stderr: "hint: Set AGENTD_TOKEN, or"},
		"issues":        {status: 400, answer: `{"error":"config-invalid","message":"Bad.","issues":[{"path":["a",1],"message":"is odd"}]}`, code: 1, stderr: "  - a.1: is odd\n"},
		"is not agentd": {status: 502, answer: `<html>`, code: 1, stderr: "is not agentd: status 502"},
		"redirects":     {status: 307, code: 1, stderr: "is not agentd: status 307"},
		"no SSE":        {status: 202, answer: `{"runId":"run1"}`, code: 1, stderr: "started the run run1, but sends no events"},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if got := r.Header.Get("Authorization"); got != "Bearer secret" {
					t.Errorf("Authorization %q, want the token of AGENTD_TOKEN", got)
				}
				if body, _ := io.ReadAll(r.Body); r.Method == "POST" && string(body) != `{"input":"x","userId":"u"}` {
					t.Errorf("body %s", body)
				}
				if got := r.Header.Get("Last-Event-ID"); got != "" != (r.Method == "GET") || got != "" && got != "evt-r-run1-2" {
					t.Errorf("%s: Last-Event-ID %q, want the last one seen", r.Method, got)
				}
				body, ok := tc.streams[r.Method+" "+r.URL.Path]
				if !ok {
					w.Header().Set("Location", "http://127.0.0.1:1/")
					w.WriteHeader(tc.status)
					io.WriteString(w, tc.answer)
					return
				}
				w.Header().Set("Content-Type", "text/event-stream")
				w.Header().Set("X-Run-Id", "run1")
				io.WriteString(w, body)
			}))
			defer srv.Close()
			hold(t, srv.URL+"/v1")
			s := with(t, t.Context(), "", []string{"AGENTD_TOKEN=secret"}, "run", "--user", "u", "a", "x").want(t, tc.code, "", tc.stderr)
			if s.stdout != tc.stdout || tc.code == 0 && s.stderr != "" {
				t.Errorf("stdout %q and stderr %q, want exactly %q", s.stdout, s.stderr, tc.stdout)
			}
		})
	}
}

func TestRunWhereNobodyListens(t *testing.T) {
	hold(t, "http://127.0.0.1:1/v1")
	here(t, "run", "a", "x").want(t, 1, "", "agentd: server-unreachable: The server at http://127.0.0.1:1/v1 does not answer: connection refused.")
	var doc struct{ Error string }
	if here(t, "run", "a", "x", "--json").decode(t, &doc); doc.Error != "server-unreachable" {
		t.Errorf("error %q, want server-unreachable", doc.Error)
	}
}

// A run whose connection is lost before its answer is asked for again, with the same key; every command has its own.
func TestRunWhoseConnectionIsLost(t *testing.T) {
	var keys []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		switch len(keys) {
		case 1:
			panic(http.ErrAbortHandler)
		case 2:
			w.WriteHeader(http.StatusConflict)
			io.WriteString(w, `{"error":"idempotency-in-flight","message":"Wait."}`)
		default:
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, end(`{"status":"completed","output":"done"}`)+lifecycle("completed", ""))
		}
	}))
	defer srv.Close()
	hold(t, srv.URL)
	here(t, "run", "a", "x").want(t, 0, "done", "")
	here(t, "run", "a", "x").want(t, 0, "done", "")
	if len(keys) != 4 || len(keys[0]) < 8 || keys[0] != keys[1] || keys[1] != keys[2] || keys[2] == keys[3] || keys[3] == "" {
		t.Errorf("the keys are %q, want one for the first three requests and another for the fourth", keys)
	}
}

// Where keys mean nothing, a request is sent once.
func TestRunWithoutKeys(t *testing.T) {
	asked := 0
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if asked++; r.Header["Idempotency-Key"] != nil {
			t.Errorf("Idempotency-Key %q, want none", r.Header["Idempotency-Key"])
		}
		panic(http.ErrAbortHandler)
	}))
	defer srv.Close()
	hold(t, srv.URL)
	write(t, "agentd.json", `{"auth": {"kind": "none"}, "storage": {"path": "data.db"}, "server": {"idempotency": {"enabled": false}}}`)
	if here(t, "run", "a", "x").want(t, 1, "", "server-unreachable"); asked != 1 {
		t.Errorf("the server was asked %d times, want once", asked)
	}
}

// A server that listens everywhere is met on loopback.
func TestRunThroughServerThatListensEverywhere(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, end(`{"status":"completed","output":"from `+r.Host[:9]+`"}`)+lifecycle("completed", ""))
	}))
	defer srv.Close()
	hold(t, strings.Replace(srv.URL, "127.0.0.1", "0.0.0.0", 1))
	here(t, "run", "a", "x").want(t, 0, "from 127.0.0.1", "")
}

// hold makes a folder whose store is held by a server at an address.
func hold(t *testing.T, address string) {
	t.Helper()
	dir := t.TempDir()
	t.Chdir(dir)
	write(t, "agentd.json", `{"auth": {"kind": "none"}, "storage": {"path": "data.db"}}`)
	db, err := store.Open(t.Context(), store.Options{Path: filepath.Join(dir, "data.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if err := db.Announce(store.Holder{Command: "start", Address: address}); err != nil {
		t.Fatal(err)
	}
}
