package retention_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/metrics"
	"agentd/retention"
	"agentd/server/fault"
	"agentd/store"
	"agentd/store/storetest"
)

const day = 24 * time.Hour

// A rig is a store whose clock is that of a bubble.
type rig struct {
	testing.TB
	db      *store.DB
	o       retention.Options
	records []string // what would be recorded
}

func newRig(t testing.TB, s retention.Settings) *rig {
	r := &rig{TB: t, db: storetest.Open(t)}
	r.o = retention.Options{Settings: s, Expiry: r.db.Expiry(), Metrics: metrics.New("1"), Logger: slog.New(slog.DiscardHandler),
		Erase: func(ctx context.Context, erase func(*store.Tx) ([]*store.Run, []string, error)) error {
			return r.db.Update(ctx, func(tx *store.Tx) error { _, _, err := erase(tx); return err })
		},
		Record: func(what string, names []string) (func(*store.Tx) error, error) {
			for _, name := range names {
				r.records = append(r.records, what+":"+name)
			}
			return func(*store.Tx) error { return nil }, nil
		}}
	return r
}

func (r *rig) update(fn func(tx *store.Tx) error) {
	r.Helper()
	if err := r.db.Update(r.Context(), fn); err != nil {
		r.Fatal(err)
	}
}

func ms(t time.Time) int64 { return t.UnixMilli() }

// run writes a run that ended at a time, and returns its number.
func (r *rig) run(id string, ended time.Time, change func(*store.Change)) (n int64) {
	c := store.Change{Run: store.Run{ID: id, Kind: "agent", Owner: "a", Current: "a", Status: store.Completed, InputForm: "text",
		Usage: json.RawMessage("{}"), Models: json.RawMessage("{}"), Created: ms(ended), Finished: ms(ended)}}
	if change != nil {
		change(&c)
	}
	if !c.Run.Status.Terminal() {
		c.Run.Finished = 0
	}
	r.update(func(tx *store.Tx) (err error) {
		n, err = r.db.Runs().Apply(tx, &c)
		return err
	})
	return n
}

func (r *rig) session(id string, at time.Time, change func(*store.Session)) {
	v := store.Session{ID: id, User: "u", Agent: "a", Created: ms(at), Closed: ms(at)}
	if change != nil {
		change(&v)
	}
	r.update(func(tx *store.Tx) error { return r.db.Sessions().Insert(tx, v) })
}

// thread writes a thread and its run, which have one id and status.
func (r *rig) thread(id string, at time.Time, status store.Status, change func(*store.Thread)) int64 {
	t := store.Thread{Workflow: "w", ID: id, Input: []byte("{}"), Created: ms(at), Updated: ms(at)}
	if change != nil {
		change(&t)
	}
	n := r.run(id, at, func(c *store.Change) {
		c.Run.Kind, c.Run.Status, c.Run.Session, c.Run.Host = store.Workflow, status, t.Session, t.Host
	})
	t.N, t.Run = n, n
	r.update(func(tx *store.Tx) error {
		return r.db.Threads().Apply(tx, &store.ThreadChange{Thread: t, Status: status})
	})
	return n
}

// sweep sweeps and returns what was deleted, as "rule:n rule:n".
func (r *rig) sweep(dry bool) string {
	r.Helper()
	s, err := retention.New(r.o).Sweep(r.Context(), dry)
	if err != nil {
		r.Fatal(err)
	}
	var done []string
	for _, result := range s.Results {
		if result.Err != nil {
			done = append(done, fmt.Sprintf("%s:%v", result.Rule, result.Err))
		} else if result.Deleted > 0 {
			done = append(done, fmt.Sprintf("%s:%d", result.Rule, result.Deleted))
		}
	}
	return strings.Join(done, " ")
}

// want sweeps, dry and in earnest, and compares what was deleted.
func (r *rig) want(deleted string) {
	r.Helper()
	if got := r.sweep(true); got != deleted {
		r.Errorf("a dry sweep = %q, want %q", got, deleted)
	}
	if r.records != nil {
		r.Errorf("a dry sweep recorded %q", r.records)
	}
	if got := r.sweep(false); got != deleted {
		r.Errorf("a sweep = %q, want %q", got, deleted)
	}
	if got := r.sweep(false); got != "" {
		r.Errorf("a second sweep = %q, want nothing", got)
	}
}

