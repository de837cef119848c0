package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"time"

	"agentd/server/outbound"
	"agentd/server/webhook"
	"agentd/store"
)

const (
	maxWaiting  = 100_000               // of all targets; above, the oldest die
	maxAttempts = 64                    // in progress at once, of all targets
	page        = 16                    // rows that are read of what waits for a target
	idle        = time.Second           // between two looks at a target
	settle      = 10 * time.Millisecond // from a wake, which comes within a transaction, to its commit
	sweep       = 10 * time.Second      // between two looks at the bound
)

// Run delivers what waits until ctx ends. What is in progress then is attempted again by the next Run.
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
		if err := d.bound(ctx); err != nil && ctx.Err() == nil {
			d.o.Logger.Error("notifications could not be counted", "error", err)
		}
	}
}

// bound makes the oldest dead where too many wait.
func (d *Daemon) bound(ctx context.Context) error {
	for {
		n, err := d.o.Store.Waiting(ctx, maxWaiting+1000)
		if over := n - maxWaiting; err != nil || over <= 0 {
			return err
		} else if err := d.o.Store.Update(ctx, func(tx *store.Tx) error { return d.o.Store.Bury(tx, over) }); err != nil {
			return err
		} else {
			d.o.Logger.Warn("too many notifications wait: the oldest are not delivered", "dead", over)
		}
	}
}

// A queue is what one goroutine knows of its target.
type queue struct {
	d      *Daemon
	target Target
	state  webhook.Target
	busy   map[int64]bool // numbers of the notifications that are being sent
	ended  chan attempt
}

// An attempt has ended.
type attempt struct {
	v      store.Notification
	result webhook.Result
}

// deliver delivers what waits for a target.
func (d *Daemon) deliver(ctx context.Context, i int) {
	q := &queue{d: d, target: d.o.Targets[i], busy: map[int64]bool{}, ended: make(chan attempt, 1+webhook.MaxRetries)}
	var sends sync.WaitGroup
	defer sends.Wait()
	for loaded := false; ; {
		wait, err := idle, error(nil)
		if !loaded {
			err = q.load(ctx)
			loaded = err == nil
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
		case <-d.wake[i]:
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
			q.d.all <- struct{}{}
			a := attempt{v, q.send(ctx, &v)}
			<-q.d.all
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
	v.Attempts, v.Status, v.Began, v.Due = after.Attempts, a.result.Status, millis(after.Began), millis(after.Due)
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
	if v.State == string(webhook.Dead) {
		q.d.o.Logger.Warn("notification not delivered", "id", v.ID, "type", v.Type, "target", q.target.ID, "status", v.Status, "attempts", v.Attempts)
	}
}

// send makes one attempt.
func (q *queue) send(ctx context.Context, v *store.Notification) webhook.Result {
	ctx, cancel := context.WithTimeout(ctx, webhook.Timeout)
	defer cancel()
	var b body
	if json.Unmarshal(v.Body, &b) != nil {
		return webhook.Result{}
	}
	b.Sequence = v.Sequence
	text, err := json.Marshal(b)
	if err != nil {
		return webhook.Result{}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, q.target.URL, bytes.NewReader(text))
	if err != nil {
		return webhook.Result{}
	}
	req.Header.Set("Content-Type", "application/json")
	if err := q.target.Signer.Sign(req.Header, v.ID, text); err != nil {
		return webhook.Result{}
	}
	res, err := q.target.Transport.RoundTrip(req)
	if err != nil {
		return webhook.Result{}
	}
	defer res.Body.Close()
	io.Copy(io.Discard, io.LimitReader(res.Body, 4<<10)) //nolint:errcheck // the status is the answer
	return webhook.Result{Status: res.StatusCode, RetryAfter: outbound.RetryAfter(res.Header, webhook.Lifetime)}
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
