package cli_test

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// site is a configuration with agents for every ending. Its slow model takes two seconds for its second answer.
const site = `{
	"server": {"rateLimit": {"enabled": false}},
	"auth": {"kind": "token", "pepperRef": "file:pepper"},
	"storage": {"path": "data/data.db"},
	"observability": {"logger": "pretty"},
	"providers": {"script": {"kind": "scripted", "script": "script.json"}},
	"agents": {
		"slow": {"kind": "llm", "provider": "script", "model": "slow", "tools": ["calculator"]},
		"twice": {"kind": "llm", "provider": "script", "model": "twice", "tools": ["calculator"]},
		"count": {"kind": "llm", "provider": "script", "model": "count"},
		"same": {"kind": "exec", "command": ["cat"]},
		"mute": {"kind": "exec", "command": ["true"]},
		"fail": {"kind": "exec", "command": ["sh", "-c", "echo half; echo why >&2; exit 3"]},
		"json": {"kind": "exec", "protocol": "jsonl", "command": ["sh", "-c", "read line; echo '{\"type\":\"result\",\"output\":{\"n\":1}}'"]},
		"other": {"kind": "exec", "protocol": "jsonl", "command": ["sh", "-c",
			"read line; echo '{\"type\":\"text.delta\",\"delta\":\"one\"}'; echo '{\"type\":\"text.complete\",\"text\":\"two\"}'; echo '{\"type\":\"result\",\"output\":null}'"]}
	}
}`

const script = `{"turns": [
	{"when": {"model": "count", "lastUser": "again"}, "text": "{{lastUser}}, I remember"},
	{"when": {"model": "count"}, "text": "once"},
	{"when": {"model": "twice", "step": 0}, "text": "Let me see.", "toolCalls": [{"name": "calculator", "args": {"expression": "{{lastUser}}"}}]},
	{"when": {"model": "twice"}, "text": "It is {{lastTool}}."},
	{"when": {"model": "slow", "step": 0}, "toolCalls": [{"name": "calculator", "args": {"expression": "6*7"}}]},
	{"when": {"model": "slow"}, "text": "one two three four five six seven eight nine ten", "chunkSize": 5, "chunkDelayMs": 200}
]}`

const pepper = "0123456789abcdef0123456789ABCDEF"

// newSite makes the folder of a configuration.
func newSite(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "agentd.json"), site)
	write(t, filepath.Join(dir, "script.json"), script)
	write(t, filepath.Join(dir, "pepper"), pepper)
	return dir
}

func TestRunHere(t *testing.T) {
	t.Chdir(newSite(t))
	for _, tc := range []struct {
		args, stdin    string
		code           int
		stdout, stderr string
	}{
		{args: "same", stdin: "no line end", stdout: "no line end"},
		{args: "same -", stdin: "é\r\n\x00\n\n", stdout: "é\r\n\x00\n\n"},
		{args: "same given", stdin: "ignored", stdout: "given"},
		{args: "same", stdin: ""},
		{args: "mute x"},
		{args: "same -- --verbose", stdout: "--verbose"},
		{args: "--verbose same x --user u", stdout: "x"},
		{args: "json x", stdout: "{\"n\":1}\n"},
		{args: "other x", stdout: "one\ntwo"},
		{args: "twice 6*7", stdout: "Let me see.\nIt is {\"result\":\"42\",\"exact\":true}."},
		{args: "twice 6*7 --verbose", stdout: "Let me see.\n", stderr: "· calculator {\"expression\":\"6*7\"}\n· calculator → {\"result\":\"42\""},
		{args: "twice nonsense --verbose", stdout: "It is Error", stderr: "· calculator failed: "},
		{args: "fail x", code: 1, stdout: "half\n", stderr: "agentd: agent-exited: The agent's program ended with exit status 3: why\n  hint: "},
		{args: "smae x", code: 1, stderr: "The configuration has no agent \"smae\". Did you mean same?\n  hint: Name one of: count, "},
		{args: "same", stdin: "\xff", code: 1, stderr: "not UTF-8 text"},
	} {
		s := with(t, t.Context(), tc.stdin, nil, append([]string{"run"}, strings.Fields(tc.args)...)...)
		s.want(t, tc.code, tc.stdout, tc.stderr)
		if !strings.Contains(tc.args, "--verbose") && s.stdout != tc.stdout || tc.code == 0 && !strings.Contains(tc.args, "--verbose") && s.stderr != "" {
			t.Errorf("run %s: stdout %q and stderr %q, want exactly %q and nothing", tc.args, s.stdout, s.stderr, tc.stdout)
		}
	}
}

func TestRunNeedsNoPepper(t *testing.T) {
	t.Chdir(newSite(t))
	if err := os.Remove("pepper"); err != nil {
		t.Fatal(err)
	}
	here(t, "run", "same", "x").want(t, 0, "x", "")
}

