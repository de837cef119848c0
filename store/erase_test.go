package store_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"agentd/store"
	"agentd/store/storetest"
)

// secret is in every id and value of what is to be erased, and in nothing else.
const secret = "erase-me"

// full is a change with every kind of row that a run can have.
func full(id, session string) store.Change {
	c := newRun(id)
	j := json.RawMessage(`{"v":"` + secret + `"}`)
	c.Run.Session, c.Run.User, c.Run.StartedBy, c.Run.Origin, c.Run.Error, c.Run.Status = session, secret, secret, id, j, store.Completed
	c.Events = []store.Event{{Seq: 1, Type: "a", Message: -1, Payload: j}}
	c.Messages = []store.Message{{Role: "user", Body: j}}
	c.Steps, c.Calls = []store.Step{{Number: 1, Agent: secret}}, []store.Call{{ID: secret, ArgsHash: []byte(secret), Decision: j}}
	c.Slots = map[store.Slot]json.RawMessage{store.OutputSlot: j, store.PendingSlot: j}
	c.Spills, c.Handoffs = []store.Spill{{Name: secret, Data: []byte(secret)}}, []store.Handoff{{Body: j}}
	c.Spans, c.Exchanges = []store.SpanBatch{{Body: j}}, []store.Exchange{{Body: j}}
	due := int64(1 << 45)
	c.Due = &due
	return c
}

// A house is a thread with all that can hang on it. Names of what stays begin with "keep".
type house struct {
	threadRig
	root, kept int64
}

func newHouse(t *testing.T) house {
	h := house{threadRig: threadRig{t, storetest.Open(t)}}
	j := json.RawMessage(`{"v":"` + secret + `"}`)
	session := func(id string, thread int64) {
		h.update(func(tx *store.Tx) error {
			return h.db.Sessions().Insert(tx, store.Session{ID: id, User: "keep", Agent: "keep", Thread: thread})
		})
	}
	run := func(id, session string, change func(*store.Run)) int64 {
		c := full(id+"-"+secret, session)
		if change(&c.Run); c.Run.Kind == store.Workflow {
			c.Messages = nil
		}
		return apply(t, h.db, c)
	}
	thread := func(id, session string, host int64) int64 {
		n := run(id, session, func(r *store.Run) { r.Kind, r.Host, r.Status = store.Workflow, host, store.Suspended })
		c := newThread(n, "keep", id+"-"+secret)
		c.Thread.Session, c.Thread.Host, c.Thread.User, c.Thread.StartedBy, c.Thread.Pin, c.Thread.Blocked = session, host, secret, secret, secret, secret
		c.Thread.Digest, c.Thread.Input = []byte(id+secret), j
		c.Values, c.Tasks = []store.ThreadValue{{secret, 1, j}}, []store.ThreadTask{{1, j}}
		c.Steps, c.Answers = []store.ThreadStep{{Step: 1, Run: n, Node: secret, Body: j}}, []store.ThreadAnswer{{1, secret, j}}
		h.update(func(tx *store.Tx) error { return h.db.Threads().Apply(tx, &c) })
		return n
	}
	keyed := func(key, run, session string) {
		h.update(func(tx *store.Tx) error {
			return h.db.Keys().Put(tx, &store.KeyRecord{Key: key, Target: secret, Fingerprint: []byte(secret), Bound: true, Run: run, Session: session, Status: 200, Body: j, Expires: 1})
		})
	}
	session("linked-"+secret, 0)
	session("keep-shared", 0)
	h.root = thread("root", "linked-"+secret, 0)
	session("own-"+secret, h.root)
	again := run("again", "linked-"+secret, func(r *store.Run) { r.Kind, r.Thread, r.Status = store.Workflow, h.root, store.Suspended })
	h.update(func(tx *store.Tx) error {
		th, err := h.db.Threads().Number(tx, h.root)
		c := store.ThreadChange{Thread: th}
		c.Thread.Run = again
		return errors.Join(err, h.db.Threads().Apply(tx, &c))
	})
	hosted := func(host int64) func(*store.Run) { return func(r *store.Run) { r.Host = host } }
	run("none", "", hosted(h.root))
	own := run("own", "own-"+secret, hosted(h.root))
	run("shared", "keep-shared", hosted(h.root))
	child := run("child", "", func(r *store.Run) { r.Parent = own })
	called := thread("called", "", child) // an agent's workflow
	inner := thread("inner", "", called)
	session("inner-"+secret, inner)
	leaf := run("leaf", "inner-"+secret, hosted(inner))
	run("grandchild", "inner-"+secret, func(r *store.Run) { r.Parent = leaf })
	keyed("k1", "again-"+secret, "")
	keyed("k2", "leaf-"+secret, "")
	keyed("k3", "", "inner-"+secret)

	// What stays, of the same workflow and in the session that is shared.
	kept := newThread(h.run("keep-thread", func(r *store.Run) { r.Kind, r.Status = store.Workflow, store.Suspended }), "keep", "keep")
	h.kept = kept.Thread.N
	kept.Values, kept.Tasks = []store.ThreadValue{{"keep", 1, []byte(`1`)}}, []store.ThreadTask{{1, []byte(`1`)}}
	kept.Steps, kept.Answers = []store.ThreadStep{{Step: 1, Run: h.kept, Body: []byte(`1`)}}, []store.ThreadAnswer{{1, "keep", []byte(`1`)}}
	h.update(func(tx *store.Tx) error { return h.db.Threads().Apply(tx, &kept) })
	c := newRun("keep-run")
	c.Run.Session, c.Run.Status, c.Messages = "keep-shared", store.Completed, []store.Message{{Role: "user", Body: []byte(`{"keep":1}`)}}
	apply(t, h.db, c)
	return h
}

