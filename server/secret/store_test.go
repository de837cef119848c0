package secret_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"agentd/server/fault"
	"agentd/server/secret"
)

func environment(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1], true
			}
		}
		return "", false
	}
}

func TestActivate(t *testing.T) {
	dir := t.TempDir()
	phrase := filepath.Join(dir, "phrase")
	if err := os.WriteFile(phrase, []byte("a passphrase of the file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "void"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "other"), []byte("no bundle at all"), 0o600); err != nil {
		t.Fatal(err)
	}
	with, at := []string{secret.Passphrase, "a passphrase"}, []string{secret.PassphraseAt, phrase}
	const unset = "neither AGENTD_MASTER_PASSPHRASE nor AGENTD_MASTER_PASSPHRASE_FILE is set"
	for _, tc := range []struct {
		source string
		strict bool
		env    []string
		path   string
		want   string // the report
		kind   *fault.Kind
	}{
		{source: "auto", want: `{"active":"env","fallbackChain":["encrypted-file","env"],"downgradedFrom":"encrypted-file","downgradeReason":"` + unset + `","strictMode":false,"headlessReasons":[]}`},
		{source: "auto", env: with, want: `{"active":"encrypted-file","fallbackChain":["encrypted-file","env"],"strictMode":false,"headlessReasons":[]}`},
		{source: "auto", env: at, want: `{"active":"encrypted-file","fallbackChain":["encrypted-file","env"],"strictMode":false,"headlessReasons":[]}`},
		{source: "auto", strict: true, env: with, want: `{"active":"encrypted-file","fallbackChain":["encrypted-file"],"strictMode":true,"headlessReasons":[]}`},
		{source: "auto", strict: true, kind: fault.StrictSecretsUnavailable},
		{source: "env", env: with, want: `{"active":"env","fallbackChain":["env"],"strictMode":false,"headlessReasons":[]}`},
		{source: "encrypted-file", env: with, want: `{"active":"encrypted-file","fallbackChain":["encrypted-file"],"strictMode":false,"headlessReasons":[]}`},
		{source: "encrypted-file", kind: fault.StrictSecretsUnavailable},
		{source: "keyring", env: with, kind: fault.StrictSecretsUnavailable},
		{source: "memory", kind: fault.StrictSecretsUnavailable},
		{source: "keyring,encrypted-file,env", env: with, want: `{"active":"encrypted-file","fallbackChain":["keyring","encrypted-file","env"],"downgradedFrom":"keyring","downgradeReason":"this build has no keyring; use encrypted-file or env","strictMode":false,"headlessReasons":[]}`},
		{source: "keyring, encrypted-file, env", want: `{"active":"env","fallbackChain":["keyring","encrypted-file","env"],"downgradedFrom":"keyring","downgradeReason":"this build has no keyring; use encrypted-file or env; ` + unset + `","strictMode":false,"headlessReasons":[]}`},
		{source: "env,encrypted-file", env: with, want: `{"active":"env","fallbackChain":["env","encrypted-file"],"strictMode":false,"headlessReasons":[]}`},
		{source: "encrypted-file,env", env: with, strict: true, want: `{"active":"encrypted-file","fallbackChain":["encrypted-file"],"strictMode":true,"headlessReasons":[]}`},
		{source: "encrypted-file,env", strict: true, kind: fault.StrictSecretsUnavailable},
		{source: "keyring,encrypted-file", kind: fault.StrictSecretsUnavailable},
		{source: "encrypted-file,env", env: with, path: "other", kind: fault.ResolutionFailed},
		// What is there and cannot be read is never a reason to take another store.
		{source: "auto", env: with, path: "other", kind: fault.ResolutionFailed},
		{source: "auto", env: []string{secret.PassphraseAt, filepath.Join(dir, "none")}, kind: fault.ResolutionFailed},
		{source: "auto", env: []string{secret.PassphraseAt, filepath.Join(dir, "void")}, kind: fault.ResolutionFailed},
	} {
		r := &secret.Resolver{Lookup: environment(tc.env...)}
		store, report, err := secret.Activate(tc.source, tc.strict, filepath.Join(dir, cmp.Or(tc.path, "none")), r)
		if tc.kind != nil {
			if !fault.Is(err, tc.kind) || store != nil {
				t.Errorf("Activate(%s, %v) with %v = %v, want %s", tc.source, tc.strict, tc.env, err, tc.kind.Code)
			}
			continue
		}
		got, _ := json.Marshal(report)
		if err != nil || string(got) != tc.want || store.Name() != report.Active {
			t.Errorf("Activate(%s, %v) with %v = %s, %v, want %s", tc.source, tc.strict, tc.env, got, err, tc.want)
		}
	}
}

// TestEncryptedFileByLink: a link to the file stays one, and both names lock the same.
func TestEncryptedFileByLink(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "kept", "secrets.kse"), filepath.Join(dir, "secrets.kse")
	r := &secret.Resolver{Lookup: environment(secret.Passphrase, "a passphrase")}
	stores := map[string]secret.Store{}
	for _, path := range []string{file, link} {
		s, _, err := secret.Activate("encrypted-file", false, path, r)
		if err != nil {
			t.Fatal(err)
		}
		stores[path] = s
	}
	if err := stores[file].Set("first", []byte("hunter2hunter2")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	if err := stores[link].Set("second", []byte("hunter3hunter3")); err != nil {
		t.Fatal(err)
	}
	if value, found, err := stores[file].Get("second"); !found || err != nil {
		t.Errorf("Get(second) of the file after Set() by a link to it = %q, %v, %v", value, found, err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode().Type() != os.ModeSymlink {
		t.Errorf("the link is %v, %v after Set() by it, want a link", info.Mode(), err)
	}
	if _, err := os.Stat(link + ".lock"); err == nil {
		t.Error("the link has a lock of its own, want that of the file")
	}
}

func TestEncryptedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "below", "secrets.kse")
	r := &secret.Resolver{Lookup: environment(secret.Passphrase, "a passphrase")}
	activate := func() secret.Store {
		t.Helper()
		s, _, err := secret.Activate("encrypted-file", false, path, r)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := activate()
	if _, found, err := s.Get("db"); found || err != nil {
		t.Errorf("Get() of no file = %v, %v, want nothing", found, err)
	}
	if all, err := s.List(); len(all) != 0 || all == nil || err != nil {
		t.Errorf("List() of no file = %v, %v, want an empty list", all, err)
	}
	if found, err := s.Delete("db"); found || err != nil {
		t.Errorf("Delete() of no file = %v, %v, want false", found, err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("Delete() made a file")
	}
	for key, value := range map[string]string{"db": "hunter2hunter2", "api/key": "first"} {
		if err := s.Set(key, []byte(value)); err != nil {
			t.Fatalf("Set(%s) = %v", key, err)
		}
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v, want mode 0600", fi.Mode(), err)
	}
	if raw, _ := os.ReadFile(path); bytes.Contains(raw, []byte("hunter2")) || bytes.Contains(raw, []byte(`"db"`)) {
		t.Error("the file shows a secret or its key")
	}

	// Another process sees it, and the first one sees what that changes.
	other := activate()
	if err := other.Set("api/key", []byte("second")); err != nil {
		t.Fatal(err)
	}
	if v, found, err := s.Get("api/key"); string(v) != "second" || !found || err != nil {
		t.Errorf("Get(api/key) = %q, %v, %v, want second", v, found, err)
	}
	all, err := s.List()
	if err != nil || len(all) != 2 || all[0].Key != "api/key" || all[1].Key != "db" || all[0].CreatedAt == "" || all[0].UpdatedAt < all[0].CreatedAt {
		t.Errorf("List() = %v, %v, want both with their times", all, err)
	}
	if found, err := other.Delete("db"); !found || err != nil {
		t.Errorf("Delete(db) = %v, %v, want true", found, err)
	}
	if _, found, err := s.Get("db"); found || err != nil {
		t.Errorf("Get(db) after Delete = %v, %v", found, err)
	}
	for _, tc := range []struct {
		key, value string
	}{{"", "x"}, {"-x", "x"}, {"a b", "x"}, {"a", ""}, {"a", "\xFF"}, {"a", strings.Repeat("x", 65<<10)}} {
		if err := s.Set(tc.key, []byte(tc.value)); fault.Of(err).Kind == fault.Internal || err == nil {
			t.Errorf("Set(%q, %.10q) = %v, want a refusal", tc.key, tc.value, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*")); len(left) != 2 {
		t.Errorf("the folder has %v, want the file and its lock", left)
	}

	// References to it.
	r.Dir, r.Store = filepath.Dir(path), s
	for ref, want := range map[string]string{
		"ref:api/key":                        "second",
		"encrypted-file:secrets.kse#api/key": "second",
		"encrypted-file:secrets.kse":         "second",
		"encrypted-file://" + path + "?key=env:AGENTD_MASTER_PASSPHRASE#/api~1key": "second",
	} {
		if v, err := r.Resolve(ref); string(v) != want || err != nil {
			t.Errorf("Resolve(%s) = %q, %v, want %q", ref, v, err, want)
		}
	}
	for ref, want := range map[string]string{"ref:none": `no value under "none"`, "ref:a%20b": "he key of a secret is", "encrypted-file:secrets.kse#none": `no value under "none"`} {
		if v, err := r.Resolve(ref); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Resolve(%s) = %q, %v, want an error with %q", ref, v, err, want)
		}
	}

	wrong := &secret.Resolver{Lookup: environment(secret.Passphrase, "another")}
	if _, _, err := secret.Activate("auto", false, path, wrong); !fault.Is(err, fault.ResolutionFailed) || !strings.Contains(err.Error(), "the passphrase is wrong") {
		t.Errorf("Activate() with another passphrase = %v, want resolution-failed", err)
	}
}

func TestEncryptedFileTogether(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secrets.kse")
	r := &secret.Resolver{Lookup: environment(secret.Passphrase, "a passphrase")}
	first, _, err := secret.Activate("encrypted-file", false, path, r)
	if err == nil {
		err = first.Set("seed", []byte("x"))
	}
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for writer := range 2 {
		s, _, err := secret.Activate("encrypted-file", false, path, r)
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			for i := range 5 {
				if err := s.Set(fmt.Sprintf("w%d-%d", writer, i), []byte("value")); err != nil {
					t.Errorf("Set() = %v", err)
				}
			}
		})
	}
	all.Wait()
	if list, err := first.List(); len(list) != 11 || err != nil {
		t.Errorf("List() = %d values, %v, want 11: none is lost", len(list), err)
	}
}

func TestEnvironmentStore(t *testing.T) {
	s, _, err := secret.Activate("env", false, "", &secret.Resolver{Lookup: environment("DB_KEY", "x")})
	if err != nil {
		t.Fatal(err)
	}
	if v, found, err := s.Get("db_key"); string(v) != "x" || !found || err != nil {
		t.Errorf("Get(db_key) = %q, %v, %v, want x", v, found, err)
	}
	if _, found, err := s.Get("other"); found || err != nil {
		t.Errorf("Get(other) = %v, %v, want nothing", found, err)
	}
	if _, _, err := s.Get("a=b"); err == nil {
		t.Error("Get(a=b) is no error")
	}
	if err := s.Set("db_key", []byte("y")); !fault.Is(err, fault.SecretAccessDenied) {
		t.Errorf("Set() = %v, want secret-access-denied", err)
	}
	if _, err := s.Delete("db_key"); !fault.Is(err, fault.SecretAccessDenied) {
		t.Errorf("Delete() = %v, want secret-access-denied", err)
	}
	if all, err := s.List(); all == nil || len(all) != 0 || err != nil {
		t.Errorf("List() = %v, %v, want an empty list", all, err)
	}
}