// stay checks which of the runs exist.
func (r *rig) stay(all, want string) {
	r.Helper()
	var got []string
	for id := range strings.FieldsSeq(all) {
		if _, err := r.db.Runs().Get(r.Context(), id); err == nil {
			got = append(got, id)
		}
	}
	if text := strings.Join(got, " "); text != want {
		r.Errorf("the runs %q remain, want %q", text, want)
	}
}

func bubble(t *testing.T, s retention.Settings, fn func(r *rig, now time.Time)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, s)
		defer r.db.Close()
		fn(r, time.Now())
	})
}

func spansAt(times ...time.Time) func(*store.Change) {
	return func(c *store.Change) {
		for i, at := range times {
			c.Spans = append(c.Spans, store.SpanBatch{First: i, At: ms(at), Body: []byte("[]")})
		}
	}
}

// spans are the ages in days of the spans of a run.
func (r *rig) spans(n int64, now time.Time) (days []int) {
	r.Helper()
	err := r.db.View(r.Context(), func(tx *store.Tx) error {
		all, err := r.db.Runs().SpansFrom(tx, n, 0, 1000)
		for _, b := range all {
			days = append(days, int(now.Sub(time.UnixMilli(b.At))/day))
		}
		return err
	})
	if err != nil {
		r.Fatal(err)
	}
	return days
}

func TestSpansWindow(t *testing.T) {
	bubble(t, retention.Settings{SpansDays: 30}, func(r *rig, now time.Time) {
		start := now.Add(-30 * day)
		n := r.run("r", now, spansAt(start.Add(-time.Hour), start.Add(-time.Millisecond), start.Add(time.Minute), now))
		open := r.run("open", now, func(c *store.Change) {
			spansAt(start.Add(-day))(c)
			c.Run.Status = store.Suspended
		})
		of := r.run("child of open", now, func(c *store.Change) {
			spansAt(start.Add(-day))(c)
			c.Run.Parent = open
		})
		held := r.run("aborted, with approvals", now, func(c *store.Change) {
			spansAt(start.Add(-day))(c)
			c.Run.Status, c.Run.Slots = store.Aborted, 1<<store.PendingSlot
		})
		r.want("spans:2")
		for n, want := range map[int64]string{n: "[29 0]", open: "[31]", of: "[31]", held: "[31]"} {
			if got := fmt.Sprint(r.spans(n, now)); got != want {
				r.Errorf("run %d has spans of %s days, want %s", n, got, want)
			}
		}
	})
}

func TestSpansMost(t *testing.T) {
	defer func(most int64) { retention.Rules[0].Most = most }(retention.Rules[0].Most)
	retention.Rules[0].Most = 2500
	bubble(t, retention.Settings{}, func(r *rig, now time.Time) {
		for i := range 4 {
			r.run(fmt.Sprint(i), now, func(c *store.Change) {
				for k := range 1000 { // many have one time
					spansAt(now.Add(time.Duration(i/2) * time.Minute))(c)
					c.Spans[k].First = k
				}
			})
		}
		r.want("spans:1500")
		for n, want := range []int{0, 500, 1000, 1000} {
			if got := len(r.spans(int64(n+1), now)); got != want {
				r.Errorf("run %d has %d spans, want %d", n+1, got, want)
			}
		}
	})
}

// firing writes a firing of a trigger.
func (r *rig) firing(trigger int64, id string, at time.Time, open bool) {
	r.update(func(tx *store.Tx) error {
		return r.db.Triggers().Add(tx, &store.Firing{Trigger: trigger, ID: id, Slot: id, Due: ms(at), Dues: 1, At: ms(at), Origin: "schedule", Outcome: "fired", Open: open})
	})
}

// ledger is the ids of the firings of a trigger, the latest first.
func (r *rig) ledger(trigger int64) string {
	r.Helper()
	var ids []string
	err := r.db.View(r.Context(), func(tx *store.Tx) error {
		all, err := r.db.Triggers().Ledger(tx, trigger, 0, 1000)
		for _, f := range all {
			ids = append(ids, f.ID)
		}
		return err
	})
	if err != nil {
		r.Fatal(err)
	}
	return strings.Join(ids, " ")
}

