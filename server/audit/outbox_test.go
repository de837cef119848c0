package audit_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/audit"
	"agentd/store"
	"agentd/store/storetest"
)

// both is a database and the chain of its entries, in one folder.
type both struct{ dir string }

func (b both) database() string { return filepath.Join(b.dir, "data.db") }

func (b both) options() audit.Options {
	return audit.Options{Path: filepath.Join(b.dir, "audit.db"), Checkpoints: audit.Checkpoints{Path: filepath.Join(b.dir, "checkpoints")}, Passphrase: []byte(passphrase)}
}

// open opens both. With Beside or ReadOnly in with, another process may hold them.
func (b both) open(t *testing.T, with audit.Options) (*store.DB, *audit.Log) {
	t.Helper()
	db, err := store.Open(t.Context(), store.Options{Path: b.database(), Beside: with.Beside, ReadOnly: with.ReadOnly, Durability: with.Durability})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	o := b.options()
	o.Outbox, o.Beside, o.ReadOnly, o.Durability = db.Outbox(), with.Beside, with.ReadOnly, with.Durability
	return db, openLog(t, o)
}

// copyTo copies the files as they are, also while they are open.
func (b both) copyTo(t *testing.T, dir string) both {
	t.Helper()
	for _, name := range []string{"data.db", "data.db-wal", "audit.db", "audit.db-wal", "checkpoints"} {
		if _, err := os.Stat(filepath.Join(b.dir, name)); !errors.Is(err, fs.ErrNotExist) {
			copyFile(t, filepath.Join(dir, name), filepath.Join(b.dir, name))
		}
	}
	return both{dir}
}

// targets are the targets of the entries with the action of [record], in order.
func targets(t *testing.T, l *audit.Log) (list []string) {
	t.Helper()
	for e, err := range l.Entries(t.Context(), audit.Query{Limit: 1000}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Action == string(record(0).Action) {
			list = append(list, e.Target)
		}
	}
	return list
}

// effect makes a session with an id, of an agent that is named as the id begins, and its entry, in one transaction. With an error, it does neither.
func effect(ctx context.Context, db *store.DB, l *audit.Log, id string, fail error) error {
	r := record(0)
	r.Target = id
	entries, err := l.Prepare(r)
	if err != nil {
		return err
	}
	round, _, _ := strings.Cut(id, "-")
	return db.Update(ctx, func(tx *store.Tx) error {
		err := db.Sessions().Insert(tx, store.Session{ID: id, User: "u", Agent: round})
		return errors.Join(err, entries.Write(tx), fail)
	})
}

// An entry is there if its effect is, and the order of entries is that of the commits.
func TestEntriesCommitWithTheirEffects(t *testing.T) {
	db, l := both{t.TempDir()}.open(t, audit.Options{})
	var all sync.WaitGroup
	refused := errors.New("refused")
	for i := range 200 {
		all.Go(func() {
			fail := error(nil)
			if i%5 == 0 {
				fail = refused
			}
			if err := effect(t.Context(), db, l, fmt.Sprint("s", i), fail); !errors.Is(err, fail) {
				t.Errorf("effect %d = %v, want %v", i, err, fail)
			}
		})
	}
	all.Wait()
	var want []string
	var stored []store.Session
	err := db.View(t.Context(), func(tx *store.Tx) (err error) { stored, err = db.Sessions().List(tx, "", ""); return err })
	if err != nil || len(stored) != 160 {
		t.Fatalf("%d sessions, %v; want 160", len(stored), err)
	}
	for _, s := range stored {
		want = append(want, s.ID)
	}
	got := targets(t, l)
	slices.Sort(got)
	if slices.Sort(want); !slices.Equal(got, want) {
		t.Errorf("there are entries for\n%v, want\n%v", got, want)
	}
	if v := verify(t, l, audit.Verification{}); !v.OK || v.Count != 160 || v.Waiting != 0 {
		t.Errorf("Verify() = %+v, want 160 entries, and that none waits", v)
	}
}

