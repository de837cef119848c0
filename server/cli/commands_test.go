package cli_test

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"agentd/server/manual"
)

func TestUsage(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, tc := range []struct {
		line, stderr string
	}{
		{"", "New here?"},
		{"strat", `There is no command "strat". Did you mean start?`},
		{"frobnicate", `There is no command "frobnicate".`},
		{"--config x start", "flags follow the command"},
		{"token", "token needs one of create, list, revoke"},
		{"token creat", "Did you mean token create?"},
		{"token revoke", "0 argument(s) are given, want agentd token revoke ID"},
		{"token create", "--scope is missing"},
		{"token create --scope a:b --expires soon", "want a duration such as 90m, 24h or 30d"},
		{"token create --scope a:b --expires -1h", "want a duration"},
		{"token create --scope a:b,,c:d", "an item is empty"},
		{"run", "0 argument(s) are given"},
		{"run shout a b", "3 argument(s) are given"},
		{"run shout --sesion s", "there is no flag --sesion; did you mean --session?"},
		{"run shout -5", "write -- before an argument that begins with a dash"},
		{"run shout hi --dev --config x.json", "cannot be combined"},
		{"start --dev --host 0.0.0.0", "only on loopback"},
		{"start --dev --host example.com", "only on loopback"},
		{"start now", "1 argument(s) are given"},
		{"help nothing", "There is no command"},
		{"help run fast", "There is no command"},
		{"version --jsn", "did you mean --json?"},
	} {
		s := here(t, strings.Fields(tc.line)...).want(t, 2, "", tc.stderr)
		if s.stdout != "" {
			t.Errorf("%s: stdout %q, want none", s.line, s.stdout)
		}
	}
	if entries, err := os.ReadDir("."); err != nil || len(entries) > 0 {
		t.Errorf("wrong usage left %v, %v", entries, err)
	}
}

func TestErrorsAsJSON(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "agentd.json", `{"server": {"prot": 1}, "auth": {"kind": "maybe"}}`)
	for line, want := range map[string]struct {
		code  int
		error string
	}{
		"tokn --json":                        {2, "usage"},
		"token create --json":                {2, "usage"},
		"config check --json":                {1, "config-invalid"},
		"token list --json":                  {1, "config-invalid"},
		"run x y --json":                     {1, "config-invalid"},
		"config print --json --config none":  {1, "config-invalid"},
		"run --dev --json nobody input":      {1, "agent-not-found"},
		"run --dev --json shout --session *": {1, "config-invalid"},
	} {
		s := here(t, strings.Fields(line)...).want(t, want.code, "", "")
		var doc struct {
			Error, Message, Hint string
			Issues               []struct {
				Path    []any
				Message string
			}
		}
		s.decode(t, &doc)
		if doc.Error != want.error || doc.Message == "" || doc.Hint == "" || s.stderr != "" {
			t.Errorf("%s: %s and stderr %q; want the error %s with message and hint, and nothing else", s.line, s.stdout, s.stderr, want.error)
		}
		if line == "config check --json" && len(doc.Issues) != 2 {
			t.Errorf("%s: issues %v, want both problems", s.line, doc.Issues)
		}
	}
	here(t, "config", "check").want(t, 1, "", "  - server.prot: agentd.json:1:").want(t, 1, "", "  hint: ")
}

