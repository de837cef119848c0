package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// alone gives a test a folder of its own, and none of the variables that secrets come from.
func alone(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	for _, name := range []string{"AGENTD_MASTER_PASSPHRASE", "AGENTD_MASTER_PASSPHRASE_FILE", "AGENTD_ALLOW_LITERAL_SECRETS"} {
		t.Setenv(name, "")
	}
}

func TestSecrets(t *testing.T) {
	alone(t)
	const value = "hunter2 hunter2"
	write(t, "agentd.json", `{"storage": {"path": "data/x.db"}}`)
	stdin := func(text string, args ...string) said {
		t.Helper()
		s := with(t, t.Context(), text, nil, append([]string{"secrets"}, args...)...)
		if strings.Contains(s.stderr, "unter2") || strings.Contains(s.stdout, "unter2") && !strings.Contains(s.line, "--reveal") {
			t.Errorf("%s shows the value: stdout %q, stderr %q", s.line, s.stdout, s.stderr)
		}
		return s
	}
	sec := func(args ...string) said { t.Helper(); return stdin("", args...) }

	// Nothing is kept in the environment, and nobody is told that it was.
	stdin(value, "set", "db", "--from-stdin").want(t, 1, "", "secret-access-denied").want(t, 1, "", "hint: Set AGENTD_MASTER_PASSPHRASE")
	sec("set", "db", "--value", value, "--strict-secrets").want(t, 1, "", "strict-secrets-unavailable")
	sec("list", "--secrets-source", "keyring").want(t, 1, "", "this build has no keyring; use encrypted-file or env")
	sec("list", "--secrets-source", "paper").want(t, 1, "", "secrets.source")
	sec("list", "--secrets-source", "env,").want(t, 1, "", "secrets.source")
	sec("list").want(t, 0, "", "cannot be listed")
	sec("list", "--json").want(t, 0, `"secrets": []`, "")
	sec("get", "db").want(t, 1, "", `The env has no secret "db".`)
	t.Setenv("DB_WORD", value)
	sec("get", "db_word").want(t, 0, "The env has db_word (15 bytes)", "")

	t.Setenv("BYTES", "\xff\xfe")
	sec("get", "bytes", "--reveal", "--json").want(t, 1, "The value is not text, and JSON cannot hold it.", "")
	sec("get", "bytes", "--json").want(t, 0, `"found": true`, "")
	sec("get", "bytes", "--reveal").want(t, 0, "\xff\xfe\n", "")
	t.Setenv("AGENTD_SECRETS_SOURCE", "keyring,env,encrypted-file")
	sec("get", "db_word").want(t, 0, "The env has db_word (15 bytes)", "")
	t.Setenv("AGENTD_SECRETS_SOURCE", "keyring,encrypted-file,env")

	t.Setenv("AGENTD_MASTER_PASSPHRASE", "a passphrase")
	sec("set", "db").want(t, 2, "", "the value is missing")
	stdin(value, "set", "db", "--from-stdin", "--value", "x").want(t, 2, "", "cannot be combined")
	stdin("\n", "set", "db", "--from-stdin").want(t, 1, "", "There is no value on stdin.")
	sec("set", "a b", "--value", value).want(t, 1, "", "secret-ref-invalid")
	stdin(value+"\r\n", "set", "db", "--from-stdin").want(t, 0, "", "Stored the secret db in the encrypted-file.")
	sec("set", "api", "--value", value, "--json").want(t, 0, `"store": "encrypted-file"`, "")
	if fi, err := os.Stat("data/secrets.kse"); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("secrets.kse: %v, %v; want it beside the database with mode 0600", fi, err)
	}
	if s := sec("get", "db", "--reveal"); s.stdout != value+"\n" || s.code != 0 {
		t.Errorf("%s = %d %q, want the value alone", s.line, s.code, s.stdout)
	}
	var got struct {
		Key, Value string
		Found      bool
	}
	if sec("get", "db", "--reveal", "--json").decode(t, &got); got.Value != value || !got.Found || got.Key != "db" {
		t.Errorf("get --reveal --json = %+v", got)
	}
	sec("get", "none", "--json").want(t, 1, `"found": false`, "")
	var list struct {
		Store   string
		Secrets []struct{ Key, CreatedAt, UpdatedAt string }
	}
	if sec("list", "--json").decode(t, &list); list.Store != "encrypted-file" || len(list.Secrets) != 2 || list.Secrets[0].Key != "api" || list.Secrets[1].CreatedAt == "" {
		t.Errorf("list --json = %+v, want both", list)
	}
	sec("rotate", "none").want(t, 1, "", "resolution-failed")
	if s := sec("rotate", "db", "--reveal"); len(strings.TrimSpace(s.stdout)) != 64 {
		t.Errorf("%s = %q, want 64 digits", s.line, s.stdout)
	}
	sec("rotate", "api", "--new-value", "third", "--json").want(t, 0, `"key": "api"`, "")

	// References, as the server resolves them.
	write(t, "key", "in a file\n")
	sec("ref", "file:key").want(t, 0, "file:key has a value of 9 bytes.", "")
	sec("ref", "ref:api", "--reveal").want(t, 0, "third\n", "")
	sec("ref", "encrypted-file:data/secrets.kse#api", "--reveal").want(t, 0, "third\n", "")
	sec("ref", "file:key", "--reveal").want(t, 0, "in a file\n", "")
	var ref struct {
		URI, Scheme, Value, Error string
		Resolved                  bool
		Length                    int
	}
	if sec("ref", "env:NEVER_SET?default=hunter2hunter2", "--json").decode(t, &ref); ref.URI != "env:NEVER_SET?default=***" || ref.Scheme != "env" ||
		!ref.Resolved || ref.Length != 14 || ref.Value != "" {
		t.Errorf("ref --json = %+v", ref)
	}
	if sec("ref", "env:NEVER_SET", "--json").want(t, 1, "", "").decode(t, &ref); ref.Resolved || ref.Error != "resolution-failed" {
		t.Errorf("ref --json of nothing = %+v", ref)
	}
	sec("ref", "hunter2hunter2").want(t, 1, "", "secret-ref-invalid")
	sec("ref", "literal:hunter2hunter2").want(t, 1, "", "literal-secrets-forbidden")
	sec("ref", "vault://h/p").want(t, 1, "", "missing-peer-dependency").want(t, 1, "", "env:, file:")

	sec("delete", "db").want(t, 0, "", "Deleted the secret db")
	sec("delete", "db", "--json").want(t, 1, `"deleted": false`, "")
	t.Setenv("AGENTD_MASTER_PASSPHRASE", "another")
	sec("list").want(t, 1, "", "the passphrase is wrong")
	if left, _ := filepath.Glob("data/*"); len(left) != 2 {
		t.Errorf("data has %v, want the file and its lock", left)
	}
}

