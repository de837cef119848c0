package store_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"agentd/store"
	"agentd/store/storetest"
)

// newThread is the change that makes a thread of the run with a number.
func newThread(run int64, workflow, id string) store.ThreadChange {
	return store.ThreadChange{Thread: store.Thread{N: run, Run: run, Workflow: workflow, ID: id, Input: []byte(`{"in":1}`), Created: 1, Updated: 1}}
}

// A threadRig is a store with threads.
type threadRig struct {
	testing.TB
	db *store.DB
}

func (r threadRig) update(fn func(tx *store.Tx) error) {
	r.Helper()
	if err := r.db.Update(r.Context(), fn); err != nil {
		r.Fatal(err)
	}
}

// run writes a run and returns its number.
func (r threadRig) run(id string, change func(*store.Run)) int64 {
	r.Helper()
	c := newRun(id)
	c.Run.Status = store.Completed
	if change != nil {
		change(&c.Run)
	}
	return apply(r, r.db, c)
}

// thread writes a run of a workflow and its thread, which has the run's id.
func (r threadRig) thread(workflow, id string, status store.Status, change func(*store.ThreadChange)) int64 {
	r.Helper()
	c := newThread(0, workflow, id)
	if change != nil {
		change(&c)
	}
	n := r.run(id, func(row *store.Run) {
		row.Kind, row.Owner, row.Status, row.Session, row.Host = store.Workflow, workflow, status, c.Thread.Session, c.Thread.Host
	})
	c.Thread.N, c.Thread.Run, c.Status = n, n, status
	for i := range c.Steps {
		c.Steps[i].Run = n
	}
	r.update(func(tx *store.Tx) error { return r.db.Threads().Apply(tx, &c) })
	return n
}

func (r threadRig) find(workflow, id string) (th store.Thread) {
	r.Helper()
	r.update(func(tx *store.Tx) (err error) {
		th, err = r.db.Threads().Find(tx, workflow, id)
		return err
	})
	return th
}

