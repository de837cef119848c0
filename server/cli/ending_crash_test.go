package cli_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The agent may not go on after a restart. Its tool writes down the payment and then takes long.
const endingConfig = `{
	"auth": {"kind": "none"}, "storage": {"path": "data.db"}, "observability": {"logger": "silent"}, "server": {"rateLimit": {"enabled": false}},
	"providers": {"p": {"kind": "scripted", "script": "script.json"}},
	"tools": {"pay": {"kind": "exec", "description": "pays", "command": ["sh", "-c", "echo paid >> effects; sleep 30"], "approval": "never"}},
	"agents": {
		"payer": {"kind": "llm", "provider": "p", "model": "payer", "tools": ["pay"], "recovery": "fail"},
		"desk": {"kind": "llm", "provider": "p", "model": "desk", "subAgents": ["payer"], "recovery": "fail"}
	}
}`

// A kill during a payment: nobody is told that the run merely failed. What may have happened waits for a person, and the
// children of the run end with it.
func TestKillDuringACall(t *testing.T) {
	t.Parallel()
	for _, agent := range []string{"payer", "desk"} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "agentd.json"), endingConfig)
		write(t, filepath.Join(dir, "script.json"), `{"turns": [
			{"when": {"model": "desk", "step": 0}, "toolCalls": [{"name": "subagent_payer", "args": {"input": "pay"}}]},
			{"when": {"step": 0}, "toolCalls": [{"name": "pay", "args": {}}]}, {"text": "told"}]}`)
		s := serve(t, dir)
		var started struct{ RunID string }
		if code := s.call("POST", "/agents/"+agent+"/stream", `{"input": "go"}`, &started); code != http.StatusAccepted {
			t.Fatalf("start = %d", code)
		}
		eventually(t, "the payment", func() bool { b, _ := os.ReadFile(filepath.Join(dir, "effects")); return len(b) > 0 })
		s.signal(syscall.SIGKILL)
		s.wait()

		s = serve(t, dir)
		var waits struct {
			Approvals []struct{ RunID, ToolCallID, SubRunToolCallID, ToolName, Reason string }
		}
		if s.call("GET", "/approvals", "", &waits); len(waits.Approvals) != 1 || waits.Approvals[0].RunID != started.RunID || waits.Approvals[0].Reason != "outcome-unknown" {
			t.Fatalf("%s: GET /approvals = %+v, want the payment that may have happened", agent, waits)
		}
		var told struct {
			Status string
			Error  struct{ Code, Hint string }
		}
		if s.call("GET", "/runs/"+started.RunID+"/state", "", &told); told.Status != "awaiting_approval" || told.Error.Code != "server-restarted" || strings.Contains(told.Error.Hint, "again") {
			t.Errorf("%s: the run is %+v, want it to wait with the reason why it ends, and no advice to start it again", agent, told)
		}
		decide(http.DefaultClient, s.url, started.RunID, []pendingCall{{waits.Approvals[0].ToolCallID, waits.Approvals[0].SubRunToolCallID, "outcome-unknown"}})
		if s.call("GET", "/runs/"+started.RunID+"/state", "", &told); told.Status != "failed" || told.Error.Code != "server-restarted" {
			t.Errorf("%s: after the denial, the run is %+v, want it failed as it was going to", agent, told)
		}
		for _, status := range []string{"running", "awaiting_approval"} {
			var open struct{ Runs []run }
			if s.call("GET", "/runs?status="+status+"&parent="+started.RunID, "", &open); len(open.Runs) != 0 {
				t.Errorf("%s: a child is still %s", agent, status)
			}
		}
		if got := read(t, filepath.Join(dir, "effects")); got != "paid\n" {
			t.Errorf("%s: effects = %q, want one payment", agent, got)
		}
		s.signal(syscall.SIGTERM)
		s.wait().want(t, 0, "", "")
	}
}
