package cli_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"agentd/server/event"
)

// tailed is a folder with a server whose runs take a while.
func tailed(t *testing.T, auth string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "agentd.json"), `{
		"auth": `+auth+`, "storage": {"path": "data.db"}, "observability": {"logger": "silent"}, "server": {"rateLimit": {"enabled": false}},
		"providers": {"p": {"kind": "scripted", "script": "script.json"}},
		"tools": {"look": {"kind": "exec", "description": "looks", "command": ["sh", "-c", "echo seen"], "sideEffect": "read-only"},
			"gate": {"kind": "exec", "description": "asks first", "command": ["sh", "-c", "echo open"], "approval": "always"}},
		"agents": {"a": {"kind": "llm", "provider": "p", "model": "m", "tools": ["look"]}, "g": {"kind": "llm", "provider": "p", "model": "g", "tools": ["gate"]},
			"bad": {"kind": "exec", "command": ["false"]}}}`)
	write(t, filepath.Join(dir, "script.json"), `{"turns": [
		{"when": {"model": "g", "step": 0}, "toolCalls": [{"name": "gate", "args": {"door": 1}}]},
		{"when": {"model": "g"}, "text": "opened"},
		{"when": {"step": 0}, "text": "The first of two texts.", "chunkSize": 1, "chunkDelayMs": 20, "toolCalls": [{"name": "look", "args": {}}]},
		{"text": "And the second.", "chunkSize": 1, "chunkDelayMs": 40}]}`)
	return dir
}

// begin starts a run and returns its id.
func (s *listener) begin(agent, body string) string {
	s.t.Helper()
	var run struct{ RunID string }
	if status := s.call("POST", "/agents/"+agent+"/stream", body, &run); status != http.StatusAccepted {
		s.t.Fatalf("POST /agents/%s/stream = %d", agent, status)
	}
	return run.RunID
}

// TestTailSurvivesTheServer kills the server while a run and its session are watched.
func TestTailSurvivesTheServer(t *testing.T) {
	t.Parallel()
	dir := tailed(t, `{"kind": "none"}`)
	s := serve(t, dir)
	id := s.begin("a", `{"sessionId":"s"}`)
	text := spawn(t, dir, nil, nil, "tail", id, "--verbose")
	frames := spawn(t, dir, nil, nil, "tail", "session:s/events", "--json")
	eventually(t, "some text", func() bool { return text.stdout.String() != "" && frames.stdout.String() != "" })
	s.signal(syscall.SIGKILL)
	s.wait()
	eventually(t, "the loss", func() bool { return text.stderr.String() != "" && frames.stderr.String() != "" })
	s = serve(t, dir)
	said := text.wait().want(t, 0, "The first of two texts.\nAnd the second.", "Trying again.")
	said.want(t, 0, "", `· look → "seen\n"`)
	// What was said before is not taken back; what is said again stands on a line of its own.
	if before, _, _ := strings.Cut(said.stdout, "\n"); !strings.HasPrefix("The first of two texts.", before) {
		t.Errorf("stdout begins with %q", before)
	}

	eventually(t, "the end of the run", func() bool { return strings.Contains(frames.stdout.String(), `"type":"agent.end"`) })
	frames.signal(syscall.SIGINT)
	said = frames.wait().want(t, 0, "", "agentd: to continue after this event, use --since evt-s-"+id+"-")
	last := wantWhole(t, said.stdout, id)

	from := fmt.Sprintf("evt-s-%s-%s", id, "2")
	rest := spawn(t, dir, nil, nil, "tail", "session:s/events", "--json", "--since", from)
	eventually(t, "the rest", func() bool { return strings.Contains(rest.stdout.String(), last) })
	rest.signal(syscall.SIGINT)
	if first, _, _ := strings.Cut(rest.wait().want(t, 0, "", "").stdout, "\n"); !strings.Contains(first, fmt.Sprintf(`"eventId":"evt-s-%s-3"`, id)) {
		t.Errorf("tail --since %s begins with %s, want number 3", from, first)
	}
	here(t, "tail", id, "--config", filepath.Join(dir, "agentd.json"), "--since", "evt-r-other-1").want(t, 0, "", "some events may be missing or repeated")
	here(t, "tail", "agent:a/runs/"+id+"/events", "--url", s.url+"/").want(t, 0, "The first of two texts.\nAnd the second.", "")
}

