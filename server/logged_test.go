package server_test

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"agentd/auth"
	"agentd/store/storetest"
)

// shared are lines that belong to no request: several may cause one together, or nobody has asked for it.
var shared = map[string]string{
	"listening":            "the server has started",
	"configuration":        "likewise",
	"storage check failed": "the result of a check is that of all who ask within a second",
	"audit check failed":   "likewise",
	"commit failed":        "a transaction is that of all who write at once",

	"times of last use were not written": "those of all requests of a while are written at once",
}

// TestLogLines sends a request to each route, of a server that works, of one that refuses the caller and of one that cannot write. Each line
// that this causes has the id of the request in it.
func TestLogLines(t *testing.T) {
	t.Parallel()
	s := newSweepOn(t, newRig(t, strings.Replace(sweepConfig, "1000000", "20", 1), nil))
	s.stop()
	var lines lockedBuffer
	s.log = slog.New(slog.NewJSONHandler(&lines, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s.start()
	_, other := s.mint(0, "agents:read:nobody")
	unknown, err := auth.Mint("svc", "live")
	if err != nil {
		t.Fatal(err)
	}
	messages := map[string]int{}
	pass := func(token string) {
		for _, rt := range table() {
			path, _ := s.path(rt)
			s.ask(rt.Method, path, token)
		}
	}
	pass(other)
	pass(string(unknown))
	tables := []string{"runs", "sessions", "auth_tokens", "idempotency_records", "firings", "triggers", "run_events", "threads", "workflow_definitions"}
	breakAll := func(statement string) {
		for _, name := range tables {
			for _, verb := range []string{"INSERT", "UPDATE", "DELETE"} {
				storetest.Behind(t, "file:"+s.cfg.Resolve(s.cfg.Storage.Path)+"?_pragma=busy_timeout(5000)", strings.NewReplacer("NAME", "broken_"+name+"_"+verb, "VERB", verb, "TABLE", name).Replace(statement))
			}
		}
	}
	breakAll("CREATE TRIGGER NAME BEFORE VERB ON TABLE BEGIN SELECT RAISE(ABORT, 'broken'); END")
	pass(s.admin)
	breakAll("DROP TRIGGER NAME")
	pass(s.admin)
	for line := range strings.Lines(lines.String()) {
		var l struct {
			Msg, Request string
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		messages[l.Msg]++
		if shared[l.Msg] == "" && l.Request == "" {
			t.Errorf("a line has no id of a request: %s", line)
		}
	}
	for _, want := range []string{"request", "request failed", "address locked out", "a trigger could not start its run"} {
		if messages[want] == 0 {
			t.Errorf("no line says %q", want)
		}
	}
}
