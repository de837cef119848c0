package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"agentd/server/cli"
	"agentd/server/event"
	"agentd/server/sse"
)

// A seen is one event of a stream.
type seen struct {
	id, typ string
	data    string
}

// follow reads an event stream to its lifecycle frame, or until enough is true.
func follow(t *testing.T, res *http.Response, enough func(seen) bool) (all []seen) {
	t.Helper()
	defer res.Body.Close()
	if ct := res.Header.Get("Content-Type"); res.StatusCode != http.StatusOK || !strings.HasPrefix(ct, "text/event-stream") {
		t.Fatalf("%s %s = %d %s, want an event stream", res.Request.Method, res.Request.URL, res.StatusCode, ct)
	}
	r := sse.NewReader(res.Body, 1<<20)
	for {
		ev, err := r.Next()
		if err != nil {
			t.Fatalf("the stream ended after %v: %v", all, err)
		}
		e := seen{ev.ID, ev.Type, string(ev.Data)}
		if all = append(all, e); e.typ == "lifecycle" || enough(e) {
			return all
		}
	}
}

func never(seen) bool { return false }

// text joins the deltas.
func text(t *testing.T, all []seen) string {
	t.Helper()
	var b strings.Builder
	for _, e := range all {
		var frame struct{ Payload struct{ Delta string } }
		if e.typ == event.TextDelta && json.Unmarshal([]byte(e.data), &frame) == nil {
			b.WriteString(frame.Payload.Delta)
		}
	}
	return b.String()
}

func TestDemo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t, dir, "--dev")
	eventually(t, "one line about where it listens, and what to try", func() bool {
		log := s.stderr.String()
		return strings.Count(log, "level=INFO msg=listening") == 1 && strings.Contains(log, "curl -N "+s.url+"/agents/assistant/stream")
	})

	all := follow(t, s.request("POST", "/agents/assistant/stream", `{"input":"6*7"}`, "Accept", "text/event-stream"), never)
	var types []string
	for _, e := range all {
		if types = append(types, e.typ); e.typ == event.ToolEnd && !strings.Contains(e.data, `"result":{"result":"42","exact":true}`) {
			t.Errorf("the calculator answered %s, want 42", e.data)
		}
	}
	for _, typ := range []string{event.ToolCallEnd, event.ToolStart, event.ToolEnd, event.TextComplete, event.AgentEnd, "lifecycle"} {
		if !strings.Contains(strings.Join(types, " "), typ) {
			t.Errorf("the demo's stream lacks %s: %v", typ, types)
		}
	}
	if got := text(t, all); !strings.Contains(got, `"result":"42"`) {
		t.Errorf("the demo's text = %q, want the calculator's answer in it", got)
	}

	for agent, want := range map[string]string{`shout`: "HELLO", "assistant": "I am a script"} {
		var answer struct{ Result struct{ Output string } }
		if status := s.call("POST", "/agents/"+agent+"/run", `{"input":"hello"}`, &answer); status != 200 || !strings.Contains(answer.Result.Output, want) {
			t.Errorf("POST /agents/%s/run = %d %+v, want %q", agent, status, answer, want)
		}
	}

	// The same agents from the command line, through that server.
	spawn(t, dir, nil, nil, "run", "--dev", "assistant", "What time is it?").wait().want(t, 0, "I asked the clock", "")
	piped := spawn(t, dir, strings.NewReader("line one\nline two"), nil, "run", "--dev", "shout").wait().want(t, 0, "", "")
	if piped.stdout != "LINE ONE\nLINE TWO" {
		t.Errorf("run shout = %q, want the input in upper case and nothing else", piped.stdout)
	}
	events := spawn(t, dir, nil, nil, "run", "--dev", "--json", "assistant", "1/0").wait().want(t, 0, `{"type":"tool.execute.error"`, "")
	if !strings.Contains(events.stdout, `could not read that`) || strings.Contains(events.stdout, "subscriptionId") {
		t.Errorf("run --json through a server = %s, want the events' payloads", events.stdout)
	}
	spawn(t, dir, nil, nil, "run", "--dev", "nobody", "x").wait().want(t, 1, "", "route-handler-missing")

	s.signal(syscall.SIGTERM)
	s.wait().want(t, 0, "", "")
	if _, err := os.Stat(s.ready); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the ready file after a clean stop: %v, want it gone", err)
	}
}

