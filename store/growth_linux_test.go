package store_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"agentd/store"
	"agentd/store/storetest"
)

// TestReadsDoNotGrow counts the pages that SQLite reads with an empty cache, in a small database and in a large one: what a request needs lies as deep in a larger tree as that tree has more levels, and no further apart.
func TestReadsDoNotGrow(t *testing.T) { // G1, G2
	if testing.Short() {
		t.Skip("it fills databases")
	}
	runs := 30_000
	if os.Getenv("CI") != "" {
		runs = 100_000
	}
	small, large := readsOf(t, 1000), readsOf(t, runs)
	for _, name := range slices.Sorted(maps.Keys(small)) {
		t.Logf("%-40s %4d and %4d", name, small[name], large[name])
		if large[name] > small[name]+small[name]/3+10 {
			t.Errorf("%s reads %d pages of a small database, and %d of a large one", name, small[name], large[name])
		}
	}
	if short, long := large["start in a session of 10"], large["start in a session of 10000"]; long > short+10 {
		t.Errorf("a start in a session of 10 runs reads %d pages, and in one of 10000 runs %d", short, long)
	}
}

// readsOf returns how often each of some reads and writes reads from the file of a database with so many runs.
func readsOf(t *testing.T, runs int) map[string]int {
	path := filepath.Join(t.TempDir(), "data.db")
	storetest.Grow(t, path, runs)
	counts := map[string]int{}
	do := func(name string, fn func(db *store.DB, tx *store.Tx) error) {
		db, err := store.Open(t.Context(), store.Options{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		before := reads(t)
		err = db.Update(t.Context(), func(tx *store.Tx) error { return fn(db, tx) })
		counts[name] = reads(t) - before
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	list := func(name string, f store.RunFilter) {
		f.Limit = 20
		do(name, func(db *store.DB, tx *store.Tx) error { _, err := db.Runs().List(tx, f); return err })
	}
	list("list", store.RunFilter{})
	list("list of an agent", store.RunFilter{Agents: []string{"agent3"}, Workflows: []string{}})
	list("list of two agents", store.RunFilter{Agents: []string{"agent3", "nobody"}, Workflows: []string{}})
	for _, s := range []store.Status{store.Pending, store.Running, store.Awaiting, store.Completed, store.Failed, store.Aborted, store.Suspended} {
		list("list of "+string(s), store.RunFilter{Status: s})
	}
	do("approvals", func(db *store.DB, tx *store.Tx) error { _, err := db.Runs().Awaiting(tx, nil, nil); return err })
	do("recovery", func(db *store.DB, tx *store.Tx) error { _, err := db.Runs().Open(tx, ""); return err })
	for _, f := range []store.ThreadFilter{{}, {Status: store.Suspended}, {Status: store.Failed}, {Status: store.Awaiting}} {
		f.Workflow, f.Limit = storetest.Workflow, 20
		do("threads "+string(f.Status), func(db *store.DB, tx *store.Tx) error { _, err := db.Threads().List(tx, f); return err })
	}
	do("threads of a session", func(db *store.DB, tx *store.Tx) error {
		_, err := db.Threads().List(tx, store.ThreadFilter{Workflow: storetest.Workflow, Session: storetest.Session(50), Limit: 20})
		return err
	})
	do("blocked threads", func(db *store.DB, tx *store.Tx) error { _, err := db.Threads().Blocked(tx); return err })
	do("start of a thread", func(db *store.DB, tx *store.Tx) error { return storetest.AddThread(db, tx, "new") })
	do("step of a thread", func(db *store.DB, tx *store.Tx) error {
		th, err := db.Threads().Find(tx, storetest.Workflow, storetest.Thread(50))
		if err != nil {
			return err
		}
		if _, _, _, _, err := db.Threads().Load(tx, &th); err != nil {
			return err
		}
		c := store.ThreadChange{Thread: th, Ended: []int{1}, Tasks: []store.ThreadTask{{ID: 2, Body: []byte("{}")}},
			Steps: []store.ThreadStep{{Step: 2, Run: th.Run, Body: []byte("{}")}}}
		return db.Threads().Apply(tx, &c)
	})
	do("erasure of a thread", func(db *store.DB, tx *store.Tx) error {
		th, err := db.Threads().Find(tx, storetest.Workflow, storetest.Thread(51))
		if err == nil {
			_, err = db.Threads().Erase(tx, th.N)
		}
		return err
	})
	do("sessions of nobody", func(db *store.DB, tx *store.Tx) error { _, err := db.Sessions().List(tx, "", "nobody"); return err })
	do("sessions of a user with nobody", func(db *store.DB, tx *store.Tx) error {
		_, err := db.Sessions().List(tx, "anonymous", "nobody")
		return err
	})
	do("state", func(db *store.DB, tx *store.Tx) error {
		row, err := db.Runs().Find(tx, "run-500")
		if err == nil {
			_, err = db.Runs().Messages(tx, row.N)
		}
		return err
	})
	do("history", func(db *store.DB, tx *store.Tx) error {
		_, err := db.Runs().History(tx, storetest.LongSession, store.Window(8000), 2*storetest.LongRuns)
		return err
	})
	do("subscription", func(db *store.DB, tx *store.Tx) error {
		_, err := db.Runs().FirstSince(tx, storetest.LongSession, tx.Now())
		return err
	})
	for name, session := range map[string]string{"10": storetest.Session(50), "10000": storetest.LongSession} {
		do("start in a session of "+name, func(db *store.DB, tx *store.Tx) error {
			if _, err := db.Sessions().Find(tx, session); err != nil {
				return err
			}
			if _, err := db.Runs().Open(tx, session); err != nil {
				return err
			}
			c := newRun("new-" + name)
			c.Run.Session, c.Run.Owner = session, "noop"
			c.Messages = []store.Message{{Role: "user", Body: []byte("{}")}}
			c.Events = []store.Event{{Seq: 1, Type: "a", Message: -1, Payload: []byte("{}")}}
			_, err := db.Runs().Apply(tx, &c)
			return err
		})
	}
	return counts
}

var readCalls = regexp.MustCompile(`syscr: (\d+)`)

// reads is how often this process has read from files.
func reads(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", os.Getpid()))
	m := readCalls.FindSubmatch(text)
	if err != nil || m == nil {
		t.Skipf("the kernel does not count reads: %s, %v", text, err)
	}
	n, _ := strconv.Atoi(string(m[1]))
	return n
}