func TestThreadIsReadAsItWasWritten(t *testing.T) {
	r := threadRig{t, storetest.Open(t)}
	threads := r.db.Threads()
	c := newThread(0, "refund", "t1")
	c.Thread.Digest, c.Thread.Pin, c.Thread.Host, c.Thread.Session, c.Thread.User = []byte{1, 2}, "v1", 77, "s", "ann"
	c.Thread.StartedBy, c.Thread.Blocked, c.Thread.Handled = "token:x", "workflow-version-mismatch", true
	c.Thread.Step, c.Thread.Tasks, c.Thread.Base, c.Thread.Folded = 3, 9, 1, 0
	a, b := store.Definition{[]byte{1, 2}, []byte(`{"start":"a"}`)}, store.Definition{[]byte{9}, []byte(`{"start":"b"}`)}
	r.update(func(tx *store.Tx) error { return threads.Define(tx, []store.Definition{a, b}) })
	c.Values = []store.ThreadValue{{"a", 1, []byte(`1`)}, {"b", 1, []byte(`{"x":2}`)}}
	c.Steps = []store.ThreadStep{{1, 1, 4, 5, 6, "n1", "completed", 7, []byte(`{}`)}, {2, 1, 5, 6, 7, "n2", "failed", 8, []byte(`{"e":1}`)}, {3, 1, 6, 7, 8, "n3", "completed", 9, []byte(`[]`)}}
	c.Tasks = []store.ThreadTask{{7, []byte(`{"t":7}`)}, {8, []byte(`{"t":8}`)}}
	c.Answers = []store.ThreadAnswer{{1, "ok", []byte(`true`)}, {2, "ok", []byte(`false`)}}
	n := r.thread("refund", "t1", store.Suspended, func(made *store.ThreadChange) { *made = c })
	c.Thread.N, c.Thread.Run, c.Thread.Version = n, n, 1

	th := r.find("refund", "t1")
	input := c.Thread.Input
	if c.Thread.Input = nil; !reflect.DeepEqual(th, c.Thread) {
		t.Errorf("Find = %+v, want %+v", th, c.Thread)
	}
	r.update(func(tx *store.Tx) error {
		if by, err := threads.Number(tx, n); err != nil || !reflect.DeepEqual(by, th) {
			t.Errorf("Number = %+v, %v, want %+v", by, err, th)
		}
		values, steps, tasks, answers, err := threads.Load(tx, &th)
		if err != nil || !reflect.DeepEqual(values, c.Values) || !reflect.DeepEqual(steps, c.Steps[1:]) || !reflect.DeepEqual(tasks, c.Tasks) ||
			!reflect.DeepEqual(answers, c.Answers) || string(th.Input) != string(input) {
			t.Errorf("Load = %+v, %+v, %+v, %+v, %s, %v", values, steps, tasks, answers, th.Input, err)
		}
		if d, err := threads.Definition(tx, th.Digest); err != nil || string(d) != `{"start":"a"}` {
			t.Errorf("Definition = %s, %v", d, err)
		}
		if row, err := r.db.Runs().Number(tx, n); err != nil || row.Thread != n || row.Host != 77 {
			t.Errorf("the first run has the thread %d and the host %d, %v; want %d and 77", row.Thread, row.Host, err, n)
		}
		newest, err := threads.Steps(tx, n, 3, 1)
		if err != nil || len(newest) != 1 || newest[0].Step != 2 {
			t.Errorf("Steps before 3 = %+v, %v, want step 2", newest, err)
		}
		return nil
	})

	// A change of a few rows, and one to another definition.
	next := store.ThreadChange{Thread: th, Values: []store.ThreadValue{{"a", 4, []byte(`5`)}}, Ended: []int{7}, Used: []int{1},
		Tasks: []store.ThreadTask{{9, []byte(`{"t":9}`)}}, Steps: []store.ThreadStep{{Step: 4, Run: n, Body: []byte(`{}`)}}}
	next.Thread.Step, next.Thread.Blocked, next.Thread.Digest = 4, "", []byte{9}
	next.Thread.Base = 3
	r.update(func(tx *store.Tx) error { return threads.Apply(tx, &next) })
	r.update(func(tx *store.Tx) error {
		th, err := threads.Find(tx, "refund", "t1")
		values, steps, tasks, answers, err2 := threads.Load(tx, &th)
		want := next.Thread
		want.Version++
		if err := errors.Join(err, err2); err != nil || !reflect.DeepEqual(th, want) {
			t.Errorf("the thread is %+v, %v, want %+v", th, err, want)
		}
		got := fmt.Sprint(string(values[0].Value), values[0].Step, len(values), len(steps), steps[0].Step, len(tasks), tasks[1].ID, len(answers), answers[0].Seq)
		if got != "54 2 1 4 2 9 1 2" {
			t.Errorf("the second change left %s", got)
		}
		if err := threads.Define(tx, []store.Definition{{[]byte{8}, []byte(`{}`)}}); err != nil {
			return err
		}
		_, err3 := threads.Definition(tx, []byte{8})
		_, err4 := threads.Definition(tx, []byte{9})
		if _, err := threads.Definition(tx, []byte{1, 2}); !errors.Is(err, store.ErrNotFound) || err3 != nil || err4 != nil {
			t.Errorf("Definition that no thread names any more: %v, want ErrNotFound; others: %v, %v", err, err3, err4)
		}
		return nil
	})

	// A fresh beginning keeps the steps.
	th = r.find("refund", "t1")
	second := r.run("second", func(row *store.Run) {
		row.Kind, row.Owner, row.Status, row.Thread = store.Workflow, "refund", store.Running, n
	})
	fresh := store.ThreadChange{Thread: th, Fresh: true, Tasks: []store.ThreadTask{{10, []byte(`{}`)}}}
	fresh.Thread.Run, fresh.Thread.Input = second, []byte(`"again"`)
	r.update(func(tx *store.Tx) error { return threads.Apply(tx, &fresh) })
	r.update(func(tx *store.Tx) error {
		th, err := threads.Find(tx, "refund", "t1")
		values, _, tasks, answers, err2 := threads.Load(tx, &th)
		steps, err3 := threads.Steps(tx, n, 0, 10)
		if err := errors.Join(err, err2, err3); err != nil || len(values) != 0 || len(tasks) != 1 || len(answers) != 0 || len(steps) != 4 || string(th.Input) != `"again"` {
			t.Errorf("a fresh beginning left %v, %v, %v and %d steps, with the input %s, %v", values, tasks, answers, len(steps), th.Input, err)
		}
		if host, err := r.db.Runs().HostRun(tx, n); err != nil || host.N != second {
			t.Errorf("HostRun of the thread = %v, %v, want run %d", host, err, second)
		}
		if host, err := r.db.Runs().HostRun(tx, second); err != nil || host.N != second {
			t.Errorf("HostRun of a run = %v, %v, want run %d", host, err, second)
		}
		return nil
	})
}

