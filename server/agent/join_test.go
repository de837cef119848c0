package agent_test

import (
	"encoding/json"
	"testing"

	"agentd/server/agent"
	"agentd/server/fault"
	"agentd/server/run"
	"agentd/server/takeover"
	"agentd/store"
)

// A session belongs to the lineage of its maker; one of which nobody knows the maker, to nobody.
func TestJoin(t *testing.T) {
	r := newRig(t, func(*rig) []agent.Registration {
		return []agent.Registration{{ID: "a", LLM: llm(t, `{"turns":[{"text":"hello"}]}`)}}
	})
	err := r.db.Update(t.Context(), func(tx *store.Tx) error {
		return r.db.Sessions().Insert(tx, store.Session{ID: "old", User: "u", Agent: "a", Created: tx.Now()})
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		session, by, lineage string
		may, want            bool
	}{
		{session: "new", by: "token:1", lineage: "token:0", want: true},
		{session: "new", by: "token:2", lineage: "token:0", want: true},
		{session: "new", by: "token:0", want: true},
		{session: "new", by: "token:1", lineage: "token:1"},
		{session: "new"},
		{session: "new", by: "token:9", may: true, want: true},
		{session: "old", by: "token:0"},
		{session: "old"},
		{session: "old", by: "token:0", may: true, want: true},
		{session: "unnamed", want: true},
		{session: "unnamed", by: "anonymous", want: true},
		{session: "unnamed", by: "token:0"},
	} {
		h, err := r.engine.Start(t.Context(), run.StartRequest{Owner: "a", Input: json.RawMessage(`"hi"`), SessionID: tc.session, By: tc.by, Lineage: tc.lineage, MayJoin: tc.may})
		if err == nil {
			r.wait(h)
		}
		if tc.want != (err == nil) || err != nil && !fault.Is(err, fault.ScopeDenied) {
			t.Errorf("Start(%+v) = %v, want it made: %v", tc, err, tc.want)
		}
	}
	st := state(t, `{"version":"svc-run-state/1.0","id":"moved","agentId":"a","sessionId":"old","status":"completed","steps":[],"messages":[],"usage":{},"startedAt":"2026-01-02T03:04:05Z"}`)
	if _, err := takeover.Import(t.Context(), r.engine, st, takeover.Options{By: "token:1"}); !fault.Is(err, fault.ScopeDenied) {
		t.Errorf("Import into a session of unknown maker = %v, want scope-denied", err)
	}
}
