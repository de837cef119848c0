package triggers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"agentd/store"
	"agentd/store/storetest"
	"agentd/triggers"
)

// faultDecls has triggers of each kind but cron, and each overlap and policy of catch-up.
func faultDecls() map[string]triggers.Declaration {
	decls := map[string]triggers.Declaration{
		"event": {Kind: triggers.EventKind, Spec: "order"}, "one": {Kind: triggers.EventKind, Spec: "order", Overlap: "queue"},
		"idle": {Kind: triggers.IdleKind, AfterMs: 30_000, Session: "quiet"}}
	for i, of := range [][2]string{{"allow", "none"}, {"allow", "all"}, {"skip", "last"}, {"queue", "none"}, {"queue", "all"}} {
		d := triggers.Declaration{Kind: triggers.IntervalKind, EveryMs: 60_000, Overlap: of[0], CatchUpPolicy: of[1], JitterMs: int64(1000 * i)}
		if of[1] == "all" {
			d.MaxCatchUpRuns = 3
		}
		decls[of[0]+"-"+of[1]] = d
	}
	return decls
}

// endAll ends the runs that have not ended.
func (r *rig) endAll(told bool) {
	r.t.Helper()
	for _, id := range r.begun() {
		var row *store.Run
		err := r.db.Runs().View(context.Background(), func(tx *store.Tx) (err error) {
			row, err = r.db.Runs().Find(tx, id)
			return err
		})
		if err == nil && row.Status == store.Running {
			r.end(id, store.Completed, told)
		} else if err != nil && !errors.Is(err, store.ErrNotFound) {
			r.t.Fatal(err)
		}
	}
}

func (r *rig) emit(id string) error {
	_, err := r.engine.Emit(context.Background(), triggers.Event{Name: "order", ID: id, Data: json.RawMessage("1"), By: "token:a", Emitter: "token:a"})
	return err
}

// live is what happens to an engine: dues, an event, ends of runs that the engine sees and one that it does not, and a stop over dues.
func (r *rig) live(broken func(bool)) {
	r.run()
	time.Sleep(70 * time.Second)
	broken(true)
	r.emit("1") //nolint:errcheck // it is sent again
	time.Sleep(55 * time.Second)
	r.endAll(true)
	time.Sleep(30 * time.Second)
	broken(false)
	r.endAll(false)
	r.stop()
	time.Sleep(4 * time.Minute)
	r.open()
	broken(true)
	r.run()
	time.Sleep(20 * time.Second)
	broken(false)
	r.endAll(true)
	time.Sleep(time.Minute)
}

