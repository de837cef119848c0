// Package storetest opens stores for tests.
package storetest

import (
	"path/filepath"
	"testing"

	"agentd/store"
)

// Open opens a new store in a folder of the test's own and closes it when the test ends.
func Open(t testing.TB) *store.DB {
	t.Helper()
	return OpenAt(t, filepath.Join(t.TempDir(), "data.db"))
}

// OpenAt opens the store at path and closes it when the test ends, unless the test did.
func OpenAt(t testing.TB, path string) *store.DB {
	t.Helper()
	db, err := store.Open(t.Context(), store.Options{Path: path})
	if err != nil {
		t.Fatalf("store.Open(%s): %v", path, err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("closing the store: %v", err)
		}
	})
	return db
}
