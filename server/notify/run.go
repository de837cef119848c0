package notify

import (
	"context"
	"slices"
	"sync"
	"time"

	"agentd/server/webhook"
	"agentd/store"
)

const (
	maxWaiting = 100_000               // of all targets; above, the oldest die
	page       = 16                    // rows that are read of what waits for a target
	settle     = 10 * time.Millisecond // from a wake, which comes within a transaction, to its commit; then twice as long, and so on
	idle       = 10 * time.Second      // between two looks at a target, at most
	sweep      = 10 * time.Second      // between two looks at the bound
	batch      = 1000                  // rows that a transaction changes

	// MaxTargets bounds the attempts in progress: each target has 5 at most.
	MaxTargets = 64
)

// Run delivers what waits until ctx ends. What is in progress then is attempted again by the next Run. What waits for a receiver
// that is declared no more is not delivered.
func (d *Daemon) Run(ctx context.Context) error {
	var group sync.WaitGroup
	for i := range d.o.Targets {
		group.Go(func() { d.deliver(ctx, i) })
	}
	for wait := time.Duration(0); ; wait = sweep {
		select {
		case <-ctx.Done():
			group.Wait()
			return nil
		case <-time.After(wait):
		}
		if wait == 0 {
			d.try(ctx, "what waits for receivers that are declared no more could not be ended", d.abandon)
		}
		d.try(ctx, "notifications could not be counted", d.bound)
	}
}

func (d *Daemon) try(ctx context.Context, failed string, fn func(context.Context) error) {
	if err := fn(ctx); err != nil && ctx.Err() == nil {
		d.o.Logger.Error(failed, "error", err)
	}
}

// bound makes the oldest dead where too many wait.
func (d *Daemon) bound(ctx context.Context) error {
	for {
		n, err := d.o.Store.Waiting(ctx, maxWaiting+batch)
		over := n - maxWaiting
		if err != nil || over <= 0 {
			return err
		}
		if err := d.o.Store.Update(ctx, func(tx *store.Tx) error { return d.o.Store.Bury(tx, over) }); err != nil {
			return err
		}
		d.overflow.Store(time.Now().UnixMilli())
		d.o.Metrics.NotifyDead.Add(float64(over))
		d.o.Logger.Warn("too many notifications wait: the oldest are not delivered", "dead", over)
	}
}

// abandon makes dead what waits for targets that are declared no more.
func (d *Daemon) abandon(ctx context.Context) error {
	rows, err := d.o.Store.Targets(ctx)
	for _, row := range rows {
		if err != nil || slices.ContainsFunc(d.o.Targets, func(t Target) bool { return t.ID == row.ID }) {
			continue
		}
		for n := int64(batch); n == batch && err == nil; {
			err = d.o.Store.Update(ctx, func(tx *store.Tx) (err error) {
				n, err = d.o.Store.Abandon(tx, row.ID, batch)
				return err
			})
			if err == nil && n > 0 {
				d.o.Metrics.NotifyDead.Add(float64(n))
				d.o.Logger.Warn("notifications wait for a receiver that is declared no more: they are not delivered", "target", row.ID, "dead", n)
			}
		}
	}
	return err
}

// A queue is what one goroutine knows of its target.
type queue struct {
	d      *Daemon
	i      int // of the target
	target *Target
	state  webhook.Target
	busy   map[int64]bool // numbers of the notifications that are being sent
	ended  chan attempt
}

// An attempt has ended.
type attempt struct {
	v       store.Notification
	result  webhook.Result
	failure string
}

// deliver delivers what waits for a target.
func (d *Daemon) deliver(ctx context.Context, i int) {
	q := &queue{d: d, i: i, target: &d.o.Targets[i], busy: map[int64]bool{}, ended: make(chan attempt, 1+webhook.MaxRetries)}
	var sends sync.WaitGroup
	defer sends.Wait()
	d.enabled[i].Store(true) // so that the first look loads the row
	for pause := settle; ; {
		wait, err := pause, error(nil)
		if d.enabled[i].Swap(false) {
			if err = q.load(ctx); err != nil {
				d.enabled[i].Store(true)
			}
		}
		if err == nil {
			err = q.begin(ctx, &sends, &wait)
		}
		if err != nil && ctx.Err() == nil {
			d.o.Logger.Error("notifications could not be read", "target", q.target.ID, "error", err)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
			pause = min(2*pause, idle)
		case <-d.wake[i]:
			pause = settle
			time.Sleep(settle)
		case a := <-q.ended:
			q.end(ctx, a)
		}
		timer.Stop()
	}
}

func (q *queue) load(ctx context.Context) error {
	row, err := q.d.o.Store.Target(ctx, q.target.ID)
	q.state.Disabled, q.state.Failures, q.state.Probe = row.Disabled, row.Failures, date(row.Probe)
	return err
}

// begin begins the attempts that may begin now, and shortens wait to when it should be called again.
func (q *queue) begin(ctx context.Context, sends *sync.WaitGroup, wait *time.Duration) error {
	if q.state.Disabled {
		return nil
	}
	list, err := q.d.o.Store.Next(ctx, q.target.ID, page)
	for _, v := range list {
		if q.busy[v.N] {
			continue
		}
		later, begun := q.state.Begin(delivery(&v))
		if later > 0 {
			*wait = min(*wait, later)
		}
		if !begun {
			continue
		}
		q.busy[v.N] = true
		sends.Go(func() {
			a := attempt{v: v}
			a.result, a.failure = q.d.send(ctx, q.target, &v)
			select {
			case q.ended <- a:
			case <-ctx.Done():
			}
		})
	}
	return err
}

// end writes the result of an attempt. One that the end of the daemon interrupted has none.
func (q *queue) end(ctx context.Context, a attempt) {
	if ctx.Err() != nil {
		return
	}
	after := q.state.End(delivery(&a.v), a.result)
	v := a.v
	v.Attempts, v.Status, v.Failure, v.Began, v.Due = after.Attempts, a.result.Status, a.failure, millis(after.Began), millis(after.Due)
	if after.State != webhook.Waiting {
		v.State = string(after.State)
	}
	t := &store.NotifyTarget{ID: q.target.ID, Disabled: q.state.Disabled, Failures: q.state.Failures, Probe: millis(q.state.Probe)}
	err := q.d.o.Store.Update(ctx, func(tx *store.Tx) error { return q.d.o.Store.Ended(tx, &v, t) })
	delete(q.busy, a.v.N)
	if err != nil && ctx.Err() == nil {
		q.d.o.Logger.Error("the outcome of a notification could not be written: it is sent again", "id", v.ID, "error", err)
		time.Sleep(settle)
	}
	outcome := "success"
	if a.failure != "" {
		outcome = "error"
	}
	q.d.o.Metrics.NotifyAttempts.With(q.target.ID, outcome).Inc()
	if v.State == string(webhook.Dead) {
		q.d.o.Metrics.NotifyDead.Inc()
		q.d.o.Logger.Warn("notification not delivered", "id", v.ID, "type", v.Type, "target", q.target.ID, "why", v.Failure, "attempts", v.Attempts)
	}
}

func delivery(v *store.Notification) webhook.Delivery {
	return webhook.Delivery{Attempts: v.Attempts, Began: date(v.Began), Due: date(v.Due)}
}

// date is a time of a row; 0: none.
func date(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}
