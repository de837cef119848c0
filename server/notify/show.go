package notify

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/webhook"
	"agentd/store"
)

// Most is how many notifications Retry takes at most.
const Most = 1000

// failing is how many failures in a row show that a receiver fails; from then on, attempts are probes.
const failing = 10

// Receiver is where a receiver stands.
type Receiver struct {
	Target      string   `json:"target" doc:"Host of the address, and a digest of the address."`
	On          []string `json:"on" doc:"Types of the notifications that it gets."`
	Agents      []string `json:"agents,omitempty" doc:"Agents and workflows whose notifications it gets. Absent: all."`
	Disabled    bool     `json:"disabled" doc:"It answered 410. A retry, or a test that succeeds, enables it."`
	Failures    int      `json:"failures" doc:"Attempts that failed, in a row."`
	NextProbeAt string   `json:"nextProbeAt,omitempty" doc:"After ten failures in a row: no attempt begins before."`
}

// Shown is a notification as people see it.
type Shown struct {
	ID        string `json:"id" doc:"The webhook-id of its requests."`
	Target    string `json:"target"`
	Type      string `json:"type"`
	Sequence  int64  `json:"sequence"`
	State     string `json:"state" enum:"waiting|delivered|dead"`
	Attempts  int    `json:"attempts"`
	Status    int    `json:"status,omitempty" doc:"HTTP status of the latest answer."`
	Failure   string `json:"failure,omitempty" doc:"Why the latest attempt failed, or why there is no further one."`
	CreatedAt string `json:"createdAt"`
	DueAt     string `json:"dueAt,omitempty" doc:"The next attempt comes no earlier."`
}

func shown(v *store.Notification) Shown {
	s := Shown{ID: v.ID, Target: v.Target, Type: v.Type, Sequence: v.Sequence, State: v.State, Attempts: v.Attempts, Status: v.Status, Failure: v.Failure,
		CreatedAt: message.Millis(v.At)}
	if v.State == "waiting" && v.Due > 0 {
		s.DueAt = message.Millis(v.Due)
	}
	return s
}

// List returns up to limit notifications in a state, or in any, before a number; the newest first. It also returns the number before
// which the next page begins; 0: there is none.
func (d *Daemon) List(ctx context.Context, state string, before int64, limit int) (list []Shown, next int64, err error) {
	if before == 0 {
		before = math.MaxInt64
	}
	rows, err := d.o.Store.List(ctx, state, before, limit+1)
	if len(rows) > limit {
		rows, next = rows[:limit], rows[limit-1].N
	}
	list = make([]Shown, len(rows))
	for i := range rows {
		list[i] = shown(&rows[i])
	}
	return list, next, err
}

// Receivers returns where the declared receivers stand.
func (d *Daemon) Receivers(ctx context.Context) ([]Receiver, error) {
	rows, err := d.o.Store.Targets(ctx)
	list := make([]Receiver, len(d.o.Targets))
	for i, t := range d.o.Targets {
		list[i] = Receiver{Target: t.ID, On: t.On, Agents: t.Agents}
		for _, row := range rows {
			if row.ID == t.ID {
				list[i].Disabled, list[i].Failures = row.Disabled, row.Failures
				if row.Probe > 0 {
					list[i].NextProbeAt = message.Millis(row.Probe)
				}
			}
		}
	}
	return list, err
}