// holds finds the secret in the tables of the database, and in its files.
func (h house) holds() (tables, files []string) {
	h.Helper()
	tables = storetest.Holding(h, h.db.Path(), secret)
	if ok, err := h.db.Checkpoint(h.Context()); err != nil || !ok {
		h.Fatalf("Checkpoint = %v, %v", ok, err)
	}
	for _, name := range []string{h.db.Path(), h.db.Path() + "-wal"} {
		if raw, err := os.ReadFile(name); err != nil || bytes.Contains(raw, []byte(secret)) {
			files = append(files, fmt.Sprint(name, " ", err))
		}
	}
	return tables, files
}

// TestEraseThreadLeavesNothing erases a thread that hosts agents and threads, which call others, in sessions of their own and in
// one that stays.
func TestEraseThreadLeavesNothing(t *testing.T) {
	for name, erase := range map[string]func(h house, tx *store.Tx) ([]*store.Run, error){
		"thread": func(h house, tx *store.Tx) ([]*store.Run, error) {
			runs, err := h.db.Threads().Erase(tx, h.root)
			if err == nil {
				_, err = h.db.Sessions().Erase(tx, "linked-"+secret)
			}
			return runs, err
		},
		"session": func(h house, tx *store.Tx) ([]*store.Run, error) { return h.db.Sessions().Erase(tx, "linked-"+secret) },
		"run": func(h house, tx *store.Tx) ([]*store.Run, error) {
			runs, err := h.db.Runs().Erase(tx, "root-"+secret)
			if _, again := h.db.Runs().Erase(tx, "root-"+secret); !errors.Is(again, store.ErrNotFound) {
				h.Errorf("Runs.Erase of a run that is gone = %v, want not found", again)
			}
			if err == nil {
				_, err = h.db.Sessions().Erase(tx, "linked-"+secret)
			}
			return runs, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			before, _ := h.holds()
			if len(before) < 17 {
				t.Fatalf("only the tables %q hold what is to be erased", before)
			}
			var erased []string
			h.update(func(tx *store.Tx) error {
				runs, err := erase(h, tx)
				for _, run := range runs {
					id, _ := strings.CutSuffix(run.ID, "-"+secret)
					erased = append(erased, id)
				}
				return err
			})
			slices.Sort(erased)
			want := []string{"again", "called", "child", "grandchild", "inner", "leaf", "none", "own", "root", "shared"}
			if !slices.Equal(erased, want) {
				t.Errorf("the erased runs are %q, want %q", erased, want)
			}
			if tables, files := h.holds(); tables != nil || files != nil {
				t.Errorf("after the erasure the tables %q and the files %q hold something of it", tables, files)
			}
			h.update(func(tx *store.Tx) error {
				th, err := h.db.Threads().Number(tx, h.kept)
				values, _, tasks, answers, err2 := h.db.Threads().Load(tx, &th)
				messages, err4 := h.db.Sessions().Messages(tx, "keep-shared", 0)
				if err := errors.Join(err, err2, err4); err != nil || len(values) != 1 || len(tasks) != 1 || len(answers) != 1 || len(messages) != 1 {
					t.Errorf("of another thread and of the session, %v, %v, %v and %v stay, %v", values, tasks, answers, messages, err)
				}
				return nil
			})
			for _, key := range []string{"k1", "k2", "k3"} {
				if k, err := h.db.Keys().Get(t.Context(), key); err != nil || !k.Erased() {
					t.Errorf("the key %s is %+v, %v, want an erased one", key, k, err)
				}
			}
			if found, err := h.db.Verify(t.Context()); err != nil || len(found) > 0 {
				t.Errorf("Verify = %v, %v", found, err)
			}
		})
	}
}

