package cli_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentd/store/storetest"
)

const tokenSite = `{"auth": {"pepperRef": "file:pepper"}, "agents": {"shout": {"kind": "exec", "command": ["tr", "a-z", "A-Z"], "description": "Upper-cases"}}}`

// Every command that talks to a server does so from an empty folder, with an address and a token.
func TestURL(t *testing.T) {
	t.Parallel()
	site := t.TempDir()
	write(t, filepath.Join(site, "agentd.json"), tokenSite)
	write(t, filepath.Join(site, "pepper"), "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJ")
	s := serve(t, site)
	s.token = token(t, site)
	dir := t.TempDir()
	there := func(args ...string) said {
		t.Helper()
		return spawn(t, dir, nil, []string{"SITE=" + s.token}, append(args, "--url", s.url, "--token-env", "SITE")...).wait()
	}
	there("run", "shout", "hello", "--session", "s1").want(t, 0, "HELLO", "")
	run := s.runs()[0].RunID
	state := write(t, filepath.Join(t.TempDir(), "run.json"), there("runs", "show", run, "--json").stdout)
	export := write(t, filepath.Join(t.TempDir(), "session.jsonl"), there("sessions", "export", "s1").want(t, 0, "svc-session-export", "").stdout)
	for line, want := range map[string]said{
		"agents list":                               {stdout: "shout  Upper-cases"},
		"agents show shout --json":                  {stdout: `"id": "shout"`},
		"agents show shot":                          {code: 1, stderr: "agentd agents list"},
		"runs list":                                 {stdout: run},
		"runs show " + run:                          {stdout: "completed"},
		"runs approve " + run:                       {code: 1, stderr: "run-not-suspended"},
		"runs deny " + run:                          {code: 1, stderr: "run-not-suspended"},
		"runs abort " + run:                         {code: 1, stderr: "has already ended"},
		"runs cassette " + run:                      {code: 1, stderr: "run-not-recorded"},
		"runs import " + state:                      {code: 1, stderr: "run-exists"},
		"approvals":                                 {stderr: "nothing waits"},
		"tail " + run:                               {stdout: "HELLO"},
		"sessions list":                             {stdout: "s1"},
		"sessions show s1":                          {stdout: "s1"},
		"sessions messages s1":                      {stdout: "HELLO"},
		"sessions import " + export + " --as other": {stdout: "other"},
	} {
		there(strings.Fields(line)...).want(t, want.code, want.stdout, want.stderr)
	}
	there("sessions", "delete", "s1", "--yes").want(t, 0, "Erased session s1.", "")
	spawn(t, dir, nil, nil, "approvals", "--url", s.url).wait().want(t, 1, "", "auth-required")
	spawn(t, dir, nil, nil, "approvals", "--url", s.url, "--token-env", "NONE").wait().want(t, 2, "", "NONE")
	spawn(t, dir, nil, nil, "runs", "approve", "x", "--url", s.url, "--token-env", "NONE").wait().want(t, 2, "", "NONE")
	spawn(t, dir, nil, nil, "approvals", "--url", "ftp://host").wait().want(t, 2, "", "--url is not the URL of an API")
	if entries, _ := os.ReadDir(dir); len(entries) > 0 {
		t.Errorf("the folder of the client has %v, want nothing", entries)
	}
}

func TestAgentsWithoutServer(t *testing.T) {
	t.Chdir(t.TempDir())
	here(t, "agents", "list", "--dev").want(t, 0, "assistant", "")
	here(t, "agents", "show", "assistent", "--dev").want(t, 1, "", "Did you mean assistant?")
	here(t, "agents", "list").want(t, 0, "AGENT", "")
	if entries, _ := os.ReadDir("."); len(entries) > 0 {
		t.Errorf("looking left %v", entries)
	}
}