func TestRunThroughServer(t *testing.T) {
	t.Parallel()
	dir := newSite(t)
	s := serve(t, dir)
	s.token = token(t, dir)
	env := []string{"AGENTD_TOKEN=" + s.token}

	spawn(t, dir, nil, nil, "run", "same", "x").wait().want(t, 1, "", "agentd: auth-required: ").want(t, 1, "", "hint: Set AGENTD_TOKEN")
	for _, tc := range []struct {
		agent, input   string
		code           int
		stdout, stderr string
	}{
		{"same", "no line end", 0, "no line end", ""},
		{"mute", "x", 0, "", ""},
		{"json", "x", 0, "{\"n\":1}\n", ""},
		{"twice", "6*7", 0, "Let me see.\nIt is {\"result\":\"42\",\"exact\":true}.", ""},
		{"fail", "x", 1, "half\n", "agentd: agent-exited: The agent's program ended with exit status 3: why"},
	} {
		got := spawn(t, dir, nil, env, "run", tc.agent, tc.input).wait().want(t, tc.code, "", tc.stderr)
		if got.stdout != tc.stdout {
			t.Errorf("run %s through a server: stdout %q, want %q", tc.agent, got.stdout, tc.stdout)
		}
	}
	spawn(t, dir, nil, env, "run", "--session", "*", "same", "x").wait().want(t, 1, "", "config-invalid")

	p := spawn(t, dir, nil, env, "run", "slow", "x")
	eventually(t, "the first text", func() bool { return p.stdout.String() != "" })
	p.signal(syscall.SIGINT)
	p.wait().want(t, 1, "one", "agentd: run-aborted")
	if got := s.runs(); got[0].AgentID != "slow" || got[0].Status != "aborted" {
		t.Errorf("the interrupted run = %v, want it aborted", got[0])
	}

	// When the server is gone, the run is not.
	p = spawn(t, dir, nil, env, "run", "slow", "x")
	eventually(t, "the first text", func() bool { return p.stdout.String() != "" })
	s.signal(syscall.SIGKILL)
	p.wait().want(t, 1, "one", "agentd: server-unreachable: The connection to the server")
}

func TestTokensWhileServerRuns(t *testing.T) {
	t.Parallel()
	dir := newSite(t)
	s := serve(t, dir)
	s.token = token(t, dir)
	if status := s.call("GET", "/agents", "", nil); status != 200 {
		t.Fatalf("GET /agents with a token that was made beside the server = %d, want 200", status)
	}
	var list struct{ Tokens []struct{ ID string } }
	spawn(t, dir, nil, nil, "token", "list", "--json").wait().decode(t, &list)
	if len(list.Tokens) != 1 {
		t.Fatalf("token list = %+v, want one", list)
	}
	spawn(t, dir, nil, nil, "token", "revoke", list.Tokens[0].ID).wait().want(t, 0, "Revoked token", "")
	var refusal struct{ Error string }
	eventually(t, "the end of a revoked token", func() bool { return s.call("GET", "/agents", "", &refusal) == 401 })
	if refusal.Error != "auth-revoked" {
		t.Errorf("a revoked token gets %s, want auth-revoked", refusal.Error)
	}
	s.signal(syscall.SIGINT)
	s.wait().want(t, 0, "", "")
}

