package store_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"agentd/server/fault"
	"agentd/store"
	"agentd/store/storetest"
)

// pair is a database and a chain. Its counter commits one more to the database, and then to the chain.
func pair(t *testing.T) (db *store.DB, a *store.Audit, count func(n int) error) {
	dir := t.TempDir()
	db = storetest.OpenAt(t, filepath.Join(dir, "data.db"))
	a, err := store.OpenAudit(t.Context(), store.Options{Path: filepath.Join(dir, "audit.db")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return db, a, func(n int) error {
		err := db.Update(t.Context(), func(tx *store.Tx) error {
			return db.Sessions().Insert(tx, store.Session{ID: fmt.Sprint("s", n)})
		})
		if err == nil {
			err = a.Update(t.Context(), func(tx *store.Tx) error {
				return a.Set(tx, map[string][]byte{"n": []byte(strconv.Itoa(n))})
			})
		}
		return err
	}
}

// image writes frozen files to a folder and closes them.
func image(t *testing.T, files []*store.Frozen) (paths []string) {
	t.Helper()
	dir := t.TempDir()
	for i, f := range files {
		var b bytes.Buffer
		if err := f.Write(t.Context(), &b); err != nil || int64(b.Len()) != f.Size {
			t.Fatalf("Write = %d bytes, %v; want %d", b.Len(), err, f.Size)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, filepath.Join(dir, fmt.Sprint(i, ".db")))
		if err := os.WriteFile(paths[i], b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return paths
}

// TestFreezeIsOnePoint freezes two files that are written in turns: the chain is at most one behind, and never ahead.
func TestFreezeIsOnePoint(t *testing.T) {
	db, a, count := pair(t)
	stop, begun := make(chan struct{}), make(chan struct{})
	var counter sync.WaitGroup
	counter.Go(func() {
		for n := 1; ; n++ {
			if err := count(n); err != nil {
				t.Error(err)
			}
			if n == 1 {
				close(begun)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	<-begun
	for range 10 {
		files, err := store.Freeze(t.Context(), db.Path(), a.Path(), func() error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		paths := image(t, files)
		copied := storetest.OpenAt(t, paths[0])
		chain, err := store.OpenAudit(t.Context(), store.Options{Path: paths[1]}, nil)
		if err != nil {
			t.Fatal(err)
		}
		state, err := chain.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(string(state.Values["n"]))
		if err != nil {
			t.Fatal(err)
		}
		has := func(n int) bool {
			return copied.View(t.Context(), func(tx *store.Tx) error {
				_, err := copied.Sessions().Find(tx, fmt.Sprint("s", n))
				return err
			}) == nil
		}
		if !has(n) || has(n+2) {
			t.Errorf("the chain has %d, and the database has that: %t, and two more: %t", n, has(n), has(n+2))
		}
		if damage, err := copied.Verify(t.Context()); err != nil || len(damage) > 0 {
			t.Errorf("Verify of the image = %v, %v", damage, err)
		}
		chain.Close()
	}
	close(stop)
	counter.Wait()
}

// TestFreezeHoldsUpNobody freezes both files while another process writes them, and has that one commit in the meantime: Freeze
// takes no lock, and begins again until both are of one moment.
func TestFreezeHoldsUpNobody(t *testing.T) {
	db, a, count := pair(t)
	others := []func(string){storetest.Another(t, db.Path()), storetest.Another(t, a.Path())}
	for _, other := range others {
		other("BEGIN IMMEDIATE")
	}
	looks := 0
	files, err := store.Freeze(t.Context(), db.Path(), a.Path(), func() error {
		if looks++; looks <= len(others) {
			other := others[looks-1]
			other([]string{"INSERT INTO sessions (id, user_id, agent_id, created_at) VALUES ('during', 'u', 'a', 1)", "INSERT INTO audit_meta (key, value) VALUES ('during', x'00')"}[looks-1])
			other("COMMIT")
		}
		return nil
	})
	if err != nil || looks != 3 {
		t.Fatalf("Freeze beside 2 commits = %v after %d looks, want 3", err, looks)
	}
	image(t, files)
	if err := count(1); err != nil {
		t.Errorf("a change after Freeze: %v", err)
	}
}

func TestFreezeFails(t *testing.T) {
	db, a, _ := pair(t)
	want := func(what string, kind *fault.Kind, err error) {
		t.Helper()
		if !fault.Is(err, kind) {
			t.Errorf("Freeze %s = %v, want %s", what, err, kind.Code)
		}
	}
	no := func() error { return nil }
	_, err := store.Freeze(t.Context(), db.Path()+".none", "", no)
	want("of nothing", fault.StoreUnusable, err)
	_, err = store.Freeze(t.Context(), db.Path(), a.Path(), func() error { return fault.New(fault.Usage, "no") })
	want("with a meanwhile that fails", fault.Usage, err)
	if err := os.WriteFile(db.Path()+store.RestoreJournal, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = store.Freeze(t.Context(), db.Path(), a.Path(), no)
	want("in the midst of a restore", fault.RestoreIncomplete, err)
}
