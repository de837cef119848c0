package audit_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentd/metrics"
	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/store/storetest"
)

var root = audit.Actor{Kind: audit.ActorCLI, ID: "root"}

// open opens the pair as its owner, with an inventory.
func (p pair) open(t *testing.T) *audit.Log {
	t.Helper()
	return openLog(t, audit.Options{Path: p.log, Checkpoints: audit.Checkpoints{Path: p.checkpoints}, Metrics: metrics.New("1")})
}

func newPair(t *testing.T) pair {
	return pair{filepath.Join(t.TempDir(), "audit.db"), filepath.Join(t.TempDir(), "checkpoints")}
}

// TestStoredTree flips a bit of what the chain stores of its tree. A verification finds that, and a start signs nothing
// that is made of it.
func TestStoredTree(t *testing.T) {
	for _, at := range []int{3, 20, 45} { // in the size and in both hashes
		p := newPair(t)
		p.grow(t, 1, 6)
		storetest.Behind(t, p.log, flipByte("audit_meta", "value", at)+" WHERE key = 'edge'")
		if v := p.verify(t, []byte(passphrase), audit.Verification{}); v.OK {
			t.Errorf("Verify() with byte %d of the tree changed = %+v, want it broken", at, v)
		}
		p.grow(t, 7, 9)
		if v := p.verify(t, []byte(passphrase), audit.Verification{}); !v.OK || v.Checkpoints != 2 {
			t.Errorf("Verify() after a start with byte %d of the tree changed = %+v, want both checkpoints to fit", at, v)
		}
	}
}

