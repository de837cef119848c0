package cli_test

import (
	"os"
	"strings"
	"testing"
)

type diagnosis struct {
	Version, Home, Platform string
	Checks                  []struct{ Check, Status, Message, Hint string }
	Summary                 map[string]int
	FixedPerms              []string
	Outbound                []struct{ Kind, ID, Setting, Address string }
}

// status is the worst status of a check: the one that counts.
func (d diagnosis) status(check string) string {
	worst := ""
	for _, status := range []string{"skip", "ok", "warn", "fail"} {
		for _, f := range d.Checks {
			if f.Check == check && f.Status == status {
				worst = status
			}
		}
	}
	return worst
}

func TestDoctor(t *testing.T) {
	alone(t)
	diagnose := func(code int, args ...string) (d diagnosis) {
		t.Helper()
		s := here(t, append([]string{"doctor", "--json"}, args...)...).want(t, code, "", "")
		s.decode(t, &d)
		n := 0
		for _, count := range d.Summary {
			n += count
		}
		if n != len(d.Checks) || d.Version == "" || d.Platform == "" || (d.Summary["fail"] > 0) != (code == 1) {
			t.Errorf("%s = %+v, want a summary of the checks that fits %d", s.line, d, code)
		}
		text := here(t, append([]string{"doctor"}, args...)...)
		if text.code != code && d.FixedPerms == nil {
			t.Errorf("%s = %d, want %d as with --json:\n%s", text.line, text.code, code, text.stdout)
		}
		return d
	}
	here(t, "init").want(t, 0, "", "")
	if err := os.Chmod(".", 0o755); err != nil {
		t.Fatal(err)
	}
	d := diagnose(0)
	for check, want := range map[string]string{"permissions": "ok", "secrets": "ok", "database": "skip", "outbound": "ok"} {
		if d.status(check) != want {
			t.Errorf("doctor after init: %s is %q in %+v, want %s", check, d.status(check), d.Checks, want)
		}
	}
	here(t, "token", "create", "--scope", "admin:*").want(t, 0, "", "")
	if d := diagnose(0); d.status("database") != "ok" {
		t.Errorf("doctor with a database: %+v", d.Checks)
	}

	// Rights of others.
	for path, mode := range map[string]os.FileMode{"pepper": 0o644, "agentd.json": 0o640, "data": 0o755} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	if d := diagnose(1); d.status("permissions") != "fail" || d.Summary["warn"] < 2 {
		t.Errorf("doctor with open files: %+v, want the pepper to fail and two warnings", d.Checks)
	}
	if d := diagnose(0, "--fix-perms"); len(d.FixedPerms) != 3 || d.status("permissions") != "ok" {
		t.Errorf("doctor --fix-perms: fixed %v, %+v", d.FixedPerms, d.Checks)
	}
	if info, err := os.Stat("pepper"); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("pepper: %v, %v, want mode 0600", info.Mode(), err)
	}

	// Secrets: every one that fails is told, none is shown.
	write(t, "key", "hunter2hunter2")
	write(t, "script.json", `{"turns": [{"text": "x"}]}`)
	write(t, "agentd.json", `{"auth": {"pepperRef": "file:weak"}, "outbound": {"allowPrivate": ["bot.intra", "gone.intra"]},
		"providers": {"a": {"kind": "openai-compatible", "baseUrl": "https://llm.example/v1", "apiKeyRef": "env:NEVER_SET"},
			"b": {"kind": "openai-compatible", "baseUrl": "http://127.0.0.1:1/v1", "apiKeyRef": "file:key"}},
		"agents": {"bot": {"kind": "http", "url": "http://bot.intra/run", "hmacRef": "ref:none"}, "shout": {"kind": "exec", "command": ["tr", "a-z", "A-Z"]}}}`)
	write(t, "weak", "weak")
	for _, line := range []string{"doctor", "secrets doctor"} {
		s := here(t, strings.Fields(line)...).want(t, 1, "providers.a.apiKeyRef (env:NEVER_SET): the environment variable NEVER_SET is not set.", "").
			want(t, 1, `agents.bot.hmacRef (ref:none): the store env has no value under "none".`, "").
			want(t, 1, "providers.b.apiKeyRef (file:key) gives 14 bytes.", "").want(t, 1, "The pepper has fewer than 32 bytes.", "").want(t, 1, " 3 fail", "")
		if strings.Contains(s.stdout+s.stderr, "hunter2") {
			t.Errorf("%s shows a secret:\n%s", s.line, s.stdout)
		}
	}
	here(t, "doctor").want(t, 1, "outbound.allowPrivate lists gone.intra, which is the host of no url", "").
		want(t, 1, "The server may contact 2 host(s) beyond this machine", "")

	// What could be contacted.
	offline := diagnose(1, "--offline")
	if offline.status("outbound") != "fail" || offline.status("secrets") != "" || len(offline.Outbound) != 4 || offline.Outbound[0].Address != "llm.example:443" ||
		offline.Outbound[0].Setting != "providers.a.baseUrl" {
		t.Errorf("doctor --offline = %+v, want what could be contacted, and nothing else looked at", offline)
	}
	here(t, "doctor", "--offline").want(t, 1, "llm.example:443 (providers.a.baseUrl)", "").want(t, 1, "bot.intra:80 (agents.bot.url)", "").
		want(t, 1, "What programs contact is up to them: agents.shout.command.", "")
	if d := diagnose(0, "--offline", "--dev"); d.status("outbound") != "warn" {
		t.Errorf("doctor --offline --dev = %+v, want nothing but programs", d.Checks)
	}

	// A configuration that is wrong, and a database that is none.
	write(t, "agentd.json", `{"server": {"prt": 1, "host": 2}}`)
	here(t, "doctor").want(t, 1, "[FAIL]  configuration", "").want(t, 1, "- server.prt: ", "")
	write(t, "other.db", strings.Repeat("no database ", 500))
	write(t, "agentd.json", `{"auth": {"kind": "none"}, "storage": {"path": "other.db"}}`)
	if d := diagnose(1); d.status("database") != "fail" {
		t.Errorf("doctor of a file that is no database = %+v", d.Checks)
	}
	here(t, "doctor", "now").want(t, 2, "", "1 argument(s)")
}
