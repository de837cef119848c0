package audit_test

import (
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/store/storetest"
)

// proof makes one proof.
func proof(t *testing.T, l *audit.Log, seq, size int64) (audit.Proof, error) {
	t.Helper()
	all, err := l.Proofs(t.Context(), []int64{seq}, size)
	if err != nil {
		return audit.Proof{}, err
	}
	return all[0], nil
}

// TestProofsAtOnce makes the proofs of several entries at once: they are those that are made one by one.
func TestProofsAtOnce(t *testing.T) {
	l := openLog(t, audit.Options{})
	appendMany(t, l, 0, 40)
	check := func(size int64, seqs ...int64) {
		t.Helper()
		got, err := l.Proofs(t.Context(), seqs, size)
		if err != nil || len(got) != len(seqs) {
			t.Fatalf("Proofs(%v, %d) = %v, %v; want %d of them", seqs, size, got, err, len(seqs))
		}
		for i, seq := range seqs {
			if want, err := proof(t, l, seq, size); err != nil || !reflect.DeepEqual(got[i], want) {
				t.Errorf("Proofs(%v, %d)[%d] = %+v, want %+v (%v)", seqs, size, i, got[i], want, err)
			}
		}
	}
	check(41)
	check(41, 41)
	check(1, 1)
	check(33, 1, 2, 3, 17, 32, 33)
	if _, err := l.Prune(t.Context(), time.UnixMilli(1_700_000_000_013), 1, audit.Actor{Kind: "cli", ID: "x"}); err != nil {
		t.Fatal(err)
	}
	check(42, 14, 15, 20, 40, 42)
	for _, seqs := range [][]int64{{13, 20}, {20, 43}, {21, 20}} {
		if got, err := l.Proofs(t.Context(), seqs, 42); !fault.Is(err, fault.ConfigInvalid) {
			t.Errorf("Proofs(%v, 42) = %v, %v; want config-invalid", seqs, got, err)
		}
	}
	storetest.Behind(t, l.Path(), "DELETE FROM audit_log WHERE seq = 30")
	for _, seq := range []int64{20, 30, 42} {
		if got, err := l.Proofs(t.Context(), []int64{seq}, 42); !fault.Is(err, fault.AuditUnusable) {
			t.Errorf("Proofs of %d where an entry is missing = %v, %v; want audit-unusable", seq, got, err)
		}
	}
	storetest.Behind(t, l.Path(), "DELETE FROM audit_log WHERE seq > 29")
	if got, err := l.Proofs(t.Context(), []int64{20}, 42); !fault.Is(err, fault.AuditUnusable) {
		t.Errorf("Proofs in a chain that was cut = %v, %v; want audit-unusable", got, err)
	}
}

// TestCovering finds the first checkpoint that has an entry, of those that the chain's own key has signed.
func TestCovering(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.db")
	for i := range 3 { // each end makes a checkpoint
		l := openLog(t, audit.Options{Path: path})
		appendMany(t, l, 10*i, 10*i+9)
		closeLog(t, l)
	}
	l := openLog(t, audit.Options{Path: path})
	for seq, want := range map[int64]int64{1: 10, 10: 10, 11: 20, 30: 30, 31: 0} {
		c, ok, err := l.Covering(seq)
		if err != nil || c.Head.Size != want || ok != (want > 0) {
			t.Errorf("Covering(%d) = %d, %t, %v; want %d", seq, c.Head.Size, ok, err, want)
		}
	}
	other := openLog(t, audit.Options{Checkpoints: audit.Checkpoints{Path: path + ".checkpoints"}})
	if c, ok, err := other.Covering(1); ok || err != nil {
		t.Errorf("Covering(1) with the checkpoints of another chain = %+v, %t, %v; want none", c, ok, err)
	}
	page, _, err := l.List(t.Context(), audit.Query{Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range page {
		if sum := e.Sum(); string(sum[:]) != string(unhex(t, e.Hash)) {
			t.Errorf("entry %d: Sum() = %x, want %s", e.Seq, sum, e.Hash)
		}
	}
}
