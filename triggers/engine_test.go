package triggers_test

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/fault"
	"agentd/store"
	"agentd/triggers"
)

var repeat = func(period time.Duration, change func(*triggers.Declaration)) map[string]triggers.Declaration {
	d := triggers.Declaration{Kind: triggers.IntervalKind, EveryMs: period.Milliseconds(), Overlap: triggers.OverlapAllow}
	if change != nil {
		change(&d)
	}
	return map[string]triggers.Declaration{"t": d}
}

// TestSchedule fires an interval on its cadence, and again after a restart, each due once.
func TestSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, repeat(time.Minute, nil))
		defer r.stop()
		r.run()
		time.Sleep(150 * time.Second)
		r.want("t", "1m0s schedule fired; 2m0s schedule fired")
		r.stop()
		time.Sleep(10 * time.Second)
		r.run()
		time.Sleep(30 * time.Second)
		r.want("t", "1m0s schedule fired; 2m0s schedule fired; 3m0s schedule fired")
		if s, _ := r.engine.Get("t"); s.NextFireAt != "2000-01-01T00:04:00.000Z" || s.LastFiredAt != "2000-01-01T00:03:00.000Z" {
			t.Errorf("state = %+v", s)
		}
		if s := r.started()[0]; s.By != "trigger:t" || s.Agent != "a" || s.FiredBy != "" {
			t.Errorf("start = %+v", s)
		}
	})
}

// TestCatchUp stops the engine over dues.
func TestCatchUp(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*triggers.Declaration)
		want   string
		missed int64
	}{
		"none": {nil, "5m0s catchup missed to 20m0s (16)", 16},
		"last": {func(d *triggers.Declaration) { d.CatchUpPolicy = "last" }, "5m0s catchup missed to 19m0s (15); 20m0s catchup fired", 15},
		"all": {func(d *triggers.Declaration) { d.CatchUpPolicy, d.MaxCatchUpRuns = "all", 3 },
			"5m0s catchup missed to 17m0s (13); 18m0s catchup fired; 19m0s catchup fired; 20m0s catchup fired", 13},
		"window": {func(d *triggers.Declaration) {
			d.CatchUpPolicy, d.MaxCatchUpRuns, d.CatchUpWindowMs = "all", 10, 90_000
		},
			"5m0s catchup missed to 18m0s (14); 19m0s catchup fired; 20m0s catchup fired", 14},
		"expired": {func(d *triggers.Declaration) {
			d.CatchUpPolicy, d.ExpiresAt = "last", time.Date(2000, 1, 1, 0, 10, 0, 0, time.UTC).UnixMilli()
		}, "5m0s catchup missed to 9m0s (5)", 5},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, repeat(time.Minute, c.change))
				defer r.stop()
				r.run()
				time.Sleep(4*time.Minute + 30*time.Second)
				r.stop()
				time.Sleep(16 * time.Minute)
				r.run()
				before := "1m0s schedule fired; 2m0s schedule fired; 3m0s schedule fired; 4m0s schedule fired; "
				r.want("t", before+c.want)
				if s, _ := r.engine.Get("t"); s.MissedFires != c.missed {
					t.Errorf("missedFires = %d, want %d", s.MissedFires, c.missed)
				}
			})
		})
	}
}

// TestNeverFired catches up nothing.
func TestNeverFired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, repeat(time.Minute, func(d *triggers.Declaration) { d.CatchUpPolicy = "last" }))
		defer r.stop()
		r.open()
		r.stop()
		time.Sleep(150 * time.Second)
		r.run()
		r.want("t", "1m0s catchup missed to 2m0s (2)")
	})
}

