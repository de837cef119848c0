package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// evidenceReport is what `agentd evidence verify --json` tells.
type evidenceReport struct {
	OK         bool
	RunID      string
	Problems   []struct{ Member, Problem string }
	StartedBy  string
	StartEntry int64
	Members    int
	Decisions  int
	Asked      int
	Omitted    int
	Entries    int
	Key        string
	Checkpoint *struct{ Size int64 }
}

func newEvidenceSite(t *testing.T, auditing string) string {
	t.Helper()
	dir := newGatedSite(t)
	write(t, filepath.Join(dir, "agentd.json"), strings.NewReplacer(`"auth": {"kind": "none"}`,
		`"auth": {"pepperRef": "file:pepper"}, "audit": {"passphraseRef": "file:phrase", `+auditing+`}`,
		`"model": "m",`, `"model": "m", "instructions": "operator-secret",`).Replace(gatedSite))
	write(t, filepath.Join(dir, "pepper"), "0123456789abcdef0123456789ABCDEF")
	write(t, filepath.Join(dir, "phrase"), "correct horse battery staple\n")
	return dir
}

// asks starts a run that asks for an approval, and waits until it does.
func (s *listener) asks(to string) (runID string) {
	s.t.Helper()
	var started struct{ RunID string }
	if status := s.call("POST", "/agents/clerk/run", `{"input":"`+to+`"}`, &started); status/100 != 2 {
		s.t.Fatalf("POST /agents/clerk/run = %d, want it to start", status)
	}
	s.until(started.RunID, "awaiting_approval")
	return started.RunID
}

// decides decides on the call that a run waits for, and waits for the end.
func (s *listener) decides(runID string, granted bool) {
	s.t.Helper()
	var state struct{ PendingApprovals []struct{ ToolCallID string } }
	s.call("GET", "/runs/"+runID+"/state", "", &state)
	if len(state.PendingApprovals) != 1 {
		s.t.Fatalf("the run waits for %v, want one call", state.PendingApprovals)
	}
	body, _ := json.Marshal(map[string]any{"approvals": []map[string]any{{"toolCallId": state.PendingApprovals[0].ToolCallID, "granted": granted}}})
	if status := s.call("POST", "/runs/"+runID+"/resume", string(body), nil); status/100 != 2 {
		s.t.Fatalf("POST resume = %d, want 2xx", status)
	}
	s.until(runID, "completed")
}

// approved starts a run and grants what it asks for.
func (s *listener) approved(to string) (runID string) {
	s.t.Helper()
	runID = s.asks(to)
	s.decides(runID, true)
	return runID
}

func (s *listener) until(runID, status string) {
	s.t.Helper()
	eventually(s.t, "the run "+status, func() bool { return s.status(runID) == status })
}

