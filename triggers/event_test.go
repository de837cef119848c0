package triggers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/fault"
	"agentd/store"
	"agentd/store/storetest"
	"agentd/triggers"
)

// An event is recorded for all of its triggers or for none. What cannot start then starts later, also after a restart.
func TestEventOfSeveral(t *testing.T) {
	for _, restart := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := triggers.Declaration{Kind: triggers.EventKind, Spec: "order", Input: json.RawMessage(`"${ event }"`)}
			skip := d
			skip.Overlap = triggers.OverlapSkip
			r := newRig(t, map[string]triggers.Declaration{"a": d, "b": skip, "c": d})
			defer r.stop()
			r.run()
			recorded := 0
			emit := func() string {
				out, err := r.engine.Emit(context.Background(), triggers.Event{Name: "order", ID: "1", Data: json.RawMessage("7"), By: "token:a", Also: func(*store.Tx, string) error {
					recorded++
					return nil
				}})
				text := fmt.Sprint(err)
				for _, f := range out.Fired {
					text += " " + f.Trigger + " " + f.Outcome
				}
				return text
			}
			path := "file:" + r.path + "?_pragma=busy_timeout(5000)"
			storetest.Behind(t, path, "CREATE TRIGGER broken BEFORE INSERT ON firings WHEN new.trigger_n = (SELECT n FROM triggers WHERE id = 'c') BEGIN SELECT RAISE(ABORT, 'broken'); END")
			if got := emit(); strings.HasPrefix(got, "<nil>") || recorded != 0 {
				t.Errorf("Emit with a write that fails = %s, recorded %d times", got, recorded)
			}
			for id := range r.decls {
				r.want(id, "")
			}
			storetest.Behind(t, path, "DROP TRIGGER broken")
			r.mu.Lock()
			r.refuse = fault.New(fault.Overloaded, "Too many.")
			r.mu.Unlock()
			for range 2 {
				if got := emit(); got != "<nil> a queued b queued c queued" || recorded != 1 {
					t.Errorf("Emit to a server that is overloaded = %s, recorded %d times", got, recorded)
				}
			}
			if restart {
				r.stop()
				r.run()
			}
			r.mu.Lock()
			r.refuse = nil
			r.mu.Unlock()
			time.Sleep(2 * time.Second)
			if got := emit(); got != "<nil> a fired b fired c fired" || len(r.started()) != 3 {
				t.Errorf("later, Emit = %s, and %d runs", got, len(r.started()))
			}
			for _, s := range r.started() {
				if string(s.Input) != "7" {
					t.Errorf("the input is %s, want 7", s.Input)
				}
			}
		})
	}
}

// Large inputs are recorded in several transactions.
func TestLargeEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		decls := map[string]triggers.Declaration{}
		for i := range 20 {
			decls[fmt.Sprintf("t%02d", i)] = triggers.Declaration{Kind: triggers.EventKind, Spec: "order", Input: json.RawMessage(`"${ event }"`)}
		}
		r := newRig(t, decls)
		defer r.stop()
		r.open()
		out, err := r.engine.Emit(context.Background(), triggers.Event{Name: "order", Data: json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)})
		if err != nil || len(out.Fired) != 20 || len(r.started()) != 20 || out.Duplicate {
			t.Errorf("Emit = %d firings, %v; %d runs", len(out.Fired), err, len(r.started()))
		}
	})
}

// A start that has failed is tried again after its wait, whatever kind the trigger is of and whoever fired it.
func TestRetryOfKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		retry := triggers.Retry{MaxAttempts: 2, BackoffMs: 3000}
		r := newRig(t, map[string]triggers.Declaration{
			"event":  {Kind: triggers.EventKind, Spec: "order", Retry: retry},
			"idle":   {Kind: triggers.IdleKind, AfterMs: 60_000, Retry: retry},
			"manual": {Kind: triggers.CronKind, Spec: "0 0 1 1 *", Retry: retry},
		})
		defer r.stop()
		r.run()
		time.Sleep(59 * time.Second)
		refuse := func(err error) {
			r.mu.Lock()
			r.refuse = err
			r.mu.Unlock()
		}
		refuse(errTarget)
		time.Sleep(2 * time.Second) // the idle trigger is due in between
		if _, err := r.engine.Emit(context.Background(), triggers.Event{Name: "order", ID: "1"}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.engine.Fire(context.Background(), triggers.FireRequest{ID: "manual"}); err != nil {
			t.Fatal(err)
		}
		refuse(nil)
		time.Sleep(1500 * time.Millisecond)
		if n := len(r.started()); n != 0 {
			t.Errorf("%d runs before the wait is over", n)
		}
		time.Sleep(2 * time.Second)
		r.want("event", "1m1s event fired")
		r.want("idle", "1m0s idle fired")
		r.want("manual", "1m1s manual fired")
	})
}
