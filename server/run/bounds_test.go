package run_test

import (
	"testing"
	"testing/synctest"

	"agentd/server/fault"
	"agentd/server/run"
	"agentd/store"
)

// gated are tallies that take no letter before the gate opens.
type gated struct {
	tallies
	gate chan bool
}

func (g gated) Drive(r *run.Run) error {
	<-g.gate
	return g.tallies.Drive(r)
}

// TestLettersAreBounded: 1024 letters wait for a run that is busy; the next is refused, and those that wait are taken.
func TestLettersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan bool)
		w := begin(t, t.TempDir()+"/data.db", run.Options{}, gated{gate: gate})
		h := w.start("{}")
		synctest.Wait() // at the gate
		for i := range 1024 {
			if err := w.Post(t.Context(), h.ID, bring(1)); err != nil {
				t.Fatalf("letter %d = %v", i+1, err)
			}
		}
		if err := w.Post(t.Context(), h.ID, bring(1)); !fault.Is(err, fault.Overloaded) {
			t.Errorf("letter 1025 = %v, want overloaded", err)
		}
		close(gate)
		synctest.Wait()
		if st := w.stands(h.ID, store.Suspended); st.Sum != 1024 {
			t.Errorf("sum = %d, want 1024", st.Sum)
		}
		w.kill()
	})
}
