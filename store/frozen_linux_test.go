package store_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"agentd/store"
)

// TestReadOnlyMedium reads a copy of a database where nothing can be written.
func TestReadOnlyMedium(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data.db")
	db, err := store.Open(t.Context(), store.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(path)
	if err := syscall.Mount(dir, dir, "", syscall.MS_BIND, ""); err != nil {
		t.Skipf("nothing can be mounted here: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	if err := syscall.Mount("", dir, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Skipf("nothing can be mounted read-only here: %v", err)
	}
	db, err = store.Open(t.Context(), store.Options{Path: path, ReadOnly: true})
	if err != nil {
		t.Fatalf("Open(ReadOnly) = %v", err)
	}
	defer db.Close()
	if err := db.Ping(t.Context()); err != nil {
		t.Errorf("Ping() = %v", err)
	}
	if list, err := db.Tokens().List(t.Context(), true); err != nil || len(list) != 0 {
		t.Errorf("List() = %v, %v; want none", list, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("the folder has %v, %v; want the database and its lock", left, err)
	}
}
