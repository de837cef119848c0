package secret_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	r := secret.Resolver{Dir: dir, Warn: func(string, ...any) { warned++ },
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
		{ref: "vault:x", err: "scheme"},
		{ref: "hunter2", err: "scheme"},
		{ref: "env:X?%zz", err: "malformed"},
	} {
		got, err := r.Resolve(tc.ref)
		if string(got) != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("Resolve(%q) = %q, %v; want %q, error with %q", tc.ref, got, err, tc.want, tc.err)
		}
		if err != nil && (strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("Resolve(%q): the error tells the secret: %v", tc.ref, err)
		}
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

func FuzzResolve(f *testing.F) {
	f.Add("env:A?default=b")
	f.Add("file:~/x?encoding=hex")
	f.Fuzz(func(t *testing.T, ref string) {
		r := secret.Resolver{Dir: t.TempDir(), Lookup: func(string) (string, bool) { return "", false }}
		if strings.HasPrefix(strings.ToLower(ref), "file:/") || strings.HasPrefix(strings.ToLower(ref), "file:~") || strings.Contains(ref, "..") {
			return // must not read what belongs to the machine
		}
		r.Resolve(ref) //nolint:errcheck // it must only return
	})
}
