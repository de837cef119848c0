package run_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/server/journal"
	"agentd/server/run"
	"agentd/store"
)

// A tally is a driver whose runs get letters: it adds up what they bring, and sleeps for an hour after each. Its state is the
// output slot.
type tally struct {
	Sum, Ticks int
	Dues       int   // how often its timer was due, for whatever reason
	Wake       int64 // when it is looked at next
	Late       int64 // how many milliseconds later it was, the last time
}

// add is the letter that brings n. It ends the run when last.
type add struct {
	n    int
	last bool
	done chan error // what became of it; nil: it was taken
}

func (a *add) Refuse(err error) { a.done <- err }

func bring(n int) *add { return &add{n: n, done: make(chan error, 1)} }

type tallies struct {
	dies func(tally) bool // the process dies before the commit of this state; nil: never
}

func (tallies) Accept(json.RawMessage) (string, error) { return "json", nil }
func (tallies) Open(*run.Run, *run.Move)               {}
func (tallies) Resumable(*run.Run) bool                { return true }

func (tallies) Begin(_ *run.Run, m *run.Move, input json.RawMessage) error {
	m.Slot(store.OutputSlot, input)
	m.Say("tally.start", nil)
	return nil
}

func (tallies) Closing(_ *run.Run, m *run.Move, status store.Status, _ error) error {
	m.Slot(store.OutputSlot, []byte(`"`+string(status)+`"`))
	return nil
}

func (tallies) Decide(context.Context, *run.Engine, *store.Run, []run.Decision, string, func(*store.Tx, []run.Verdict, []run.Decision) error) ([]run.Decision, error) {
	return nil, errors.ErrUnsupported
}

func (d tallies) Drive(r *run.Run) error {
	var st tally
	if err := json.Unmarshal(r.Record.Slots[store.OutputSlot], &st); err != nil {
		return err
	}
	for {
		if err := r.Stopping(); err != nil {
			return err
		}
		m := r.Move()
		var taken []*add
		last := false
		for _, l := range r.Letters() {
			switch l := l.(type) {
			case *add:
				st.Sum += l.n
				taken = append(taken, l)
				last = last || l.last
			case *run.Due:
				st.Dues++
				if st.Wake != 0 && st.Wake <= time.Now().UnixMilli() {
					st.Ticks, st.Late, st.Wake = st.Ticks+1, time.Now().UnixMilli()-st.Wake, 0
				}
			}
		}
		rests := r.Seal()
		if rests && st.Wake == 0 {
			st.Wake = time.Now().Add(time.Hour).UnixMilli()
		}
		if d.dies != nil && d.dies(st) {
			for _, l := range taken {
				l.Refuse(errCrash)
			}
			return errCrash
		}
		kept, _ := json.Marshal(st)
		m.Slot(store.OutputSlot, kept)
		var err error
		switch {
		case rests && last:
			err = r.End(m, store.Completed, nil)
		case rests:
			err = r.Rest(m, nil, st.Wake)
		default:
			if r.Row.Status.Parked() {
				r.Reopen(m, "letter")
			}
			err = r.Commit(m)
		}
		for _, l := range taken {
			l.done <- err
		}
		if err != nil || rests {
			return err
		}
	}
}

// world is a process that runs tallies on a database.
type world struct {
	*run.Engine
	t    testing.TB
	path string
	db   *store.DB
}

