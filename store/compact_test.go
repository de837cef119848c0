package store_test

import (
	"path/filepath"
	"testing"

	"agentd/store"
	"agentd/store/storetest"
)

// TestCompactBeside gives back the free pages of a database that another connection holds and writes afterwards.
func TestCompactBeside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data.db")
	holder := storetest.OpenAt(t, path)
	other := storetest.Another(t, path)
	other("CREATE TABLE extra (b BLOB)")
	other("INSERT INTO extra VALUES (zeroblob(4000000))")
	other("DROP TABLE extra")
	db, err := store.Open(t.Context(), store.Options{Path: path, Beside: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	before, after, err := db.Compact(t.Context())
	if err != nil || before.FreePages < 900 || after.FreePages != 0 || after.Pages >= before.Pages {
		t.Errorf("Compact beside a holder = %+v, %+v, %v; want no free pages", before, after, err)
	}
	if err := holder.Update(t.Context(), func(tx *store.Tx) error {
		return holder.Sessions().Insert(tx, store.Session{ID: "later"})
	}); err != nil {
		t.Errorf("a change of the holder after Compact: %v", err)
	}
}