// settled brings an engine that runs to rest, and checks what must be true whatever has failed: each due of the schedules is in the ledger once,
// each firing that was started has its run and each run its firing, the events have fired once, and nothing waits.
func (r *rig) settled(name string) {
	t := r.t
	t.Helper()
	if err := r.emit("1"); err != nil {
		t.Errorf("%s: the event is not accepted: %v", name, err)
	}
	time.Sleep(30 * time.Second)
	for range 5 { // each starts what was queued
		r.endAll(true)
		synctest.Wait()
	}
	runs := map[string]string{}
	for id, d := range r.decls {
		rows, _, err := r.engine.Firings(context.Background(), id, 0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		slices.Reverse(rows)
		slices.SortStableFunc(rows, func(a, b triggers.Firing) int { return strings.Compare(a.Due, b.Due) })
		var last time.Time
		for _, f := range rows {
			due, err := time.Parse(time.RFC3339, f.Due)
			if err != nil {
				t.Fatal(err)
			}
			if d.Kind == triggers.IntervalKind && !last.IsZero() && due.Sub(last) != time.Minute {
				t.Errorf("%s: %s: the due %v follows %v", name, id, due, last)
			}
			if last = due; f.LastDue != "" {
				last, _ = time.Parse(time.RFC3339, f.LastDue)
			}
			if f.Outcome == "queued" || (f.Outcome == "fired") != (f.RunID != "") || runs[f.RunID] != "" {
				t.Errorf("%s: %s: %+v", name, id, f)
			}
			if f.RunID != "" {
				runs[f.RunID] = id
			}
		}
		if d.Kind == triggers.IntervalKind && time.Since(last) > time.Minute+5*time.Second {
			t.Errorf("%s: %s: the last due is %v, now is %v", name, id, last, time.Now())
		}
		if d.Kind != triggers.IntervalKind && (len(rows) != 1 || rows[0].Outcome != "fired") {
			t.Errorf("%s: %s: %+v, want one firing", name, id, rows)
		}
	}
	for _, id := range r.begun() {
		err := r.db.Runs().View(context.Background(), func(tx *store.Tx) error {
			_, err := r.db.Runs().Find(tx, id)
			return err
		})
		if missing := errors.Is(err, store.ErrNotFound); err != nil && !missing || missing != (runs[id] == "") {
			t.Errorf("%s: the run %s of %q: %v", name, id, runs[id], err)
		}
		delete(runs, id)
	}
	if len(runs) > 0 {
		t.Errorf("%s: the ledger has runs %v that nobody began", name, runs)
	}
	open, err := r.db.Triggers().Opened(context.Background(), 0, 100)
	if err != nil || len(open) > 0 {
		t.Errorf("%s: firings are open: %+v, %v", name, open, err)
	}
}

// TestCrashes takes up the engine from what each of its transactions leaves on the disk.
func TestCrashes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, faultDecls())
		dir := t.TempDir()
		var taken atomic.Int64
		r.committed = func(int, time.Duration, error) {
			n := taken.Add(1)
			for _, suffix := range []string{"", "-wal"} {
				b, err := os.ReadFile(r.path + suffix)
				if err == nil {
					err = os.WriteFile(filepath.Join(dir, fmt.Sprint(n, ".db", suffix)), b, 0o600)
				}
				if err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Error(err)
				}
			}
		}
		r.live(func(bool) {})
		images := taken.Load()
		r.settled("without a crash")
		r.stop()
		every := int64(3)
		if os.Getenv("AGENTD_TEST_ROUNDS") == "all" {
			every = 1
		}
		for i := int64(1); i <= images; i += every {
			again := &rig{t: t, path: filepath.Join(dir, fmt.Sprint(i, ".db")), decls: r.decls, runs: r.begun()}
			again.open()
			again.endAll(false) // others do that at a start
			again.run()
			time.Sleep(2 * time.Minute)
			again.settled(fmt.Sprintf("crash after transaction %d", i))
			again.stop()
		}
		t.Logf("%d images", images)
	})
}

// TestFailingWrites has each kind of statement fail for some minutes, over dues, an event, a stop and a start.
func TestFailingWrites(t *testing.T) {
	for _, statement := range []string{"INSERT ON firings", "UPDATE ON firings", "UPDATE ON triggers", "INSERT ON runs"} {
		t.Run(statement, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, faultDecls())
				defer r.stop()
				r.live(func(broken bool) {
					path := "file:" + r.path + "?_pragma=busy_timeout(5000)"
					if broken {
						storetest.Behind(t, path, "CREATE TRIGGER broken BEFORE "+statement+" BEGIN SELECT RAISE(ABORT, 'broken'); END")
					} else {
						storetest.Behind(t, path, "DROP TRIGGER broken")
					}
				})
				r.settled(statement)
			})
		})
	}
}

// TestOverdue reports a trigger that is due and cannot fire, for as long as that lasts.
func TestOverdue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		decls := repeat(time.Minute, nil)
		decls["other"] = decls["t"]
		r := newRig(t, decls)
		defer r.stop()
		r.refuse = errStorage
		r.run()
		for _, at := range []struct{ sleep, want time.Duration }{{55 * time.Second, 0}, {65 * time.Second, time.Minute}, {5 * time.Minute, 6 * time.Minute}} {
			time.Sleep(at.sleep)
			if got := r.engine.Status().Overdue; got != at.want {
				t.Errorf("Overdue = %v, want %v", got, at.want)
			}
		}
		r.mu.Lock()
		r.refuse = nil
		r.mu.Unlock()
		time.Sleep(2 * time.Second)
		if got := r.engine.Status(); got.Overdue != 0 || got.Missed != 0 {
			t.Errorf("Status = %+v after a due has fired", got)
		}
	})
}
