package cli_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// chronicle are the entries of the chain, oldest first: action, target, decision and, where one is there, the error.
func chronicle(t *testing.T) (list []string) {
	t.Helper()
	for line := range strings.Lines(here(t, "audit", "export").want(t, 0, "", "").stdout) {
		var e struct {
			Action, Target, Decision string
			Actor                    struct{ Kind string }
			Metadata                 struct{ Error string }
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(line, "hunter2") {
			t.Errorf("the chain has a secret: %s", line)
		}
		text := e.Actor.Kind + " " + e.Action + " " + e.Target + " " + e.Decision
		if e.Metadata.Error != "" {
			text += " " + e.Metadata.Error
		}
		list = append(list, text)
	}
	return list
}

// last checks the latest entries of the chain.
func last(t *testing.T, want ...string) {
	t.Helper()
	got := chronicle(t)
	if len(got) < len(want) || fmt.Sprint(got[len(got)-len(want):]) != fmt.Sprint(want) {
		t.Errorf("the chain ends with\n%s\nwant\n%s", strings.Join(got[max(0, len(got)-len(want)-1):], "\n"), strings.Join(want, "\n"))
	}
}

// recorded is a folder whose configuration has a chain, and whose secrets are in an encrypted file.
func recorded(t *testing.T) {
	t.Helper()
	alone(t)
	t.Setenv("AGENTD_MASTER_PASSPHRASE", "a passphrase")
	for name, text := range map[string]string{"agentd.json": auditedConfig, "pepper": "0123456789abcdef0123456789ABCDEF", "phrase": "correct horse battery staple\n"} {
		write(t, name, text)
	}
}

func TestSecretsAreRecorded(t *testing.T) {
	recorded(t)
	here(t, "secrets", "set", "db", "--value", "hunter2hunter2").want(t, 0, "", "Stored the secret")
	here(t, "secrets", "rotate", "db").want(t, 0, "", "Stored the secret")
	here(t, "secrets", "rotate", "none").want(t, 1, "", "resolution-failed")
	here(t, "secrets", "get", "db").want(t, 0, "bytes", "") // shows nothing
	here(t, "secrets", "get", "db", "--reveal").want(t, 0, "", "")
	here(t, "secrets", "get", "none", "--reveal").want(t, 1, "", "resolution-failed")
	here(t, "secrets", "ref", "env:NEVER?default=hunter2hunter2", "--reveal").want(t, 0, "hunter2", "")
	here(t, "secrets", "delete", "db").want(t, 0, "", "Deleted the secret")
	here(t, "secrets", "delete", "db", "--json").want(t, 1, `"deleted": false`, "")
	here(t, "secrets", "set", "a b", "--value", "hunter2hunter2").want(t, 1, "", "secret-ref-invalid") // wrong usage is nothing to record
	t.Setenv("AGENTD_MASTER_PASSPHRASE", "")
	here(t, "secrets", "set", "db", "--value", "hunter2hunter2").want(t, 1, "", "secret-access-denied")
	last(t, "cli secret:set secret:db success", "cli secret:rotate secret:db success", "cli secret:rotate secret:none not-found resolution-failed",
		"cli secret:reveal secret:db success", "cli secret:reveal secret:none not-found resolution-failed",
		"cli secret:reveal secret:env:NEVER?default=*** success", "cli secret:delete secret:db success",
		"cli secret:delete secret:db not-found resolution-failed", "cli secret:set secret:db denied secret-access-denied")
	here(t, "audit", "verify").want(t, 0, "whole", "")
}

// TestFailuresAreRecorded makes a change fail after it was recorded.
func TestFailuresAreRecorded(t *testing.T) {
	recorded(t)
	if err := os.Mkdir("secrets.kse.lock", 0o700); err != nil {
		t.Fatal(err)
	}
	here(t, "secrets", "set", "db", "--value", "hunter2hunter2").want(t, 1, "", "secrets.kse.lock")
	last(t, "cli secret:set secret:db success", "cli secret:set secret:db error resolution-failed")
}

// TestSecretsBesideServer changes secrets while a server appends to the same chain.
func TestSecretsBesideServer(t *testing.T) {
	recorded(t)
	srv := serve(t, ".")
	srv.token = adminToken(t)
	for i := range 2 {
		if status := srv.call("GET", "/agents", "", nil); status != 200 {
			t.Errorf("GET /agents = %d, want 200", status)
		}
		here(t, "secrets", "set", fmt.Sprint("k", i), "--value", "hunter2hunter2").want(t, 0, "", "Stored the secret")
	}
	srv.call("GET", "/agents", "", nil)
	last(t, "cli secret:set secret:k1 success", "token http:request /v1/agents success")
	here(t, "audit", "verify").want(t, 0, "whole", "")
}

// TestPassphraseOfTheChain keeps the passphrase of the chain in the store: setting it makes the chain, and nothing takes
// it away afterwards.
func TestPassphraseOfTheChain(t *testing.T) {
	recorded(t)
	write(t, "agentd.json", strings.Replace(auditedConfig, "file:phrase", "ref:phrase", 1))
	here(t, "secrets", "set", "db", "--value", "hunter2hunter2").want(t, 1, "", `no value under "phrase". Nothing was done`)
	here(t, "secrets", "set", "phrase", "--value", "correct horse").want(t, 0, "", "Stored the secret")
	here(t, "secrets", "set", "db", "--value", "hunter2hunter2").want(t, 0, "", "Stored the secret")
	for _, args := range [][]string{{"set", "phrase", "--value", "another"}, {"rotate", "phrase"}, {"delete", "phrase"}} {
		here(t, append([]string{"secrets"}, args...)...).want(t, 1, "", "is the passphrase of the audit chain")
	}
	last(t, "cli secret:set secret:phrase success", "cli secret:set secret:db success", "cli secret:set secret:phrase denied secret-access-denied",
		"cli secret:rotate secret:phrase denied secret-access-denied", "cli secret:delete secret:phrase denied secret-access-denied")

	// A store that was lost: only the passphrase that fits is taken.
	if err := os.Remove("secrets.kse"); err != nil {
		t.Fatal(err)
	}
	here(t, "secrets", "set", "phrase", "--value", "guess").want(t, 1, "", "audit-passphrase-wrong")
	here(t, "secrets", "get", "phrase").want(t, 1, "", "has no secret")
	here(t, "secrets", "set", "phrase", "--value", "correct horse").want(t, 0, "", "Stored the secret")
	last(t, "cli secret:delete secret:phrase denied secret-access-denied", "cli secret:set secret:phrase success")
}

// TestNothingUnrecorded takes the chain away: what must be recorded is not done.
func TestNothingUnrecorded(t *testing.T) {
	recorded(t)
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=400k"); err != nil {
		t.Skipf("a small disk cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(disk, syscall.MNT_DETACH) })
	write(t, "agentd.json", strings.Replace(auditedConfig, `"enabled": true`, fmt.Sprintf(`"enabled": true, "path": %q`, filepath.Join(disk, "audit.db")), 1))
	here(t, "secrets", "set", "db", "--value", "first").want(t, 0, "", "Stored the secret")
	id := strings.TrimSpace(here(t, "token", "create", "--scope", "agents:read", "--json").want(t, 0, "", "").stdout)
	var made struct{ Token struct{ ID string } }
	if err := json.Unmarshal([]byte(id), &made); err != nil {
		t.Fatal(err)
	}
	session := write(t, "session.jsonl", here(t, "version", "--json").stdout) // no session: importing it fails first
	before := len(chronicle(t))

	f, err := os.Create(filepath.Join(disk, "fill"))
	if err != nil {
		t.Fatal(err)
	}
	for full := make([]byte, 1024); err == nil; {
		_, err = f.Write(full)
	}
	f.Close()
	const nothing = "Nothing was done"
	here(t, "secrets", "set", "db", "--value", "second").want(t, 1, "", nothing)
	here(t, "secrets", "rotate", "db").want(t, 1, "", nothing)
	here(t, "secrets", "delete", "db").want(t, 1, "", nothing)
	if s := here(t, "secrets", "get", "db", "--reveal").want(t, 1, "", nothing); strings.Contains(s.stdout, "first") {
		t.Errorf("%s shows the value unrecorded", s.line)
	}
	const unchanged = "Nothing was changed"
	if s := here(t, "token", "create", "--scope", "admin:*").want(t, 1, "", unchanged); s.stdout != "" {
		t.Errorf("%s prints %q, want no token", s.line, s.stdout)
	}
	here(t, "token", "revoke", made.Token.ID).want(t, 1, "", unchanged)
	here(t, "sessions", "import", session).want(t, 1, "", unchanged)
	if err := os.Remove(filepath.Join(disk, "fill")); err != nil {
		t.Fatal(err)
	}
	here(t, "secrets", "get", "db", "--reveal").want(t, 0, "first\n", "")
	if s := here(t, "token", "list", "--json"); strings.Contains(s.stdout, "admin:*") || strings.Contains(s.stdout, "revokedAt") {
		t.Errorf("%s = %s, want the one token, not revoked", s.line, s.stdout)
	}
	here(t, "audit", "verify").want(t, 0, "whole", "")
	if n := len(chronicle(t)); n != before+1 {
		t.Errorf("the chain has %d entries, want %d: nothing was done in between", n, before+1)
	}
}

// TestCommandsAreRecorded runs, aborts and imports without a server.
func TestCommandsAreRecorded(t *testing.T) {
	recorded(t)
	here(t, "run", "shout", "hi", "--session", "s1").want(t, 0, "HI", "")
	var runs struct{ Runs []run }
	here(t, "runs", "list", "--json").want(t, 0, "", "").decode(t, &runs)
	if len(runs.Runs) != 1 {
		t.Fatalf("there are %d runs, want 1", len(runs.Runs))
	}
	id := runs.Runs[0].RunID
	last(t, "cli run:start run:"+id+" success", "cli http:request /v1/agents/shout/stream success")
	here(t, "runs", "abort", id).want(t, 1, "", "has already ended")
	here(t, "sessions", "export", "s1", "-o", "s1.jsonl").want(t, 0, "", "")
	here(t, "sessions", "import", "s1.jsonl", "--as", "s2").want(t, 0, "Created session s2", "")
	here(t, "sessions", "import", "s1.jsonl", "--as", "s2").want(t, 1, "", "session-exists")
	here(t, "sessions", "delete", "s2", "--yes").want(t, 0, "Erased session s2.", "")
	here(t, "sessions", "delete", "s2", "--yes").want(t, 1, "", "session-not-found")
	here(t, "token", "revoke", "none").want(t, 1, "", "token-not-found")
	want := []string{"cli run:start run:" + id + " success", "cli session:import session:s2 success", "cli session:delete session:s2 success",
		"cli http:request /v1/tokens/none not-found"}
	got := slices.DeleteFunc(chronicle(t), func(entry string) bool { return !slices.Contains(want, entry) })
	if !slices.Equal(got, want) {
		t.Errorf("the chain has %q, want %q", got, want)
	}
}

// TestAuditKey tells the key of a copy, also where the passphrase is out of reach, and the same as a server does.
func TestAuditKey(t *testing.T) {
	recorded(t)
	srv := serve(t, ".")
	srv.token = adminToken(t)
	var told struct {
		Key struct{ Algorithm, Fingerprint, WriterID, PublicKeyPEM string }
	}
	if status := srv.call("GET", "/audit/key", "", &told); status != 200 || told.Key.Algorithm != "Ed25519" || !strings.HasPrefix(told.Key.Fingerprint, "sha256:") {
		t.Errorf("GET /audit/key = %d %+v", status, told)
	}
	srv.signal(syscall.SIGTERM)
	srv.wait().want(t, 0, "", "")
	here(t, "audit", "key").want(t, 0, told.Key.PublicKeyPEM, "Ed25519 "+told.Key.Fingerprint)
	chain := read(t, "audit.db")
	os.Remove("phrase")
	here(t, "audit", "verify").want(t, 1, "", "pre-bind-secret-unresolvable")
	here(t, "audit", "key").want(t, 0, told.Key.PublicKeyPEM, "")
	t.Chdir(t.TempDir())
	write(t, "copy.db", chain)
	var key struct{ Algorithm, Fingerprint, WriterID, PublicKeyPEM string }
	here(t, "audit", "key", "--file", "copy.db", "--json").want(t, 0, "", "").decode(t, &key)
	if key != told.Key {
		t.Errorf("audit key of a copy = %+v, want %+v", key, told.Key)
	}
}