// TestEraseWaitsForRuns: nothing is erased while a run of what goes together is running, or the host of what goes.
func TestEraseWaitsForRuns(t *testing.T) {
	type outcome struct{ session, thread, run error }
	for _, tc := range []struct {
		run    string
		status store.Status
		want   outcome
	}{
		{"grandchild", store.Running, outcome{store.ErrConflict, store.ErrConflict, store.ErrConflict}},
		{"again", store.Running, outcome{store.ErrConflict, store.ErrConflict, store.ErrConflict}},
		{"shared", store.Pending, outcome{nil, store.ErrConflict, store.ErrConflict}},
		{"leaf", store.Awaiting, outcome{}},
	} {
		h := newHouse(t)
		h.update(func(tx *store.Tx) error {
			row, err := h.db.Runs().Find(tx, tc.run+"-"+secret)
			if err == nil {
				row.Status = tc.status
				_, err = h.db.Runs().Apply(tx, &store.Change{Run: *row})
			}
			return err
		})
		undo := errors.New("undo")
		try := func(erase func(tx *store.Tx) error) (err error) {
			h.db.Update(t.Context(), func(tx *store.Tx) error { err = erase(tx); return undo }) //nolint:errcheck // it is undo
			return err
		}
		got := outcome{try(func(tx *store.Tx) error { _, err := h.db.Sessions().Erase(tx, "linked-"+secret); return err }),
			try(func(tx *store.Tx) error { _, err := h.db.Threads().Erase(tx, h.root); return err }),
			try(func(tx *store.Tx) error { _, err := h.db.Runs().Erase(tx, "root-"+secret); return err })}
		if !errors.Is(got.session, tc.want.session) || !errors.Is(got.thread, tc.want.thread) || !errors.Is(got.run, tc.want.run) {
			t.Errorf("while %s is %s, the erasures end with %v, want %v", tc.run, tc.status, got, tc.want)
		}
	}
}

// TestEraseOfASessionOfAHostedRun: the session that an agent of a thread takes turns in goes without the thread, which looks at
// what it waits for, but not while the thread moves.
func TestEraseOfASessionOfAHostedRun(t *testing.T) {
	h := newHouse(t)
	set := func(status store.Status) {
		h.update(func(tx *store.Tx) error {
			row, err := h.db.Runs().HostRun(tx, h.root)
			if err == nil {
				row.Status = status
				_, err = h.db.Runs().Apply(tx, &store.Change{Run: *row})
			}
			return err
		})
	}
	set(store.Running)
	erase := func(tx *store.Tx) error { _, err := h.db.Sessions().Erase(tx, "own-"+secret); return err }
	if err := h.db.Update(t.Context(), erase); !errors.Is(err, store.ErrConflict) {
		t.Errorf("Erase while the host is running = %v, want ErrConflict", err)
	}
	set(store.Awaiting)
	now := int64(0)
	h.update(func(tx *store.Tx) error { now = tx.Now(); return erase(tx) })
	due, _, err := h.db.Runs().Due(t.Context(), now, 9)
	if err != nil || len(due) != 1 || due[0].RunID != "again-"+secret {
		t.Errorf("the runs that are due after the erasure are %v, %v, want the host", due, err)
	}
	h.update(func(tx *store.Tx) error {
		_, err := h.db.Threads().Number(tx, h.root)
		return err
	})
}