func begin(t testing.TB, path string, o run.Options, d run.Driver) *world {
	t.Helper()
	db, err := store.Open(t.Context(), store.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	o.Runs, o.Sessions, o.Hub, o.Logger = db.Runs(), db.Sessions(), hub.New(hub.Options{}), slog.New(slog.DiscardHandler)
	o.Forms = map[string]journal.Form{"tally": end{}}
	o.Owner = func(kind, id string) *run.Owner { return &run.Owner{ID: id, Driver: d} }
	w := &world{run.New(o), t, path, db}
	if _, err := w.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

// kill ends the process; what it leaves is what the tests are about.
func (w *world) kill() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	cancel()
	w.Drain(ctx) //nolint:errcheck // it leaves runs
	if err := w.db.Close(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) start(input string) *run.Handle {
	w.t.Helper()
	h, err := w.Start(w.t.Context(), run.StartRequest{Kind: "tally", Owner: "t", Input: json.RawMessage(input)})
	if err != nil {
		w.t.Fatal(err)
	}
	return h
}

func (w *world) stands(id string, status store.Status) (st tally) {
	w.t.Helper()
	row, rec, err := w.Read(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	json.Unmarshal(rec.Slots[store.OutputSlot], &st) //nolint:errcheck // zero then
	if row.Status != status {
		w.t.Fatalf("run %s is %s with %+v, want %s", id, row.Status, st, status)
	}
	return st
}

// TestLetters: a parked run is taken up for a letter, the process dies before and after its commit, and a run that has ended
// refuses.
func TestLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := t.TempDir() + "/data.db"
		w := begin(t, path, run.Options{}, tallies{})
		h := w.start("{}")
		synctest.Wait()
		w.stands(h.ID, store.Suspended)
		for range 3 {
			l := bring(2)
			if err := w.Post(t.Context(), h.ID, l); err != nil {
				t.Fatal(err)
			}
			if err := <-l.done; err != nil {
				t.Fatal(err)
			}
		}
		w.kill()
		w = begin(t, path, run.Options{}, tallies{dies: func(st tally) bool { return st.Sum > 6 }})
		l := bring(1)
		if err := w.Post(t.Context(), h.ID, l); err != nil {
			t.Fatal(err)
		}
		if err := <-l.done; !errors.Is(err, errCrash) {
			t.Errorf("the letter of a run that dies = %v, want it refused", err)
		}
		w.kill()
		w = begin(t, path, run.Options{}, tallies{})
		if st := w.stands(h.ID, store.Suspended); st.Sum != 6 {
			t.Errorf("sum = %d, want 6", st.Sum)
		}
		l = bring(4)
		l.last = true
		if err := w.Post(t.Context(), h.ID, l); err != nil {
			t.Fatal(err)
		}
		if err := <-l.done; err != nil {
			t.Fatal(err)
		}
		if st := w.stands(h.ID, store.Completed); st.Sum != 10 {
			t.Errorf("sum = %d, want 10", st.Sum)
		}
		if err := w.Post(t.Context(), h.ID, bring(1)); !fault.Is(err, fault.RunNotSuspended) {
			t.Errorf("Post to a run that has ended = %v, want run-not-suspended", err)
		}
		if err := w.Post(t.Context(), "none", bring(1)); !fault.Is(err, fault.RunNotFound) {
			t.Errorf("Post to no run = %v, want run-not-found", err)
		}
		w.kill()
	})
}

// TestLettersRace: letters race with a run that parks again and again; none is lost, and each is taken once.
func TestLettersRace(t *testing.T) {
	w := begin(t, t.TempDir()+"/data.db", run.Options{}, tallies{})
	h := w.start("{}")
	const n = 100
	letters := make(chan *add, n)
	for i := range n {
		go func() {
			l := bring(1)
			if err := w.Post(t.Context(), h.ID, l); err != nil {
				t.Errorf("Post %d = %v", i, err)
				l.done <- err
			}
			letters <- l
		}()
	}
	for range n {
		if err := <-(<-letters).done; err != nil {
			t.Errorf("a letter was refused: %v", err)
		}
	}
	if _, _, _, err := w.Wait(t.Context(), h.ID); err != nil {
		t.Fatal(err)
	}
	if st := w.stands(h.ID, store.Suspended); st.Sum != n {
		t.Errorf("sum = %d, want %d", st.Sum, n)
	}
	w.kill()
}

// TestDue: a run that sleeps wakes at its time, also in another process, and once for each time. What the timer is replaced by
// meanwhile is not lost.
func TestDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := t.TempDir() + "/data.db"
		w := begin(t, path, run.Options{}, tallies{})
		var ids []string
		for range 300 { // more than are handled side by side
			ids = append(ids, w.start("{}").ID)
		}
		ticks := func(want int) {
			t.Helper()
			for i, id := range ids {
				if st := w.stands(id, store.Suspended); st.Ticks != want {
					t.Fatalf("run %d has ticked %d times, want %d", i, st.Ticks, want)
				}
			}
		}
		time.Sleep(59 * time.Minute)
		ticks(0)
		time.Sleep(time.Minute + time.Second)
		ticks(1)
		w.kill()
		time.Sleep(10 * time.Hour)
		w = begin(t, path, run.Options{}, tallies{})
		time.Sleep(time.Second)
		ticks(2)
		// A run that dies over its tick has it again.
		w.kill()
		time.Sleep(time.Hour)
		w = begin(t, path, run.Options{}, tallies{dies: func(st tally) bool { return st.Ticks > 2 }})
		time.Sleep(time.Second)
		ticks(2)
		w.kill()
		w = begin(t, path, run.Options{}, tallies{})
		time.Sleep(time.Second)
		ticks(3)
		w.kill()
	})
}