// TestCatchUpQueues runs dues that are caught up one after the other.
func TestCatchUpQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, repeat(time.Hour, func(d *triggers.Declaration) { d.CatchUpPolicy, d.MaxCatchUpRuns, d.Overlap = "all", 5, "" }))
		defer r.stop()
		r.run()
		time.Sleep(time.Hour)
		r.want("t", "1h0m0s schedule fired")
		r.end(r.last(), store.Completed, true)
		r.stop()
		time.Sleep(3 * time.Hour)
		r.run()
		r.want("t", "1h0m0s schedule fired; 2h0m0s catchup fired; 3h0m0s catchup queued; 4h0m0s catchup queued")
		r.end(r.last(), store.Completed, true)
		r.want("t", "1h0m0s schedule fired; 2h0m0s catchup fired; 3h0m0s catchup fired; 4h0m0s catchup queued")
		r.stop() // a crash between the end of a run and its account
		r.open()
		r.end(r.last(), store.Completed, false)
		r.run()
		r.want("t", "1h0m0s schedule fired; 2h0m0s catchup fired; 3h0m0s catchup fired; 4h0m0s catchup fired")
	})
}

// TestOverlap fires while an earlier run has not ended.
func TestOverlap(t *testing.T) {
	for overlap, want := range map[string]string{
		"skip":  "1m0s schedule fired; 2m0s schedule skipped overlap; 3m0s schedule skipped overlap; 4m0s schedule fired",
		"queue": "1m0s schedule fired; 2m0s schedule fired; 3m0s schedule skipped queue-full; 4m0s schedule queued",
		"allow": "1m0s schedule fired; 2m0s schedule fired; 3m0s schedule fired; 4m0s schedule fired",
	} {
		t.Run(overlap, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, repeat(time.Minute, func(d *triggers.Declaration) { d.Overlap = overlap }))
				defer r.stop()
				r.run()
				time.Sleep(3*time.Minute + 30*time.Second)
				synctest.Wait()
				r.end(r.begun()[0], store.Completed, true)
				time.Sleep(time.Minute)
				r.want("t", want)
			})
		})
	}
}

// TestFailures retries starts that fail, and disables the trigger in the end.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, repeat(time.Hour, func(d *triggers.Declaration) {
			d.Retry, d.DisableAfter = triggers.Retry{MaxAttempts: 3, BackoffMs: 10_000}, 2
		}))
		defer r.stop()
		r.refuse = errTarget
		r.run()
		time.Sleep(time.Hour + time.Second)
		r.want("t", "1h0m0s schedule queued route-handler-missing")
		time.Sleep(15 * time.Second)
		r.want("t", "1h0m0s schedule queued route-handler-missing")
		time.Sleep(20 * time.Second)
		r.want("t", "1h0m0s schedule failed route-handler-missing")
		r.mu.Lock()
		r.refuse = nil
		r.mu.Unlock()
		time.Sleep(time.Hour)
		r.want("t", "1h0m0s schedule failed route-handler-missing; 2h0m0s schedule fired")
		if s, _ := r.engine.Get("t"); s.Failures != 1 || s.Disabled {
			t.Errorf("state = %+v", s)
		}
		r.end(r.last(), store.Failed, true)
		if s, _ := r.engine.Get("t"); s.Failures != 2 || !s.Disabled || s.DisabledReason == "" || s.NextFireAt != "" {
			t.Errorf("state = %+v", s)
		}
		time.Sleep(3 * time.Hour)
		if _, err := r.engine.Fire(context.Background(), triggers.FireRequest{ID: "t"}); code(err) != "trigger-not-firable" {
			t.Errorf("Fire = %v", err)
		}
		if _, err := r.engine.SetDisabled(context.Background(), "t", false, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		r.want("t", "1h0m0s schedule failed route-handler-missing; 2h0m0s schedule fired; 6h0m36s schedule fired")
	})
}