// TestBrokenChainIsNotCovered breaks a chain in ways that a start finds. It is not whole, nothing more is signed, and later
// processes know it, until somebody accepts it. Then it is whole, but for what is reported; other changes are found.
func TestBrokenChainIsNotCovered(t *testing.T) {
	base := newPair(t)
	base.grow(t, 1, 10)
	l := base.open(t)
	key := l.PublicKey()
	appendMany(t, l, 11, 18) // without a checkpoint
	tail := pair{filepath.Join(t.TempDir(), "audit.db"), filepath.Join(t.TempDir(), "checkpoints")}
	for to, from := range map[string]string{tail.log: base.log, tail.log + "-wal": base.log + "-wal", tail.checkpoints: base.checkpoints} {
		copyFile(t, to, from)
	}
	closeLog(t, l)
	run := func(statements ...string) func(*testing.T, pair) {
		return func(t *testing.T, p pair) { storetest.Behind(t, p.log, statements...) }
	}
	for _, tc := range []struct {
		name   string
		from   pair
		do     func(*testing.T, pair)
		seq    int64
		reason string
		deep   bool // only a verification finds it
	}{
		{"cut", base, run("DELETE FROM audit_log WHERE seq > 7"), 8, audit.BrokenTruncated, false},
		{"emptied", base, run("DELETE FROM audit_log"), 1, audit.BrokenTruncated, false},
		{"tail changed", tail, run("UPDATE audit_log SET ts = ts + 1 WHERE seq = 14"), 14, audit.BrokenHash, false},
		{"tail hash changed", tail, run("UPDATE audit_log SET hash = prev_hash WHERE seq = 14"), 14, audit.BrokenContents, false},
		{"tail gap", tail, run("DELETE FROM audit_log WHERE seq IN (14, 15)"), 14, audit.BrokenMissing, false},
		{"checkpoint edited", base, func(t *testing.T, p pair) { edit(t, p.checkpoints, `"size":18`, `"size":99`) }, 11, audit.BrokenSignature, false},
		{"old checkpoints", base, func(t *testing.T, p pair) { copyFile(t, p.checkpoints, tail.checkpoints) }, 18, audit.BrokenCheckpoints, false},
		{"checkpoint in the log", base, run("UPDATE audit_meta SET value = x'7B7D' WHERE key = 'checkpoint'"), 1, audit.BrokenSignature, false},
		{"changed before the checkpoint", base, run("UPDATE audit_log SET sealed = x'' WHERE seq = 4"), 4, audit.BrokenContents, true},
		{"gap before the checkpoint", base, run("DELETE FROM audit_log WHERE seq BETWEEN 4 AND 6"), 4, audit.BrokenMissing, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := tc.from.copyTo(t, t.TempDir())
			if _, err := os.Stat(tc.from.log + "-wal"); err == nil {
				copyFile(t, p.log+"-wal", tc.from.log+"-wal")
			}
			tc.do(t, p)
			lines := readAll(t, p.checkpoints)
			o := audit.Options{Path: p.log, Checkpoints: audit.Checkpoints{Path: p.checkpoints}, Metrics: metrics.New("1")}
			l := openLog(t, o)
			if tc.deep {
				if v := verify(t, l, audit.Verification{Checkpoints: p.checkpoints}); v.OK || v.BrokenAt != tc.seq {
					t.Errorf("Verify() = %+v, want broken at %d", v, tc.seq)
				}
			}
			for range 2 {
				if b := l.Broken(); b == nil || b.Seq != tc.seq || b.Reason != tc.reason {
					t.Errorf("Broken() = %+v, want %s at %d", b, tc.reason, tc.seq)
				}
				if v, _ := reading(t, o.Metrics, "svc_audit_whole"); v != 0 {
					t.Errorf("svc_audit_whole = %v, want 0", v)
				}
				if v, _ := reading(t, o.Metrics, "svc_audit_checkpoint_entries"); v > 18 {
					t.Errorf("svc_audit_checkpoint_entries = %v, want what was signed", v)
				}
				appendMany(t, l, 50, 52)
				if _, err := l.Prune(t.Context(), time.Now().Add(time.Hour), 1, root); !fault.Is(err, fault.AuditUnusable) {
					t.Errorf("Prune() of a broken chain = %v, want audit-unusable", err)
				}
				closeLog(t, l)
				if readAll(t, p.checkpoints) != lines {
					t.Error("a checkpoint of the broken chain was signed")
				}
				o.Metrics = metrics.New("1")
				l = openLog(t, o)
			}

			a, err := l.Accept(t.Context(), "The disk failed.", root)
			if err != nil {
				t.Fatalf("Accept() = %v", err)
			}
			if a.First.Seq != tc.seq || a.First.Reason != tc.reason || a.By != "cli:root" || a.Seq != l.Head().Size {
				t.Errorf("Accept() = %+v, want %s at %d", a, tc.reason, tc.seq)
			}
			if v, _ := reading(t, o.Metrics, "svc_audit_whole"); v != 1 || l.Broken() != nil {
				t.Errorf("svc_audit_whole after Accept() = %v, Broken() = %+v, want it whole", v, l.Broken())
			}
			if _, err := l.Accept(t.Context(), "Again.", root); !fault.Is(err, fault.AuditWhole) {
				t.Errorf("Accept() of a whole chain = %v, want audit-whole", err)
			}
			appendMany(t, l, 60, 65)
			closeLog(t, l)
			v := p.verify(t, []byte(passphrase), audit.Verification{PublicKey: key})
			if !v.OK || len(v.Accepted) != 1 || v.Accepted[0].Reason != "The disk failed." || v.Accepted[0].First.Seq != tc.seq || v.Checkpoints != 2 {
				t.Errorf("Verify() after Accept() = %+v, want it whole, with what was accepted", v)
			}
			if v := p.verify(t, nil, audit.Verification{PublicKey: key}); !v.OK {
				t.Errorf("Verify() without the passphrase = %+v, want it whole", v)
			}
			l = openLog(t, o)
			if b := l.Broken(); b != nil {
				t.Errorf("Broken() after another start = %+v", b)
			}
			page, _, err := l.List(t.Context(), audit.Query{Action: "audit:accept", Limit: 1000})
			if err != nil || len(page) != 1 || page[0].Seq != a.Seq || page[0].Actor != root || !strings.Contains(string(page[0].Metadata), "The disk failed.") {
				t.Errorf("List(audit:accept) = %+v, %v", page, err)
			}
			c, ok, err := l.Covering(2)
			if err != nil || !ok || c.Accepted == nil {
				t.Fatalf("Covering(2) = %+v, %v, %v; want the checkpoint of the acceptance", c, ok, err)
			}
			if p, err := proof(t, l, a.Seq, c.Head.Size); err != nil || p.RootHash != c.Head.RootHash {
				t.Errorf("Proof(%d) = %+v, %v; want the root %s", a.Seq, p, err, c.Head.RootHash)
			}
			closeLog(t, l)

			// Anything else is found as before.
			for name, statement := range map[string]string{
				"another entry":  "UPDATE audit_log SET ts = ts + 1 WHERE seq = (SELECT max(seq) - 2 FROM audit_log)",
				"the record":     "UPDATE audit_meta SET value = CAST(replace(value, 'disk failed', 'disk worked') AS BLOB) WHERE key = 'accepted'",
				"the same place": "UPDATE audit_log SET sealed = x'00' WHERE seq = 14 OR seq = 4",
			} {
				if name == "the same place" && tc.reason != audit.BrokenContents && tc.reason != audit.BrokenHash {
					continue
				}
				if name == "the record" && len(a.Breaks) == 0 {
					continue // its line in the checkpoint file is covered by its signature
				}
				c := p.copyTo(t, t.TempDir())
				storetest.Behind(t, c.log, statement)
				if v := c.verify(t, []byte(passphrase), audit.Verification{PublicKey: key}); v.OK {
					t.Errorf("Verify() after a change of %s = %+v, want it broken", name, v)
				}
			}

			// What was accepted can be pruned.
			l = openLog(t, o)
			if got, err := l.Prune(t.Context(), time.Now().Add(time.Hour), 2, root); err != nil || got.Deleted == 0 {
				t.Errorf("Prune() = %+v, %v", got, err)
			}
			closeLog(t, l)
			if v := p.verify(t, []byte(passphrase), audit.Verification{PublicKey: key}); !v.OK || len(v.Accepted) != 1 {
				t.Errorf("Verify() after pruning = %+v, want it whole", v)
			}
		})
	}
}

