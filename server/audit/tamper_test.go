package audit_test

import (
	"bytes"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/store/storetest"
)

// pair is the two files of a chain.
type pair struct{ log, checkpoints string }

func (p pair) copyTo(t *testing.T, dir string) pair {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	c := pair{filepath.Join(dir, "audit.db"), filepath.Join(dir, "checkpoints")}
	copyFile(t, c.log, p.log)
	copyFile(t, c.checkpoints, p.checkpoints)
	return c
}

// grow appends to a chain, and closes it, which makes a checkpoint.
func (p pair) grow(t *testing.T, from, to int) []byte {
	t.Helper()
	l := openLog(t, audit.Options{Path: p.log, Checkpoints: audit.Checkpoints{Path: p.checkpoints}})
	appendMany(t, l, from, to)
	closeLog(t, l)
	return l.PublicKey()
}

func (p pair) verify(t *testing.T, secret []byte, v audit.Verification) audit.Verdict {
	t.Helper()
	l, err := audit.Open(t.Context(), audit.Options{Path: p.log, ReadOnly: true, Passphrase: secret, Checkpoints: audit.Checkpoints{Path: p.checkpoints}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	v.Checkpoints = p.checkpoints
	return verify(t, l, v)
}

// flipByte is a statement that gives a byte of a column another value, whatever value it has.
func flipByte(table, column string, at int) string {
	return fmt.Sprintf("UPDATE %[1]s SET %[2]s = CAST(substr(%[2]s, 1, %[3]d - 1) || "+
		"CASE substr(%[2]s, %[3]d, 1) WHEN x'5A' THEN x'A5' ELSE x'5A' END || substr(%[2]s, %[3]d + 1) AS BLOB)", table, column, at)
}

// TestTampering changes a chain in every way that there is. With the passphrase the first bad entry is named exactly;
// without it, what the links and the checkpoints can tell.
func TestTampering(t *testing.T) {
	base := pair{filepath.Join(t.TempDir(), "audit.db"), filepath.Join(t.TempDir(), "checkpoints")}
	key := base.grow(t, 1, 10)
	older := base.copyTo(t, t.TempDir())
	base.grow(t, 11, 20)
	base.grow(t, 21, 30) // checkpoints of 10, 20 and 30
	foreign := pair{filepath.Join(t.TempDir(), "audit.db"), filepath.Join(t.TempDir(), "checkpoints")}
	foreign.grow(t, 1, 30)

	if v := base.verify(t, []byte(passphrase), audit.Verification{}); !v.OK || v.Count != 30 || v.Checkpoints != 3 {
		t.Fatalf("Verify() of the chain as it is = %+v, want 30 entries and 3 checkpoints", v)
	}
	run := func(statements ...string) func(*testing.T, pair) {
		return func(t *testing.T, p pair) { storetest.Behind(t, p.log, statements...) }
	}
	flip := func(column string) string { return flipByte("audit_log", column, 6) + " WHERE seq = 15" }
	for _, tc := range []struct {
		name    string
		do      func(*testing.T, pair)
		seq     int64
		reason  string
		links   int64 // without the passphrase; 0: not found
		unknown string
	}{
		{"ts", run("UPDATE audit_log SET ts = ts + 1 WHERE seq = 15"), 15, audit.BrokenHash, 0, ""},
		{"prev_hash", run(flip("prev_hash")), 15, audit.BrokenLink, 15, audit.BrokenLink},
		{"hash", run(flip("hash")), 15, audit.BrokenContents, 16, audit.BrokenLink},
		{"short hash", run("UPDATE audit_log SET hash = x'00' WHERE seq = 15"), 15, audit.BrokenHash, 15, audit.BrokenHash},
		{"sealed", run(flip("sealed")), 15, audit.BrokenContents, 0, ""},
		{"sealed emptied", run("UPDATE audit_log SET sealed = x'' WHERE seq = 15"), 15, audit.BrokenContents, 0, ""},
		{"sealed swapped", run("UPDATE audit_log SET sealed = (SELECT sealed FROM audit_log WHERE seq = 16) WHERE seq = 15"), 15, audit.BrokenContents, 0, ""},
		{"deleted", run("DELETE FROM audit_log WHERE seq = 15"), 15, audit.BrokenMissing, 15, audit.BrokenMissing},
		{"deleted and closed up", run("DELETE FROM audit_log WHERE seq = 15", "UPDATE audit_log SET seq = seq - 1 WHERE seq > 15"), 15, audit.BrokenLink, 15, audit.BrokenLink},
		{"first deleted", run("DELETE FROM audit_log WHERE seq <= 3"), 1, audit.BrokenMissing, 1, audit.BrokenMissing},
		{"inserted", run("UPDATE audit_log SET seq = -seq WHERE seq >= 15", "UPDATE audit_log SET seq = 1 - seq WHERE seq < 0",
			"INSERT INTO audit_log SELECT 15, ts, prev_hash, hash, sealed FROM audit_log WHERE seq = 14"), 15, audit.BrokenLink, 15, audit.BrokenLink},
		{"inserted with its link", run("UPDATE audit_log SET seq = -seq WHERE seq >= 15", "UPDATE audit_log SET seq = 1 - seq WHERE seq < 0",
			"INSERT INTO audit_log SELECT 15, ts, hash, hash, sealed FROM audit_log WHERE seq = 14"), 15, audit.BrokenContents, 11, audit.BrokenLog},
		{"reordered", run("UPDATE audit_log SET seq = 99 WHERE seq = 15", "UPDATE audit_log SET seq = 15 WHERE seq = 16", "UPDATE audit_log SET seq = 16 WHERE seq = 99"),
			15, audit.BrokenLink, 15, audit.BrokenLink},
		{"tail cut", run("DELETE FROM audit_log WHERE seq > 25"), 26, audit.BrokenTruncated, 26, audit.BrokenTruncated},
		{"cut to a checkpoint", run("DELETE FROM audit_log WHERE seq > 20"), 21, audit.BrokenTruncated, 21, audit.BrokenTruncated},
		{"emptied", run("DELETE FROM audit_log"), 1, audit.BrokenTruncated, 1, audit.BrokenTruncated},
		{"older copy of the log", func(t *testing.T, p pair) { copyFile(t, p.log, older.log) }, 11, audit.BrokenTruncated, 11, audit.BrokenTruncated},
		{"older copy of the checkpoints", func(t *testing.T, p pair) { copyFile(t, p.checkpoints, older.checkpoints) },
			30, audit.BrokenCheckpoints, 30, audit.BrokenCheckpoints},
		{"no checkpoints", func(t *testing.T, p pair) { os.Remove(p.checkpoints) }, 30, audit.BrokenCheckpoints, 30, audit.BrokenCheckpoints},
		{"another log", func(t *testing.T, p pair) { copyFile(t, p.log, foreign.log) }, 30, audit.BrokenSignature, 30, audit.BrokenSignature},
		{"another log and checkpoints", func(t *testing.T, p pair) {
			copyFile(t, p.log, foreign.log)
			copyFile(t, p.checkpoints, foreign.checkpoints)
		},
			30, audit.BrokenSignature, 30, audit.BrokenSignature},
		{"cut and grown again", func(t *testing.T, p pair) {
			storetest.Behind(t, p.log, "DELETE FROM audit_log WHERE seq > 17")
			p.grow(t, 40, 60)
		}, 11, audit.BrokenLog, 11, audit.BrokenLog},
		{"a checkpoint edited", func(t *testing.T, p pair) { edit(t, p.checkpoints, `"size":20`, `"size":19`) }, 19, audit.BrokenSignature, 19, audit.BrokenSignature},
		{"a checkpoint's signature", func(t *testing.T, p pair) { edit(t, p.checkpoints, `"signature":"`, `"signature":"A`) }, 10, audit.BrokenSignature, 10, audit.BrokenSignature},
		{"checkpoints no JSON", func(t *testing.T, p pair) { edit(t, p.checkpoints, `{`, `<`) }, 1, audit.BrokenSignature, 1, audit.BrokenSignature},
		{"checkpoint in the log", run("UPDATE audit_meta SET value = x'7B7D' WHERE key = 'checkpoint'"), 1, audit.BrokenSignature, 1, audit.BrokenSignature},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p := base.copyTo(t, t.TempDir())
			tc.do(t, p)
			if v := p.verify(t, []byte(passphrase), audit.Verification{PublicKey: key}); v.OK || v.BrokenAt != tc.seq || v.Reason != tc.reason {
				t.Errorf("Verify() = %+v, want %s at %d", v, tc.reason, tc.seq)
			}
			if v := p.verify(t, nil, audit.Verification{PublicKey: key}); v.OK != (tc.links == 0) || v.BrokenAt != tc.links || v.Reason != tc.unknown {
				t.Errorf("Verify() without the passphrase = %+v, want %s at %d", v, tc.unknown, tc.links)
			}
		})
	}
}