// TestSecretOfAStore starts a server whose pepper is in the store.
func TestSecretOfAStore(t *testing.T) {
	alone(t)
	t.Setenv("AGENTD_MASTER_PASSPHRASE", "a passphrase")
	write(t, "agentd.json", `{"storage": {"path": "x.db"}, "auth": {"pepperRef": "ref:pepper"}}`)
	here(t, "token", "create", "--scope", "admin:*").want(t, 1, "", "pre-bind-secret-unresolvable").want(t, 1, "", `the store encrypted-file has no value under "pepper"`)
	here(t, "secrets", "set", "pepper", "--value", "0123456789abcdef0123456789ABCDEF").want(t, 0, "", "")
	raw := here(t, "token", "create", "--scope", "secrets:read").want(t, 0, "svc_live_v1_", "")
	ready := filepath.Join(t.TempDir(), "ready.json")
	p := spawn(t, ".", nil, []string{"AGENTD_MASTER_PASSPHRASE=a passphrase"}, "start", "--port", "0", "--ready-file", ready)
	s := &listener{process: p, url: p.await(ready), token: strings.TrimSpace(raw.stdout)}
	var report struct{ Active string }
	if status := s.call("GET", "/health/secrets", "", &report); status != 200 || report.Active != "encrypted-file" {
		t.Errorf("GET /health/secrets = %d %+v, want encrypted-file", status, report)
	}
}
