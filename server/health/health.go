// Package health combines named checks into one answer: ok, degraded or failing.
//
// Probes may ask often and without a token. A [Rollup] therefore runs each check at most once at a time, shares its result
// with all concurrent callers, and answers within [Timeout] whatever the checks do.
package health

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// Timeout is how long a check may take. One that takes longer fails.
const Timeout = 2 * time.Second

// A Status is what a check found. Anything that is none of the three, the zero value too, counts as [Fail].
type Status string

const (
	OK   Status = "ok"
	Warn Status = "warn"
	Fail Status = "fail"
)

// A Result is what one check found.
type Result struct {
	Status  Status
	Message string // optional; anybody may read it, so it must hold no secret
	Fields  any    // nil, or a struct or map whose JSON members stand beside status; none is called status or message
}

// A Check looks at one part of the server. It returns soon after ctx is done, changes nothing, and is never called
// while an earlier call of it has not returned. A panic is a failure; it is logged and its value is not shown.
type Check func(ctx context.Context) Result

// A Rollup is the checks of a server. Make one with [New].
type Rollup struct {
	version string
	start   time.Time
	running sync.WaitGroup // checks that have not returned

	mu     sync.Mutex // guards checks and what is in it
	checks []*check   // in the order of their registration
}

type check struct {
	name   string
	run    Check
	flight *flight // the latest; nil before the first
}

// A flight is one call of a check, which probes share.
type flight struct {
	ctx    context.Context // ends after Timeout, or when the call has returned
	done   chan struct{}   // closed when the call has returned; result is readable then
	result answer
}

// New returns a rollup without checks for a server of the given version that started at start.
func New(version string, start time.Time) *Rollup {
	return &Rollup{version: version, start: start}
}

// Register adds a check. It panics when the name is empty or taken.
func (r *Rollup) Register(name string, run Check) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if name == "" || slices.ContainsFunc(r.checks, func(c *check) bool { return c.name == name }) {
		panic(fmt.Sprintf("health: check %q has no name or a name that is taken", name))
	}
	r.checks = append(r.checks, &check{name: name, run: run})
}

// Report runs the checks concurrently and combines what they found. The status is 200, or 503 when a check failed. A
// check that has no result when ctx is done counts as failed, and continues for others who ask.
func (r *Rollup) Report(ctx context.Context) (Report, int) {
	r.mu.Lock()
	flights := make([]*flight, len(r.checks))
	found := make(Checks, len(r.checks))
	for i, c := range r.checks {
		flights[i], found[i].Name = r.join(ctx, c), c.name
	}
	r.mu.Unlock()
	for i, f := range flights {
		select {
		case <-f.done:
		case <-f.ctx.Done():
		case <-ctx.Done():
		}
		found[i].answer = late
		if f.returned() {
			found[i].answer = f.result
		}
	}
	return rollUp(r.version, time.Since(r.start), found)
}

// Wait returns when no check runs any more. The owner of the rollup calls it after the last Report returned.
func (r *Rollup) Wait() { r.running.Wait() }

// join returns the call of c that is under way, or starts one. The caller holds r.mu.
func (r *Rollup) join(ctx context.Context, c *check) *flight {
	if c.flight != nil && !c.flight.returned() {
		return c.flight
	}
	// Others may share this call, so it does not end with the request that happened to start it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Timeout)
	f := &flight{ctx: ctx, done: make(chan struct{}), result: late}
	c.flight = f
	r.running.Go(func() {
		defer cancel()
		defer close(f.done)
		if a := call(ctx, c); ctx.Err() == nil {
			f.result = a
		}
	})
	return f
}

func (f *flight) returned() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

var late = failed("The check did not answer in time.")

func call(ctx context.Context, c *check) (result answer) {
	defer func() {
		if v := recover(); v != nil {
			slog.ErrorContext(ctx, "health check panicked", "check", c.name, "panic", v, "stack", string(debug.Stack()))
			result = failed("The check panicked; see the server's log.")
		}
	}()
	return encode(c.run(ctx))
}