func TestEveryCommandExplainsItself(t *testing.T) {
	t.Parallel()
	names := here(t, "help", "--names").want(t, 0, "config check\n", "")
	overview := here(t, "help").want(t, 0, "run AGENT [INPUT|-]", "")
	for name := range strings.Lines(names.stdout) {
		name = strings.TrimSpace(name)
		words := strings.Fields(name)
		flag := here(t, append(words, "--help")...).want(t, 0, "agentd "+name, "")
		short := here(t, append(words, "-h")...)
		help := here(t, append([]string{"help"}, words...)...)
		if !strings.HasPrefix(help.stdout, flag.stdout) || short.stdout != flag.stdout {
			t.Errorf("help %s, %s --help and %s -h differ", name, name, name)
		}
		help.stdout = flag.stdout // without a page of the manual
		for _, part := range []string{"\nExamples:\n  ", "\nExit codes: 0 ", "agentd " + words[0]} {
			if !strings.Contains(help.stdout, part) {
				t.Errorf("help %s lacks %q:\n%s", name, part, help.stdout)
			}
		}
		if examples := strings.Count(help.stdout[strings.Index(help.stdout, "\nExamples:"):], "\n  "); examples != 2 {
			t.Errorf("help %s has %d examples, want 2", name, examples)
		}
		if !strings.Contains(overview.stdout, "\n  "+name) {
			t.Errorf("help does not list %s", name)
		}
	}
	for _, line := range []string{"--help", "-h"} {
		if s := here(t, line); s.stdout != overview.stdout {
			t.Errorf("%s differs from help", line)
		}
	}
	here(t, "token", "--help").want(t, 0, "token revoke ID", "")
	here(t, "help", "config").want(t, 0, "config schema", "")
	here(t, "help", "audit").want(t, 0, "  audit accept  ", "")
	here(t, "help", "metrics").want(t, 0, "# Metrics\n", "")
	here(t, "help", "metrix").want(t, 2, "", "Did you mean metrics?")
	here(t, "help", "run", "metrics").want(t, 2, "", `no command "run metrics"`)
	for _, topic := range manual.Topics() {
		if !strings.Contains(overview.stdout, "\n  "+topic.Name+" ") || !strings.Contains(overview.stdout, " "+topic.Sentence+"\n") {
			t.Errorf("help does not list the topic %s with its sentence", topic.Name)
		}
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	here(t, "version").want(t, 0, "agentd 0.", "")
	here(t, "--version").want(t, 0, "agentd 0.", "")
	var v struct {
		Version, Go, Platform string
		StoreSchema           int
	}
	if here(t, "version", "--json").decode(t, &v); v.Version == "" || v.Go == "" || v.Platform == "" || v.StoreSchema < 1 {
		t.Errorf("version --json = %+v, want every member", v)
	}
}

func TestConfigCheck(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "script.json", `{"turns": [{"text": "x"}]}`)
	write(t, "agentd.json", `{
		// a comment
		"server": {"host": "0.0.0.0"},
		"auth": {"kind": "none"},
		"providers": {
			"demo": {"kind": "scripted", "script": "script.json"},
			"real": {"kind": "openai-compatible", "baseUrl": "https://llm.example/v1", "apiKeyRef": "env:NEVER_SET",
				"headers": {"X-Key": {"ref": "file:absent"}}},
		},
		"agents": {"a": {"kind": "llm", "provider": "real", "model": "m"}, "e": {"kind": "exec", "command": ["no-such-program", "-x"]}},
	}`)
	s := here(t, "config", "check").want(t, 0, "OK: agentd.json is valid.", "")
	for _, part := range []string{"provider real  llm.example:443", "agent e        runs no-such-program -x",
		"every caller is an administrator", `the program "no-such-program" is not found here`} {
		if !strings.Contains(s.stdout, part) {
			t.Errorf("config check lacks %q:\n%s", part, s.stdout)
		}
	}
	var doc struct {
		OK       bool
		Outbound []struct{ Kind, ID, Address string }
		Warnings []string
	}
	if here(t, "config", "check", "--json").decode(t, &doc); !doc.OK || len(doc.Outbound) != 2 || len(doc.Warnings) < 3 {
		t.Errorf("config check --json = %+v, want ok, 2 targets and the warnings", doc)
	}

	// What only building finds: a script, a schema.
	write(t, "script.json", `{"turns": [{"txt": "x"}]}`)
	here(t, "config", "check").want(t, 1, "", "providers.demo.turns.0.txt: script:1:13: unknown key \"txt\"; did you mean \"text\"?")
}

func TestConfigWithoutAFile(t *testing.T) {
	t.Chdir(t.TempDir())
	here(t, "config", "check").want(t, 0, "The server reaches no host and starts no program.", "").
		want(t, 0, "pre-bind-pepper-missing", "")
	here(t, "start").want(t, 2, "", "agentd: usage: There is no configuration")
	here(t, "config", "check", "--config", "absent.json").want(t, 1, "", "absent.json cannot be read")
	with(t, t.Context(), "", []string{"AGENTD_CONFIG=other.json"}, "config", "check").want(t, 1, "", "other.json cannot be read")
}

func TestConfigPrintAndSchema(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "agentd.json", `{"auth": {"pepperRef": "env:PEPPER?default=hunter2"}, "server": {"port": 1}}`)
	s := with(t, t.Context(), "", []string{"AGENTD_SERVER_PORT=9000", "PEPPER=swordfish"}, "config", "print").want(t, 0, `"port": 9000`, "")
	if !json.Valid([]byte(s.stdout)) || strings.Contains(s.stdout, "hunter2") || strings.Contains(s.stdout, "swordfish") {
		t.Errorf("config print = %s, want JSON without secrets", s.stdout)
	}
	var schema struct {
		Schema string `json:"$schema"`
	}
	if here(t, "config", "schema").decode(t, &schema); !strings.Contains(schema.Schema, "json-schema.org") {
		t.Errorf("config schema names the schema %q", schema.Schema)
	}
}

