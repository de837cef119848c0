package audit_test

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"agentd/server/audit"
)

const passphrase = "correct horse battery staple"

// openLog opens a chain in a folder of its own, with a checkpoint file beside it. A new one derives its keys cheaply.
func openLog(t testing.TB, o audit.Options) *audit.Log {
	t.Helper()
	if o.Path == "" {
		o.Path = filepath.Join(t.TempDir(), "audit.db")
	}
	if o.Checkpoints.Path == "" {
		o.Checkpoints.Path = o.Path + ".checkpoints"
	}
	if o.Passphrase == nil {
		o.Passphrase = []byte(passphrase)
	}
	if _, err := os.Stat(o.Path); errors.Is(err, fs.ErrNotExist) {
		if err := audit.FoundCheaply(t.Context(), o.Path, cmp.Or(o.Cipher, "chacha20"), o.Passphrase); err != nil {
			t.Fatal(err)
		}
	}
	l, err := audit.Open(t.Context(), o)
	if err != nil {
		t.Fatalf("Open(%s) = %v", o.Path, err)
	}
	t.Cleanup(func() { closeLog(t, l) })
	return l
}

func closeLog(t testing.TB, l *audit.Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Errorf("Close() = %v", err)
	}
}

func record(i int) audit.Record {
	return audit.Record{At: time.UnixMilli(1_700_000_000_000 + int64(i)), Actor: audit.Actor{Kind: audit.ActorToken, ID: "tok_1", Label: "ci"}, Action: "http:request",
		Target: fmt.Sprint("/v1/agents/", i), Decision: audit.Success, Metadata: map[string]any{"method": "GET", "status": 200, "requestId": fmt.Sprint("req-", i)}}
}

func appendMany(t testing.TB, l *audit.Log, from, to int) {
	t.Helper()
	for i := from; i <= to; i++ {
		if err := l.Append(t.Context(), record(i)); err != nil {
			t.Fatalf("Append(%d) = %v", i, err)
		}
	}
}

func verify(t testing.TB, l *audit.Log, v audit.Verification) audit.Verdict {
	t.Helper()
	got, err := l.Verify(t.Context(), v)
	if err != nil {
		t.Fatalf("Verify(%+v) = %v", v, err)
	}
	return got
}

func copyFile(t testing.TB, to, from string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}
