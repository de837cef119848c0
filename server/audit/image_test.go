package audit_test

import (
	"os"
	"path/filepath"
	"testing"

	"agentd/server/audit"
)

// TestCrashImages opens what a crash could have left: the files with the write-ahead log cut at any place, and a
// checkpoint line that is half written. Each image verifies, has a prefix of the entries, and goes on from there.
func TestCrashImages(t *testing.T) {
	dir := t.TempDir()
	p := pair{filepath.Join(dir, "audit.db"), filepath.Join(dir, "checkpoints")}
	p.grow(t, 1, 3) // all of that is in the database itself, and has a checkpoint
	l := openLog(t, audit.Options{Path: p.log, Checkpoints: audit.Checkpoints{Path: p.checkpoints}})
	for i := 4; i <= 12; i++ {
		appendMany(t, l, i, i)
	}
	if _, err := l.Prune(t.Context(), record(3).At, 1, audit.Actor{Kind: audit.ActorCLI, ID: "x"}); err != nil {
		t.Fatal(err)
	}
	appendMany(t, l, 13, 14)
	log, err := os.ReadFile(p.log + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	heads, err := os.ReadFile(p.checkpoints)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int64]bool{}
	const step = 1031 // a prime, so that cuts come at all places of a page
	for cut := 0; cut <= len(log)+step; cut += step {
		image := p.copyTo(t, filepath.Join(dir, "image"))
		os.Remove(image.log + "-shm") //nolint:errcheck // of the image before
		if err := os.WriteFile(image.log+"-wal", log[:min(cut, len(log))], 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(image.checkpoints, append(heads[:len(heads):len(heads)], heads[:cut%len(heads)]...), 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := audit.Open(t.Context(), audit.Options{Path: image.log, Passphrase: []byte(passphrase), Checkpoints: audit.Checkpoints{Path: image.checkpoints}})
		if err != nil {
			t.Fatalf("Open() with the log cut at %d of %d = %v", cut, len(log), err)
		}
		was := l.Head().Size
		seen[was] = true
		appendMany(t, l, 90, 91)
		closeLog(t, l)
		v := image.verify(t, []byte(passphrase), audit.Verification{})
		if !v.OK || v.Head.Size != was+2 || v.Checkpoints != 2 {
			t.Fatalf("Verify() with the log cut at %d of %d = %+v, want %d good entries and two checkpoints", cut, len(log), v, was+2)
		}
	}
	if len(seen) < 8 {
		t.Errorf("the images had %d different lengths, want most of those there were", len(seen))
	}
}
