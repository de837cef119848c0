package store_test

import (
	"testing"
	"testing/synctest"
	"time"

	"agentd/store"
	"agentd/store/storetest"
)

// TestUpdateSoon: a change that nobody waits for is committed with the next one of somebody else, and alone after a
// millisecond.
func TestUpdateSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := storetest.Open(t)
		add := func(id string) func(*store.Tx) error {
			c := newRun(id)
			return func(tx *store.Tx) error { _, err := db.Runs().Apply(tx, &c); return err }
		}
		begun := time.Now()
		if err := db.UpdateSoon(t.Context(), add("alone")); err != nil || time.Since(begun) != time.Millisecond {
			t.Errorf("UpdateSoon() alone = %v after %s, want a millisecond", err, time.Since(begun))
		}
		begun = time.Now()
		done := make(chan error)
		go func() { done <- db.UpdateSoon(t.Context(), add("first")) }()
		synctest.Wait()
		if _, err := db.Runs().Get(t.Context(), "first"); err == nil {
			t.Error("the change is committed before its time")
		}
		if err := db.Update(t.Context(), add("second")); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil || time.Since(begun) != 0 {
			t.Errorf("UpdateSoon() beside Update() = %v after %s, want no wait", err, time.Since(begun))
		}
		if _, err := db.Runs().Get(t.Context(), "first"); err != nil {
			t.Error(err)
		}
	})
}