func TestThreadChangesConflict(t *testing.T) {
	r := threadRig{t, storetest.Open(t)}
	n := r.thread("w", "t", store.Running, nil)
	refused := func(what string, c store.ThreadChange) {
		t.Helper()
		c.Steps = []store.ThreadStep{{Step: 1, Body: []byte(`{}`)}}
		err := r.db.Update(t.Context(), func(tx *store.Tx) error { return r.db.Threads().Apply(tx, &c) })
		if !errors.Is(err, store.ErrConflict) {
			t.Errorf("Apply of %s = %v, want ErrConflict", what, err)
		}
	}
	refused("a thread whose id is taken", newThread(r.run("other", func(row *store.Run) { row.Kind = store.Workflow }), "w", "t"))
	th := r.find("w", "t")
	old := store.ThreadChange{Thread: th}
	r.update(func(tx *store.Tx) error { return r.db.Threads().Apply(tx, &old) })
	refused("an older version", old)
	old.Thread.Session = "s" // which is not what every change writes
	refused("an older version with another session", old)
	r.update(func(tx *store.Tx) error {
		if steps, err := r.db.Threads().Steps(tx, n, 0, 9); err != nil || len(steps) != 0 {
			t.Errorf("the changes that were refused wrote %v, %v", steps, err)
		}
		return nil
	})
	c := newThread(r.run("third", func(row *store.Run) { row.Kind = store.Workflow }), "v", "t")
	r.update(func(tx *store.Tx) error { return r.db.Threads().Apply(tx, &c) })
	if other, th := c.Thread.N, r.find("v", "t"); th.N != other {
		t.Errorf("the thread of another workflow with the same id is %d, want %d", th.N, other)
	}
}

