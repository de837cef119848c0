package run_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/run"
	"agentd/store"
)

// A counter is a driver that is no agent: it counts in steps, asks a person at 2, and ends at 6. Its state is the output slot.
type counter struct{ crash int } // the count at which the process dies, before the commit

var errCrash = run.ErrLeft

func (counter) Accept(json.RawMessage) (string, error) { return "json", nil }
func (counter) Open(r *run.Run, m *run.Move)           {}
func (counter) Resumable(*run.Run) bool                { return true }

func (c counter) Drive(r *run.Run) error {
	for {
		n, _ := strconv.Atoi(string(r.Record.Slots[store.OutputSlot]))
		if n++; n == c.crash {
			return errCrash
		}
		m := r.Move()
		m.Progress()
		m.Slot(store.OutputSlot, []byte(strconv.Itoa(n)))
		m.Say("counted", map[string]int{"n": n})
		switch n {
		case 2: // what it asks for it does itself, once it is allowed
			return r.Park(m, m.Request(r, []journal.Approval{{ToolCallID: "double", ToolName: "count", Args: []byte("{}")}}))
		case 3:
			if decided, err := r.HandOver(); err != nil || len(decided) != 1 || !decided[0].Granted {
				return fault.New(fault.RunFailed, "decided: %v, %v", decided, err)
			}
			m = r.Move()
			m.Slot(store.OutputSlot, []byte("3"))
			m.Acknowledge(r)
		case 6:
			return r.End(m, store.Completed, nil)
		}
		if err := r.Commit(m); err != nil {
			return err
		}
	}
}

// end shows a counter's runs.
type end struct{}

func (end) End(row *store.Run, rec *journal.Record, at journal.End) (event.Event, error) {
	return event.New(event.AgentEnd, map[string]any{"status": at.Status}), nil
}
func (end) EndType(store.Status) string { return event.AgentEnd }
func (end) Ends(typ string) bool        { return typ == event.AgentEnd }
func (end) Failed(row *store.Run, _ *journal.Record) event.Event {
	return event.New(event.AgentError, map[string]any{"error": row.Error})
}
func (end) Cancelling(*store.Run, *journal.Record, bool, string) event.Event {
	return event.New(event.AgentCancelling, nil)
}
func (end) Input(string, json.RawMessage) ([]message.Message, error) { return nil, nil }
func (end) Expand(_ *store.Run, _ *journal.Record, e store.Event) (event.Event, error) {
	return event.Event{Type: e.Type, Payload: e.Payload}, nil
}

// process is a process that runs counters on a database.
func process(t *testing.T, path string, crash int) (e *run.Engine, kill func()) {
	t.Helper()
	db, err := store.Open(t.Context(), store.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	owner := &run.Owner{ID: "c", Driver: counter{crash}}
	e = run.New(run.Options{Owner: func(kind, _ string) *run.Owner {
		if kind != "counter" {
			return nil
		}
		return owner
	}, Forms: map[string]journal.Form{"counter": end{}}, Runs: db.Runs(), Sessions: db.Sessions(), Hub: hub.New(hub.Options{}), Logger: slog.New(slog.DiscardHandler)})
	if _, err := e.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	return e, func() {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		e.Drain(ctx) //nolint:errcheck // what it leaves is what the test is about
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSecondDriver: whatever drives a run, it steps, waits for a person, is killed at each of these, and continues in another
// process. Several starts with one origin make one run.
func TestSecondDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "data.db")
		e, kill := process(t, path, 2)
		start := run.StartRequest{Kind: "counter", Owner: "c", Origin: "test:1"}
		h, err := e.Start(t.Context(), start)
		if err != nil {
			t.Fatal(err)
		}
		stands := func(status store.Status, count string) {
			t.Helper()
			synctest.Wait()
			row, rec, err := e.Read(t.Context(), h.ID)
			if err != nil {
				t.Fatal(err)
			}
			if got := string(rec.Slots[store.OutputSlot]); row.Status != status || got != count {
				t.Fatalf("the run is %s at %s, want %s at %s", row.Status, got, status, count)
			}
		}
		restart := func(crash int) {
			t.Helper()
			kill()
			e, kill = process(t, path, crash)
		}
		stands(store.Running, "1")
		restart(0)
		stands(store.Awaiting, "2")
		restart(5)
		if again, err := e.Start(t.Context(), start); err != nil || again.ID != h.ID {
			t.Errorf("Start with the same origin = %v, %v, want the run %s", again, err, h.ID)
		}
		if _, _, err := e.Resume(t.Context(), h.ID, []run.Decision{{ToolCallID: "double", Granted: true}}, "ann", nil); err != nil {
			t.Fatal(err)
		}
		stands(store.Running, "4")
		restart(0)
		stands(store.Completed, "6")
		kill()
	})
}
