package secret_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentd/server/fault"
	"agentd/server/fuzztest"
	"agentd/server/secret"
)

// FuzzFile reads the file of a secret, in each of the encodings.
func FuzzFile(f *testing.F) {
	for _, s := range []string{"s3cret-value\n", "73336372657420 \r\n", "czNjcmV0LXZhbHVl", "\xff\x00", " \n", "zz-s3cret-value-zz"} {
		f.Add([]byte(s))
	}
	dir := f.TempDir()
	r := &secret.Resolver{Dir: dir}
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(filepath.Join(dir, "s"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		plain := bytes.TrimRight(text, " \t\r\n")
		for encoding, decode := range map[string]func() ([]byte, error){
			"utf8":   func() ([]byte, error) { return plain, nil },
			"hex":    func() ([]byte, error) { return hex.DecodeString(string(plain)) },
			"base64": func() ([]byte, error) { return base64.StdEncoding.DecodeString(string(plain)) },
		} {
			ref := "file:s?encoding=" + encoding
			fuzztest.Cost{PerByte: 16}.Check(t, len(text), func() { r.Resolve(ref) }) //nolint:errcheck // it is looked at below
			got, err := r.Resolve(ref)
			want, wantErr := decode()
			switch {
			case len(text) > 64<<10:
				wantErr = err
			case err == nil && (wantErr != nil || !bytes.Equal(got, want)):
				t.Errorf("Resolve(%s) of %q = %q, want %q, %v", ref, text, got, want, wantErr)
			}
			if f := fault.Of(err); err != nil && (f.Kind != fault.ResolutionFailed || wantErr == nil || len(plain) > 8 && strings.Contains(f.Message+f.Hint, string(plain))) {
				t.Errorf("Resolve(%s) of %q = %v, want %q", ref, text, err, want)
			}
		}
	})
}

func TestParseCost(t *testing.T) {
	long := strings.Repeat("%25", 2600)
	for _, text := range []string{
		strings.Repeat("encrypted-file:a?key=", 370), "env:A?" + strings.Repeat("default=b&", 800), "file:" + long, "vault://h/x?" + strings.Repeat("a=%20&", 1300),
		"encrypted-file:a?key=" + strings.Repeat("file:a?key=", 700), string(fuzztest.Fill("env:", func(int) string { return "A" }, "")), "env:A?default=" + long,
	} {
		fuzztest.Check(t, len(text), func() { secret.Parse(text) }) //nolint:errcheck // only what it costs counts
		fuzztest.Check(t, len(text), func() { secret.Show(text) })
		if t.Failed() {
			t.Fatalf("%.60s", text)
		}
	}
}