// TestRestoredChain puts back what was missing. A whole verification then says so, and nobody has to accept anything.
func TestRestoredChain(t *testing.T) {
	p := newPair(t)
	p.grow(t, 1, 10)
	kept := p.copyTo(t, t.TempDir())
	storetest.Behind(t, p.log, "UPDATE audit_log SET ts = ts + 1 WHERE seq = 4")
	l := p.open(t)
	if v := verify(t, l, audit.Verification{Checkpoints: p.checkpoints}); v.OK || l.Broken() == nil {
		t.Fatalf("Verify() = %+v, want it broken", v)
	}
	closeLog(t, l)
	storetest.Behind(t, p.log, "ATTACH '"+kept.log+"' AS kept; UPDATE audit_log SET ts = (SELECT ts FROM kept.audit_log WHERE seq = 4) WHERE seq = 4")
	l = p.open(t)
	if l.Broken() == nil {
		t.Error("the break is forgotten before a verification")
	}
	if v := verify(t, l, audit.Verification{Checkpoints: p.checkpoints}); !v.OK || l.Broken() != nil {
		t.Errorf("Verify() = %+v, Broken() = %+v; want it whole", v, l.Broken())
	}
}

// TestUnacceptable breaks a chain in more places than can be accepted.
func TestUnacceptable(t *testing.T) {
	p := newPair(t)
	p.grow(t, 1, 100)
	storetest.Behind(t, p.log, "UPDATE audit_log SET sealed = x'' WHERE seq > 10")
	l := p.open(t)
	if _, err := l.Accept(t.Context(), "So be it.", root); !fault.Is(err, fault.AuditUnusable) {
		t.Errorf("Accept() = %v, want audit-unusable", err)
	}
	if _, err := l.Accept(t.Context(), "", root); !fault.Is(err, fault.ConfigInvalid) {
		t.Errorf("Accept() without a reason = %v, want config-invalid", err)
	}
	if l.Broken() == nil {
		t.Error("the chain is whole although nothing was accepted")
	}
}

// TestChainWithoutItsFile takes the chain's file away from beside its checkpoints, or empties it.
func TestChainWithoutItsFile(t *testing.T) {
	for name, spoil := range map[string]func(string) error{"missing": os.Remove, "empty": func(p string) error { return os.Truncate(p, 0) }} {
		p := newPair(t)
		p.grow(t, 1, 3)
		if err := spoil(p.log); err != nil {
			t.Fatal(err)
		}
		o := audit.Options{Path: p.log, Passphrase: []byte(passphrase), Checkpoints: audit.Checkpoints{Path: p.checkpoints}}
		if l, err := audit.Open(t.Context(), o); !fault.Is(err, fault.AuditUnusable) || !strings.Contains(err.Error(), p.checkpoints) {
			t.Errorf("Open() of a chain that is %s = %v, %v; want audit-unusable that names the checkpoints", name, l, err)
		}
	}
}

// TestTriggerInTheChain plants a trigger that swallows entries. None is acknowledged.
func TestTriggerInTheChain(t *testing.T) {
	l := newPair(t).open(t)
	appendMany(t, l, 1, 3)
	storetest.Behind(t, l.Path(), "CREATE TRIGGER quiet BEFORE INSERT ON audit_log BEGIN SELECT raise(IGNORE); END")
	if err := l.Append(t.Context(), record(4)); !fault.Is(err, fault.AuditUnavailable) {
		t.Errorf("Append() past a trigger that ignores it = %v, want audit-unavailable", err)
	}
	if err := l.Check(t.Context()); !fault.Is(err, fault.AuditUnavailable) {
		t.Errorf("Check() beside such a trigger = %v, want audit-unavailable", err)
	}
	storetest.Behind(t, l.Path(), "DROP TRIGGER quiet")
}

func readAll(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
