package agent_test

import (
	"database/sql"
	"strings"
	"testing"

	"agentd/server/agent"
	"agentd/server/fault"
	"agentd/server/run"
)

// What is kept of a run is not shown any more once another process has changed the run, or erased it.
func TestEncodedRunChangesBeside(t *testing.T) {
	r := newRig(t, func(*rig) []agent.Registration {
		l := llm(t, `{"turns":[{"text":"x"}]}`)
		l.Instructions = "the operator's words"
		return []agent.Registration{{ID: "a", LLM: l}}
	})
	res := r.wait(r.start(run.StartRequest{Owner: "a", UserID: "before"}))
	id, err := r.engine.Identify(t.Context(), res.State.ID)
	if err != nil {
		t.Fatal(err)
	}
	shows := func(whole bool, want ...string) {
		t.Helper()
		for range 2 {
			got, err := r.engine.SnapshotJSON(t.Context(), id, whole)
			for _, text := range want {
				if err != nil || !strings.Contains(string(got), text) || strings.Contains(string(got), "the operator's words") != whole {
					t.Errorf("SnapshotJSON(%t) = %s, %v; want it to have %s", whole, got, err, text)
				}
			}
		}
	}
	db, err := sql.Open("sqlite", "file:"+r.path+"?_pragma=busy_timeout(60000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, user := range []string{"before", "after"} {
		if _, err := db.Exec("UPDATE runs SET user_id = ?, version = version + 1", user); err != nil {
			t.Fatal(err)
		}
		shows(true, `"userId":"`+user+`"`)
		shows(false, `"userId":"`+user+`"`)
	}
	if _, err := db.Exec("DELETE FROM runs"); err != nil {
		t.Fatal(err)
	}
	for _, whole := range []bool{true, false} {
		if got, err := r.engine.SnapshotJSON(t.Context(), id, whole); !fault.Is(err, fault.RunNotFound) {
			t.Errorf("SnapshotJSON(%t) of a run that is gone = %s, %v; want run-not-found", whole, got, err)
		}
	}
}
