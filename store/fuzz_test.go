package store_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unicode"

	"agentd/server/fault"
	"agentd/server/fuzztest"
	"agentd/store"
)

// FuzzHolder reads what stands in the lock file of a database that somebody holds.
func FuzzHolder(f *testing.F) {
	f.Add([]byte(`{"pid":7,"command":"start","address":"http://127.0.0.1:8080/v1"}` + "\n"))
	f.Add([]byte(`{"pid":0}`))
	f.Add([]byte(`{"PID":1e3,"command":"\u001b[2J"}`))
	f.Add([]byte(`{"pid":9223372036854775808}`))
	f.Add([]byte(`{"pid":1,"command":"` + strings.Repeat("x", 4096) + `"}`))
	f.Add([]byte(`{"pid":1,"command":"start\u001b[2J","address":"a\nb"}`))
	f.Add([]byte("null"))
	path := filepath.Join(f.TempDir(), "data.db")
	lock, err := os.Create(path + ".lock")
	if err != nil {
		f.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := lock.Truncate(0); err != nil {
			t.Fatal(err)
		}
		if _, err := lock.WriteAt(text, 0); err != nil {
			t.Fatal(err)
		}
		fuzztest.Cost{}.Check(t, len(text), func() { store.FindHolder(path) })
		h, held := store.FindHolder(path)
		var want store.Holder
		if sound := json.Unmarshal(text[:min(len(text), 4096)], &want) == nil && want.PID > 0 && !strings.ContainsFunc(want.Command+want.Address, unicode.IsControl); held != sound || sound && h != want || !sound && h != (store.Holder{}) {
			t.Errorf("FindHolder() of %q = %+v, %v, want %+v, %v", text, h, held, want, sound)
		}
		_, err := store.Open(t.Context(), store.Options{Path: path})
		e := fault.Of(err)
		if !fault.Is(err, fault.StoreLocked) || strings.ContainsAny(e.Message, "\n\x1b") || len(e.Message) > 8192 {
			t.Errorf("Open() of a file held by %q = %v, want store-locked on one line", text, err)
		}
		if now, err := os.ReadFile(path + ".lock"); err != nil || !bytes.Equal(now, text) {
			t.Errorf("Open() changes the lock file of another to %q, %v", now, err)
		}
	})
}
