package store_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"agentd/server/fault"
	"agentd/store"
	"agentd/store/storetest"
)

// TestFullDisk fills a small disk, and makes room again: what was acknowledged is there, what was refused is not, and
// nothing has to be restarted.
func TestFullDisk(t *testing.T) {
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("a small disk cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(disk, syscall.MNT_DETACH) })
	db := storetest.OpenAt(t, filepath.Join(disk, "data.db"))
	size := 40_000
	put := func(id string) error {
		c := newRun(id)
		c.Run.Messages = 1
		c.Messages = []store.Message{{Role: "user", Body: []byte(`"` + strings.Repeat("x", size) + `"`)}}
		return db.Update(t.Context(), func(tx *store.Tx) error { _, err := db.Runs().Apply(tx, &c); return err })
	}
	kept := 0
	for ; kept < 1000; kept++ {
		if err := put(fmt.Sprint("run-", kept)); err != nil {
			if size > 1 {
				size /= 40 // until there is no room for the smallest change
				kept--
				continue
			}
			if !fault.Is(err, fault.StorageFailed) || !strings.Contains(err.Error(), "full") {
				t.Fatalf("Update on a full disk = %v, want storage-failed that says why", err)
			}
			break
		}
	}
	for range 3 {
		if err := put("refused"); !fault.Is(err, fault.StorageFailed) {
			t.Fatalf("a further Update = %v, want storage-failed", err)
		}
	}
	if err := db.Ping(t.Context()); !fault.Is(err, fault.StorageFailed) {
		t.Errorf("Ping on a full disk = %v, want storage-failed", err)
	}
	if _, err := db.Runs().Get(t.Context(), "run-0"); err != nil {
		t.Errorf("reading on a full disk: %v", err)
	}
	if err := syscall.Mount("tmpfs", disk, "tmpfs", syscall.MS_REMOUNT, "size=20m"); err != nil {
		t.Fatal(err)
	}
	if err := db.Ping(t.Context()); err != nil {
		t.Errorf("Ping once there is room = %v", err)
	}
	if err := put("after"); err != nil {
		t.Errorf("Update once there is room = %v", err)
	}
	for i := range kept {
		if _, err := db.Runs().Get(t.Context(), fmt.Sprint("run-", i)); err != nil {
			t.Errorf("run-%d was acknowledged and is lost: %v", i, err)
		}
	}
	if _, err := db.Runs().Get(t.Context(), "refused"); err == nil {
		t.Error("a refused change is there")
	}
	t.Logf("%d changes fitted", kept)
}