// TestRandomTampering flips single bits of random columns. Each is found, and its entry is named.
func TestRandomTampering(t *testing.T) {
	const entries = 30
	rounds := 10_000
	if testing.Short() {
		rounds = 500
	}
	p := pair{filepath.Join(t.TempDir(), "audit.db"), filepath.Join(t.TempDir(), "checkpoints")}
	p.grow(t, 1, entries)
	l, err := audit.Open(t.Context(), audit.Options{Path: p.log, ReadOnly: true, Passphrase: []byte(passphrase)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	db, err := sql.Open("sqlite", p.log)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("PRAGMA synchronous = OFF"); err != nil {
		t.Fatal(err)
	}
	set := func(column string, seq int, v any) {
		t.Helper()
		if _, err := db.Exec("UPDATE audit_log SET "+column+" = ? WHERE seq = ?", v, seq); err != nil {
			t.Fatal(err)
		}
	}
	for range rounds {
		column, seq := []string{"ts", "prev_hash", "hash", "sealed"}[rand.IntN(4)], 1+rand.IntN(entries)
		var was, now any
		if err := db.QueryRow("SELECT "+column+" FROM audit_log WHERE seq = ?", seq).Scan(&was); err != nil {
			t.Fatal(err)
		}
		bit := 0
		switch v := was.(type) {
		case int64:
			bit = rand.IntN(62)
			now = v ^ 1<<bit
		case []byte:
			bit = rand.IntN(8 * len(v))
			b := bytes.Clone(v)
			b[bit/8] ^= 1 << (bit % 8)
			now = b
		}
		set(column, seq, now)
		if v := verify(t, l, audit.Verification{}); v.OK || v.BrokenAt != int64(seq) {
			t.Fatalf("Verify() with bit %d of %s of entry %d flipped = %+v, want it broken there", bit, column, seq, v)
		}
		set(column, seq, was)
	}
	if v := verify(t, l, audit.Verification{}); !v.OK {
		t.Errorf("Verify() with everything as it was = %+v", v)
	}
}

func edit(t *testing.T, path, old, now string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Replace(b, []byte(old), []byte(now), 1), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestTamperedKeys changes what the chain is opened with.
func TestTamperedKeys(t *testing.T) {
	base := pair{filepath.Join(t.TempDir(), "audit.db"), filepath.Join(t.TempDir(), "checkpoints")}
	base.grow(t, 1, 3)
	for statement, want := range map[string]*fault.Kind{
		"UPDATE audit_meta SET value = zeroblob(32) WHERE key = 'public_key'":                                          fault.AuditUnusable,
		"UPDATE audit_meta SET value = zeroblob(72) WHERE key = 'private_key'":                                         fault.AuditPassphrase,
		"DELETE FROM audit_meta WHERE key = 'sealing'":                                                                 fault.AuditUnusable,
		"UPDATE audit_meta SET value = replace(value, 'memoryKiB\":8', 'memoryKiB\":999999999') WHERE key = 'sealing'": fault.AuditUnusable,
		"UPDATE audit_meta SET value = replace(value, 'chacha20', 'rot13') WHERE key = 'sealing'":                      fault.ConfigInvalid,
		"UPDATE audit_meta SET value = CAST(replace(value, 'argon2id', 'md5') AS BLOB) WHERE key = 'sealing'":          fault.AuditUnusable,
		"UPDATE audit_meta SET value = x'00' WHERE key = 'edge'":                                                       nil, // made anew from the entries
		"UPDATE audit_log SET hash = x'00' WHERE seq = 3":                                                              fault.AuditUnusable,
		"INSERT INTO audit_meta (key, value) VALUES ('stub', '{\"v\":\"svc-audit-stub/1\",\"through\":2}')":            fault.AuditUnusable,
	} {
		p := base.copyTo(t, t.TempDir())
		storetest.Behind(t, p.log, statement)
		l, err := audit.Open(t.Context(), audit.Options{Path: p.log, Passphrase: []byte(passphrase)})
		if want == nil && err != nil || want != nil && !fault.Is(err, want) {
			t.Errorf("Open() after %q = %v, want %v", statement, err, want)
		}
		if err == nil {
			l.Close()
		}
	}
}

func TestLiveTampering(t *testing.T) {
	l := openLog(t, audit.Options{})
	appendMany(t, l, 1, 9)
	storetest.Behind(t, l.Path(), "DELETE FROM audit_log WHERE seq > 7")
	if v := verify(t, l, audit.Verification{}); v.OK || v.Reason != audit.BrokenTruncated || v.BrokenAt != 8 {
		t.Errorf("Verify() on the running log = %+v, want truncated at 8", v)
	}
}

func TestPrune(t *testing.T) {
	p := pair{filepath.Join(t.TempDir(), "audit.db"), filepath.Join(t.TempDir(), "checkpoints")}
	p.grow(t, 1, 37)
	l := openLog(t, audit.Options{Path: p.log, Checkpoints: audit.Checkpoints{Path: p.checkpoints}})
	appendMany(t, l, 38, 60)
	by := audit.Actor{Kind: audit.ActorCLI, ID: "root"}
	if _, err := l.Prune(t.Context(), time.Now(), 0, by); !fault.Is(err, fault.ConfigInvalid) {
		t.Errorf("Prune(retain 0) = %v, want config-invalid", err)
	}
	old := func(i int) time.Time { return time.UnixMilli(1_700_000_000_000 + int64(i)) }
	for _, tc := range []struct {
		before  time.Time
		retain  int64
		deleted int64
		first   int64
		count   int64
	}{
		{old(0), 1, 0, 1, 60},
		{old(11), 1, 10, 11, 51},    // 60, and the record of the pruning
		{old(11), 1, 0, 11, 51},     // nothing is left to do
		{old(1000), 40, 11, 22, 41}, // of 51, 40 stay, and the record
		{time.Now().Add(time.Hour), 1, 40, 62, 2},
	} {
		got, err := l.Prune(t.Context(), tc.before, tc.retain, by)
		if err != nil || got != (audit.Pruned{Deleted: tc.deleted, FirstSurvivingSeq: tc.first}) {
			t.Errorf("Prune(%v, %d) = %+v, %v; want %d deleted, %d the first", tc.before, tc.retain, got, err, tc.deleted, tc.first)
		}
		v := verify(t, l, audit.Verification{Checkpoints: p.checkpoints})
		if !v.OK || v.Count != tc.count || v.PrunedThrough != tc.first-1 || v.Checkpoints != 1 {
			t.Errorf("Verify() after Prune(%v, %d) = %+v, want %d good entries", tc.before, tc.retain, v, tc.count)
		}
	}
	closeLog(t, l)
	for name, statement := range map[string]string{
		"bad-signature":     "UPDATE audit_meta SET value = CAST(replace(value, 'cli:root', 'cli:boot') AS BLOB) WHERE key = 'stub'",
		audit.BrokenMissing: "DELETE FROM audit_meta WHERE key = 'stub'",
	} {
		c := p.copyTo(t, t.TempDir())
		storetest.Behind(t, c.log, statement)
		if v := c.verify(t, nil, audit.Verification{}); v.OK || v.Reason != name {
			t.Errorf("Verify() after %q = %+v, want %s", statement, v, name)
		}
		if b := c.open(t).Broken(); name == "bad-signature" && (b == nil || b.Reason != name) {
			t.Errorf("Broken() at a start after %q = %+v, want %s", statement, b, name)
		}
	}
	if v := verify(t, openLog(t, audit.Options{Path: p.log, Checkpoints: audit.Checkpoints{Path: p.checkpoints}}), audit.Verification{Checkpoints: p.checkpoints}); !v.OK {
		t.Errorf("Verify() after another start = %+v, want it good", v)
	}
}

// TestPruneStopsAtYoungerEntry leaves an older entry behind a younger one.
func TestPruneStopsAtYoungerEntry(t *testing.T) {
	l := openLog(t, audit.Options{})
	for _, i := range []int{1, 2, 90, 3, 4, 5} {
		if err := l.Append(t.Context(), record(i)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := l.Prune(t.Context(), time.UnixMilli(1_700_000_000_050), 1, audit.Actor{Kind: "cli", ID: "x"})
	if err != nil || got.Deleted != 2 || got.FirstSurvivingSeq != 3 {
		t.Errorf("Prune() = %+v, %v; want 2 deleted", got, err)
	}
}

func TestProofs(t *testing.T) {
	l := openLog(t, audit.Options{})
	roots := map[int64]string{}
	for i := range 41 {
		appendMany(t, l, i, i)
		roots[int64(i+1)] = l.Head().RootHash
	}
	hashes := map[int64]string{}
	page, _, err := l.List(t.Context(), audit.Query{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range page {
		hashes[e.Seq] = e.Hash
	}
	check := func(first int64) {
		t.Helper()
		for size := first; size <= 41; size++ {
			for seq := first; seq <= size; seq++ {
				p, err := proof(t, l, seq, size)
				if err != nil || p.RootHash != roots[size] {
					t.Fatalf("Proof(%d, %d) = %+v, %v; want the root %s", seq, size, p, err, roots[size])
				}
				if _, ok := audit.RootOf(unhex(t, hashes[seq]), p); !ok {
					t.Fatalf("RootOf(%+v) does not hold", p)
				}
				if root, ok := audit.RootOf(unhex(t, hashes[1+seq%41]), p); ok && fmt.Sprintf("%x", root) == roots[size] && seq != 1+seq%41 {
					t.Fatalf("RootOf(%+v) holds for another entry", p)
				}
			}
		}
	}
	check(1)
	if _, err := l.Prune(t.Context(), time.UnixMilli(1_700_000_000_013), 1, audit.Actor{Kind: "cli", ID: "x"}); err != nil {
		t.Fatal(err)
	}
	check(14)
	if p, err := proof(t, l, 5, 41); !fault.Is(err, fault.ConfigInvalid) {
		t.Errorf("Proof of a pruned entry = %+v, %v; want config-invalid", p, err)
	}
	if _, ok := audit.RootOf(make([]byte, 32), audit.Proof{Seq: 3, TreeSize: 2}); ok {
		t.Error("RootOf() holds for an entry beyond the tree")
	}
	if _, ok := audit.RootOf(make([]byte, 32), audit.Proof{Seq: 1, TreeSize: 2, Path: []string{strings.Repeat("zz", 32)}}); ok {
		t.Error("RootOf() holds for a path that is no hex")
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	var b []byte
	if _, err := fmt.Sscanf(s, "%x", &b); err != nil {
		t.Fatal(err)
	}
	return b
}