func TestInit(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	s := here(t, "init", "site one").want(t, 0, "agentd token create --scope agents:invoke,agents:approve,agents:read --config 'site one/agentd.json'\n", "").
		want(t, 0, "agentd start --config 'site one/agentd.json'\n", "")
	for name, mode := range map[string]os.FileMode{"agentd.json": 0o600, "pepper": 0o600, "demo.script.json": 0o600, "data": 0o700 | os.ModeDir} {
		if info, err := os.Stat("site one/" + name); err != nil || info.Mode() != mode {
			t.Errorf("init made %s: %v, %v; want mode %v", name, info, err, mode)
		}
	}
	pepper := read(t, "site one/pepper")
	if len(strings.TrimSpace(pepper)) != 64 || strings.Contains(s.stdout+s.stderr, pepper[:8]) || strings.Contains(s.stdout, "svc_") {
		t.Errorf("init made the pepper %q and said %q; want 64 digits that it does not tell, and no token", pepper, s.stdout)
	}
	here(t, "config", "check", "--config", "site one/agentd.json").want(t, 0, "OK: ", "")
	here(t, "run", "--config", "site one/agentd.json", "shout", "hello").want(t, 0, "HELLO", "")

	if err := os.Remove("site one/agentd.json"); err != nil {
		t.Fatal(err)
	}
	here(t, "init", "site one").want(t, 1, "", "site one/pepper: exists already")
	if _, err := os.Stat("site one/agentd.json"); err == nil || read(t, "site one/pepper") != pepper {
		t.Error("an init that was refused changed something")
	}

	var doc struct{ Created, Next []string }
	if here(t, "init", "--json").decode(t, &doc); len(doc.Created) != 4 || len(doc.Next) != 2 || doc.Next[1] != "agentd start" {
		t.Errorf("init --json = %+v, want 4 files and 2 commands", doc)
	}
	write(t, "file", "")
	here(t, "init", "file/below").want(t, 1, "", "Nothing was created")
}

func TestTokens(t *testing.T) {
	t.Chdir(t.TempDir())
	here(t, "init").want(t, 0, "", "")
	here(t, "token", "list").want(t, 1, "", "Make the database with")

	first := here(t, "token", "create", "--scope", "agents:read,agents:invoke:assistant", "--label", "ci", "--expires", "30d").
		want(t, 0, "svc_live_v1_", "scopes:  agents:read agents:invoke:assistant")
	raw := strings.TrimSpace(first.stdout)
	if strings.ContainsAny(raw, " \n") || strings.Contains(first.stderr, raw) {
		t.Errorf("token create: stdout %q, stderr %q; want the token alone, and only on stdout", first.stdout, first.stderr)
	}
	var minted struct {
		Token struct {
			ID, CreatedAt, ExpiresAt string
			Scopes                   []string
		}
		Raw string
	}
	here(t, "token", "create", "--json", "--env", "test", "--scope", "admin:*").decode(t, &minted)
	if minted.Token.ID == "" || minted.Token.ExpiresAt != "" || !strings.HasPrefix(minted.Raw, "svc_test_v1_") {
		t.Errorf("token create --json = %+v, want a record and a token of the environment test", minted)
	}
	here(t, "token", "create", "--scope", "nonsense", "--scope", "a:b").want(t, 1, "", "scopes.0: ")
	here(t, "token", "create", "--scope", "a:b", "--env", "prod").want(t, 1, "", "env: is not an environment of this server")

	var list struct {
		Tokens []struct{ ID, Label, RevokedAt, ExpiresAt string }
	}
	here(t, "token", "list", "--json").decode(t, &list)
	if len(list.Tokens) != 2 || list.Tokens[0].Label != "ci" || list.Tokens[0].ExpiresAt == "" {
		t.Fatalf("token list --json = %+v, want both in order", list)
	}
	here(t, "token", "revoke", minted.Token.ID, "--json").want(t, 0, `"revokedAt": "`, "")
	here(t, "token", "revoke", "nobody").want(t, 1, "", "token-not-found").want(t, 1, "", "agentd token list")
	if here(t, "token", "list", "--json").decode(t, &list); len(list.Tokens) != 1 {
		t.Errorf("token list after the revocation = %+v, want one", list)
	}
	all := here(t, "token", "list", "--all").want(t, 0, minted.Token.ID, "")
	if bytes.Contains([]byte(all.stdout), []byte(raw[12:30])) || strings.Count(all.stdout, "\n") != 3 {
		t.Errorf("token list --all = %s; want a head, two lines and no secret", all.stdout)
	}

	if err := os.Remove("pepper"); err != nil {
		t.Fatal(err)
	}
	here(t, "token", "create", "--scope", "a:b").want(t, 1, "", "pre-bind-secret-unresolvable")
}
