package cli_test

import (
	"path/filepath"
	"strings"
	"testing"
)

const workflowSite = `{"auth": {"kind": "none"}, "storage": {"path": "data.db"}, "audit": {"enabled": true, "passphraseRef": "file:phrase"},
	"workflows": {"refund": {"description": "Pays back", "version": "1", "state": {"paid": {}, "word": {}}, "output": "${ {'paid': state.paid} }", "start": "ask", "nodes": {
		"ask": {"kind": "approval", "name": "big", "show": {"n": "${ input.n }"}, "save": "word", "next": "pay"},
		"pay": {"kind": "await", "name": "payment", "save": "paid", "next": "end"}}}}}`

// TestWorkflows takes threads through their lives on the command line, without a server: each command finds what the one before
// has left in the database.
func TestWorkflows(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "agentd.json"), workflowSite)
	write(t, filepath.Join(dir, "phrase"), "correct horse battery staple\n")
	do := func(args ...string) said {
		t.Helper()
		return spawn(t, dir, nil, nil, args...).wait()
	}
	do("workflows", "list").want(t, 0, "refund    1        Pays back", "")
	do("workflows", "show", "refund").want(t, 0, "approval  big", "")
	do("help", "--complete", "--", "workflows", "show", "re").want(t, 0, "refund\n", "")
	do("workflows", "show", "refnd").want(t, 1, "", "Did you mean refund?")
	do("workflows", "graph", "refund", "--format", "dot").want(t, 0, "digraph", "")

	do("workflows", "run", "refund", "{").want(t, 2, "", "not JSON")
	do("workflows", "run", "refund", `{"n": 7}`, "--thread", "t1").want(t, 3, "", "waits for approval")
	do("workflows", "run", "refund", `{"n": 7}`, "--thread", "t1").want(t, 1, "", "checkpoint-version-conflict")
	var state struct {
		State struct{ RunID, Status string }
	}
	do("workflows", "state", "refund", "t1", "--json").want(t, 0, "awaiting_approval", "").decode(t, &state)
	run := state.State.RunID
	do("workflows", "state", "refund", "none").want(t, 1, "", "agentd workflows threads")
	do("runs", "list", "--status", "awaiting_approval").want(t, 0, run+"  refund", "")
	do("approvals").want(t, 0, "run "+run+": big waits", "")
	do("runs", "approve", run, "--reason", "fine").want(t, 3, "pay waits for payment", "")
	do("runs", "approve", run).want(t, 1, "", "run-not-suspended")
	do("workflows", "graph", "refund", "--thread", "t1").want(t, 0, "pay<br/>await payment (parked)", "")
	do("workflows", "graph", "refund", "--thread", "t1", "--json").want(t, 0, `"pay": "parked"`, "")
	do("workflows", "graph", "refund", "--thread", "t9").want(t, 1, "", "thread-not-found")
	do("workflows", "resume", "refund", "t1", `{"ok": 1}`, "--name", "nothing").want(t, 1, "", "pause-not-found")
	do("workflows", "resume", "refund", "t1", `{"ok": 1}`, "--name", "payment", "--allow-version-mismatch").want(t, 0, `{"paid":{"ok":1}}`, "")
	do("workflows", "threads", "refund", "--blocked", "--json").want(t, 0, `"threads": []`, "")
	do("workflows", "retry", "refund", "t1").want(t, 1, "", "workflow-not-retryable")
	do("workflows", "checkpoints", "refund", "t1", "--limit", "1").want(t, 0, `{"paid":{"ok":1}}`, "")
	do("runs", "show", run).want(t, 0, "thread:    t1", "")

	do("evidence", run, "-o", "run.tar").want(t, 0, "", "")
	do("evidence", "verify", "run.tar").want(t, 0, "1 decisions", "")

	for _, thread := range []string{"t2", "t3"} {
		do("workflows", "run", "refund", `{"n": 8}`, "--thread", thread).want(t, 3, "", "")
	}
	do("workflows", "abort", "refund", "--status", "awaiting_approval").want(t, 2, "", "--all")
	do("workflows", "abort", "refund", "--all").want(t, 2, "", "--all needs --status")
	do("workflows", "abort", "refund", "t2").want(t, 0, "Aborted thread t2", "")
	do("workflows", "abort", "refund", "--status", "awaiting_approval", "--all").want(t, 0, "1 thread(s) aborted", "")
	do("workflows", "retry", "refund", "--status", "aborted", "--all", "--json").want(t, 0, `"done": 2`, "")
	do("workflows", "threads", "refund", "--status", "awaiting_approval").want(t, 0, "t3", "").want(t, 0, "t2", "")
	do("workflows", "delete", "refund", "t1").want(t, 2, "", "--yes")
	do("workflows", "delete", "refund", "t1", "--yes").want(t, 0, "Erased thread t1", "")
	do("workflows", "delete", "refund", "--status", "awaiting_approval", "--all", "--yes").want(t, 0, "2 thread(s) erased", "")
	if left := do("workflows", "threads", "refund").want(t, 0, "", ""); strings.Count(left.stdout, "\n") != 1 {
		t.Errorf("workflows threads = %s, want none", left.stdout)
	}
}

// TestEvidenceOfALongThread takes evidence of a run whose oldest events, and an approval among them, were deleted with their steps.
func TestEvidenceOfALongThread(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "agentd.json"), `{"auth": {"kind": "none"}, "storage": {"path": "data.db"}, "audit": {"enabled": true, "passphraseRef": "file:phrase"},
		"workflows": {"loop": {"state": {"n": {"merge": "sum"}}, "start": "first", "keepSteps": 5, "maxSteps": 1000, "nodes": {
			"first": {"kind": "approval", "name": "first", "next": "add"},
			"add": {"kind": "set", "values": {"n": "${ 1 }"}, "next": "more"},
			"more": {"kind": "branch", "cases": [{"if": "state.n < 200", "next": "add"}], "else": "last"},
			"last": {"kind": "approval", "name": "last", "next": "end"}}}}}`)
	write(t, filepath.Join(dir, "phrase"), "correct horse battery staple\n")
	do := func(args ...string) said {
		t.Helper()
		return spawn(t, dir, nil, nil, args...).wait()
	}
	do("workflows", "run", "loop", "--thread", "t").want(t, 3, "", "")
	var begun struct{ State struct{ RunID string } }
	do("workflows", "state", "loop", "t", "--json").want(t, 0, "", "").decode(t, &begun)
	do("runs", "approve", begun.State.RunID).want(t, 3, "", "")
	do("runs", "approve", begun.State.RunID).want(t, 0, "", "")
	do("evidence", begun.State.RunID, "-o", "run.evidence").want(t, 0, "", "")
	do("evidence", "verify", "run.evidence").want(t, 0, "the earlier ones were deleted with their steps; 2 entries", "").want(t, 0, "1 calls, 1 decisions, ", "")
}
