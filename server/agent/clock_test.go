package agent_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/id"
	"agentd/server/message"
	"agentd/server/run"
	"agentd/store"
)

// TestClockSetBack takes runs up with a clock that is behind the one they were begun with: a bubble is in the year 2000.
// Nothing of them takes less than no time or is told out of order, and new ids are above the old ones.
func TestClockSetBack(t *testing.T) {
	agents, _ := gatedAgent(t, `{"name":"a","args":{}},{"name":"b","args":{}}`)
	before := newRig(t, agents)
	h := before.start(run.StartRequest{Owner: "a", SessionID: "s"})
	parked := before.wait(h)
	if parked.Status != store.Awaiting {
		t.Fatalf("the run is %s, want it to wait", parked.Status)
	}
	lastID := id.New()
	before.close()

	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, path: before.path, make: before.make}
		r.open()
		defer r.close()
		if got := id.New(); got <= lastID {
			t.Errorf("the id %s comes after %s, want it above", got, lastID)
		}
		if _, err := r.engine.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		call := parked.State.PendingApprovals[0].ToolCallID
		again, _, err := r.engine.Resume(t.Context(), h.ID, []run.Decision{{ToolCallID: call, Granted: true}}, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		res := r.wait(again)
		if res.Status != store.Completed {
			t.Fatalf("the run is %s, want it completed", res.Status)
		}
		row, err := r.engine.Find(t.Context(), h.ID)
		if err != nil || row.Finished < row.Started || row.Started < row.Created || row.Finished < time.Now().UnixMilli() {
			t.Errorf("the run was created at %d, started at %d and finished at %d, %v", row.Created, row.Started, row.Finished, err)
		}
		last := ""
		for _, s := range res.State.Steps {
			if s.StartedAt < last || s.EndedAt != "" && s.EndedAt < s.StartedAt {
				t.Errorf("step %d lasts from %s to %s, after one that ended at %s", s.StepNumber, s.StartedAt, s.EndedAt, last)
			}
			last = s.EndedAt
			for _, c := range s.ToolCalls {
				if c.Outcome.DurationMS < 0 {
					t.Errorf("the call %s took %d ms", c.Call.ID, c.Outcome.DurationMS)
				}
			}
		}
		r.events("a", h.ID) // they are numbered without gaps
		shown, err := r.engine.Snapshot(t.Context(), h.ID)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := encode(t, shown.State), encode(t, res.State); got != want {
			t.Errorf("Snapshot() tells the state\n%s\nwant that of its end\n%s", got, want)
		}

		// A run that begins now, in the year 2000, comes after that of 2026 in its session all the same.
		next := r.wait(r.start(run.StartRequest{Owner: "a", SessionID: "s"}))
		var order []string
		err = r.db.Runs().View(t.Context(), func(tx *store.Tx) error {
			list, err := r.db.Runs().List(tx, store.RunFilter{Session: "s", Limit: 10})
			for _, row := range list {
				order = append(order, row.ID)
			}
			return err
		})
		if want := next.State.ID + " " + h.ID; err != nil || strings.Join(order, " ") != want {
			t.Errorf("the session's runs are %v, %v; want the newest first: %s", order, err, want)
		}
		if next.State.StartedAt >= message.Millis(row.Created) {
			t.Errorf("the new run started at %s, want the clock's time", next.State.StartedAt)
		}
	})
}
