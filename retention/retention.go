// Package retention deletes what is older than its window: a table of rules, and a daemon that sweeps.
//
//	sweep: for each rule -> find a page -> delete it in a transaction -> pause -> ... -> next rule
//
// A transaction deletes at most 1000 rows, or one session, thread or run with all that belongs to it. It takes so few rows that it
// lasts a few milliseconds, and a pause follows, so that other writers go first. A rule that fails does not stop the next one.
package retention

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"agentd/metrics"
	"agentd/server/fault"
	"agentd/server/tracecontext"
	"agentd/store"
)

// Options are what a daemon works with.
type Options struct {
	Settings Settings
	Expiry   *store.Expiry
	// Erase runs a function that erases in a transaction, and takes what it returns out of memory.
	Erase func(context.Context, func(*store.Tx) ([]*store.Run, []string, error)) error
	// Erased is called after a sweep that erased something: the freed space is overwritten, and answers in memory are forgotten.
	Erased func(context.Context)
	// Prune deletes the entries of the audit chain that are older than a time, or with dry counts them; nil: there is no chain.
	Prune func(ctx context.Context, before time.Time, dry bool) (int64, error)
	// Record returns what writes an entry of the audit chain for each erased session, thread or run; nil: there is no chain.
	Record  func(what string, names []string) (func(*store.Tx) error, error)
	Swept   func(Sweep) // gets a sweep that deleted something or failed; nil: nobody does
	Metrics *metrics.Inventory
	Logger  *slog.Logger
}

// A Sweep is what a sweep has done.
type Sweep struct {
	Started, Ended time.Time
	Dry            bool
	Results        []Result
}

// A Result is what a sweep has done for a rule.
type Result struct {
	Rule    string
	Deleted int64 // with Sweep.Dry: how many it would delete
	Err     error // nil: none
}

// Status is what a daemon does and has done.
type Status struct {
	Running bool
	Last    *Sweep    // that was not dry; nil: none since the start
	Next    time.Time // zero: there is none
}

// Daemon sweeps. It is safe for concurrent use.
type Daemon struct {
	o     Options
	start time.Time

	sweeping chan struct{} // holds a token while a sweep runs, which then owns the fields below
	pace     pace
	erased   bool

	mu     sync.Mutex // guards status
	status Status
}

// New makes a daemon.
func New(o Options) *Daemon {
	d := &Daemon{o: o, start: time.Now(), sweeping: make(chan struct{}, 1)}
	for i := range Rules {
		o.Metrics.RetentionDeleted.With(Rules[i].Name)
		o.Metrics.RetentionErrors.With(Rules[i].Name)
	}
	return d
}

// Settings are those that the daemon was made with.
func (d *Daemon) Settings() Settings { return d.o.Settings }

// Days is the window of a rule in days: 0: it is switched off; -1: it is switched on, and its rows have a time of their own.
func (d *Daemon) Days(r *Rule) int { return r.days(&d.o.Settings) }

// Status returns what the daemon does and has done.
func (d *Daemon) Status() Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.status
}

func (d *Daemon) note(change func(*Status)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(&d.status)
}

// Run sweeps at once and then in each interval, until ctx ends. An interval in which a sweep still runs is skipped.
func (d *Daemon) Run(ctx context.Context) error {
	if !d.o.Settings.Enabled {
		return nil
	}
	tick := time.NewTicker(d.o.Settings.Interval)
	defer tick.Stop()
	for {
		d.note(func(s *Status) { s.Next = time.Now().Add(d.o.Settings.Interval) })
		d.Sweep(ctx, false) //nolint:errcheck // it is logged and counted, or another sweep runs
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// now is the time of the wall clock, but not more than has passed since the start: to set the clock forward deletes nothing.
func (d *Daemon) now() int64 {
	return min(time.Now().UnixMilli(), d.start.Add(time.Since(d.start)).UnixMilli())
}

// Sweep applies all rules that are switched on, once; with dry, it only counts. When ctx ends, it stops after the transaction in
// progress. The error is retention-running while another sweep runs, or that of ctx; those of rules are in the results.
func (d *Daemon) Sweep(ctx context.Context, dry bool) (Sweep, error) {
	select {
	case d.sweeping <- struct{}{}:
		defer func() { <-d.sweeping }()
	default:
		return Sweep{}, fault.New(fault.RetentionRunning, "A sweep is in progress.")
	}
	d.note(func(s *Status) { s.Running = true })
	s := Sweep{Started: time.Now(), Dry: dry}
	d.pace, d.erased = pace{rows: startRows}, false
	now := d.now()
	worked, quiet := false, true
	for i := range Rules {
		r := &Rules[i]
		days := d.Days(r)
		if days == 0 && r.Most == 0 || ctx.Err() != nil {
			continue
		}
		p := &pass{ctx: ctx, d: d, rule: r, dry: dry, now: now}
		if days > 0 {
			p.before = now - int64(days)*day.Milliseconds()
		}
		err := r.pass(p)
		if err != nil && ctx.Err() != nil {
			err = nil // the sweep reports it
		}
		s.Results = append(s.Results, Result{r.Name, p.deleted, err})
		if err != nil {
			quiet = false
			tracecontext.Log(ctx, d.o.Logger).Warn("retention failed", "rule", r.Name, "error", err)
		}
		if !dry {
			worked = worked || p.deleted > 0
			d.o.Metrics.RetentionDeleted.With(r.Name).Add(float64(p.deleted))
			if err != nil {
				d.o.Metrics.RetentionErrors.With(r.Name).Inc()
			}
		}
	}
	if d.erased && d.o.Erased != nil {
		d.o.Erased(context.WithoutCancel(ctx))
	}
	s.Ended = time.Now()
	d.note(func(st *Status) {
		if st.Running = false; !dry {
			st.Last = &s
		}
	})
	if dry {
		return s, context.Cause(ctx)
	}
	d.o.Metrics.RetentionLast.Set(float64(s.Ended.Unix()))
	if worked {
		attrs := []any{"ms", s.Ended.Sub(s.Started).Milliseconds()}
		for _, r := range s.Results {
			if r.Deleted > 0 {
				attrs = append(attrs, r.Rule, r.Deleted)
			}
		}
		tracecontext.Log(ctx, d.o.Logger).Info("retention swept", attrs...)
	}
	if (worked || !quiet) && d.o.Swept != nil {
		d.o.Swept(s)
	}
	return s, context.Cause(ctx)
}
