package cli_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// recordedSite is a configuration whose agent is recorded and pays after an approval.
const recordedSite = `{
	"auth": {"kind": "none"}, "storage": {"path": "data/data.db"},
	"providers": {"script": {"kind": "scripted", "script": "script.json"}},
	"tools": {"pay": {"kind": "exec", "description": "Pays", "command": ["sh", "-c", "cat >> paid.txt; echo paid"]}},
	"agents": {
		"clerk": {"kind": "llm", "provider": "script", "model": "m", "instructions": "Pay who is named.", "tools": ["pay"], "record": true},
		"shy": {"kind": "llm", "provider": "script", "model": "m"},
		"cat": {"kind": "exec", "command": ["cat"]}
	}
}`

func TestReplay(t *testing.T) {
	t.Parallel()
	for _, server := range []bool{false, true} {
		name := "here"
		if server {
			name = "through a server"
		}
		t.Run(name, func(t *testing.T) {
			dir := newGatedSite(t)
			write(t, filepath.Join(dir, "agentd.json"), recordedSite)
			if server {
				serve(t, dir)
			}
			testReplay(t, dir)
		})
	}
}

func testReplay(t *testing.T, dir string) {
	do := func(args ...string) said { t.Helper(); return spawn(t, dir, nil, nil, args...).wait() }
	run := park(t, dir, "clerk", "ann")[0].RunID
	do("runs", "cassette", run, "-o", "early.jsonl").want(t, 1, "", "agentd: run-not-ended: The run is awaiting_approval.\n  hint: See its state")
	if _, err := os.Stat(filepath.Join(dir, "early.jsonl")); err == nil {
		t.Error("a failure made a file")
	}
	do("runs", "approve", run).want(t, 0, "Done: paid", "")
	do("runs", "cassette", "none").want(t, 1, "", "agentd: run-not-found: ")
	if s := do("runs", "cassette", run, "-o", "run.jsonl").want(t, 0, "", ""); s.stdout != "" {
		t.Errorf("runs cassette -o writes %q to stdout", s.stdout)
	}
	if info, err := os.Stat(filepath.Join(dir, "run.jsonl")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the cassette: %v, %v; want one that nobody else may read", info, err)
	}
	do("runs", "cassette", run, "-o", "none/x").want(t, 1, "", "agentd: config-invalid: The file none/x cannot be written: no such file")
	do("runs", "cassette", "none", "-o", "run.jsonl").want(t, 1, "", "agentd: run-not-found: ")
	whole := do("runs", "cassette", run).want(t, 0, `"kind":"footer"`, "").stdout
	do("run", "shy", "bob").want(t, 0, "", "")
	var list struct {
		Runs []struct{ RunID, AgentID string }
	}
	do("runs", "list", "--agent", "shy", "--json").decode(t, &list)
	do("runs", "cassette", list.Runs[0].RunID, "--json").want(t, 1, `{"error":"run-not-recorded"`, "")

	// A replay needs no secret and leaves nothing behind.
	const secret = `"providers": {"real": {"kind": "openai-compatible", "baseUrl": "https://llm.example/v1", "apiKeyRef": "env:NEVER_SET"}, `
	write(t, filepath.Join(dir, "agentd.json"), strings.Replace(recordedSite, `"providers": {`, secret, 1))
	tmp := t.TempDir()
	replay := func(args ...string) said {
		t.Helper()
		return spawn(t, dir, strings.NewReader(whole), []string{"TMPDIR=" + tmp}, append([]string{"replay"}, args...)...).wait()
	}
	if s := replay("run.jsonl").want(t, 0, "", ""); s.stdout != "no divergence: 2 model calls, 1 tool call\n" || s.stderr != "" {
		t.Errorf("replay says %q and %q", s.stdout, s.stderr)
	}
	replay("-").want(t, 0, "no divergence: ", "")
	replay("run.jsonl", "--json").want(t, 0, `"divergence": null`, "")
	replay("run.jsonl", "--agent", "nobody").want(t, 2, "", "agentd: agent-not-found: The configuration has no agent \"nobody\".\n  hint: Name one of: cat, clerk, shy.")
	replay("run.jsonl", "--agent", "cat").want(t, 2, "", "agentd: config-invalid: The agent \"cat\" has no model")
	replay("run.jsonl", "--config", "none.json").want(t, 2, "", "agentd: config-invalid: ")
	replay("none.jsonl").want(t, 2, "", "agentd: cassette-invalid: The recording cannot be read: open none.jsonl: no such file")
	replay(".").want(t, 2, "", "agentd: cassette-invalid: The recording cannot be read: read .: is a directory")
	replay("script.json", "--json").want(t, 2, `"error": "cassette-invalid"`, "")
	replay().want(t, 2, "", "0 argument(s) are given")

	for _, tc := range []struct{ before, now, want string }{
		{`"instructions": "Pay`, `"instructions": "Never pay`, "divergence in step 1: message 1 (system)\n  recorded: Pay who is named.\n  now:      Never pay who is named.\n"},
		{`"tools": ["pay"]`, `"tools": []`, "divergence in step 1: tool pay\n  recorded: offered\n  now:      not offered\n"},
		{`"record": true`, `"permissions": {"allow": ["pay"]}`, " of pay\n  recorded: a person is asked about the call\n  now:      the call is made without asking\n"},
	} {
		write(t, filepath.Join(dir, "agentd.json"), strings.Replace(recordedSite, tc.before, tc.now, 1))
		replay("run.jsonl").want(t, 1, tc.want, "")
	}
	var doc struct {
		Divergence struct {
			Kind, Where, Recorded, Now string
			StepNumber                 int
		}
	}
	replay("run.jsonl", "--json").want(t, 1, "", "").decode(t, &doc)
	if doc.Divergence.Kind == "" || doc.Divergence.StepNumber == 0 || doc.Divergence.Recorded == "" || doc.Divergence.Now == "" {
		t.Errorf("replay --json = %+v, want a whole divergence", doc)
	}
	if got := read(t, filepath.Join(dir, "run.jsonl")); got != whole {
		written := regexp.MustCompile(`"writtenAtIso":"[^"]*"`)
		if written.ReplaceAllString(got, "") != written.ReplaceAllString(whole, "") {
			t.Errorf("run.jsonl = %s\nwant %s", got, whole)
		}
	}
	if n := payments(t, dir); n != 1 {
		t.Errorf("%d payments, want the one of the recorded run", n)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("the replays left %v, %v", left, err)
	}
}