// TestFold deletes steps with the events and spans of before, also within a run, and of several runs.
func TestFold(t *testing.T) {
	r := threadRig{t, storetest.Open(t)}
	runs, threads := r.db.Runs(), r.db.Threads()
	write := func(row store.Run, from, to int) int64 {
		c := store.Change{Run: row}
		for i := from; i <= to; i++ {
			c.Events = append(c.Events, store.Event{Seq: i, Type: "e", Message: -1, Payload: []byte(`{}`)})
			c.Spans = append(c.Spans, store.SpanBatch{First: 2 * (i - 1), Body: []byte(`[]`)})
		}
		c.Run.Events, c.Run.Spans = to, 2*to
		return apply(t, r.db, c)
	}
	row := newRun("first").Run
	row.Kind = store.Workflow
	row.N = write(row, 1, 30)
	c := newThread(row.N, "w", "t")
	c.Thread.Step, c.Thread.Base = 4, 4
	second := newRun("second").Run
	second.Kind, second.Thread = store.Workflow, row.N
	second.N = write(second, 1, 50)
	for i, s := range []store.ThreadStep{{Run: row.N, Events: 10, Spans: 20}, {Run: row.N, Events: 20, Spans: 40}, {Run: second.N, Events: 15, Spans: 30}, {Run: second.N, Events: 45, Spans: 90}} {
		s.Step, s.Body = i+1, []byte(`{}`)
		c.Steps = append(c.Steps, s)
	}
	r.update(func(tx *store.Tx) error { return threads.Apply(tx, &c) })
	other := newRun("other").Run
	other.N = write(other, 1, 20)
	left := func(n int64) string {
		var text string
		r.update(func(tx *store.Tx) error {
			events, err := runs.Events(tx, n, 0, 100)
			spans, err2 := runs.SpansFrom(tx, n, 0, 100)
			if text = "none"; len(events) > 0 {
				text = fmt.Sprint(events[0].Seq, " ", len(events), " ", spans[0].First, " ", len(spans))
			}
			return errors.Join(err, err2)
		})
		return text
	}
	for _, tc := range []struct {
		upTo          int
		first, second string
		steps         int
	}{{0, "1 30 0 30", "1 50 0 50", 4}, {1, "11 20 20 20", "1 50 0 50", 3}, {3, "21 10 40 10", "16 35 30 35", 1}, {4, "21 10 40 10", "46 5 90 5", 0}} {
		r.update(func(tx *store.Tx) error { return threads.Fold(tx, row.N, tc.upTo) })
		var steps []store.ThreadStep
		r.update(func(tx *store.Tx) (err error) { steps, err = threads.Steps(tx, row.N, 0, 9); return err })
		if a, b := left(row.N), left(second.N); a != tc.first || b != tc.second || len(steps) != tc.steps {
			t.Errorf("Fold up to step %d leaves %q, %q and %d steps, want %q, %q and %d", tc.upTo, a, b, len(steps), tc.first, tc.second, tc.steps)
		}
	}
	if got := left(other.N); got != "1 20 0 20" {
		t.Errorf("Fold leaves %q of another run", got)
	}
}

func TestListThreads(t *testing.T) {
	r := threadRig{t, storetest.Open(t)}
	in := func(session string) func(*store.ThreadChange) {
		return func(c *store.ThreadChange) { c.Thread.Session = session }
	}
	r.thread("a", "a1", store.Suspended, in("s"))
	b1 := r.thread("b", "b1", store.Failed, nil)
	r.thread("a", "a2", store.Completed, func(c *store.ThreadChange) { c.Thread.Blocked = "x" })
	r.thread("c", "c1", store.Suspended, in("s"))
	r.thread("a", "hosted", store.Suspended, func(c *store.ThreadChange) { c.Thread.Host, c.Thread.Blocked = b1, "x" })
	r.thread("d", "d1", store.Suspended, func(c *store.ThreadChange) { c.Thread.Blocked = "x" })
	// The status is that of the latest run, and follows it.
	th := r.find("b", "b1")
	again := r.run("again", func(row *store.Run) {
		row.Kind, row.Owner, row.Status, row.Thread = store.Workflow, "b", store.Running, b1
	})
	c := store.ThreadChange{Thread: th, Status: store.Running, Was: store.Failed}
	c.Thread.Run = again
	r.update(func(tx *store.Tx) error { return r.db.Threads().Apply(tx, &c) })
	list := func(f store.ThreadFilter) (ids []string) {
		f.Limit = cmp.Or(f.Limit, 9)
		r.update(func(tx *store.Tx) error {
			rows, err := r.db.Threads().List(tx, f)
			for _, row := range rows {
				ids = append(ids, row.ID+":"+string(row.Status))
			}
			return err
		})
		return ids
	}
	check := func(f store.ThreadFilter, want ...string) {
		t.Helper()
		if got := list(f); !slices.Equal(got, want) {
			t.Errorf("List(%+v) = %v, want %v", f, got, want)
		}
	}
	check(store.ThreadFilter{Workflow: "a"}, "a2:completed", "a1:suspended")
	check(store.ThreadFilter{Workflow: "a", Limit: 1}, "a2:completed")
	check(store.ThreadFilter{Workflow: "a", Before: b1}, "a1:suspended")
	check(store.ThreadFilter{Workflow: "none"})
	check(store.ThreadFilter{Workflow: "a", Status: store.Suspended}, "a1:suspended")
	check(store.ThreadFilter{Workflow: "b", Status: store.Running}, "b1:running")
	check(store.ThreadFilter{Workflow: "a", Session: "s"}, "a1:suspended")
	check(store.ThreadFilter{Workflow: "c", Session: "s", Status: store.Failed})
	check(store.ThreadFilter{Workflow: "a", Blocked: true}, "a2:completed")
	end := newRun("again")
	end.Run.N, end.Run.Version, end.Run.Kind, end.Run.Was, end.Run.Status = again, 1, store.Workflow, store.Running, store.Failed
	end.Run.Error, end.Run.Finished, end.Due = []byte(`{"code":"x"}`), 9, new(int64)
	apply(t, r.db, end)
	c = store.ThreadChange{Thread: r.find("b", "b1"), Status: store.Failed, Was: store.Running}
	r.update(func(tx *store.Tx) error { return r.db.Threads().Apply(tx, &c) })
	check(store.ThreadFilter{Workflow: "b", Status: store.Failed}, "b1:failed")
	check(store.ThreadFilter{Workflow: "b", Status: store.Running})
	r.update(func(tx *store.Tx) error {
		rows, err := r.db.Threads().List(tx, store.ThreadFilter{Workflow: "b", Limit: 9})
		if err != nil || rows[0].RunID != "again" || string(rows[0].Error) != `{"code":"x"}` {
			t.Errorf("the row of a failed thread is %+v, %v", rows, err)
		}
		if n, err := r.db.Threads().Blocked(tx); err != nil || n != 3 {
			t.Errorf("Blocked = %d, %v, want 3", n, err)
		}
		return errors.Join(err, r.db.Threads().Unblock(tx, "a", "x"))
	})
	due, _, err := r.db.Runs().Due(t.Context(), 1<<60, 9)
	if err != nil || len(due) != 2 || due[0].RunID != "a2" || due[1].RunID != "hosted" {
		t.Errorf("Due = %v, %v, want the blocked threads of the workflow, also the hosted one", due, err)
	}
}