// Retry has notifications that were not delivered wait afresh, and enables their receivers: those with ids, at most [Most], or, with
// a target, its dead ones, the oldest [Most] of them. also writes in the same transaction. The error is not-found, for an id or a
// target that is not declared, or notification-delivered, and nothing changes; or also's.
func (d *Daemon) Retry(ctx context.Context, ids []string, target string, also func(tx *store.Tx, retried int) error) (retried int, err error) {
	touched := map[int]bool{}
	err = d.o.Store.Update(ctx, func(tx *store.Tx) error {
		var rows []int64
		again := func(id string) error {
			i := slices.IndexFunc(d.o.Targets, func(t Target) bool { return t.ID == id })
			if i < 0 {
				return fault.New(fault.NotFound, "No receiver %q is declared.", id).Advise("Compare with `agentd notify list`.")
			}
			touched[i] = true
			return d.o.Store.Enable(tx, id)
		}
		for _, id := range ids {
			v, err := d.o.Store.Get(tx, id)
			switch {
			case errors.Is(err, store.ErrNotFound):
				return fault.New(fault.NotFound, "There is no notification %q.", id).Advise("List those that wait or are dead with `agentd notify list`.")
			case err != nil:
				return err
			case v.State == string(webhook.Delivered):
				return fault.New(fault.NotificationDelivered, "The notification %s was delivered.", id)
			}
			if err := again(v.Target); err != nil {
				return err
			}
			rows = append(rows, v.N)
		}
		if target != "" {
			dead, err := d.o.Store.DeadOf(tx, target, Most)
			if err == nil {
				err = again(target)
			}
			if err != nil {
				return err
			}
			rows = append(rows, dead...)
		}
		for _, n := range rows {
			if err := d.o.Store.Again(tx, n); err != nil {
				return err
			}
		}
		retried = len(rows)
		return also(tx, retried)
	})
	if err == nil {
		for i := range touched {
			d.enabled[i].Store(true)
			d.kick(i)
		}
	}
	return retried, err
}

// Tested is how a test of a receiver ended.
type Tested struct {
	Target  string `json:"target"`
	OK      bool   `json:"ok" doc:"It answered with 2xx within 10 seconds."`
	Status  int    `json:"status,omitempty"`
	Failure string `json:"failure,omitempty"`
	TookMs  int64  `json:"tookMs"`
}

// Test sends a notification of the type test to a receiver, or with an empty target to each, and waits for the answers. One that
// succeeds enables its receiver. The error is not-found for a target that is not declared.
func (d *Daemon) Test(ctx context.Context, target string) ([]Tested, error) {
	select {
	case d.testing <- struct{}{}: // one test at a time: its requests are beside those that the bounds count
		defer func() { <-d.testing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	results := []Tested{}
	var group sync.WaitGroup
	for i := range d.o.Targets {
		if t := &d.o.Targets[i]; target == "" || t.ID == target {
			results = append(results, Tested{Target: t.ID})
		}
	}
	if len(results) == 0 {
		return nil, fault.New(fault.NotFound, "No receiver %q is declared.", target).Advise("Compare with `agentd notify list`.")
	}
	for n := range results {
		group.Go(func() { d.test(ctx, &results[n]) })
	}
	group.Wait()
	return results, ctx.Err()
}

func (d *Daemon) test(ctx context.Context, result *Tested) {
	i := slices.IndexFunc(d.o.Targets, func(t Target) bool { return t.ID == result.Target })
	v, err := d.row(test, struct{}{})
	if err != nil {
		result.Failure = "the request could not be made"
		return
	}
	begun := time.Now()
	r, failure := d.send(ctx, &d.o.Targets[i], v)
	result.OK, result.Status, result.Failure, result.TookMs = failure == "", r.Status, failure, time.Since(begun).Milliseconds()
	if result.OK {
		if err := d.o.Store.Update(ctx, func(tx *store.Tx) error { return d.o.Store.Enable(tx, result.Target) }); err == nil {
			d.enabled[i].Store(true)
			d.kick(i)
		}
	}
}

// Status is where the daemon stands.
type Status struct {
	Declared int       // receivers
	Waiting  int       // notifications
	Overflow time.Time // when notifications last died because too many waited; zero: not since the start
	Disabled int       // receivers that answered 410
	Failing  []string  // targets that have failed ten times in a row, and are probed
}

// Full reports whether nearly as many notifications wait as may, or more did in the last hour.
func (s Status) Full() bool { return s.Waiting > maxWaiting/10*9 || time.Since(s.Overflow) < time.Hour }

// Status returns where the daemon stands.
func (d *Daemon) Status(ctx context.Context) (s Status, err error) {
	s.Declared = len(d.o.Targets)
	if at := d.overflow.Load(); at > 0 {
		s.Overflow = time.UnixMilli(at)
	}
	if s.Waiting, err = d.o.Store.Waiting(ctx, maxWaiting+batch); err != nil {
		return s, err
	}
	list, err := d.Receivers(ctx)
	for _, r := range list {
		if r.Disabled {
			s.Disabled++
		} else if r.Failures >= failing {
			s.Failing = append(s.Failing, r.Target)
		}
	}
	return s, err
}
