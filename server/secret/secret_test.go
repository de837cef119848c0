package secret_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentd/server/fault"
	"agentd/server/secret"
)

func TestResolve(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"plain": "s3cret \n", "hex": "68690a", "b64": "aGk=", "big": strings.Repeat("x", 65<<10)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "open"), []byte("v"), 0o644); err != nil {
		t.Fatal(err)
	}
	warned := 0
	known := &secret.Redactor{}
	r := &secret.Resolver{Dir: dir, Known: known, Warn: func(string, ...any) { warned++ },
		Lookup: func(n string) (string, bool) { return "from " + n, n == "SET" }}
	for _, tc := range []struct{ ref, want, err string }{
		{ref: "env:SET", want: "from SET"},
		{ref: "ENV:UNSET", err: "UNSET is not set"},
		{ref: "env:UNSET?default=a+b", want: "a b"},
		{ref: "file:plain", want: "s3cret"},
		{ref: "file:" + filepath.Join(dir, "plain"), want: "s3cret"},
		{ref: "file://" + filepath.Join(dir, "plain"), want: "s3cret"},
		{ref: "file:hex?encoding=hex", want: "hi\n"},
		{ref: "file:b64?encoding=base64", want: "hi"},
		{ref: "file:plain?encoding=hex", err: "does not have the encoding"},
		{ref: "file:plain?encoding=rot13", err: "rot13"},
		{ref: "file:big", err: "larger"},
		{ref: "file:none", err: "no such file"},
		{ref: "file:plain%20", err: "no such file"},
		{ref: "file:pl%61in", want: "s3cret"},
		{ref: "vault://x/y", err: "no vault adapter"},
		{ref: "keyring:x", err: "no keyring"},
		{ref: "ref:x", err: "no active store"},
		{ref: "literal:hunter2", err: "AGENTD_ALLOW_LITERAL_SECRETS is not 1"},
		{ref: "encrypted-file:none#x", err: "no passphrase"},
		{ref: "encrypted-file:none?key=env:UNSET#x", err: "UNSET is not set"},
		{ref: "encrypted-file:none?key=env:SET#x", err: "there is no file"},
		{ref: "encrypted-file:plain?key=env:SET#x", err: "is not an encrypted file"},
		{ref: "encrypted-file:none?key=literal:hunter2#x", err: "comes from env: or file:"},
		{ref: "encrypted-file:none?key=encrypted-file:x#x", err: "comes from env: or file:"},
		{ref: "encrypted-file:none?key=hunter2hunter2#x", err: "want a reference"},
		{ref: "hunter2", err: "want a reference"},
		{ref: "env:X?%zz", err: "hexadecimal"},
	} {
		got, err := r.Resolve(tc.ref)
		if string(got) != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(secret.Clause(err), tc.err) {
			t.Errorf("Resolve(%q) = %q, %v; want %q, error with %q", tc.ref, got, err, tc.want, tc.err)
		}
		if err != nil && (strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("Resolve(%q): the error tells the secret: %v", tc.ref, err)
		}
	}
	if got := known.Text("it was s3cret, from SET"); got != "it was "+secret.Redacted+", "+secret.Redacted {
		t.Errorf("Text() = %q, want what was resolved hidden", got)
	}
	if warned != 0 {
		t.Errorf("%d warnings for private files", warned)
	}
	if v, err := r.Resolve("file:open"); string(v) != "v" || err != nil || warned != 1 {
		t.Errorf("Resolve(file:open) = %q, %v with %d warnings; want v with one", v, err, warned)
	}
	if r.Resolve("file:open?warnOnPermissions=0"); warned != 1 {
		t.Error("warnOnPermissions=0 has no effect")
	}
}

func TestLiterals(t *testing.T) {
	for _, tc := range []struct {
		allow, where string
		code         bool
		err          string
	}{
		{"1", "", true, ""},
		{"1", "staging", true, ""},
		{"", "", true, "AGENTD_ALLOW_LITERAL_SECRETS is not 1"},
		{"true", "", true, "AGENTD_ALLOW_LITERAL_SECRETS is not 1"},
		{"1", "", false, "program does not allow it"},
		{"1", "Production", true, "AGENTD_ENV is production"},
	} {
		env := map[string]string{secret.AllowLiterals: tc.allow, secret.Environment: tc.where}
		r := &secret.Resolver{Literals: tc.code, Lookup: func(n string) (string, bool) { v, ok := env[n]; return v, ok }}
		got, err := r.Resolve("literal:hunter2%3F")
		if (err == nil) != (tc.err == "") || err == nil && string(got) != "hunter2?" {
			t.Errorf("Resolve() with %v, %v = %q, %v; want error with %q", env, tc.code, got, err, tc.err)
		}
		if err != nil && (!fault.Is(err, fault.LiteralForbidden) || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("Resolve() with %v, %v = %v, want literal-secrets-forbidden with %q", env, tc.code, err, tc.err)
		}
	}
}

func TestPeers(t *testing.T) {
	for _, ref := range []string{"keyring:x", "vault://h/x"} {
		_, err := (&secret.Resolver{}).Resolve(ref)
		f := fault.Of(err)
		if f.Kind != fault.MissingPeerDependency || !strings.Contains(f.NextStep(), "env:, file:") {
			t.Errorf("Resolve(%s) = %v, %q; want missing-peer-dependency and what to use instead", ref, err, f.NextStep())
		}
		if _, err := secret.Parse(ref); !fault.Is(err, fault.MissingPeerDependency) {
			t.Errorf("Parse(%s) = %v, want missing-peer-dependency", ref, err)
		}
	}
	if _, err := secret.Parse("ref:x"); err != nil {
		t.Errorf("Parse(ref:x) = %v, want none", err)
	}
}

func FuzzResolve(f *testing.F) {
	f.Add("env:A?default=b")
	f.Add("file:~/x?encoding=hex")
	f.Fuzz(func(t *testing.T, ref string) {
		r := &secret.Resolver{Dir: t.TempDir(), Lookup: func(string) (string, bool) { return "", false }}
		if p, _ := secret.Parse(ref); strings.HasPrefix(p.Path, "/") || strings.HasPrefix(p.Path, "~") || strings.Contains(p.Path, "..") || strings.Contains(ref, "key=") {
			return // must not read what belongs to the machine
		}
		r.Resolve(ref) //nolint:errcheck // it must only return
	})
}