func TestNotifications(t *testing.T) {
	bubble(t, retention.Settings{NotificationsDays: 7, DeadDays: 30}, func(r *rig, now time.Time) {
		all := r.db.Notifications()
		for _, n := range []struct {
			state string
			age   time.Duration
		}{{"delivered", 40 * day}, {"dead", 40 * day}, {"waiting", 40 * day}, {"delivered", 8 * day}, {"dead", 8 * day}, {"delivered", 6 * day}} {
			r.update(func(tx *store.Tx) error {
				v := store.Notification{ID: fmt.Sprint(n.state, n.age), Target: "t", Type: "run.failed", Body: []byte("{}"), At: ms(now.Add(-n.age))}
				err := all.Add(tx, &v)
				if v.State = n.state; err == nil && n.state != "waiting" {
					err = all.Ended(tx, &v, &store.NotifyTarget{ID: "t"})
				}
				return err
			})
		}
		r.want("notifications:2 deadNotifications:1")
		if n, err := all.Waiting(r.Context(), 10); err != nil || n != 1 {
			t.Errorf("%d notifications wait, %v; want 1", n, err)
		}
	})
}

func TestFirings(t *testing.T) {
	build := func(r *rig, now time.Time) {
		old := now.Add(-91 * day)
		r.firing(1, "a", old, false)
		r.firing(1, "queued", old, true)
		r.firing(1, "b", old, false)
		r.firing(2, "latest", old, false)
		r.firing(1, "c", now.Add(-90*day).Add(time.Minute), false)
		r.firing(1, "d", now, false)
	}
	bubble(t, retention.Settings{FiringsDays: 90}, func(r *rig, now time.Time) {
		build(r, now)
		r.want("firings:2")
		if one, two := r.ledger(1), r.ledger(2); one != "d c queued" || two != "latest" {
			r.Errorf("the firings %q and %q remain", one, two)
		}
	})
	defer func(most int64) { retention.Rules[1].Most = most }(retention.Rules[1].Most)
	retention.Rules[1].Most = 1
	bubble(t, retention.Settings{}, func(r *rig, now time.Time) {
		build(r, now)
		r.want("firings:3")
		if one, two := r.ledger(1), r.ledger(2); one != "d queued" || two != "latest" {
			r.Errorf("the firings %q and %q remain", one, two)
		}
	})
}

func TestIdempotency(t *testing.T) {
	bubble(t, retention.Settings{Idempotency: true}, func(r *rig, now time.Time) {
		r.run("run", now, nil)
		for i := range 2500 {
			k := store.KeyRecord{Key: fmt.Sprint(i), Fingerprint: []byte{1}, Expires: ms(now) + 30_000}
			switch {
			case i == 0:
				k.Bound, k.Run = true, "run"
			case i > 2000:
				k.Expires = ms(now.Add(day))
			}
			r.update(func(tx *store.Tx) error { return r.db.Keys().Put(tx, &k) })
		}
		r.want("")
		time.Sleep(time.Minute)
		r.want("idempotency:2000")
		for key, want := range map[string]bool{"0": true, "1": false, "2000": false, "2001": true} {
			if _, err := r.db.Keys().Get(r.Context(), key); (err == nil) != want {
				r.Errorf("the record %s: %v, want it there: %v", key, err, want)
			}
		}
	})
}

func TestRuns(t *testing.T) {
	bubble(t, retention.Settings{RunsDays: 10}, func(r *rig, now time.Time) {
		old, young := now.Add(-11*day), now.Add(-9*day)
		r.run("old", old, nil)
		r.run("edge", now.Add(-10*day).Add(time.Minute), nil)
		r.run("young", young, nil)
		r.run("open", old, func(c *store.Change) { c.Run.Status = store.Awaiting })
		r.run("held", old, func(c *store.Change) { c.Run.Status, c.Run.Slots = store.Aborted, 1<<store.PendingSlot })
		r.session("s", old, nil)
		r.run("said", old, func(c *store.Change) { c.Run.Session = "s" })
		tree := r.run("tree", old, nil)
		r.run("leaf", old, func(c *store.Change) { c.Run.Parent = tree })
		moving := r.run("moving", old, nil)
		r.run("branch", old, func(c *store.Change) { c.Run.Parent, c.Run.Status = moving, store.Running })
		speaks := r.run("speaks", old, nil)
		r.run("heard", old, func(c *store.Change) { c.Run.Host, c.Run.Session = speaks, "s" })
		r.run("caller", old, func(c *store.Change) { c.Run.Status = store.Suspended })
		r.run("called", old, func(c *store.Change) { c.Run.Origin = store.CalledOrigin("caller:1:c") })
		host := r.run("host", old, func(c *store.Change) { c.Run.Status = store.Running })
		r.run("hosted", old, func(c *store.Change) { c.Run.Host = host })
		r.thread("thread", old, store.Completed, nil)
		all := "old edge young open held said tree leaf moving branch speaks heard caller called host hosted thread"
		r.want("runs:2")
		r.stay(all, "edge young open held said moving branch speaks heard caller called host hosted thread")
		if !slices.Equal(r.records, []string{"run:old", "run:tree"}) {
			r.Errorf("it recorded %q", r.records)
		}
	})
}

