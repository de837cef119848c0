package triggers_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"agentd/triggers"
)

// TestSuspend stops the machine for five hours while the engine runs.
func TestSuspend(t *testing.T) {
	for policy, want := range map[string]string{
		"none": "5m0s catchup missed to 5h3m0s (299); 5h4m0s schedule fired; 5h5m0s schedule fired",
		"last": "5m0s catchup missed to 5h2m0s (298); 5h3m0s catchup fired; 5h4m0s schedule fired; 5h5m0s schedule fired",
		"all":  "5m0s catchup missed to 5h1m0s (297); 5h2m0s catchup fired; 5h3m0s catchup fired; 5h4m0s schedule fired; 5h5m0s schedule fired",
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, repeat(time.Minute, func(d *triggers.Declaration) {
				if d.CatchUpPolicy = policy; policy == "all" {
					d.MaxCatchUpRuns = 2
				}
			}))
			defer r.stop()
			var asleep atomic.Bool
			r.committed = func(int, time.Duration, error) {
				if asleep.CompareAndSwap(true, false) {
					time.Sleep(5*time.Hour + 30*time.Second)
				}
			}
			r.run()
			time.Sleep(3*time.Minute + 30*time.Second)
			asleep.Store(true)
			time.Sleep(5*time.Hour + 2*time.Minute)
			r.want("t", "1m0s schedule fired; 2m0s schedule fired; 3m0s schedule fired; 4m0s schedule fired; "+want)
			if s, _ := r.engine.Get("t"); s.MissedFires != 0 {
				t.Errorf("%s: missedFires = %d after a due on time, want 0", policy, s.MissedFires)
			}
		})
	}
}

// TestSetBackBetween starts the engine with a clock that is three days behind what it was when the engine stopped, and lets the clock
// reach that time again.
func TestSetBackBetween(t *testing.T) {
	decls := repeat(time.Hour, nil)
	decls["t"] = triggers.Declaration{Kind: triggers.CronKind, Spec: "0 */6 * * *", Overlap: triggers.OverlapAllow}
	path := newRig(t, nil).path
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, decls)
		defer r.stop()
		r.path = path
		r.run()
		time.Sleep(13 * time.Hour)
		r.stop()
		time.Sleep(60 * time.Hour)
		r.run()
		r.want("t", "6h0m0s schedule fired; 12h0m0s schedule fired; 18h0m0s catchup missed to 72h0m0s (10)")
	})
	synctest.Test(t, func(t *testing.T) { // it is midnight of the first day again
		r := newRig(t, decls)
		defer r.stop()
		r.path = path
		r.run()
		r.want("t", "6h0m0s schedule fired; 12h0m0s schedule fired")
		time.Sleep(7 * time.Hour)
		r.stop()
		time.Sleep(40 * time.Hour)
		r.run()
		r.want("t", "6h0m0s schedule fired; 12h0m0s schedule fired; 18h0m0s catchup missed to 42h0m0s (5)")
		time.Sleep(8 * time.Hour)
		r.want("t", "6h0m0s schedule fired; 12h0m0s schedule fired; 18h0m0s catchup missed to 42h0m0s (5); 48h0m0s schedule fired; 54h0m0s schedule fired")
	})
}

// TestDaylightSaving runs the engine over the changes of the clock in Berlin in 2000, and stops it over them.
func TestDaylightSaving(t *testing.T) {
	decls := map[string]triggers.Declaration{}
	for id, spec := range map[string]string{"fixed": "30 2 * * *", "twice": "0,30 2 * * *", "wall": "*/30 1-3 * * *"} {
		decls[id] = triggers.Declaration{Kind: triggers.CronKind, Spec: spec, Timezone: "Europe/Berlin", Overlap: triggers.OverlapAllow,
			CatchUpPolicy: triggers.CatchUpAll, MaxCatchUpRuns: 10}
	}
	for _, change := range []struct {
		name string
		day  time.Time         // the midnight in UTC before the night
		want map[string]string // hours after that midnight
	}{
		{"spring", time.Date(2000, 3, 26, 0, 0, 0, 0, time.UTC), map[string]string{
			"fixed": "1 24.5", "twice": "1 24 24.5", "wall": "0 0.5 1 1.5 23 23.5 24 24.5 25 25.5"}},
		{"autumn", time.Date(2000, 10, 29, 0, 0, 0, 0, time.UTC), map[string]string{
			"fixed": "0.5 25.5", "twice": "0 0.5 25 25.5", "wall": "-1 -0.5 0 0.5 1 1.5 2 2.5 24 24.5 25 25.5 26 26.5"}},
	} {
		for _, stopped := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, decls)
				defer r.stop()
				time.Sleep(time.Until(change.day.Add(-25 * time.Hour))) // a night before, so that each has fired
				r.run()
				time.Sleep(23*time.Hour + 50*time.Minute)
				from := time.Now()
				if stopped {
					r.stop()
					time.Sleep(5 * time.Hour)
					r.run()
				}
				time.Sleep(time.Until(change.day.Add(27 * time.Hour)))
				synctest.Wait()
				for id, want := range change.want {
					rows, _, err := r.engine.Firings(t.Context(), id, 0, 100)
					if err != nil {
						t.Fatal(err)
					}
					got := ""
					for _, f := range rows {
						due, err := time.Parse(time.RFC3339, f.Due)
						if err != nil || f.Outcome != "fired" {
							t.Errorf("%s: %s: %+v, %v", change.name, id, f, err)
						}
						if due.After(from) {
							got = strings.TrimSuffix(fmt.Sprint(due.Sub(change.day).Hours())+" "+got, " ")
						}
					}
					if got != want {
						t.Errorf("%s, stopped %v: %s fired at %s, want %s", change.name, stopped, id, got, want)
					}
				}
			})
		}
	}
}

// TestIdleSetBack starts the engine with a clock that is three days behind the last activity: the next activity counts again.
func TestIdleSetBack(t *testing.T) {
	decls := map[string]triggers.Declaration{"t": {Kind: triggers.IdleKind, AfterMs: 60_000}, "works": {Kind: triggers.EventKind, Spec: "order"}}
	path := newRig(t, nil).path
	for _, from := range []time.Duration{72 * time.Hour, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, decls)
			defer r.stop()
			r.path = path
			time.Sleep(from)
			r.run()
			if err := r.emit(from.String()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			r.endAll(true)
			time.Sleep(3 * time.Minute)
			r.endAll(true)
			if want := (from + 61*time.Second).String() + " idle fired"; !strings.Contains(r.ledger("t"), want) {
				t.Errorf("the ledger is %s, want %s in it", r.ledger("t"), want)
			}
		})
	}
}