func TestRunInASession(t *testing.T) {
	t.Chdir(newSite(t))
	here(t, "run", "count", "--session", "s", "first").want(t, 0, "once", "")
	here(t, "run", "count", "--session", "s", "again").want(t, 0, "again, I remember", "")
	here(t, "run", "count", "--session", "s", "--user", "u", "x").want(t, 0, "once", "")
}

func TestRunPrintsEvents(t *testing.T) {
	t.Chdir(newSite(t))
	s := here(t, "run", "--json", "twice", "6*7").want(t, 0, "", "")
	var types []string
	for line := range strings.Lines(s.stdout) {
		var ev struct {
			Type   string
			Result struct{ Output, Status string }
		}
		if err := json.Unmarshal([]byte(line), &ev); err != nil || ev.Type == "" {
			t.Errorf("line %q: %v, want an event", line, err)
		}
		if types = append(types, ev.Type); ev.Type == "agent.end" && (ev.Result.Status != "completed" || !strings.Contains(ev.Result.Output, "42")) {
			t.Errorf("agent.end = %s", line)
		}
	}
	all := strings.Join(types, " ")
	for _, typ := range []string{"agent.start", "text.delta", "tool.call.end", "tool.execute.end", "text.complete", "agent.end"} {
		if !strings.Contains(all, typ) {
			t.Errorf("the events lack %s: %s", typ, all)
		}
	}
	failed := here(t, "run", "--json", "fail", "x").want(t, 1, `"code":"agent-exited"`, "")
	if failed.stderr != "" {
		t.Errorf("run --json of a failing agent: stderr %q, want none", failed.stderr)
	}
}

func TestRunIsAbortedByItsContext(t *testing.T) {
	t.Chdir(newSite(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	with(t, ctx, "", nil, "run", "slow", "x").want(t, 1, "", "agentd: run-aborted")
}

func TestRunIsAbortedBySignal(t *testing.T) {
	t.Parallel()
	dir := newSite(t)
	p := spawn(t, dir, nil, nil, "run", "slow", "x")
	eventually(t, "the first text", func() bool { return p.stdout.String() != "" })
	p.signal(syscall.SIGINT)
	s := p.wait().want(t, 1, "one", "agentd: run-aborted: The run was aborted.")
	if strings.Contains(s.stdout, "ten") {
		t.Errorf("an aborted run said all: %q", s.stdout)
	}
	srv := serve(t, dir)
	srv.token = token(t, dir)
	if got := srv.runs(); len(got) != 1 || got[0].Status != "aborted" {
		t.Errorf("runs = %v, want one that is aborted", got)
	}
}

func TestRunIsAbortedWhenNobodyReads(t *testing.T) {
	t.Parallel()
	dir := newSite(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := spawnTo(t, dir, w, "run", "slow", "x")
	w.Close()
	bufio.NewReader(r).ReadByte()
	r.Close()
	s := p.wait().want(t, 1, "", "")
	if s.stderr != "" {
		t.Errorf("stderr %q, want none", s.stderr)
	}
	srv := serve(t, dir)
	srv.token = token(t, dir)
	if got := srv.runs(); len(got) != 1 || got[0].Status != "aborted" {
		t.Errorf("runs = %v, want one that is aborted", got)
	}
}

func TestRunLeavesOtherRunsAlone(t *testing.T) {
	t.Parallel()
	dir := newSite(t)
	p := spawn(t, dir, nil, nil, "run", "slow", "x", "--session", "s")
	eventually(t, "the first text", func() bool { return p.stdout.String() != "" })

	spawn(t, dir, nil, nil, "run", "same", "y").wait().want(t, 1, "", "store-locked").want(t, 1, "", "(agentd run) holds the database")

	p.signal(syscall.SIGKILL)
	p.wait()
	spawn(t, dir, nil, nil, "run", "same", "y").wait().want(t, 0, "y", "")
	spawn(t, dir, nil, nil, "run", "slow", "y", "--session", "s").wait().want(t, 1, "", "session-busy").want(t, 1, "", "`agentd start` continues it")

	srv := serve(t, dir)
	srv.token = token(t, dir)
	runs := srv.runs()
	if len(runs) != 2 || runs[1].AgentID != "slow" {
		t.Fatalf("runs = %v, want the finished one and the killed one", runs)
	}
	eventually(t, "the end of the killed run", func() bool { return srv.status(runs[1].RunID) == "completed" })
}

func TestRunsInAPipe(t *testing.T) {
	t.Parallel()
	dir := newSite(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	second := spawn(t, dir, r, nil, "run", "same")
	first := spawnTo(t, dir, w, "run", "twice", "1+1")
	r.Close()
	w.Close()
	first.wait().want(t, 0, "", "")
	second.wait().want(t, 0, `It is {"result":"2"`, "")
}
