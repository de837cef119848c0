package store_test

import (
	"errors"
	"testing"

	"agentd/store"
	"agentd/store/storetest"
)

// A session is closed unless something of it is open; a message opens it again.
func TestCloseSession(t *testing.T) {
	r := threadRig{t, storetest.Open(t)}
	r.update(func(tx *store.Tx) error {
		return r.db.Sessions().Insert(tx, store.Session{ID: "s", User: "u", Agent: "a"})
	})
	closes := func(id string, want error) (v store.Session) {
		t.Helper()
		err := r.db.Update(t.Context(), func(tx *store.Tx) (err error) {
			v, err = r.db.Sessions().Close(tx, id)
			return err
		})
		if !errors.Is(err, want) {
			t.Errorf("Close(%s) = %v, want %v", id, err, want)
		}
		return v
	}
	closes("none", store.ErrNotFound)
	first := closes("s", nil)
	if v := closes("s", nil); v.Closed == 0 || v.Closed != first.Closed {
		t.Errorf("it was closed at %d, then at %d", first.Closed, v.Closed)
	}
	c := newRun("r")
	c.Run.Session, c.Messages = "s", []store.Message{{Role: "user", Body: []byte("{}")}}
	n := apply(t, r.db, c)
	if v := closes("s", store.ErrConflict); v.Closed != 0 {
		t.Error("a message did not open it")
	}
	c = newRun("r")
	c.Run.N, c.Run.Version, c.Run.Status = n, 1, store.Completed
	apply(t, r.db, c)
	flow := r.run("flow", func(run *store.Run) { run.Kind, run.Status, run.Session = store.Workflow, store.Suspended, "s" })
	th := newThread(flow, "w", "t")
	th.Status, th.Thread.Session = store.Suspended, "s"
	r.update(func(tx *store.Tx) error { return r.db.Threads().Apply(tx, &th) })
	closes("s", store.ErrConflict)
	th.Thread.Version, th.Was, th.Status = 1, store.Suspended, store.Completed
	r.update(func(tx *store.Tx) error { return r.db.Threads().Apply(tx, &th) })
	closes("s", nil)
}