// TestEvents emits events.
func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		event := triggers.Declaration{Kind: triggers.EventKind, Spec: "order"}
		big, bad := event, event
		big.If, big.Input, big.Session = "event.total > 100", json.RawMessage(`{"order":"${ event.id }","from":"${ headers['x-from'] }"}`), "order-${ event.id }"
		bad.If = "event.total > 100 && event.nothing == 1"
		r := newRig(t, map[string]triggers.Declaration{"all": event, "bad": bad, "big": big})
		defer r.stop()
		r.run()
		emit := func(id, data, by string) triggers.Emitted {
			t.Helper()
			out, err := r.engine.Emit(context.Background(), triggers.Event{Name: "order", ID: id, Data: json.RawMessage(data), By: by, Headers: map[string]string{"X-From": "here"}})
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		out := emit("1", `{"total":500,"id":"x"}`, "token:a")
		if len(out.Fired) != 3 || out.Duplicate || out.Fired[0].Outcome != "fired" || out.Fired[1].Outcome != "failed" || out.Fired[2].RunID == "" {
			t.Errorf("Emit = %+v", out)
		}
		if s := r.started()[1]; string(s.Input) != `{"from":"here","order":"x"}` || s.Session != "order-x" || s.FiredBy != "token:a" {
			t.Errorf("start = %+v, input %s", s, s.Input)
		}
		if again := emit("1", `{"total":500,"id":"x"}`, "token:a"); !again.Duplicate || again.Fired[0] != out.Fired[0] || len(r.started()) != 2 {
			t.Errorf("Emit again = %+v, want as %+v", again, out)
		}
		if other := emit("1", `{"total":5}`, "token:b"); other.Duplicate || len(other.Fired) != 1 || other.Fired[0].Trigger != "all" {
			t.Errorf("Emit by another = %+v", other)
		}
		if _, err := r.engine.Emit(context.Background(), triggers.Event{Name: "a b"}); code(err) != "config-invalid" {
			t.Errorf("Emit of a bad name = %v", err)
		}
		if none, err := r.engine.Emit(context.Background(), triggers.Event{Name: "else"}); err != nil || none.ID == "" || none.Fired == nil || len(none.Fired) != 0 {
			t.Errorf("Emit of what concerns nobody = %+v, %v", none, err)
		}
	})
}

// TestIdle fires once in each quiet period, also across a restart.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, map[string]triggers.Declaration{"t": {Kind: triggers.IdleKind, AfterMs: 60_000, Workflow: "w"},
			"other": {Kind: triggers.IntervalKind, EveryMs: 600_000}})
		defer r.stop()
		r.run()
		time.Sleep(3 * time.Minute)
		r.want("t", "1m0s idle fired")
		r.end(r.last(), store.Completed, true)
		r.stop()
		time.Sleep(2 * time.Minute)
		r.run()
		time.Sleep(2 * time.Minute)
		r.want("t", "1m0s idle fired")
		time.Sleep(5 * time.Minute) // other's run is in progress
		r.want("t", "1m0s idle fired")
		r.end(r.last(), store.Completed, true)
		time.Sleep(3 * time.Minute)
		r.want("t", "1m0s idle fired; 13m0s idle fired")
	})
}

// TestIdleSession watches a session in which the trigger's own runs are no activity.
func TestIdleSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, map[string]triggers.Declaration{"t": {Kind: triggers.IdleKind, AfterMs: 60_000, Session: "s"},
			"writes": {Kind: triggers.IntervalKind, EveryMs: 600_000, Session: "s"}, "elsewhere": {Kind: triggers.IntervalKind, EveryMs: 30_000, Overlap: "allow"}})
		defer r.stop()
		r.run()
		time.Sleep(5*time.Minute + time.Second)
		r.want("t", "1m0s idle fired")
		for i, st := range r.started() {
			if st.By == "trigger:t" {
				r.end(r.begun()[i], store.Completed, true)
			}
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		writes := ""
		for i, st := range r.started() {
			if st.By == "trigger:writes" {
				writes = r.begun()[i]
			}
		}
		time.Sleep(5 * time.Minute)
		r.want("t", "1m0s idle fired")
		r.end(writes, store.Completed, true)
		time.Sleep(2 * time.Minute)
		r.want("t", "1m0s idle fired; 16m1s idle fired")
	})
}