// wantWhole checks that lines of frames have every durable event of a run once and in order, and no event twice. It
// returns the id of the last.
func wantWhole(t *testing.T, lines, runID string) (last string) {
	t.Helper()
	seen := map[string]bool{}
	next := 1
	for line := range strings.Lines(lines) {
		var f struct{ V, Kind, EventID string }
		if err := json.Unmarshal([]byte(line), &f); err != nil || f.V != "1" {
			t.Fatalf("line %s: %v", line, err)
		}
		if f.Kind != "event" {
			t.Errorf("frame %s", line)
			continue
		}
		at, ok := event.ParseCursor(f.EventID)
		switch {
		case !ok, seen[f.EventID], at.Run != runID:
			t.Errorf("event %s is twice or of another run", f.EventID)
		case at.Sub == 0 && at.Seq != next:
			t.Errorf("event %s, want number %d", f.EventID, next)
		case at.Sub == 0:
			next++
		}
		seen[f.EventID], last = true, f.EventID
	}
	return last
}

func TestTailTellsHowTheRunEnded(t *testing.T) {
	dir := tailed(t, `{"kind": "none"}`)
	s := serve(t, dir)
	id := s.begin("bad", "{}")
	t.Chdir(dir)
	here(t, "tail", id).want(t, 1, "", "agentd: agent-exited: ")
	here(t, "tail", "session:none/runs/"+id+"/events", "--url", "http://127.0.0.1:1/v1").want(t, 1, "", "agentd: server-unreachable: ")
	if said := here(t, "tail", id, "--json").want(t, 1, `"status":"failed"`, ""); said.stderr != "" || strings.Contains(said.stdout, `{"error"`) {
		t.Errorf("%+v, want frames only: they tell why", said)
	}
	here(t, "tail", id, "--since", "evt-r-"+id+"-3").want(t, 1, "", "agentd: run-failed: The run ended as \"failed\".")

	waiting := s.begin("g", "{}")
	p := spawn(t, dir, nil, nil, "tail", waiting)
	eventually(t, "the request", func() bool { return strings.Contains(p.stderr.String(), "agentd runs approve "+waiting) })
	here(t, "runs", "approve", waiting).want(t, 0, "opened", "")
	p.wait().want(t, 0, "opened", "gate waits for approval:\n  {\n    \"door\": 1\n  }\n")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	with(t, ctx, "", nil, "tail", "agent:a/runs/r/events").want(t, 1, "", "")
	with(t, ctx, "", nil, "tail", "session:s/events").want(t, 0, "", "")
}

func TestTailIsRefused(t *testing.T) {
	dir := tailed(t, `{"pepperRef": "file:pepper"}`)
	write(t, filepath.Join(dir, "pepper"), "0123456789abcdefghijklmnopqrstuvwxyz")
	t.Chdir(dir)
	here(t, "tail", "session:s/events").want(t, 1, "", "agentd: server-unreachable: No server holds the database")
	for _, args := range [][]string{{}, {""}, {"session:*/events"}, {"session:s"}, {"a/b"}, {"session:s/events", "--url", "ws://x/v1"},
		{"session:s/events", "--url", "http://me:secret@x/v1"}, {"session:s/events", "--url", "http:///v1"}, {"session:s/events", "x"}} {
		here(t, slices.Concat([]string{"tail"}, args)...).want(t, 2, "", "agentd: usage: tail: ")
	}
	s := serve(t, dir)
	here(t, "tail", "session:s/events").want(t, 1, "", "agentd: auth-required: The request carries no bearer token.\n  hint: Set AGENTD_TOKEN")
	here(t, "tail", "someRun").want(t, 1, "", "agentd: auth-required: ")
	with(t, t.Context(), "", []string{"AGENTD_TOKEN=garbage"}, "tail", "session:s/events").want(t, 1, "", "agentd: auth-invalid: ")
	narrow := strings.TrimSpace(here(t, "token", "create", "--scope", "agents:read:a").want(t, 0, "svc_", "").stdout)
	env := []string{"AGENTD_TOKEN=" + narrow}
	with(t, t.Context(), "", env, "tail", "session:s/events").want(t, 1, "", "agentd: scope-denied: The request requires the scope sessions:read:s.\n  hint: Use a token")
	var doc struct{ Error string }
	if with(t, t.Context(), "", env, "tail", "session:s/events", "--json").decode(t, &doc); doc.Error != "scope-denied" {
		t.Errorf("error %q, want scope-denied", doc.Error)
	}

	p := spawn(t, dir, nil, env, "tail", "agent:a/runs/r/events", "--url", s.url)
	var list struct {
		Tokens []struct{ ID, Label string }
	}
	here(t, "token", "list", "--json").decode(t, &list)
	eventually(t, "the connection", func() bool {
		res := s.request("GET", "/metrics", "")
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		return err == nil && strings.Contains(string(b), "\nsvc_realtime_connections 1\n")
	})
	here(t, "token", "revoke", list.Tokens[0].ID).want(t, 0, "", "")
	p.wait().want(t, 1, "", "agentd: auth-revoked: ")
}
