package agent_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/server/journal"
	"agentd/server/recording"
	"agentd/server/run"
	"agentd/server/tool"
	"agentd/store"
)

// TestEraseLeavesNothing says something in a session, in every form that is kept, erases the session and looks for it
// in the raw files.
func TestEraseLeavesNothing(t *testing.T) {
	big := &counter{spec: tool.Spec{Name: "big", Description: "d", SideEffect: tool.ReadOnly}}
	big.execute = func(context.Context, tool.Call) (tool.Result, error) {
		return tool.JSON(map[string]string{"v": strings.Repeat("tool-secret ", 10_000)})
	}
	gate := &counter{spec: tool.Spec{Name: "gate", Description: "d"}}
	r := newRig(t, func(*rig) []agent.Registration {
		l := llm(t, `{"turns":[{"when":{"step":0},"text":"model-secret","toolCalls":[{"name":"big","args":{"q":"args-secret"}},{"name":"gate","args":{}}]},{"text":"x"}]}`, big, gate)
		l.Instructions = "prompt-secret"
		l.Policy.Tools = map[string]agent.Gate{"gate": {Always: true}}
		return []agent.Registration{{ID: "a", LLM: l}, {ID: "b", LLM: llm(t, `{"turns":[{"text":"kept"}]}`)}}
	})
	h := r.start(run.StartRequest{Owner: "a", SessionID: "s-secret", UserID: "user-secret", Input: json.RawMessage(`"input-secret"`)})
	if res := r.wait(h); res.Status != store.Awaiting {
		t.Fatalf("status = %s, want it parked", res.Status)
	}
	other := r.start(run.StartRequest{Owner: "b", Input: json.RawMessage(`"kept"`)})
	r.wait(other)
	if err := r.engine.EraseSession(t.Context(), "nobody", nil); !fault.Is(err, fault.SessionNotFound) {
		t.Errorf("EraseSession of none = %v, want session-not-found", err)
	}
	known, err := r.engine.Identify(t.Context(), h.ID)
	if err != nil {
		t.Fatal(err)
	}
	r.shown(h.ID)
	if err := r.engine.EraseSession(t.Context(), "s-secret", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := r.engine.SnapshotJSON(t.Context(), known, true); !fault.Is(err, fault.RunNotFound) {
		t.Errorf("SnapshotJSON of an erased run = %v, want run-not-found", err)
	}
	if _, err := r.engine.Identify(t.Context(), h.ID); !fault.Is(err, fault.RunNotFound) {
		t.Errorf("Identify of an erased run = %v, want run-not-found", err)
	}
	if _, ring := r.hub.Subscribe(event.OfAgentRun("a", h.ID).String(), hub.NewQueue(1, 1, func() {}), nil); len(ring) > 0 {
		t.Errorf("the replay buffer still holds %d events of an erased run", len(ring))
	}
	for _, name := range []string{r.path, r.path + "-wal"} {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{"s-secret", "input-secret", "model-secret", "tool-secret", "args-secret", "user-secret", "prompt-secret", h.ID} {
			if strings.Contains(string(raw), word) {
				i := strings.Index(string(raw), word)
				t.Errorf("%s still holds %q: %q", name, word, raw[max(0, i-60):min(len(raw), i+60)])
			}
		}
	}
	if n := 0; r.engine.Replay(t.Context(), other.ID, event.RunView, 0, func(*hub.Entry) error { n++; return nil }) != nil || n == 0 {
		t.Error("another run lost its events")
	}
	r.events("b", other.ID)
}

// TestEraseLeavesNoRow: of a session with all that there can be, the database keeps nothing in any table. Idempotency
// keys stay, with nothing beside them; the store has a test of its own for that.
func TestEraseLeavesNoRow(t *testing.T) {
	big := &counter{spec: tool.Spec{Name: "big", Description: "d", SideEffect: tool.ReadOnly}}
	big.execute = func(context.Context, tool.Call) (tool.Result, error) {
		return tool.JSON(map[string]string{"v": strings.Repeat("x", 100_000)})
	}
	register, _ := chain(t, func(desk, clerk, payer *agent.LLM) {
		desk.NewTape, clerk.NewTape = recording.NewTape, recording.NewTape
		payer.Policy.Tools["pay"] = agent.Gate{Always: true, Terms: journal.Terms{Expires: time.Hour}}
	})
	var r *rig
	r = newRig(t, func(r *rig) []agent.Registration {
		spills := llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"big","args":{}}]},{"text":"x"}]}`, big)
		opaque := streamAgent{goAgent{id: "opaque", stream: func(_ context.Context, _ agent.Input, out agent.Sink) (agent.Result, error) {
			return agent.Result{Output: "x"}, out.Checkpoint(json.RawMessage(`{"at":1}`))
		}}}
		return append(register(r), agent.Registration{ID: "spills", LLM: spills}, agent.Registration{ID: "opaque", Agent: opaque})
	})
	rows := func() map[string]int {
		t.Helper()
		db, err := sql.Open("sqlite", "file:"+r.path+"?mode=ro")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		counts := map[string]int{}
		tables, err := db.Query(`SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name NOT IN ('schema_migrations', 'auth_tokens', 'audit_outbox', 'idempotency_records', 'workflow_definitions',
			'triggers', 'firings', 'notifications', 'notify_targets')`)
		if err != nil {
			t.Fatal(err)
		}
		defer tables.Close()
		for tables.Next() {
			var name string
			if err := tables.Scan(&name); err != nil {
				t.Fatal(err)
			}
			counts[name] = 0
		}
		for name := range counts {
			n := 0
			if err := db.QueryRow("SELECT count(*) FROM " + name).Scan(&n); err != nil {
				t.Fatal(err)
			}
			counts[name] = n
		}
		return counts
	}
	for _, id := range []string{"spills", "opaque", "desk"} { // the last one parks, with its child and its grandchild
		r.wait(r.start(run.StartRequest{Owner: id, SessionID: "s", Input: json.RawMessage(`"go"`)}))
	}
	addThread(t, r.db, "s")
	for name, n := range rows() {
		if n == 0 {
			t.Errorf("nothing is in the table %s, so erasing it shows nothing", name)
		}
	}
	if err := r.engine.EraseSession(t.Context(), "s", nil); err != nil {
		t.Fatal(err)
	}
	for name, n := range rows() {
		if n > 0 {
			t.Errorf("the table %s has %d rows after the only session was erased", name, n)
		}
	}
}

func TestEraseOfABusySession(t *testing.T) {
	r := newRig(t, single(llm(t, `{"turns":[{"text":"x","delayMs":60000}]}`)))
	h := r.start(run.StartRequest{Owner: "a", SessionID: "s"})
	if err := r.engine.EraseSession(t.Context(), "s", nil); !fault.Is(err, fault.SessionBusy) {
		t.Errorf("EraseSession of a busy session = %v, want session-busy", err)
	}
	if _, err := r.engine.Abort(t.Context(), h.ID, run.AbortOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := r.engine.EraseSession(t.Context(), "s", nil); err != nil {
		t.Errorf("EraseSession after the abort = %v", err)
	}
}

// addThread adds a thread that is linked to a session, with a row of each kind, in a run that waits.
func addThread(t *testing.T, db *store.DB, session string) {
	t.Helper()
	err := db.Update(t.Context(), func(tx *store.Tx) error {
		n, err := db.Runs().Apply(tx, &store.Change{Run: store.Run{ID: "workflow-run", Kind: store.Workflow, Owner: "w", Current: "w", Session: session,
			Status: store.Suspended, InputForm: "json", Usage: json.RawMessage(`{}`), Models: json.RawMessage(`{}`)}})
		if err != nil {
			return err
		}
		return db.Threads().Apply(tx, &store.ThreadChange{
			Thread: store.Thread{N: n, Run: n, Workflow: "w", ID: "t", Session: session, Digest: []byte{1}, Input: json.RawMessage(`{}`)}, Status: store.Suspended,
			Values: []store.ThreadValue{{Key: "k", Value: json.RawMessage(`1`)}}, Steps: []store.ThreadStep{{Step: 1, Run: n, Body: json.RawMessage(`{}`)}},
			Tasks: []store.ThreadTask{{ID: 1, Body: json.RawMessage(`{}`)}}, Answers: []store.ThreadAnswer{{Seq: 1, Value: json.RawMessage(`1`)}},
		})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestErasureOfAThreadGivesTheTurnAway: an agent that a thread hosts waits in a session that stays. When the thread is erased, its
// messages and events leave the session, and the run that waited for its turn begins.
func TestErasureOfAThreadGivesTheTurnAway(t *testing.T) {
	register, _ := chain(t, func(_, _, payer *agent.LLM) { payer.Policy.Tools["pay"] = agent.Gate{Always: true} })
	r := newRig(t, func(r *rig) []agent.Registration {
		return append(register(r), agent.Registration{ID: "echo", Agent: goAgent{id: "echo", run: func(context.Context, agent.Input) (agent.Result, error) {
			return agent.Result{Output: "mine"}, nil
		}}})
	})
	addThread(t, r.db, "")
	host, err := r.engine.Find(t.Context(), "workflow-run")
	if err != nil {
		t.Fatal(err)
	}
	hosted := r.start(run.StartRequest{Owner: "desk", SessionID: "s", Input: json.RawMessage(`"go"`), Host: host.N})
	r.wait(hosted)
	next := r.start(run.StartRequest{Owner: "echo", SessionID: "s", Input: json.RawMessage(`"next"`), Queue: true})
	if next.Status != store.Pending {
		t.Fatalf("the next run of the session is %s, want pending", next.Status)
	}
	err = r.engine.Erase(t.Context(), func(tx *store.Tx) ([]*store.Run, error) { return r.db.Threads().Erase(tx, host.N) })
	if err != nil {
		t.Fatal(err)
	}
	if row := r.wait(next); row.Status != store.Completed {
		t.Errorf("the next run of the session is %s, want completed", row.Status)
	}
	_, ring := r.hub.Subscribe(event.OfSession("s").String(), hub.NewQueue(1, 1, func() {}), nil)
	for _, e := range ring {
		if e.Pos.Epoch != next.Number {
			t.Errorf("the subject of the session still holds %s of run %d", e.Type, e.Pos.Epoch)
		}
	}
	if len(ring) == 0 {
		t.Error("the subject of the session holds nothing of the next run")
	}
	err = r.db.View(t.Context(), func(tx *store.Tx) error {
		messages, err := r.db.Sessions().Messages(tx, "s", 0)
		if len(messages) != 2 {
			t.Errorf("the session has %d messages, want those of the next run", len(messages))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