// TestFoldHosted erases what a thread hosted for steps that are folded, and nothing that is open, needed, or of another session.
func TestFoldHosted(t *testing.T) {
	r := threadRig{t, storetest.Open(t)}
	root := r.thread("w", "root", store.Running, func(c *store.ThreadChange) {
		c.Steps = []store.ThreadStep{{Step: 3, At: 100, Body: []byte(`{}`)}, {Step: 4, At: 200, Body: []byte(`{}`)}}
	})
	other := r.thread("w", "other", store.Running, nil)
	r.update(func(tx *store.Tx) error {
		return errors.Join(r.db.Sessions().Insert(tx, store.Session{ID: "own", User: "u", Agent: "a", Thread: root}),
			r.db.Sessions().Insert(tx, store.Session{ID: "shared", User: "u", Agent: "a"}))
	})
	hosted := func(id string, finished int64, change func(*store.Run)) int64 {
		return r.run(id, func(row *store.Run) {
			row.Host, row.Finished, row.Origin = root, finished, "for "+id
			if change != nil {
				change(row)
			}
		})
	}
	hosted("old", 99, nil)
	hosted("failed", 50, func(row *store.Run) { row.Status = store.Failed })
	own := hosted("own", 50, func(row *store.Run) { row.Session = "own" })
	r.run("child", func(row *store.Run) { row.Parent = own })
	hosted("of a kept step", 100, nil)
	hosted("in a session", 50, func(row *store.Run) { row.Session = "shared" })
	hosted("by id", 50, nil)
	hosted("by origin", 50, nil)
	hosted("open", 0, func(row *store.Run) { row.Status = store.Awaiting })
	hosted("other's", 50, func(row *store.Run) { row.Host = other })
	thread := func(id string, last store.Status, finished int64) { // which was tried twice
		n := hosted(id, 40, func(row *store.Run) { row.Kind, row.Owner, row.Status = store.Workflow, "inner", store.Failed })
		made := newThread(n, "inner", id)
		made.Thread.Host = root
		r.update(func(tx *store.Tx) error { return r.db.Threads().Apply(tx, &made) })
		again := hosted(id+" again", finished, func(row *store.Run) { row.Kind, row.Thread, row.Status = store.Workflow, n, last })
		r.update(func(tx *store.Tx) error {
			th, err := r.db.Threads().Number(tx, n)
			c := store.ThreadChange{Thread: th}
			c.Thread.Run = again
			return errors.Join(err, r.db.Threads().Apply(tx, &c))
		})
		r.run("in "+id, func(row *store.Run) { row.Host, row.Finished = n, 300 })
	}
	thread("inner", store.Completed, 50)
	thread("moving", store.Running, 0)
	thread("late", store.Completed, 150)
	thread("kept", store.Failed, 50)
	r.run("speaks", func(row *store.Run) { row.Host, row.Session = hosted("nested", 50, nil), "shared" })
	r.run("left", func(row *store.Run) {
		row.Host, row.Status = hosted("leaves", 50, nil), store.Running
	})
	keep := map[string]bool{"kept again": true, "by id": true, "for by origin": true}
	fold := func() (ids []string, more bool) {
		r.update(func(tx *store.Tx) error {
			erased, m, err := r.db.Threads().FoldHosted(tx, root, keep)
			for _, run := range erased {
				ids = append(ids, run.ID)
			}
			more = m
			return err
		})
		slices.Sort(ids)
		return ids, more
	}
	want := []string{"child", "failed", "in inner", "inner", "inner again", "old", "own"}
	if ids, more := fold(); !slices.Equal(ids, want) || more {
		t.Errorf("FoldHosted erased %q, more %t, want %q", ids, more, want)
	}
	r.update(func(tx *store.Tx) error { _, err := r.db.Sessions().Find(tx, "own"); return err })
	for i := range 300 {
		hosted(fmt.Sprint(i), 50, nil)
	}
	if ids, more := fold(); len(ids) != 256 || !more {
		t.Errorf("of 300 runs FoldHosted erased %d, more %t, want 256, true", len(ids), more)
	}
	if ids, more := fold(); len(ids) != 44 || more {
		t.Errorf("of the other 44 runs FoldHosted erased %d, more %t", len(ids), more)
	}
	if found, err := r.db.Verify(t.Context()); err != nil || len(found) > 0 {
		t.Errorf("Verify = %v, %v", found, err)
	}
}