func TestKilledServerLosesNoRun(t *testing.T) {
	t.Parallel()
	dir := newSite(t)
	s := serve(t, dir)
	s.token = token(t, dir)
	res := s.request("POST", "/agents/slow/stream", `{"input":"x"}`, "Accept", "text/event-stream")
	runID := res.Header.Get("X-Run-Id")
	before := follow(t, res, func(e seen) bool { return e.typ == event.TextDelta })
	s.signal(syscall.SIGKILL)
	s.wait()

	again := serve(t, dir)
	again.token = s.token
	after := follow(t, again.request("GET", "/runs/"+runID+"/events", ""), never)
	if last := after[len(after)-1]; !strings.Contains(last.data, `"status":"completed"`) || again.status(runID) != "completed" {
		t.Errorf("the run ended with %s and has status %s, want completed", last.data, again.status(runID))
	}
	seq, ids, tools := 0, map[string]bool{}, 0
	for _, e := range after {
		if e.typ == "lifecycle" || e.typ == "replay-marker" {
			continue
		}
		ids[e.id] = true
		cur, ok := event.ParseCursor(e.id)
		if !ok || cur.Run != runID || cur.Seq != seq && cur.Seq != seq+1 || cur.Seq == seq && cur.Sub == 0 {
			t.Errorf("event %s (%s) after number %d, want no gap and no repetition", e.id, e.typ, seq)
		}
		if seq = cur.Seq; e.typ == event.ToolEnd {
			tools++
		}
	}
	if tools != 1 {
		t.Errorf("the tool ended %d times, want once: its outcome was stored before the kill", tools)
	}
	for _, e := range before {
		if !event.Transient(e.typ) && !ids[e.id] {
			t.Errorf("event %s (%s) was delivered before the kill, and is gone", e.id, e.typ)
		}
	}
}

func TestStartRefuses(t *testing.T) {
	t.Parallel()
	dir := newSite(t)
	s := serve(t, dir)
	ready := write(t, filepath.Join(t.TempDir(), "ready.json"), "left behind")
	spawn(t, dir, nil, nil, "start", "--port", "0", "--ready-file", ready).wait().
		want(t, 1, "", fmt.Sprintf("agentd: store-locked: process %d (agentd start) at %s holds the database.", s.cmd.Process.Pid, s.url))
	if _, err := os.Stat(ready); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the ready file of a start that failed: %v, want it gone", err)
	}

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := fmt.Sprint(taken.Addr().(*net.TCPAddr).Port)
	other := newSite(t)
	spawn(t, other, nil, nil, "start", "--port", port).wait().want(t, 1, "", "agentd: bind-failed: Port "+port)
	spawn(t, other, nil, nil, "start", "--port", "http").wait().want(t, 1, "", "server.port")
	spawn(t, other, nil, nil, "start", "--port", "0", "--ready-file", "absent/ready.json").wait().want(t, 1, "", "The file absent/ready.json cannot be written")
	if err := os.Remove(filepath.Join(other, "pepper")); err != nil {
		t.Fatal(err)
	}
	spawn(t, other, nil, nil, "start").wait().want(t, 1, "", "agentd: pre-bind-secret-unresolvable: auth.pepperRef (file:pepper)")
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	dir := newSite(t)
	s := serve(t, dir)
	s.token = token(t, dir)
	follow(t, s.request("POST", "/agents/slow/stream", `{"input":"x"}`, "Accept", "text/event-stream"),
		func(e seen) bool { return e.typ == event.TextDelta })
	s.signal(syscall.SIGTERM)
	var refusal struct{ Error string }
	eventually(t, "the drain", func() bool { return s.call("POST", "/agents/same/run", `{"input":"x"}`, &refusal) == 503 })
	s.signal(syscall.SIGTERM)
	s.wait().want(t, 1, "", "")
}

// TestInProcess goes the way of a server and its client in one process, so that the race detector sees both.
func TestInProcess(t *testing.T) {
	dir := newSite(t)
	t.Chdir(dir)
	raw := strings.TrimSpace(here(t, "token", "create", "--scope", "agents:invoke", "--scope", "agents:read").stdout)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan int, 1)
	var log bytes.Buffer
	go func() {
		done <- cli.Main(ctx, []string{"start", "--port", "0", "--ready-file", "ready.json"}, nil, &log, &log, nil)
	}()
	eventually(t, "the ready file", func() bool { _, err := os.Stat("ready.json"); return err == nil })
	env := []string{"AGENTD_TOKEN=" + raw}
	with(t, t.Context(), "piped", env, "run", "same").want(t, 0, "piped", "")
	aborted, cancel := context.WithCancel(t.Context())
	cancel()
	with(t, aborted, "", env, "run", "slow", "x").want(t, 1, "", "run-aborted")
	with(t, t.Context(), "", env, "run", "twice", "2*3", "--verbose").want(t, 0, `"result":"6"`, "· calculator → ")
	stop()
	if code := <-done; code != 0 {
		t.Errorf("start, stopped by its context, = %d, want 0; log:\n%s", code, log.String())
	}
}