// TestListsOfHostedRuns finds hosted runs only where they are asked for.
func TestListsOfHostedRuns(t *testing.T) {
	r := threadRig{t, storetest.Open(t)}
	runs := r.db.Runs()
	host := r.thread("w", "root", store.Awaiting, func(c *store.ThreadChange) { c.Thread.Session = "s" })
	r.run("hosted", func(row *store.Run) { row.Host, row.Session, row.Status = host, "s", store.Awaiting })
	caller := r.run("caller", func(row *store.Run) { row.Session, row.Status = "s", store.Running })
	r.thread("w", "called", store.Running, func(c *store.ThreadChange) { c.Thread.Host = caller })
	r.run("child", func(row *store.Run) { row.Parent, row.Status = caller, store.Running })
	r.run("failed", func(row *store.Run) { row.Host, row.Status = host, store.Failed })
	r.thread("w", "asleep", store.Suspended, nil)
	for i, pending := range []string{"[]", "null", `[{"id":1}]`} { // it moves, and another part of it waits or does not
		c := newRun(fmt.Sprint("moves ", i))
		c.Run.Kind, c.Run.Owner, c.Run.Slots, c.Run.Session = store.Workflow, "moving", 1<<store.PendingSlot, "other"
		c.Slots = map[store.Slot]json.RawMessage{store.PendingSlot: json.RawMessage(pending)}
		apply(t, r.db, c)
	}
	ids := func(list []*store.Run, err error) (ids []string) {
		if err != nil {
			t.Fatal(err)
		}
		for _, run := range list {
			ids = append(ids, run.ID)
		}
		return ids
	}
	for _, tc := range []struct {
		name string
		list func(tx *store.Tx) ([]*store.Run, error)
		want []string
	}{
		{"all", func(tx *store.Tx) ([]*store.Run, error) { return runs.List(tx, store.RunFilter{}) }, []string{"moves 2", "moves 1", "moves 0", "asleep", "caller", "root"}},
		{"a session", func(tx *store.Tx) ([]*store.Run, error) { return runs.List(tx, store.RunFilter{Session: "s"}) }, []string{"caller", "root"}},
		{"a session's turns", func(tx *store.Tx) ([]*store.Run, error) {
			return runs.List(tx, store.RunFilter{Session: "s", Hosted: true, Workflows: []string{}})
		}, []string{"caller", "hosted"}},
		{"a status", func(tx *store.Tx) ([]*store.Run, error) {
			return runs.List(tx, store.RunFilter{Status: store.Awaiting})
		}, []string{"root"}},
		{"failed", func(tx *store.Tx) ([]*store.Run, error) { return runs.List(tx, store.RunFilter{Status: store.Failed}) }, nil},
		{"a workflow", func(tx *store.Tx) ([]*store.Run, error) {
			return runs.List(tx, store.RunFilter{Agents: []string{}, Workflows: []string{"w"}})
		}, []string{"asleep", "root"}},
		{"all workflows", func(tx *store.Tx) ([]*store.Run, error) { return runs.List(tx, store.RunFilter{Agents: []string{}}) }, []string{"moves 2", "moves 1", "moves 0", "asleep", "root"}},
		{"an agent with a workflow's id", func(tx *store.Tx) ([]*store.Run, error) {
			return runs.List(tx, store.RunFilter{Agents: []string{"w"}, Workflows: []string{}})
		}, nil},
		{"all agents", func(tx *store.Tx) ([]*store.Run, error) { return runs.List(tx, store.RunFilter{Workflows: []string{}}) }, []string{"caller"}},
		{"hosted by a thread", func(tx *store.Tx) ([]*store.Run, error) { return runs.List(tx, store.RunFilter{Parent: host}) }, []string{"failed", "hosted"}},
		{"below an agent", func(tx *store.Tx) ([]*store.Run, error) { return runs.List(tx, store.RunFilter{Parent: caller}) }, []string{"child", "called"}},
		{"approvals", func(tx *store.Tx) ([]*store.Run, error) { return runs.Awaiting(tx, nil, nil) }, []string{"root", "moves 2"}},
		{"approvals of an agent", func(tx *store.Tx) ([]*store.Run, error) { return runs.Awaiting(tx, []string{"w"}, []string{}) }, nil},
		{"turns", func(tx *store.Tx) ([]*store.Run, error) { return runs.Open(tx, "s") }, []string{"hosted", "caller"}},
		{"open", func(tx *store.Tx) ([]*store.Run, error) { return runs.Open(tx, "") }, []string{"root", "hosted", "caller", "called", "moves 0", "moves 1", "moves 2"}},
		{"Hosted", func(tx *store.Tx) ([]*store.Run, error) { return runs.Hosted(tx, caller) }, []string{"called"}},
		{"HostRun", func(tx *store.Tx) ([]*store.Run, error) {
			run, err := runs.HostRun(tx, caller)
			return []*store.Run{run}, err
		}, []string{"caller"}},
	} {
		r.update(func(tx *store.Tx) error {
			if got := ids(tc.list(tx)); !slices.Equal(got, tc.want) {
				t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
			}
			return nil
		})
	}
}

// TestStepsOfOneThread: a place beyond all steps, which a client may name, leads into no other thread.
func TestStepsOfOneThread(t *testing.T) {
	r := threadRig{t, storetest.Open(t)}
	step := func(c *store.ThreadChange) { c.Steps = []store.ThreadStep{{Step: 1, Body: []byte(`{}`)}} }
	var numbers []int64
	for i := range 4 {
		numbers = append(numbers, r.thread("w", fmt.Sprint(i), store.Completed, step))
	}
	for _, n := range numbers {
		for _, before := range []int{0, 2, 1 << 24, 1<<24 + 1, 1 << 25, 1<<26 + 5, 1 << 60} {
			r.update(func(tx *store.Tx) error {
				steps, err := r.db.Threads().Steps(tx, n, before, 9)
				if len(steps) != 1 || steps[0].Run != n {
					t.Errorf("Steps(%d, before %d) = %+v, want the one of the thread", n, before, steps)
				}
				return err
			})
		}
	}
}
