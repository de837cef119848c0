package store_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agentd/server/fault"
	"agentd/store"
	"agentd/store/storetest"
)

// filled makes a database with so many runs and closes it.
func filled(t *testing.T, runs int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "data.db")
	db := storetest.OpenAt(t, path)
	err := db.Update(t.Context(), func(tx *store.Tx) error {
		for i := range runs {
			c := newRun(fmt.Sprint("run-", i))
			c.Run.Usage = []byte(`"` + strings.Repeat("x", 300) + `"`)
			if _, err := db.Runs().Apply(tx, &c); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestTruncatedWhileOpen cuts the file while it is open. The process lives, readers and the writer report the damage, and
// so does Ping from then on.
func TestTruncatedWhileOpen(t *testing.T) {
	for _, size := range []int64{0, 4096, 64 << 10} {
		path := filled(t, 2000)
		db, err := store.Open(t.Context(), store.Options{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		met := 0
		for i := range 2000 {
			if _, err := db.Runs().Get(t.Context(), fmt.Sprint("run-", i)); fault.Is(err, fault.StorageCorrupt) || fault.Is(err, fault.StorageFailed) {
				met++
			}
		}
		if met == 0 {
			t.Errorf("no read of a file cut to %d bytes = storage-corrupt", size)
		}
		if err := db.Ping(t.Context()); !fault.Is(err, fault.StorageCorrupt) && !fault.Is(err, fault.StorageFailed) {
			t.Errorf("Ping() after such reads = %v, want the damage", err)
		}
	}
}

// TestDamagedRow changes what a row holds to what the program never writes.
func TestDamagedRow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data.db")
	db := storetest.OpenAt(t, path)
	apply(t, db, newRun("number"))
	apply(t, db, newRun("sound"))
	if err := db.Tokens().Insert(t.Context(), store.Token{ID: "a", Hash: "h", Scopes: []string{"x:y"}, Created: 1}, nil); err != nil {
		t.Fatal(err)
	}
	storetest.Behind(t, path, "UPDATE runs SET events = 'many', usage_json = '{' WHERE id = 'number'")
	if _, err := db.Runs().Get(t.Context(), "sound"); err != nil {
		t.Errorf("Get(sound) = %v", err)
	}
	if err := db.Ping(t.Context()); err != nil {
		t.Errorf("Ping() before the damage was met = %v", err)
	}
	if _, err := db.Runs().Get(t.Context(), "number"); !fault.Is(err, fault.StorageCorrupt) {
		t.Errorf("Get(number) = %v, want storage-corrupt", err)
	}
	if err := db.Ping(t.Context()); !fault.Is(err, fault.StorageCorrupt) {
		t.Errorf("Ping() after the damage was met = %v, want storage-corrupt", err)
	}
	storetest.Behind(t, path, "UPDATE auth_tokens SET scopes_json = '[' WHERE id = 'a'")
	if _, err := db.Tokens().Get(t.Context(), "a"); !fault.Is(err, fault.StorageCorrupt) {
		t.Errorf("Tokens.Get() of a row that is not JSON = %v, want storage-corrupt", err)
	}
	if err := db.Update(t.Context(), func(tx *store.Tx) error { _, err := db.Runs().Find(tx, "sound"); return err }); err != nil {
		t.Errorf("Update() beside a damaged row = %v", err)
	}
	found, err := db.Verify(t.Context())
	if err != nil || len(found) != 2 || found[0].Place != "auth_tokens.scopes_json" || found[1] != (store.Damage{Place: "runs.usage_json", Message: "row 1 is not JSON"}) {
		t.Errorf("Verify() = %v, %v; want both rows", found, err)
	}
}

// TestRowsOfNobody takes away a run and leaves what belongs to it.
func TestRowsOfNobody(t *testing.T) {
	db := storetest.Open(t)
	c := newRun("r")
	c.Run.Events = 1
	c.Events = []store.Event{{Seq: 1, Type: "agent.start", Message: -1, Payload: []byte("{}")}}
	n := apply(t, db, c)
	storetest.Behind(t, db.Path(), "DELETE FROM runs")
	want := store.Damage{Place: "run_events", Message: fmt.Sprintf("it has rows of run %d, which is missing", n)}
	if found, err := db.Verify(t.Context()); err != nil || len(found) != 1 || found[0] != want {
		t.Errorf("Verify() = %v, %v; want %v", found, err, want)
	}
}

// TestRowsOfNoThread takes away a thread with all kinds of rows, and leaves what belongs to it.
func TestRowsOfNoThread(t *testing.T) {
	h := newHouse(t)
	storetest.Behind(t, h.db.Path(), fmt.Sprintf("DELETE FROM threads WHERE n = %d", h.kept))
	found, err := h.db.Verify(t.Context())
	var places []string
	for _, d := range found {
		places = append(places, d.Place)
	}
	want := []string{"thread_inputs", "thread_values", "thread_steps", "thread_tasks", "thread_answers"}
	if err != nil || !slices.Equal(places, want) {
		t.Errorf("Verify() = %v, %v; want rows of a missing thread in %q", found, err, want)
	}
}

// TestVerifyFinds spoils a sound database in one place each, and Verify names that place.
func TestVerifyFinds(t *testing.T) {
	for statement, want := range map[string]store.Damage{
		"UPDATE runs SET parent = 99 WHERE id = 'plain'":                                                                 {Place: "runs", Message: "it has rows of run 99, which is missing"},
		"UPDATE runs SET host = 98 WHERE id = 'plain'":                                                                   {Place: "runs", Message: "it has rows of run 98, which is missing"},
		"UPDATE runs SET thread = 97 WHERE id = 'plain'":                                                                 {Place: "runs", Message: "it has rows of thread 97, which is missing"},
		"UPDATE runs SET session_id = 'none' WHERE id = 'plain'":                                                         {Place: "runs", Message: "it has rows of session none, which is missing"},
		"UPDATE threads SET run = 96 WHERE thread_id = 'keep'":                                                           {Place: "threads", Message: "it has rows of run 96, which is missing"},
		"UPDATE threads SET session_id = 'none' WHERE thread_id = 'keep'":                                                {Place: "threads", Message: "it has rows of session none, which is missing"},
		"UPDATE sessions SET thread = 95 WHERE id = 'keep-shared'":                                                       {Place: "sessions", Message: "it has rows of thread 95, which is missing"},
		"DELETE FROM triggers":                                                                                           {Place: "firings", Message: "it has rows of trigger 1, which is missing"},
		"DELETE FROM notify_targets":                                                                                     {Place: "notifications", Message: "it has rows of notify_target to, which is missing"},
		"UPDATE firings SET run_id = NULL WHERE n = 1":                                                                   {Place: "firings", Message: "firing 1 has fired, but names no run"},
		"UPDATE firings SET outcome = 'skipped' WHERE n = 1":                                                             {Place: "firings", Message: "firing 1 is skipped, but names the run fired"},
		"UPDATE firings SET open = 0 WHERE n = 2":                                                                        {Place: "firings", Message: "firing 2 is queued, but not open"},
		"UPDATE firings SET outcome = 'failed' WHERE n = 2":                                                              {Place: "firings", Message: "firing 2 is failed, but open"},
		"UPDATE runs SET origin = 'firing:f2' WHERE id = 'plain'":                                                        {Place: "firings", Message: "firing 2 has started the run plain, but does not name it"},
		"UPDATE firings SET run_id = 'plain' WHERE n = 3":                                                                {Place: "firings", Message: "firing 3 names the run plain, which it has not started"},
		"UPDATE sqlite_schema SET sql = replace(sql, 'run_id', 'run_id COLLATE NOCASE') WHERE name = 'firings_open_run'": {Place: "schema"},
	} {
		h := newHouse(t)
		for _, id := range []string{"plain", "fired"} {
			h.run(id, func(r *store.Run) { r.Status = store.Completed })
		}
		h.update(func(tx *store.Tx) error {
			trigger := store.Trigger{ID: "t"}
			err := h.db.Triggers().Insert(tx, &trigger)
			for i, f := range []store.Firing{{Outcome: "fired", Run: "fired", Open: true}, {Outcome: "queued", Open: true}, {Outcome: "fired", Run: "erased"}, {Outcome: "missed"}} {
				f.Trigger, f.ID, f.Slot = trigger.N, fmt.Sprint("f", i+1), fmt.Sprint("t:", i)
				err = errors.Join(err, h.db.Triggers().Add(tx, &f))
			}
			return errors.Join(err, h.db.Notifications().Add(tx, &store.Notification{ID: "n", Target: "to", Type: "test", Body: []byte("{}")}))
		})
		storetest.Behind(t, h.db.Path(), "UPDATE runs SET origin = 'firing:f1' WHERE id = 'fired'")
		if found, err := h.db.Verify(t.Context()); err != nil || len(found) > 0 {
			t.Fatalf("Verify() of a sound database = %v, %v", found, err)
		}
		storetest.Behind(t, h.db.Path(), "PRAGMA writable_schema = 1", statement)
		found, err := h.db.Verify(t.Context())
		if err != nil || len(found) != 1 || found[0].Place != want.Place || !strings.Contains(found[0].Message, want.Message) {
			t.Errorf("Verify() after %q = %v, %v; want %v", statement, found, err, want)
		}
	}
}

// TestVerify turns over bytes of a page, and leaves out what an index should hold.
func TestVerify(t *testing.T) {
	path := filled(t, 500)
	verify := func() []store.Damage {
		t.Helper()
		db, err := store.Open(t.Context(), store.Options{Path: path, ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		found, err := db.Verify(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if found := verify(); len(found) != 0 {
		t.Fatalf("Verify() of a sound database = %v", found)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 64 {
		b[len(b)-4096+i] ^= 0xff
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if found := verify(); len(found) == 0 {
		t.Error("Verify() finds nothing in a damaged page")
	}
}

// TestLogWithoutItsDatabase takes the database away from beside its log, or empties it.
func TestLogWithoutItsDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data.db")
	db := storetest.OpenAt(t, path)
	apply(t, db, newRun("r"))
	for name, spoil := range map[string]func(string) error{"missing": os.Remove, "empty": func(p string) error { return os.Truncate(p, 0) }} {
		copied := filepath.Join(t.TempDir(), "data.db")
		for _, suffix := range []string{"", "-wal"} {
			b, err := os.ReadFile(path + suffix)
			if err == nil {
				err = os.WriteFile(copied+suffix, b, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		log, err := os.Stat(copied + "-wal")
		if err != nil || log.Size() == 0 {
			t.Fatalf("the log = %v, %v; want one that is not empty", log, err)
		}
		if err := spoil(copied); err != nil {
			t.Fatal(err)
		}
		for _, o := range []store.Options{{}, {Beside: true}, {ReadOnly: true}} {
			o.Path = copied
			if _, err := store.Open(t.Context(), o); !fault.Is(err, fault.StorageCorrupt) || !strings.Contains(err.Error(), "-wal") {
				t.Errorf("Open(%+v) of a database that is %s = %v, want storage-corrupt that names the log", o, name, err)
			}
		}
		if now, err := os.Stat(copied + "-wal"); err != nil || now.Size() != log.Size() {
			t.Errorf("the log of a database that is %s = %v, %v; want it untouched", name, now, err)
		}
	}
}

// TestForeignSchema plants what the program did not make.
func TestForeignSchema(t *testing.T) {
	for statement, names := range map[string]string{
		"CREATE TRIGGER quiet BEFORE INSERT ON runs BEGIN SELECT raise(IGNORE); END":                 "the trigger quiet is not",
		"CREATE VIEW more AS SELECT * FROM runs":                                                     "the view more is not",
		"CREATE TABLE more (a)":                                                                      "the table more is not",
		"DROP INDEX runs_open":                                                                       "the index runs_open is missing",
		"DROP INDEX runs_by_owner; CREATE INDEX runs_by_owner ON runs (n)":                           "the index runs_by_owner was changed",
		"DROP TABLE handoffs; CREATE VIEW handoffs AS SELECT 1 AS key, '' AS session_id, 2 AS at, 3": "the view handoffs is not",
	} {
		path := filled(t, 1)
		storetest.Behind(t, path, statement)
		for _, o := range []store.Options{{}, {Beside: true}, {ReadOnly: true}} {
			o.Path = path
			db, err := store.Open(t.Context(), o)
			if !fault.Is(err, fault.SchemaChanged) || !strings.Contains(err.Error(), names) {
				t.Errorf("Open(%+v) after %q = %v, want schema-changed: %s", o, statement, err, names)
			}
			if err == nil {
				db.Close()
			}
		}
	}
}

// TestPlantedTrigger plants a trigger in a database that is open. The write that it swallows is not acknowledged.
func TestPlantedTrigger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data.db")
	db, err := store.Open(t.Context(), store.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	apply(t, db, newRun("before"))
	storetest.Behind(t, path, "CREATE TRIGGER quiet BEFORE INSERT ON runs BEGIN SELECT raise(IGNORE); END")
	c := newRun("r")
	err = db.Update(t.Context(), func(tx *store.Tx) error { _, err := db.Runs().Apply(tx, &c); return err })
	if !fault.Is(err, fault.StorageCorrupt) {
		t.Errorf("Apply() past a trigger that ignores it = %v, want storage-corrupt", err)
	}
	storetest.Behind(t, path, "DROP TRIGGER quiet", "CREATE TRIGGER loud AFTER INSERT ON runs BEGIN DELETE FROM runs WHERE n = NEW.n; END")
	other, err := store.Open(t.Context(), store.Options{Path: path, Beside: true})
	if !fault.Is(err, fault.SchemaChanged) {
		t.Errorf("Open(Beside) = %v, %v, want schema-changed", other, err)
	}
}

// TestPingSeesTheSchema plants a trigger that no count of rows notices.
func TestPingSeesTheSchema(t *testing.T) {
	db := storetest.Open(t)
	if err := db.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	storetest.Behind(t, db.Path(), "CREATE TRIGGER loud AFTER INSERT ON runs BEGIN DELETE FROM runs WHERE n = NEW.n; END")
	if err := db.Ping(t.Context()); !fault.Is(err, fault.SchemaChanged) {
		t.Errorf("Ping() = %v, want schema-changed", err)
	}
}
