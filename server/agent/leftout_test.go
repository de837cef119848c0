package agent_test

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/hub"
	"agentd/server/run"
	"agentd/server/session"
	"agentd/server/tool"
	"agentd/store"
)

// What a failed or aborted run said stays in its session's transcript, marked, and the next run is not shown it. A run
// that was aborted before its turn leaves its question likewise. The session's stream shows the runs that began.
func TestFailedRunsAreLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		look := &counter{spec: tool.Spec{Name: "look", Description: "d", SideEffect: tool.ReadOnly}}
		hang(look)
		r := newRig(t, single(llm(t, `{"turns":[{"when":{"lastUser":"fail"},"error":{"kind":"invalid-request","message":"no"}},
		{"when":{"lastUser":"hang"},"toolCalls":[{"name":"look","args":{}}]},{"text":"ok"}]}`, look)))
		start := func(input string) *agent.Handle {
			in, _ := json.Marshal(input)
			return r.start(run.StartRequest{Owner: "a", SessionID: "s", Queue: true, Input: in})
		}
		r.wait(start("first"))
		if res := r.wait(start("fail")); res.Status != store.Failed {
			t.Fatalf("the run is %s", res.Status)
		}
		hung := start("hang")
		waitFor(t, func() bool { return look.count() == 1 })
		queued := start("queued")
		if status, err := r.engine.Abort(t.Context(), queued.ID, run.AbortOptions{}); status != store.Aborted || err != nil {
			t.Fatalf("Abort = %s, %v", status, err)
		}
		if status, err := r.engine.Abort(t.Context(), hung.ID, run.AbortOptions{}); status != store.Aborted || err != nil {
			t.Fatalf("Abort = %s, %v", status, err)
		}
		last := r.wait(start("last"))
		var shown []string
		for _, m := range last.State.Messages {
			shown = append(shown, m.Content.String())
		}
		if got := strings.Join(shown, " "); got != "first ok last ok" {
			t.Errorf("the last run was shown %q, want no run that did not complete", got)
		}
		for range 2 { // after a restart, too
			messages, err := session.New(r.db.Sessions()).Messages(t.Context(), "s", 0)
			if err != nil {
				t.Fatal(err)
			}
			marks := map[string]store.Status{}
			for _, m := range messages {
				if m.Role == "user" {
					marks[m.Content.String()] = m.LeftOut
				}
			}
			for question, want := range map[string]store.Status{"first": "", "fail": store.Failed, "hang": store.Aborted, "queued": store.Aborted, "last": ""} {
				if got, there := marks[question]; got != want || !there {
					t.Errorf("the transcript has %q marked %q, %v, want %q", question, got, there, want)
				}
			}
			r.restart()
		}
		again := r.wait(start("again"))
		if n := len(again.State.Messages); n != 6 {
			t.Errorf("after a restart a run has %d messages, want 6", n)
		}
		var ends []string
		err := r.engine.ReplaySession(t.Context(), "s", hub.Position{}, 0, func(e *hub.Entry) error {
			if e.Type == event.AgentEnd {
				ends = append(ends, string(e.Body()[:60]))
			}
			return nil
		})
		if err != nil || len(ends) != 5 {
			t.Errorf("the session's stream has %d ends, %v, want one of each run that began", len(ends), err)
		}
	})
}