// TestDrainRefusesLetters: letters that wait when the server stops are refused, and no new ones are taken.
func TestDrainRefusesLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t, t.TempDir()+"/data.db", run.Options{}, deaf{})
		h := w.start("{}")
		l := bring(1)
		if err := w.Post(t.Context(), h.ID, l); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		over := make(chan error, 1)
		go func() { over <- w.Drain(ctx) }()
		synctest.Wait()
		if err := w.Post(t.Context(), h.ID, bring(1)); !fault.Is(err, fault.ServerDraining) {
			t.Errorf("Post while the server stops = %v, want server-draining", err)
		}
		if err := <-l.done; !fault.Is(err, fault.ServerDraining) {
			t.Errorf("the letter that waits = %v, want it refused as server-draining", err)
		}
		if err := <-over; err != nil {
			t.Fatal(err)
		}
		w.stands(h.ID, store.Running)
		w.db.Close() //nolint:errcheck // checked elsewhere
	})
}

// deaf never looks at its letters.
type deaf struct{ tallies }

func (deaf) Drive(r *run.Run) error {
	<-r.Context().Done()
	return context.Cause(r.Context())
}

// TestMailboxIsBounded: beyond 1024 letters, Post refuses.
func TestMailboxIsBounded(t *testing.T) {
	w := begin(t, t.TempDir()+"/data.db", run.Options{}, deaf{})
	h := w.start("{}")
	for range 1024 {
		if err := w.Post(t.Context(), h.ID, bring(1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Post(t.Context(), h.ID, bring(1)); !fault.Is(err, fault.Overloaded) {
		t.Errorf("Post to a full mailbox = %v, want overloaded", err)
	}
	w.kill()
}

// TestAbortOfRecipient: a run that is parked, and one that moves, end as aborted, completed by their driver.
func TestAbortOfRecipient(t *testing.T) {
	for name, d := range map[string]run.Driver{"parked": tallies{}, "moving": deaf{}} {
		t.Run(name, func(t *testing.T) {
			w := begin(t, t.TempDir()+"/data.db", run.Options{}, d)
			h := w.start("{}")
			if name == "parked" {
				if _, _, _, err := h.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if status, err := w.Abort(t.Context(), h.ID, run.AbortOptions{}); status != store.Aborted || err != nil {
				t.Errorf("Abort = %s, %v, want aborted", status, err)
			}
			if _, rec, err := w.Read(t.Context(), h.ID); err != nil || string(rec.Slots[store.OutputSlot]) != `"aborted"` {
				t.Errorf("the state is %s, %v, want what Closing wrote", rec.Slots[store.OutputSlot], err)
			}
			if due, err := w.db.Runs().NextDue(t.Context()); due != 0 || err != nil {
				t.Errorf("NextDue = %d, %v, want no timer", due, err)
			}
			types := []string{}
			w.Replay(t.Context(), h.ID, event.RunView, 0, func(e *hub.Entry) error { types = append(types, e.Type); return nil }) //nolint:errcheck // then the types are missing
			if n := len(types); n < 3 || types[0] != "tally.start" || types[n-2] != event.AgentCancelling || types[n-1] != event.AgentEnd {
				t.Errorf("events = %v, want the driver's start, cancelling and the end", types)
			}
			w.kill()
		})
	}
}

// TestHosted: a run that another hosts wakes its host whenever it stands differently, also where the process dies in between,
// and only its host's driver resumes and ends it.
func TestHosted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := t.TempDir() + "/data.db"
		w := begin(t, path, run.Options{}, tallies{})
		host := w.start("{}")
		synctest.Wait()
		hosted := func() *run.Handle {
			h, err := w.Start(t.Context(), run.StartRequest{Kind: "tally", Owner: "t", Input: []byte("{}"), Host: host.Number})
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return h
		}
		dues := func(want int) {
			t.Helper()
			time.Sleep(time.Second)
			if st := w.stands(host.ID, store.Suspended); st.Dues != want {
				t.Fatalf("the host was due %d times, want %d", st.Dues, want)
			}
		}
		kid := hosted()
		dues(1) // it is parked
		if _, err := w.Abort(t.Context(), kid.ID, run.AbortOptions{}); !fault.Is(err, fault.RunIsChild) || fault.Of(err).Extra["rootRunId"] != host.ID {
			t.Errorf("Abort of a hosted run = %v, want run-is-child with its host", err)
		}
		if _, _, err := w.Resume(t.Context(), kid.ID, nil, "", nil); !fault.Is(err, fault.RunIsChild) {
			t.Errorf("Resume of a hosted run = %v, want run-is-child", err)
		}
		l := bring(1)
		l.last = true
		if err := w.Post(t.Context(), kid.ID, l); err != nil {
			t.Fatal(err)
		}
		if err := <-l.done; err != nil {
			t.Fatal(err)
		}
		dues(2) // it has ended
		kid = hosted()
		dues(3)
		w.kill()
		w = begin(t, path, run.Options{}, tallies{dies: func(st tally) bool { return st.Dues > 3 }})
		if status, err := w.AbortHosted(t.Context(), kid.ID, run.AbortOptions{}); status != store.Aborted || err != nil {
			t.Errorf("AbortHosted = %s, %v, want aborted", status, err)
		}
		dues(3) // it dies over it
		w.kill()
		w = begin(t, path, run.Options{}, tallies{})
		dues(4)
		w.kill()
	})
}

// TestAbortRacesWithLetters: a run that letters take up again and again ends when somebody aborts it.
func TestAbortRacesWithLetters(t *testing.T) {
	w := begin(t, t.TempDir()+"/data.db", run.Options{}, tallies{})
	for i := range 20 {
		h := w.start("{}")
		over := make(chan struct{})
		go func() {
			defer close(over)
			for {
				l := bring(1)
				if w.Post(t.Context(), h.ID, l) != nil || <-l.done != nil {
					return
				}
			}
		}()
		time.Sleep(time.Duration(i) * 100 * time.Microsecond)
		opts := run.AbortOptions{NoWait: i%2 == 0}
		if status, err := w.Abort(t.Context(), h.ID, opts); status != store.Aborted && !opts.NoWait || err != nil {
			t.Errorf("Abort = %s, %v, want aborted", status, err)
		}
		<-over
		row, _, _, err := w.Wait(t.Context(), h.ID)
		for err == nil && row.Status.Parked() {
			row, _, _, err = w.Wait(t.Context(), h.ID)
		}
		if err != nil || row.Status != store.Aborted {
			t.Errorf("the run ends as %v, %v, want aborted", row, err)
		}
	}
	w.kill()
}

// BenchmarkWake wakes runs at times of their own, beside 100 000 others that sleep on, and reports how late they are.
func BenchmarkWake(b *testing.B) {
	w := begin(b, b.TempDir()+"/data.db", run.Options{}, tallies{})
	asleep := make(chan struct{}, 64)
	var all sync.WaitGroup
	for range 100_000 {
		asleep <- struct{}{}
		all.Go(func() {
			w.start("{}").Wait(b.Context()) //nolint:errcheck // the others are what is measured
			<-asleep
		})
	}
	all.Wait()
	b.ResetTimer()
	due := time.Now().Add(2 * time.Second)
	ids := make([]string, b.N)
	for i := range ids {
		ids[i] = w.start(fmt.Sprintf(`{"Wake":%d}`, due.Add(time.Duration(i)*2*time.Millisecond).UnixMilli())).ID
	}
	time.Sleep(time.Until(due.Add(time.Duration(b.N)*2*time.Millisecond + time.Second)))
	b.StopTimer()
	var late []int64
	for _, id := range ids {
		st := w.stands(id, store.Suspended)
		if st.Ticks != 1 {
			b.Fatalf("run %s has ticked %d times, want once", id, st.Ticks)
		}
		late = append(late, st.Late)
	}
	slices.Sort(late)
	b.ReportMetric(float64(late[len(late)*99/100]), "ms-late-p99")
	b.ReportMetric(float64(late[len(late)-1]), "ms-late-max")
	w.kill()
}