func TestEvidence(t *testing.T) {
	dir := newEvidenceSite(t, `"enabled": true, "checkpoint": {"intervalMs": 1000}`)
	t.Chdir(dir)
	srv := serve(t, dir)
	srv.token = adminToken(t)
	id, other := srv.approved("ann"), srv.approved("bob")

	// Beside the server that runs, once a checkpoint has come.
	eventually(t, "a checkpoint", func() bool { return here(t, "evidence", id, "-o", "ann.evidence").code == 0 })
	eventually(t, "a checkpoint", func() bool { return here(t, "evidence", other, "-o", "bob.evidence").code == 0 })
	if fi, err := os.Stat("ann.evidence"); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("ann.evidence: %v, %v; want the mode 0600", fi, err)
	}
	if again := here(t, "evidence", id).want(t, 0, "svc-evidence/1.2", "").stdout; again != read(t, "ann.evidence") {
		t.Error("the same run, chain and checkpoint gave other bytes")
	} else if strings.Contains(again, "operator-secret") || !strings.Contains(again, `"withheld":true`) {
		t.Error("the bundle has the instructions of the agent, want them withheld")
	}
	write(t, "audit.pem", here(t, "audit", "key").want(t, 0, "PUBLIC KEY", "").stdout)
	srv.signal(syscall.SIGTERM)
	srv.wait().want(t, 0, "", "")

	// Elsewhere, without anything else.
	away := t.TempDir()
	for _, name := range []string{"ann.evidence", "bob.evidence", "audit.pem"} {
		write(t, filepath.Join(away, name), read(t, name))
	}
	t.Chdir(away)
	var report evidenceReport
	here(t, "evidence", "verify", "ann.evidence", "--json").want(t, 0, `"ok": true`, "").decode(t, &report)
	if report.RunID != id || report.Decisions != 1 || report.Asked != 0 || !strings.HasPrefix(report.StartedBy, "token:") || report.StartEntry == 0 || report.Entries < 5 || report.Checkpoint == nil || report.Key != "bundle" {
		t.Errorf("evidence verify = %+v, want the run %s with its decision", report, id)
	}
	here(t, "evidence", "verify", "bob.evidence", "--public-key", "audit.pem").want(t, 0, "the one that was given", "")
	with(t, t.Context(), read(t, "ann.evidence"), nil, "evidence", "verify", "-").want(t, 0, "whole", "")

	whole := read(t, "ann.evidence")
	write(t, "changed", strings.Replace(whole, `"granted":true`, `"granted":trUe`, 1))
	here(t, "evidence", "verify", "changed").want(t, 1, "it was altered", "")
	write(t, "longer", strings.Replace(whole, `"granted":true`, `"granted": true`, 1))
	here(t, "evidence", "verify", "longer", "--json").want(t, 1, `"member": "calls"`, "").decode(t, &report)
	if len(report.Problems) != 1 || report.Members != 2 || report.RunID != id {
		t.Errorf("evidence verify of a longer member = %+v, want one named and the 2 before it unharmed", report)
	}
	write(t, "cut", whole[:len(whole)-10])
	here(t, "evidence", "verify", "cut").want(t, 1, "entries:   it was altered, cut off", "")
	here(t, "evidence", "verify", "none").want(t, 1, "", "Check the name.")
	here(t, "evidence", "verify", "ann.evidence", "--public-key", "cut").want(t, 2, "", "it is not PEM")
	here(t, "evidence", "verify").want(t, 2, "", "")
	here(t, "help", "evidence").want(t, 0, "evidence RUN", "")
}

// TestEvidenceOfAnyRun takes runs that wait, were denied, were aborted and went on in another server.
func TestEvidenceOfAnyRun(t *testing.T) {
	dir := newEvidenceSite(t, `"enabled": true`)
	t.Chdir(dir)
	srv := serve(t, dir)
	srv.token = adminToken(t)
	waits, refused, aborted, later := srv.asks("ann"), srv.asks("bob"), srv.asks("cal"), srv.asks("dan")
	srv.decides(refused, false)
	if status := srv.call("POST", "/runs/"+aborted+"/abort", `{}`, nil); status/100 != 2 {
		t.Fatalf("POST abort = %d, want 2xx", status)
	}
	srv.until(aborted, "aborted")
	srv.signal(syscall.SIGTERM)
	srv.wait().want(t, 0, "", "")
	second := serve(t, dir)
	second.token = srv.token
	second.decides(later, true)
	second.signal(syscall.SIGTERM)
	second.wait().want(t, 0, "", "")

	for _, tt := range []struct {
		name, run, holds  string
		decisions, starts int
	}{
		{"waits", waits, `"status":"waiting"`, 0, 1},
		{"denied", refused, `"status":"denied"`, 1, 1},
		{"aborted", aborted, `"actor":{"id":"abort","kind":"system"}`, 0, 1},
		{"went on", later, `"status":"granted"`, 1, 2},
	} {
		text := here(t, "evidence", tt.run).want(t, 0, "", "").stdout
		var report evidenceReport
		with(t, t.Context(), text, nil, "evidence", "verify", "-", "--json").want(t, 0, `"ok": true`, "").decode(t, &report)
		if n := strings.Count(text, `"entry":{"action":"server:start"`); n != tt.starts || report.Decisions != tt.decisions || report.RunID != tt.run {
			t.Errorf("%s: %d starts and %+v, want %d and %d decisions", tt.name, n, report, tt.starts, tt.decisions)
		}
		if !strings.Contains(text, tt.holds) {
			t.Errorf("%s: the bundle has no %s", tt.name, tt.holds)
		}
	}

	// Who only looks at a run does not keep it from being shown.
	third := serve(t, dir)
	third.token = srv.token
	third.status(later)
	third.status(later)
	var report evidenceReport
	text := here(t, "evidence", later).want(t, 0, `"omitted":2,`, "").stdout
	with(t, t.Context(), text, nil, "evidence", "verify", "-", "--json").want(t, 0, `"ok": true`, "").decode(t, &report)
	if n := strings.Count(text, `"entry":{"action":"server:start"`); n != 2 || report.Decisions != 1 || report.Omitted != 2 {
		t.Errorf("while somebody looks at it: %d starts and %+v, want 2, the decision, and what was looked at left out", n, report)
	}
	third.signal(syscall.SIGTERM)
	third.wait().want(t, 0, "", "")
}