// What cannot run leaves nothing behind, and says what to do first.
func TestNothingToRun(t *testing.T) {
	t.Chdir(t.TempDir())
	here(t, "run", "x", "input").want(t, 1, "", "agentd run --dev assistant")
	here(t, "start").want(t, 2, "", "agentd init").want(t, 2, "", "agentd start --dev")
	if entries, _ := os.ReadDir("."); len(entries) > 0 {
		t.Errorf("run and start left %v", entries)
	}
}

// A run here is subject to the terms of the configuration, with and without authentication.
func TestRunWithTermsOfApproval(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	write(t, "model.json", `{"turns": [{"when": {"step": 0}, "toolCalls": [{"name": "pay", "args": {}}]}, {"text": "done"}]}`)
	write(t, "agentd.json", `{"auth": {"pepperRef": "file:pepper"}, "providers": {"p": {"kind": "scripted", "script": "model.json"}},
		"tools": {"pay": {"kind": "exec", "description": "d", "command": ["true"], "approvalTerms": {"approvers": 2, "requireDifferentPrincipal": true}}},
		"agents": {"a": {"kind": "llm", "provider": "p", "model": "m", "tools": ["pay"]}}}`)
	here(t, "config", "check").want(t, 0, "OK", "")
	here(t, "run", "a", "go").want(t, 3, "", "waits")
}

func TestStartAsJSON(t *testing.T) {
	t.Parallel()
	p := spawn(t, t.TempDir(), nil, nil, "start", "--dev", "--port", "0", "--json")
	eventually(t, "the line on stdout", func() bool { return strings.HasSuffix(p.stdout.String(), "\n") })
	var at struct {
		Host      string
		Port, PID int
	}
	if err := json.Unmarshal([]byte(p.stdout.String()), &at); err != nil || at.Port == 0 || at.PID != p.cmd.Process.Pid || at.Host != "127.0.0.1" {
		t.Errorf("start --json wrote %q (%v), want host, port and pid", p.stdout.String(), err)
	}
	spawn(t, t.TempDir(), nil, nil, "start", "--json").wait().want(t, 2, `"error":"usage"`, "")
}

func TestMigrate(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "agentd.json", `{"auth": {"kind": "none"}, "storage": {"path": "data.db"}}`)
	here(t, "migrate").want(t, 1, "", "storage.path")
	storetest.Behind(t, "data.db", "CREATE TABLE schema_migrations (\n\tversion INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at INTEGER NOT NULL)")
	here(t, "runs", "list").want(t, 1, "", "agentd migrate")
	here(t, "migrate", "--json").want(t, 0, `"migrated": true`, "")
	here(t, "migrate", "--json").want(t, 0, `"migrated": false`, "")
	here(t, "runs", "list").want(t, 0, "RUN", "")
}

func TestCompletion(t *testing.T) {
	t.Chdir(t.TempDir())
	for line, want := range map[string]string{
		"sta":                          "start\n",
		"runs ap":                      "approve\n",
		"runs":                         "runs\n",
		"token create --la":            "--label\n",
		"agents show --dev as":         "assistant\n",
		"run as":                       "",
		"nothing x":                    "",
		"completion ":                  "bash\nfish\nzsh\n",
		"help met":                     "metrics\n",
		"run --dev assistant --sessio": "--session\n",
	} {
		args := append([]string{"help", "--complete", "--"}, strings.Split(line, " ")...)
		if s := here(t, args...); s.stdout != want || s.code != 0 {
			t.Errorf("%q is completed with %q, want %q", line, s.stdout, want)
		}
	}
	here(t, "completion", "tcsh").want(t, 2, "", "bash, fish, zsh")
	here(t, "help", "a", "b", "c").want(t, 2, "", "3 argument(s)")

	script := here(t, "completion", "bash").stdout + `COMP_WORDS=(agentd runs ap); COMP_CWORD=2; _agentd; echo "${COMPREPLY[@]}"`
	cmd := exec.Command("bash", "-c", script)
	cmd.Env = []string{"PATH=" + filepath.Dir(binary) + ":" + os.Getenv("PATH")}
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "approve\n" {
		t.Errorf("bash completes to %q (%v), want approve", out, err)
	}
}
