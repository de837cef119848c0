package cli_test

import (
	"net/http"
	"path/filepath"
	"syscall"
	"testing"
)

const stopConfig = `{
	"auth": {"kind": "none"}, "storage": {"path": "data.db"}, "server": {"shutdown": {"drainTimeoutMs": 300}, "rateLimit": {"enabled": false}},
	"providers": {"p": {"kind": "scripted", "script": "script.json"}},
	"tools": {"pay": {"kind": "exec", "description": "Pays", "command": ["true"], "approval": "always"}},
	"agents": {
		"slow": {"kind": "llm", "provider": "p", "model": "slow"},
		"quick": {"kind": "llm", "provider": "p", "model": "quick"},
		"gated": {"kind": "llm", "provider": "p", "model": "gated", "tools": ["pay"]},
		"program": {"kind": "exec", "command": ["sh", "-c", "echo begun; exec sleep 60"]}
	}
}`

// TestStopWithRunsUnderWay stops a server whose runs are of every kind: what ends in time ends, what can go on goes on
// with the next start, what cannot says so, and what waits keeps waiting.
func TestStopWithRunsUnderWay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "agentd.json"), stopConfig)
	write(t, filepath.Join(dir, "script.json"), `{"turns": [
		{"when": {"model": "slow"}, "text": "slow end", "delayMs": 1500},
		{"when": {"model": "gated"}, "toolCalls": [{"name": "pay", "args": {}}]},
		{"text": "quick end", "delayMs": 100}]}`)
	s := serve(t, dir)
	begin := func(agent string) string {
		var r run
		if status := s.call("POST", "/agents/"+agent+"/stream", "", &r); status != http.StatusAccepted {
			t.Fatalf("POST /agents/%s/stream = %d", agent, status)
		}
		return r.RunID
	}
	gated := begin("gated")
	eventually(t, "the approval", func() bool { return s.status(gated) == "awaiting_approval" })
	program, slow, quick := begin("program"), begin("slow"), begin("quick")
	s.signal(syscall.SIGTERM)
	s.wait().want(t, 0, "", "run left for the next start")

	s = serve(t, dir)
	for id, want := range map[string]string{gated: "awaiting_approval", quick: "completed", program: "aborted"} {
		var state struct {
			Status string
			Error  struct{ Code string }
		}
		s.call("GET", "/runs/"+id+"/state", "", &state)
		if state.Status != want || want == "aborted" && state.Error.Code != "shutdown-timeout" {
			t.Errorf("run %s after the restart: %+v, want %s", id, state, want)
		}
	}
	eventually(t, "the end of the run that was left", func() bool { return s.status(slow) == "completed" })
}
