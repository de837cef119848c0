package agent_test

import (
	"fmt"
	"strings"
	"testing"

	"agentd/server/event"
	"agentd/server/hub"
	"agentd/server/run"
)

// TestReplayGoesOnWithTheRun reads a run that is longer than a page, and which goes on between one page and the next:
// what was read for the first must not hide what came since.
func TestReplayGoesOnWithTheRun(t *testing.T) {
	const calls = 200
	make, _ := gatedAgent(t, strings.Repeat(`{"name":"b","args":{"x":1}},`, calls)+`{"name":"a","args":{}}`)
	r := newRig(t, make)
	res, before := r.run("a", "go")
	id, resumed := res.State.ID, false
	replay := func(yield func(*hub.Entry)) (text string) {
		if err := r.engine.Replay(t.Context(), id, event.RunView, 0, func(e *hub.Entry) error {
			text += fmt.Sprintln(e.ID, e.Type, e.Lifecycle, string(e.Body()))
			yield(e)
			return nil
		}); err != nil {
			t.Errorf("Replay = %v", err)
		}
		return text
	}
	got := replay(func(e *hub.Entry) {
		if !resumed {
			resumed = true
			resume(t, r, id, run.Decision{ToolCallID: res.State.PendingApprovals[0].ToolCallID, Granted: true})
		}
	})
	want := replay(func(*hub.Entry) {})
	if len(before) < 2*calls || !strings.HasSuffix(want, "\n") || !strings.Contains(want, "end: ") {
		t.Fatalf("the run has %d events and then\n%.300s, want many and an answer", len(before), want)
	}
	// The page that was read before the run went on tells of that agent.end as the last.
	if strings.ReplaceAll(got, " paused ", "  ") != strings.ReplaceAll(want, " paused ", "  ") {
		t.Errorf("Replay of a run that goes on told other events than one after it: %d and %d bytes", len(got), len(want))
	}
}
