package backup_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentd/server/backup"
	"agentd/server/fault"
	"agentd/store"
)

// newSite is a site whose files hold "old NAME", with a log beside the database.
func newSite(t *testing.T) backup.Site {
	dir, s := t.TempDir(), backup.Site{}
	for _, name := range backup.Names {
		s[name] = filepath.Join(dir, name)
		put(t, s[name], "old "+name)
	}
	put(t, s[backup.Database]+"-wal", "old log")
	return s
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func text(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(b)
}

var fresh = map[string]string{backup.Database: "new data.db", backup.Chain: "new audit.db", backup.Checkpoints: "new heads"}

// TestRestoreAfterEachStep crashes a restore after each change that it makes to the names of files, and finishes it.
func TestRestoreAfterEachStep(t *testing.T) {
	for steps, last := 0, false; !last; steps++ {
		s := newSite(t)
		if _, err := s.Unpack(bytes.NewReader(written(t, fresh))); err != nil {
			t.Fatal(err)
		}
		if err := s.Exchange("a.tar", time.UnixMilli(77), backup.Changes{}); err != nil {
			t.Fatal(err)
		}
		if last = carry(t, s, steps); text(s[backup.Database]+store.RestoreJournal) == "" {
			t.Fatal("there is no journal")
		}
		if _, err := store.Open(t.Context(), store.Options{Path: s[backup.Database]}); !fault.Is(err, fault.RestoreIncomplete) {
			t.Errorf("Open after %d steps of a restore = %v, want restore-incomplete", steps, err)
		}
		for range 2 { // the second time there is nothing left to do
			if _, err := s.Finish(); err != nil {
				t.Fatalf("Finish after %d steps = %v", steps, err)
			}
		}
		for name, want := range fresh {
			if got, kept := text(s[name]), text(s[name]+".bak.77"); got != want || kept != "old "+name {
				t.Errorf("after %d steps and Finish, %s = %q and the old one %q; want %q and %q", steps, name, got, kept, want, "old "+name)
			}
		}
		if got := text(s[backup.Secrets]); got != "old "+backup.Secrets {
			t.Errorf("secrets that are not in the backup = %q, want the old ones", got)
		}
		if text(s[backup.Database]+"-wal.bak.77") != "old log" || text(s[backup.Database]+"-wal") != "" {
			t.Errorf("after %d steps and Finish, the log of the old database is not set aside", steps)
		}
		left, err := filepath.Glob(filepath.Join(filepath.Dir(s[backup.Database]), "*restore*"))
		if err != nil || len(left) > 0 {
			t.Errorf("after Finish, %v is left, %v", left, err)
		}
	}
}

// carry makes so many of the changes that the journal asks for, and reports whether these were all.
func carry(t *testing.T, s backup.Site, steps int) (all bool) {
	t.Helper()
	var j backup.Journal
	if err := json.Unmarshal([]byte(text(s[backup.Database]+store.RestoreJournal)), &j); err != nil {
		t.Fatal(err)
	}
	rename := func(from, to string) bool {
		if _, err := os.Stat(from); err != nil || from == "" {
			return true
		}
		if steps--; steps < 0 {
			return false
		}
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
		return true
	}
	for _, m := range j.Moves {
		if !rename(m.To, m.Kept) || !rename(m.From, m.To) {
			return false
		}
	}
	return true
}

// TestRestoreBeforeExchange crashes a restore while it unpacks: nothing has changed, and the next one begins again.
func TestRestoreBeforeExchange(t *testing.T) {
	s, whole := newSite(t), written(t, fresh)
	if _, err := s.Unpack(bytes.NewReader(whole[:len(whole)/2])); !fault.Is(err, fault.BackupInvalid) {
		t.Fatalf("Unpack of half a backup = %v, want backup-invalid", err)
	}
	if j, err := s.Finish(); j != nil || err != nil {
		t.Errorf("Finish without a journal = %v, %v", j, err)
	}
	for _, name := range backup.Names {
		if got := text(s[name]); got != "old "+name {
			t.Errorf("%s = %q, want it unchanged", name, got)
		}
	}
	if _, err := s.Unpack(bytes.NewReader(whole)); err != nil {
		t.Errorf("Unpack over what another has left = %v", err)
	}
	put(t, s.Staged()[backup.Database]+"-wal", "what was not folded in")
	if err := s.Exchange("a.tar", time.UnixMilli(77), backup.Changes{}); err == nil || !strings.Contains(err.Error(), "not folded") {
		t.Errorf("Exchange beside a log = %v, want an error", err)
	}
	if err := s.Discard(); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(s[backup.Database]), "*restore*")); err != nil || len(left) > 0 {
		t.Errorf("after Discard, %v is left, %v", left, err)
	}
}