// TestClockSetBack continues schedules at the present, and fires nothing twice.
func TestClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, repeat(time.Minute, nil))
		defer r.stop()
		r.run()
		time.Sleep(90 * time.Second)
		r.want("t", "1m0s schedule fired")
		if err := r.engine.SetBack(t.Context(), 26*time.Hour); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		r.want("t", "1m0s schedule fired; 2m30s schedule fired; 3m30s schedule fired")
	})
}

// TestOverloaded queues a due that the server has no room for, for as long as that lasts.
func TestOverloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, repeat(time.Minute, func(d *triggers.Declaration) { d.Overlap = "" }))
		defer r.stop()
		r.refuse = fault.New(fault.Overloaded, "There is no room.")
		r.run()
		time.Sleep(150 * time.Second)
		r.want("t", "1m0s schedule queued overloaded; 2m0s schedule skipped overlap")
		r.mu.Lock()
		r.refuse = nil
		r.mu.Unlock()
		time.Sleep(2 * time.Second)
		r.want("t", "1m0s schedule fired; 2m0s schedule skipped overlap")
	})
}

// TestRestored accounts for the time since a backup.
func TestRestored(t *testing.T) {
	for _, resume := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			decls := repeat(time.Minute, func(d *triggers.Declaration) { d.CatchUpPolicy, d.Overlap = "last", "queue" })
			r := newRig(t, decls)
			defer r.stop()
			r.run()
			time.Sleep(150 * time.Second)
			r.want("t", "1m0s schedule fired; 2m0s schedule queued")
			r.stop()
			time.Sleep(5 * time.Minute)
			r.open()
			if err := r.engine.Restored(t.Context(), resume); err != nil {
				t.Fatal(err)
			}
			r.end(r.last(), store.Failed, false)
			r.run()
			want := map[bool]string{false: "failed restored", true: "fired"}[resume]
			r.want("t", "1m0s schedule fired; 2m0s schedule "+want+"; 3m0s catchup missed to 7m0s (5)")
			time.Sleep(time.Minute)
			r.want("t", "1m0s schedule fired; 2m0s schedule "+want+"; 3m0s catchup missed to 7m0s (5); 8m0s schedule "+map[bool]string{false: "fired", true: "queued"}[resume])
		})
	}
}

// TestChange starts a changed schedule at the present, and keeps what else is known.
func TestChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, repeat(time.Minute, nil))
		defer r.stop()
		r.run()
		time.Sleep(90 * time.Second)
		synctest.Wait()
		r.stop()
		time.Sleep(10 * time.Minute)
		r.decls = repeat(2*time.Minute, nil)
		r.run()
		r.want("t", "1m0s schedule fired")
		time.Sleep(2 * time.Minute)
		r.want("t", "1m0s schedule fired; 13m30s schedule fired")
		r.stop()
		r.decls = map[string]triggers.Declaration{}
		r.run()
		if s, err := r.engine.Get("t"); err != nil || !s.Orphaned || s.NextFireAt != "" {
			t.Errorf("the orphan is %+v, %v", s, err)
		}
		time.Sleep(time.Hour)
		r.want("t", "1m0s schedule fired; 13m30s schedule fired")
		if _, err := r.engine.Fire(context.Background(), triggers.FireRequest{ID: "t"}); code(err) != "trigger-not-firable" {
			t.Errorf("Fire = %v", err)
		}
		if p, err := r.engine.Prune(context.Background(), true, true, nil); err != nil || len(p.Orphaned) != 1 {
			t.Errorf("Prune = %+v, %v", p, err)
		}
		if _, err := r.engine.Get("t"); code(err) != "trigger-not-found" {
			t.Errorf("Get = %v", err)
		}
	})
}