func TestSessions(t *testing.T) {
	said := func(session string) func(*store.Change) {
		return func(c *store.Change) { c.Run.Session = session }
	}
	build := func(r *rig, now time.Time) {
		old, young := now.Add(-11*day), now.Add(-9*day)
		for _, id := range []string{"closed", "busy", "recent", "held", "linked", "other"} {
			r.session(id, old, nil)
			r.run("in-"+id, old, said(id))
		}
		r.session("open", old, func(v *store.Session) { v.Closed = 0 })
		r.run("in-open", old, said("open"))
		r.session("updated", old, func(v *store.Session) { v.Updated = ms(young) })
		r.session("young", young, nil)
		r.run("moves", old, func(c *store.Change) { c.Run.Session, c.Run.Status = "busy", store.Suspended })
		r.run("late", young, said("recent"))
		r.run("approval", old, func(c *store.Change) {
			c.Run.Session, c.Run.Status, c.Run.Slots = "held", store.Aborted, 1<<store.PendingSlot
		})
		r.thread("flow", old, store.Running, func(t *store.Thread) { t.Session = "linked" })
		n := r.thread("owner", old, store.Completed, nil)
		r.session("owned", old, func(v *store.Session) { v.Thread = n })
		host := r.run("hosts", old, func(c *store.Change) { c.Run.Status = store.Suspended })
		r.run("guest", old, func(c *store.Change) { c.Run.Session, c.Run.Host = "other", host })
	}
	left := func(r *rig) string {
		var ids []string
		err := r.db.View(r.Context(), func(tx *store.Tx) error {
			all, err := r.db.Sessions().List(tx, "", "")
			for _, v := range all {
				ids = append(ids, v.ID)
			}
			return err
		})
		if err != nil {
			r.Fatal(err)
		}
		slices.Sort(ids)
		return strings.Join(ids, " ")
	}
	bubble(t, retention.Settings{SessionsDays: 10, SessionsClosedOnly: true}, func(r *rig, now time.Time) {
		build(r, now)
		r.want("sessions:1")
		if got := left(r); got != "busy held linked open other owned recent updated young" {
			r.Errorf("the sessions %q remain", got)
		}
		r.stay("in-closed in-open", "in-open")
	})
	bubble(t, retention.Settings{SessionsDays: 10}, func(r *rig, now time.Time) {
		build(r, now)
		r.want("sessions:2")
		if got := left(r); got != "busy held linked other owned recent updated young" {
			r.Errorf("the sessions %q remain", got)
		}
	})
}

func TestThreads(t *testing.T) {
	bubble(t, retention.Settings{WorkflowThreads: 10}, func(r *rig, now time.Time) {
		old, young := now.Add(-11*day), now.Add(-9*day)
		n := r.thread("old", old, store.Failed, nil)
		r.run("of-old", old, func(c *store.Change) { c.Run.Host = n })
		r.session("own", old, func(v *store.Session) { v.Thread = n })
		r.run("in-own", old, func(c *store.Change) { c.Run.Host, c.Run.Session = n, "own" })
		r.thread("waits", old, store.Suspended, nil)
		r.thread("young", young, store.Completed, nil)
		r.thread("updated", old, store.Completed, func(t *store.Thread) { t.Updated = ms(young) })
		host := r.run("host", old, func(c *store.Change) { c.Run.Status = store.Running })
		r.thread("hosted", old, store.Completed, func(t *store.Thread) { t.Host = host })
		ended := r.run("ended", old, nil)
		r.thread("of-ended", old, store.Completed, func(t *store.Thread) { t.Host = ended })
		r.session("s", old, nil)
		speaks := r.thread("speaks", old, store.Completed, nil)
		r.run("heard", old, func(c *store.Change) { c.Run.Host, c.Run.Session = speaks, "s" })
		works := r.thread("works", old, store.Completed, nil)
		r.run("task", old, func(c *store.Change) { c.Run.Host, c.Run.Status = works, store.Running })
		r.want("workflowThreads:1")
		r.stay("old of-old in-own waits young updated host hosted ended of-ended speaks heard works task", "waits young updated host hosted ended of-ended speaks heard works task")
		if !slices.Equal(r.records, []string{"thread:w/old"}) {
			r.Errorf("it recorded %q", r.records)
		}
	})
}