// TestChained sees how long entries wait, and that those that nobody waits for are written together.
func TestChained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, l := both{t.TempDir()}.open(t, audit.Options{})
		last := func() (n int64) {
			db.View(t.Context(), func(tx *store.Tx) (err error) { n, err = db.Outbox().Last(tx); return err }) //nolint:errcheck // then it is 0
			return n
		}
		appendMany(t, l, 1, 3)
		if l.Head().Size != 0 || last() != 3 {
			t.Errorf("after three entries there are %d in the chain and %d rows, want 0 and 3", l.Head().Size, last())
		}
		time.Sleep(50 * time.Millisecond)
		if l.Head().Size != 3 || l.Lag() != 0 {
			t.Errorf("50 ms later there are %d in the chain, and the lag is %v; want 3 and none", l.Head().Size, l.Lag())
		}
		for i := range 20 {
			if err := l.Note(t.Context(), record(i)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		if last() != 3 {
			t.Errorf("20 ms after the first of 20 notes there are %d rows, want none more", last())
		}
		time.Sleep(80 * time.Millisecond)
		if l.Head().Size != 23 || last() > 5 {
			t.Errorf("100 ms after 20 notes there are %d entries in the chain, and %d rows; want 23, and at most two rows for the notes", l.Head().Size, last())
		}
		for i := range 2000 {
			if err := l.Note(t.Context(), record(i)); err != nil {
				t.Fatal(err)
			}
		}
		if v := verify(t, l, audit.Verification{}); !v.OK || v.Count != 2023 {
			t.Errorf("Verify() after 2000 notes = %+v, want 2023 entries", v)
		}
		large := record(0) // of which 100 are more than one transaction chains
		large.Metadata["reason"] = strings.Repeat("x", 60_000)
		for range 200 {
			if err := l.Append(t.Context(), large); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(50 * time.Millisecond)
		if l.Head().Size != 2223 || l.Lag() != 0 {
			t.Errorf("50 ms after 200 large entries there are %d in the chain, and the lag is %v; want 2223 and none", l.Head().Size, l.Lag())
		}
	})
}

// TestOutboxOfTwoProcesses appends beside the process that holds both files.
func TestOutboxOfTwoProcesses(t *testing.T) {
	b := both{t.TempDir()}
	db, l := b.open(t, audit.Options{})
	var all sync.WaitGroup
	for k, with := range []audit.Options{{Beside: true}, {Beside: true}, {}} {
		guest, log := db, l
		if with.Beside {
			guest, log = b.open(t, with)
		}
		all.Go(func() {
			for i := range 400 {
				if err := effect(t.Context(), guest, log, fmt.Sprintf("s%d-%d", k, i), nil); err != nil {
					t.Errorf("effect %d of process %d = %v", i, k, err)
				}
			}
			if with.Beside {
				closeLog(t, log)
			}
		})
	}
	all.Wait()
	got := targets(t, l)
	slices.Sort(got)
	if n := len(got); n != 1200 || len(slices.Compact(got)) != 1200 {
		t.Errorf("there are %d entries, of which %d differ; want 1200", n, len(slices.Compact(got)))
	}
	if v := verify(t, l, audit.Verification{Checkpoints: b.options().Checkpoints.Path}); !v.OK {
		t.Errorf("Verify() = %+v, want it whole", v)
	}
}

