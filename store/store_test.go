package store_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"agentd/server/fault"
	"agentd/store"
	"agentd/store/storetest"
)

func newRun(id string) store.Change {
	return store.Change{Run: store.Run{ID: id, Kind: "agent", Owner: "a", Current: "a", Status: store.Running,
		InputForm: "text", Usage: json.RawMessage("{}"), Models: json.RawMessage("{}"), Created: 1}}
}

func apply(t testing.TB, db *store.DB, c store.Change) int64 {
	t.Helper()
	var n int64
	err := db.Update(t.Context(), func(tx *store.Tx) (err error) {
		n, err = db.Runs().Apply(tx, &c)
		return err
	})
	if err != nil {
		t.Fatalf("Apply(%s): %v", c.Run.ID, err)
	}
	return n
}

func TestConcurrentUpdatesAllCommitOrFailAlone(t *testing.T) {
	db := storetest.Open(t)
	const n = 400
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			errs[i] = db.Update(t.Context(), func(tx *store.Tx) error {
				c := newRun(fmt.Sprint("run-", i))
				if _, err := db.Runs().Apply(tx, &c); err != nil {
					return err
				}
				if i%10 == 3 {
					return errors.New("changed my mind") // after it has written: nothing of it may stay
				}
				return nil
			})
		})
	}
	wg.Wait()
	for i := range n {
		_, err := db.Runs().Get(t.Context(), fmt.Sprint("run-", i))
		if kept := err == nil; kept != (errs[i] == nil) || (errs[i] != nil) != (i%10 == 3) {
			t.Errorf("run-%d: kept %v, Update error %v", i, kept, errs[i])
		}
	}
}

func TestPanicInClosureIsTheCallersAlone(t *testing.T) {
	db := storetest.Open(t)
	func() {
		defer func() {
			if p := recover(); p == nil || !strings.Contains(fmt.Sprint(p), "boom") {
				t.Errorf("recovered %v, want boom", p)
			}
		}()
		db.Update(t.Context(), func(tx *store.Tx) error {
			c := newRun("half")
			db.Runs().Apply(tx, &c)
			panic("boom")
		})
	}()
	if _, err := db.Runs().Get(t.Context(), "half"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("Get after a panic = %v, want ErrNotFound", err)
	}
	apply(t, db, newRun("next"))
}

func TestUpdateGivesUpItsPlaceWhenTheCallerLeaves(t *testing.T) {
	db := storetest.Open(t)
	entered, leave := make(chan bool), make(chan bool)
	go db.Update(context.Background(), func(*store.Tx) error { close(entered); <-leave; return nil })
	<-entered
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("caller left")
	cancel(gone)
	err := db.Update(ctx, func(*store.Tx) error { t.Error("the closure of a caller that left ran"); return nil })
	if !errors.Is(err, gone) {
		t.Errorf("Update = %v, want the context's cause", err)
	}
	close(leave)
}

func TestCompareAndSet(t *testing.T) {
	db := storetest.Open(t)
	c := newRun("r")
	c.Run.N = apply(t, db, c)
	c.Run.Version, c.Run.Status = 1, store.Completed
	apply(t, db, c)
	err := db.Update(t.Context(), func(tx *store.Tx) error { _, err := db.Runs().Apply(tx, &c); return err })
	if !errors.Is(err, store.ErrConflict) {
		t.Errorf("Apply with a stale version = %v, want ErrConflict", err)
	}
	again := newRun("r")
	err = db.Update(t.Context(), func(tx *store.Tx) error { _, err := db.Runs().Apply(tx, &again); return err })
	if !errors.Is(err, store.ErrConflict) {
		t.Errorf("Apply with a taken id = %v, want ErrConflict", err)
	}
	if run, err := db.Runs().Get(t.Context(), "r"); err != nil || run.Status != store.Completed || run.Version != 2 {
		t.Errorf("Get = %+v, %v; want completed at version 2", run, err)
	}
}