// A rule that fails does not stop the others, and is counted.
func TestIsolation(t *testing.T) {
	bubble(t, retention.Settings{SpansDays: 1, RunsDays: 1, AuditDays: 1}, func(r *rig, now time.Time) {
		old := now.Add(-2 * day)
		r.run("a", old, spansAt(old))
		r.o.Erase = func(context.Context, func(*store.Tx) ([]*store.Run, []string, error)) error { return errors.New("no") }
		var before time.Time
		r.o.Prune = func(_ context.Context, at time.Time, _ bool) (int64, error) { before = at; return 7, nil }
		swept := 0
		r.o.Swept = func(retention.Sweep) { swept++ }
		if got := r.sweep(false); got != "spans:1 runs:no audit:7" {
			r.Errorf("a sweep = %q", got)
		}
		if now.Sub(before).Round(time.Second) != day || swept != 1 {
			r.Errorf("it pruned before %v and reported %d times", before, swept)
		}
		text := string(r.o.Metrics.Text())
		for _, line := range []string{`svc_retention_errors_total{rule="runs"} 1`, `svc_retention_deleted_total{rule="spans"} 1`, `svc_retention_errors_total{rule="spans"} 0`} {
			if !strings.Contains(text, line+"\n") {
				r.Errorf("the metrics lack %s", line)
			}
		}
	})
}

// The daemon sweeps at its start and in each interval. Another sweep is refused meanwhile, and the end of its context stops it.
func TestRun(t *testing.T) {
	bubble(t, retention.Settings{Enabled: true, Interval: 6 * time.Hour, AuditDays: 1}, func(r *rig, now time.Time) {
		var at []time.Duration
		hold := make(chan bool)
		r.o.Prune = func(ctx context.Context, _ time.Time, _ bool) (int64, error) {
			at = append(at, time.Since(now).Truncate(time.Hour))
			if len(at) == 3 {
				<-hold
			}
			return 0, ctx.Err()
		}
		d := retention.New(r.o)
		ctx, cancel := context.WithCancel(r.Context())
		done := make(chan error)
		go func() { done <- d.Run(ctx) }()
		time.Sleep(25 * time.Hour) // the third sweep holds up the ones after it
		if s := d.Status(); !s.Running || s.Last == nil {
			r.Errorf("Status = %+v, want it running", s)
		}
		if _, err := d.Sweep(ctx, true); !fault.Is(err, fault.RetentionRunning) {
			r.Errorf("a sweep beside another one = %v, want retention-running", err)
		}
		close(hold)
		time.Sleep(time.Minute)
		cancel()
		if err := <-done; err != nil {
			r.Error(err)
		}
		if got := fmt.Sprint(at); got != "[0s 6h0m0s 12h0m0s 25h0m0s]" {
			r.Errorf("it swept after %s", got)
		}
	})
}

// When the context ends, a sweep stops after a transaction.
func TestStop(t *testing.T) {
	bubble(t, retention.Settings{SpansDays: 1, RunsDays: 1}, func(r *rig, now time.Time) {
		old := now.Add(-2 * day)
		r.run("a", old, func(c *store.Change) {
			for i := range 5000 {
				c.Spans = append(c.Spans, store.SpanBatch{First: i, At: ms(old), Body: []byte("[]")})
			}
		})
		ctx, cancel := context.WithTimeout(r.Context(), 10*time.Millisecond)
		defer cancel()
		s, err := retention.New(r.o).Sweep(ctx, false)
		if !errors.Is(err, context.DeadlineExceeded) || len(s.Results) != 1 || s.Results[0].Deleted == 0 || s.Results[0].Deleted > 2000 {
			r.Errorf("Sweep = %+v, %v, want a part of the spans deleted and the deadline", s.Results, err)
		}
		r.stay("a", "a")
	})
}