// TestWaitingTampering changes what waits to be chained, and what the chain says of it.
func TestWaitingTampering(t *testing.T) {
	base := both{t.TempDir()}
	synctest.Test(t, func(t *testing.T) { // where time stands still, entries wait
		b := both{t.TempDir()}
		_, l := b.open(t, audit.Options{})
		appendMany(t, l, 1, 4)
		verify(t, l, audit.Verification{}) // chains them
		appendMany(t, l, 5, 10)
		b.copyTo(t, base.dir)
	})
	data := func(statements ...string) func(*testing.T, both) {
		return func(t *testing.T, b both) { storetest.Behind(t, b.database(), statements...) }
	}
	chain := func(statements ...string) func(*testing.T, both) {
		return func(t *testing.T, b both) { storetest.Behind(t, b.options().Path, statements...) }
	}
	for _, tc := range []struct {
		name string
		do   func(*testing.T, both)
		seq  int64 // 0: it cannot be found
		lost int   // entries that are not chained
	}{
		{"nothing", data(), 0, 0},
		{"a byte", data(flipByte("audit_outbox", "sealed", 30) + " WHERE id = 7"), 7, 1},
		{"the first byte", data(flipByte("audit_outbox", "sealed", 2) + " WHERE id = 5"), 5, 1},
		{"emptied", data("UPDATE audit_outbox SET sealed = x'' WHERE id = 10"), 10, 1},
		{"deleted", data("DELETE FROM audit_outbox WHERE id = 6"), 6, 1},
		{"the first deleted", data("DELETE FROM audit_outbox WHERE id IN (5, 6)"), 5, 2},
		{"deleted and closed up", data("DELETE FROM audit_outbox WHERE id = 6", "UPDATE audit_outbox SET id = -id WHERE id > 6",
			"UPDATE audit_outbox SET id = -1 - id WHERE id < 0"), 6, 5},
		{"swapped", data("UPDATE audit_outbox SET id = 99 WHERE id = 7", "UPDATE audit_outbox SET id = 7 WHERE id = 8", "UPDATE audit_outbox SET id = 8 WHERE id = 99"), 7, 2},
		{"one that is chained again", data("INSERT INTO audit_outbox SELECT 11, sealed FROM audit_outbox WHERE id = 4"), 11, 0},
		{"one again", data("INSERT INTO audit_outbox SELECT 11, sealed FROM audit_outbox WHERE id = 9"), 11, 0},
		{"one of somebody else", data("INSERT INTO audit_outbox VALUES (11, randomblob(400))"), 11, 0},
		{"the number changed", chain(flipByte("audit_meta", "value", 30) + " WHERE key = 'chained'"), 5, -1},
		{"the number deleted", chain("DELETE FROM audit_meta WHERE key = 'chained'"), 5, -1},
		// The last rows can be cut off, as the last entries of the chain can that no checkpoint covers.
		{"the last deleted", data("DELETE FROM audit_outbox WHERE id = 10"), 0, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := base.copyTo(t, t.TempDir())
			tc.do(t, b)
			db, l := b.open(t, audit.Options{ReadOnly: true})
			if v := verify(t, l, audit.Verification{}); v.OK != (tc.seq == 0) || !v.OK && (v.BrokenAt != tc.seq || v.Reason != audit.BrokenOutbox) {
				t.Errorf("Verify() before it is chained = %+v, want a break at %d", v, tc.seq)
			} else if v.OK && v.Waiting != 6-tc.lost {
				t.Errorf("Verify() before it is chained = %+v, want %d that wait", v, 6-tc.lost)
			}
			closeLog(t, l)
			db.Close()
			db, l = b.open(t, audit.Options{})
			v := verify(t, l, audit.Verification{})
			if v.OK != (tc.seq == 0) || !v.OK && (v.Reason != audit.BrokenOutbox || l.Broken() == nil) {
				t.Errorf("Verify() after it is chained = %+v, broken %+v, want a break", v, l.Broken())
			}
			if tc.lost >= 0 {
				if got := len(targets(t, l)); got != 10-tc.lost {
					t.Errorf("%d entries are in the chain, want %d", got, 10-tc.lost)
				}
			}
			if tc.seq == 0 {
				return
			}
			if _, err := l.Accept(t.Context(), "seen", audit.Actor{Kind: audit.ActorCLI, ID: "x"}); err != nil {
				t.Fatalf("Accept() = %v", err)
			}
			appendMany(t, l, 11, 12)
			closeLog(t, l)
			db.Close()
			_, l = b.open(t, audit.Options{})
			if v := verify(t, l, audit.Verification{Checkpoints: b.options().Checkpoints.Path}); !v.OK || len(v.Accepted) != 1 {
				t.Errorf("Verify() after the break was accepted = %+v, want it whole, with one acceptance", v)
			}
		})
	}
}

// A new chain leaves alone what waits for one that is gone, and numbers its rows after it.
func TestNewChainOfAnOldDatabase(t *testing.T) {
	b := both{t.TempDir()}
	db, l := b.open(t, audit.Options{})
	appendMany(t, l, 1, 5)
	closeLog(t, l)
	db.Close()
	for _, name := range []string{"audit.db", "checkpoints"} {
		if err := os.Remove(filepath.Join(b.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	db = storetest.OpenAt(t, b.database())
	o := b.options()
	o.Outbox = db.Outbox()
	l, err := audit.Open(t.Context(), o) // which makes the chain, other than openLog
	if err != nil {
		t.Fatal(err)
	}
	appendMany(t, l, 1, 3)
	if v := verify(t, l, audit.Verification{}); !v.OK || v.Count != 3 || l.Broken() != nil {
		t.Errorf("Verify() of the new chain = %+v, broken %+v; want 3 entries", v, l.Broken())
	}
	closeLog(t, l)
	db.Close()
	storetest.Behind(t, b.database(), "DELETE FROM audit_outbox") // as a new database, or a copy of before
	_, l = b.open(t, audit.Options{})
	appendMany(t, l, 4, 6)
	if v := verify(t, l, audit.Verification{}); !v.OK || v.Count != 6 {
		t.Errorf("Verify() with a new database = %+v, want 6 entries", v)
	}
}
