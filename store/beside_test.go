package store_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"agentd/server/fault"
	"agentd/store"
	"agentd/store/storetest"
)

func beside(t *testing.T, path string) *store.DB {
	t.Helper()
	db, err := store.Open(t.Context(), store.Options{Path: path, Beside: true})
	if err != nil {
		t.Fatalf("Open(Beside) = %v, want a store", err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func TestBesideWritesNextToTheHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data.db")
	holder := storetest.OpenAt(t, path)
	guest := beside(t, path)
	if err := guest.Tokens().Insert(t.Context(), store.Token{ID: "a", Hash: "h", Scopes: []string{"x:y"}, Created: 1}, nil); err != nil {
		t.Fatalf("Insert beside the holder = %v", err)
	}
	if v, err := holder.Tokens().ByHash(t.Context(), "h"); err != nil || v.ID != "a" {
		t.Errorf("the holder's ByHash = %+v, %v; want the guest's token", v, err)
	}
	if _, err := holder.Tokens().Revoke(t.Context(), "a", nil); err != nil {
		t.Fatal(err)
	}
	if v, err := guest.Tokens().Get(t.Context(), "a"); err != nil || v.Revoked == 0 {
		t.Errorf("the guest's Get = %+v, %v; want it revoked", v, err)
	}
	if err := guest.Close(); err != nil {
		t.Errorf("closing the guest: %v", err)
	}
	if holder.WALSize() == 0 {
		t.Error("the guest truncated the holder's log")
	}
	_, err := store.Open(t.Context(), store.Options{Path: path})
	if !fault.Is(err, fault.StoreLocked) {
		t.Errorf("Open after the guest has gone = %v, want store-locked: the lock is the holder's", err)
	}
}

func TestBesideAndHolderWriteAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data.db")
	holder := storetest.OpenAt(t, path)
	guest := beside(t, path)
	const each = 50
	var wg sync.WaitGroup
	for name, db := range map[string]*store.DB{"holder": holder, "guest": guest} {
		wg.Go(func() {
			for i := range each {
				id := fmt.Sprint(name, i)
				if err := db.Tokens().Insert(t.Context(), store.Token{ID: id, Hash: id, Created: 1}, nil); err != nil {
					t.Errorf("%s: Insert(%d) = %v", name, i, err)
				}
			}
		})
	}
	wg.Wait()
	if all, err := holder.Tokens().List(t.Context(), false); err != nil || len(all) != 2*each {
		t.Errorf("List = %d tokens, %v; want %d", len(all), err, 2*each)
	}
}

func TestBesideMakesAndMigratesNothing(t *testing.T) {
	dir := t.TempDir()
	absent := filepath.Join(dir, "absent", "data.db")
	if _, err := store.Open(t.Context(), store.Options{Path: absent, Beside: true}); !fault.Is(err, fault.StoreUnusable) {
		t.Errorf("Open(Beside) of no file = %v, want store-unusable", err)
	}
	if _, err := os.Stat(filepath.Dir(absent)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Open(Beside) of no file made its folder (%v)", err)
	}

	for version, want := range map[string]*fault.Kind{"DELETE FROM schema_migrations": fault.SchemaBehind,
		"INSERT INTO schema_migrations VALUES (99, 'later', '', 0)": fault.SchemaNewer} {
		path := filepath.Join(t.TempDir(), "data.db")
		storetest.OpenAt(t, path).Close()
		storetest.Behind(t, path, version)
		if _, err := store.Open(t.Context(), store.Options{Path: path, Beside: true}); !fault.Is(err, want) {
			t.Errorf("Open(Beside) after %q = %v, want %s", version, err, want.Code)
		}
	}
}