// TestEvidenceNotYet writes nothing where something is lacking, and says what.
func TestEvidenceNotYet(t *testing.T) {
	dir := newEvidenceSite(t, `"enabled": true`)
	t.Chdir(dir)
	srv := serve(t, dir)
	srv.token = adminToken(t)
	id := srv.approved("ann")
	write(t, "kept", "as it was")
	here(t, "evidence", id, "-o", "kept").want(t, 1, "", "evidence-uncovered").want(t, 1, "", "Wait 1m0s")
	here(t, "evidence", "none", "-o", "kept", "--json").want(t, 1, `"error": "run-not-found"`, "")
	srv.signal(syscall.SIGTERM)
	srv.wait().want(t, 0, "", "")
	if got := read(t, "kept"); got != "as it was" {
		t.Errorf("kept = %q, want it as it was", got)
	}
	here(t, "evidence", id, "-o", "made").want(t, 0, "Wrote the evidence about run "+id, "")

	for audit, want := range map[string]string{
		`"enabled": false`:                      "audit.enabled is false",
		`"enabled": true, "path": "another.db"`: "Switch `audit.enabled` on",
	} {
		write(t, "agentd.json", read(t, filepath.Join(newEvidenceSite(t, audit), "agentd.json")))
		here(t, "evidence", id).want(t, 1, "", want)
	}
}

// TestEvidenceByRequests shows decisions by the requests that made them, where no tool events were recorded. A command
// without a server makes such a request, too.
func TestEvidenceByRequests(t *testing.T) {
	dir := newEvidenceSite(t, `"enabled": true, "toolEvents": "off"`)
	t.Chdir(dir)
	srv := serve(t, dir)
	srv.token = adminToken(t)
	granted, refused, local := srv.approved("ann"), srv.asks("bob"), srv.asks("cal")
	srv.decides(refused, false)
	srv.signal(syscall.SIGTERM)
	srv.wait().want(t, 0, "", "")
	here(t, "runs", "approve", local).want(t, 0, "", "")
	for _, run := range []string{granted, refused, local} {
		text := here(t, "evidence", run).want(t, 0, `"toolEvents":"off"`, "").stdout
		var report evidenceReport
		with(t, t.Context(), text, nil, "evidence", "verify", "-", "--json").want(t, 0, `"ok": true`, "").decode(t, &report)
		if report.Decisions != 1 || report.Asked != 1 || report.StartEntry == 0 {
			t.Errorf("evidence verify = %+v, want one decision, which only a request tells of", report)
		}
		with(t, t.Context(), text, nil, "evidence", "verify", "-").want(t, 0, "tool events:  not recorded: 1 decisions", "")
	}
}
