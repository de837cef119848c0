package store_test

import (
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/fault"
	"agentd/store"
)

// The lock of a process that was killed can outlive it for a moment, in a program that it was starting.
func TestLockOfAProcessThatIsGone(t *testing.T) {
	cmd := osexec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "data.db")
	lock, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	fmt.Fprintf(lock, `{"pid":%d,"command":"start"}`, cmd.Process.Pid)
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		if _, err := store.Open(t.Context(), store.Options{Path: path}); !fault.Is(err, fault.StoreLocked) {
			t.Errorf("Open while the lock stays = %v, want store-locked", err)
		}
		time.AfterFunc(50*time.Millisecond, func() { syscall.Flock(int(lock.Fd()), syscall.LOCK_UN) })
		db, err := store.Open(t.Context(), store.Options{Path: path})
		if err != nil {
			t.Fatalf("Open once the lock is let go of = %v", err)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
}