func TestRunRoundTrip(t *testing.T) {
	db := storetest.Open(t)
	ctx := t.Context()
	if err := db.Update(ctx, func(tx *store.Tx) error {
		return db.Sessions().Insert(tx, store.Session{ID: "s", User: "u", Agent: "a", Tags: []string{"x"}, Created: 1})
	}); err != nil {
		t.Fatal(err)
	}
	c := newRun("r")
	c.Run.Session, c.Run.Messages, c.Run.Events, c.Run.Calls, c.Run.Step = "s", 3, 2, 1, 1
	msg := func(i int, role, body string) store.Message {
		return store.Message{Index: i, Role: role, Tokens: 10, At: int64(i), Body: json.RawMessage(body)}
	}
	c.Messages = []store.Message{msg(0, "system", `{"s":1}`), msg(1, "user", `{"u":"50% _x"}`), msg(2, "assistant", `{"a":1}`)}
	c.Events = []store.Event{{Seq: 1, Type: "agent.start", At: 1, Message: -1, Payload: json.RawMessage(`{}`)},
		{Seq: 2, Type: "text.complete", At: 2, Message: 2, Payload: json.RawMessage(`{}`)}}
	c.Steps = []store.Step{{Number: 1, Agent: "a", Model: "m", Started: 1}}
	c.Calls = []store.Call{{Index: 0, Step: 1, ID: "c1", Name: "t", Phase: store.CallDispatching, ArgsHash: []byte{1}, Asked: 2, Answered: -1, Attempts: 1, Claimed: 1}}
	c.Slots = map[store.Slot]json.RawMessage{store.OutputSlot: json.RawMessage(`"out"`)}
	c.Spills = []store.Spill{{Name: "c1.txt", MediaType: "text/plain", Data: []byte("big")}}
	n := apply(t, db, c)

	c.Run.N, c.Run.Version = n, 1
	c.Messages, c.Events = nil, nil
	c.Steps[0].Ended, c.Steps[0].Usage = 5, json.RawMessage(`{"totalTokens":3}`)
	c.Calls[0].Phase, c.Calls[0].Answered, c.Calls[0].Settled = store.CallDone, 3, 5
	apply(t, db, c)

	runs := db.Runs()
	err := db.Snapshot(ctx, func(tx *store.Tx) error {
		events, err1 := runs.Events(tx, n, 1, 10)
		if err1 != nil || len(events) != 1 || events[0].Message != 2 || events[0].Seq != 2 {
			t.Errorf("Events(after 1) = %+v, %v", events, err1)
		}
		msgs, err2 := runs.Messages(tx, n)
		if err2 != nil || len(msgs) != 3 || msgs[0].Sequence != 0 || msgs[2].Sequence != 2 || msgs[2].Run != n {
			t.Errorf("Messages = %+v, %v", msgs, err2)
		}
		steps, err3 := runs.Steps(tx, n)
		if err3 != nil || len(steps) != 1 || steps[0].Ended != 5 || string(steps[0].Usage) != `{"totalTokens":3}` {
			t.Errorf("Steps = %+v, %v", steps, err3)
		}
		calls, err4 := runs.Calls(tx, n)
		if err4 != nil || len(calls) != 1 || calls[0].Phase != store.CallDone || calls[0].Answered != 3 {
			t.Errorf("Calls = %+v, %v", calls, err4)
		}
		out, err5 := runs.Slot(tx, n, store.OutputSlot)
		none, err6 := runs.Slot(tx, n, store.PendingSlot)
		if string(out) != `"out"` || none != nil || err5 != nil || err6 != nil {
			t.Errorf("Slot = %s, %s; %v, %v", out, none, err5, err6)
		}
		all, err7 := db.Sessions().MessagesBefore(tx, "s", 100)
		earlier, err8 := db.Sessions().MessagesBefore(tx, "s", 2)
		if len(all) != 2 || all[0].Sequence != 2 || len(earlier) != 1 || earlier[0].Sequence != 1 || err7 != nil || err8 != nil {
			t.Errorf("MessagesBefore = %+v and %+v; %v, %v; want both, the newest first, and the first", all, earlier, err7, err8)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if media, data, err := runs.ReadSpill(ctx, "r", "c1.txt"); err != nil || media != "text/plain" || string(data) != "big" {
		t.Errorf("ReadSpill = %s %s, %v", media, data, err)
	}
}

func TestWindowBeginsWithAUserMessage(t *testing.T) {
	db := storetest.Open(t)
	c := newRun("r")
	c.Run.Session = "s"
	for i, role := range []string{"user", "assistant", "tool", "assistant", "user", "assistant"} {
		c.Messages = append(c.Messages, store.Message{Index: i, Role: role, Tokens: 10, Body: json.RawMessage(`{}`)})
	}
	err := db.Update(t.Context(), func(tx *store.Tx) error {
		if err := db.Sessions().Insert(tx, store.Session{ID: "s", User: "u", Agent: "a", Created: 1}); err != nil {
			return err
		}
		_, err := db.Runs().Apply(tx, &c)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		tokens int
		to     int64
		want   string
	}{{5, 6, "[]"}, {20, 6, "[5 6]"}, {55, 6, "[5 6]"}, {60, 6, "[1 2 3 4 5 6]"}, {1000, 6, "[1 2 3 4 5 6]"}, {1000, 4, "[1 2 3 4]"}, {1000, 0, "[]"}, {0, 6, "[]"}} {
		err := db.View(t.Context(), func(tx *store.Tx) error {
			history, err := db.Runs().History(tx, "s", store.Window(tc.tokens), tc.to)
			got := []int64{}
			for _, m := range history {
				got = append(got, m.Sequence)
			}
			if fmt.Sprint(got) != tc.want {
				t.Errorf("History(%d tokens up to %d) = %v, want %s", tc.tokens, tc.to, got, tc.want)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestSecondOpenIsRefusedAndNamesTheHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data.db")
	db := storetest.OpenAt(t, path)
	if err := db.Announce(store.Holder{Command: "start", Address: "http://127.0.0.1:9/v1"}); err != nil {
		t.Fatal(err)
	}
	_, err := store.Open(t.Context(), store.Options{Path: path})
	if !fault.Is(err, fault.StoreLocked) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) || !strings.Contains(err.Error(), "127.0.0.1:9") {
		t.Errorf("second Open = %v, want store-locked that names process and address", err)
	}
	if h, ok := store.FindHolder(path); !ok || h.PID != os.Getpid() {
		t.Errorf("FindHolder = %+v, %v", h, ok)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if h, ok := store.FindHolder(path); ok {
		t.Errorf("FindHolder after Close = %+v, want none", h)
	}
	storetest.OpenAt(t, path)
}

func TestForeignNewerAndBehindSchemasAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data.db")
	open := func(readOnly bool) error {
		db, err := store.Open(t.Context(), store.Options{Path: path, ReadOnly: readOnly})
		if err == nil {
			db.Close()
		}
		return err
	}
	if err := open(true); !fault.Is(err, fault.StoreUnusable) {
		t.Errorf("read-only Open of no file = %v, want store-unusable", err)
	}
	storetest.Behind(t, path, "CREATE TABLE schema_migrations ( version INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at INTEGER NOT NULL)")
	if err := open(true); !fault.Is(err, fault.SchemaBehind) {
		t.Errorf("read-only Open of an old file = %v, want schema-behind", err)
	}
	if err := open(false); err != nil {
		t.Fatalf("Open of an old file = %v, want it migrated", err)
	}
	if err := open(true); err != nil {
		t.Errorf("read-only Open of a current file = %v", err)
	}
	storetest.Behind(t, path, fmt.Sprintf("INSERT INTO schema_migrations VALUES (%d, 'later', 'x', 1)", store.SchemaVersion()+1))
	if err := open(false); !fault.Is(err, fault.SchemaNewer) {
		t.Errorf("Open of a newer file = %v, want schema-newer", err)
	}
	storetest.Behind(t, path, "DELETE FROM schema_migrations WHERE name = 'later'", "UPDATE schema_migrations SET checksum = 'x' WHERE version = 1")
	if err := open(false); !fault.Is(err, fault.StoreUnusable) {
		t.Errorf("Open of a foreign schema = %v, want store-unusable", err)
	}
	if err := os.WriteFile(path, []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := open(false); !fault.Is(err, fault.StorageCorrupt) {
		t.Errorf("Open of a damaged file = %v, want storage-corrupt", err)
	}
}

func TestClosedStoreRefusesWrites(t *testing.T) {
	db := storetest.Open(t)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if err := db.Update(t.Context(), func(*store.Tx) error { return nil }); !fault.Is(err, fault.StorageFailed) {
		t.Errorf("Update after Close = %v, want storage-failed", err)
	}
	if err := db.Close(); err != nil {
		t.Errorf("second Close = %v", err)
	}
}

// A new file can shrink, and one that exists is opened without a commit, which could have to wait for a checkpoint.
func TestOpenWritesOnlyNewFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data.db")
	db := storetest.OpenAt(t, path)
	apply(t, db, newRun("r"))
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	const incrementalVacuum = 64 // its place in the header
	if file, err := os.ReadFile(path); err != nil || file[incrementalVacuum+3] != 1 {
		t.Errorf("the header of a new database = %x, %v; want incremental vacuum", file[:100], err)
	}
	if db = storetest.OpenAt(t, path); db.WALSize() != 0 {
		t.Errorf("opening a database wrote %d bytes to its log, want none", db.WALSize())
	}
}

func TestSumsOfSchemas(t *testing.T) {
	all, err := store.Sums()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s[0] != s[1] {
			t.Errorf("madeSums has %q, want %q: a migration was added", s[0], s[1])
		}
	}
}

// Ping writes: it reports a database that another process keeps from being written, and nothing else of it.
func TestPing(t *testing.T) {
	db := storetest.Open(t)
	ping := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		return db.Ping(ctx)
	}
	raw, err := sql.Open("sqlite", db.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	raw.SetMaxOpenConns(1)
	number := func() (n int) {
		t.Helper()
		if err := raw.QueryRow("PRAGMA user_version").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for range 3 {
		before := number()
		if err := db.Ping(t.Context()); err != nil || number() == before {
			t.Fatalf("Ping() = %v, and the file has %d after %d; want another number", err, number(), before)
		}
	}
	if _, err := raw.Exec("BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	if err := ping(); err != store.ErrSlow {
		t.Errorf("Ping() beside a transaction of another process = %v, want ErrSlow", err)
	}
	if _, err := raw.Exec("ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if err := db.Ping(t.Context()); err != nil {
		t.Errorf("Ping() after it = %v", err)
	}
}
