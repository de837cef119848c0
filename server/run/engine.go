package run

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"agentd/metrics"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/server/journal"
	"agentd/store"
)

// Options are what an engine works with.
type Options struct {
	Owner    func(kind, id string) *Owner // nil: there is none
	Forms    map[string]journal.Form      // by kind of run
	Runs     *store.Runs
	Sessions *store.Sessions
	Hub      *hub.Hub
	Metrics  *metrics.Inventory
	Logger   *slog.Logger
	MaxRuns  int // runs that may move at once; 10000 when 0
	// Redact takes known secrets out of the message of an error before it is stored or shown; nil: there are none.
	Redact func(string) string
	// Audit prepares the record of what a commit makes durable. What it returns writes the record in the transaction of the
	// commit, so that there are both or neither. An error, which must be typed, prevents the commit. Nil: nothing is recorded.
	Audit func([]Happening) (func(*store.Tx) error, error)
	// AuditStarts says that Audit records the start of each call, also of those that have no effect.
	AuditStarts bool
	// Notify prepares what is told to the outside of a commit, which leaves the row as it is given and found it in another
	// status. What it returns writes that in the transaction; nil: there is nothing to tell. Nil: nobody is told anything.
	Notify func(row *store.Run, was store.Status, list []Happening) func(*store.Tx) error
	// Lineages names whom each of the principals counts as where it matters that two of them are different. Nil: each
	// counts as itself.
	Lineages func(ctx context.Context, principals []string) ([]string, error)
	// Ended is told of the end of each run that has an origin, once that is durable. It must return at once. Nil: nobody is.
	Ended func(*store.Run)
	// Wait waits for what runs have started, given up, and not got back; nil: there is nothing like that.
	Wait func(context.Context)
}

// Engine moves runs. It is safe for concurrent use. Its goroutines, one per run that moves, end with [Engine.Drain].
type Engine struct {
	*journal.Reader
	opts Options
	log  *slog.Logger

	// ctx is the parent of every run; it is cancelled when a drain has waited long enough.
	ctx    context.Context
	cancel context.CancelCauseFunc
	moving sync.WaitGroup
	timers timers

	altered atomic.Int64 // stored calls that were found changed

	mu       sync.Mutex      // guards the fields below
	live     map[string]*Run // by run id: the runs that a goroutine moves
	draining bool
}

// New makes an engine.
func New(o Options) *Engine {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = metrics.New("")
	}
	if o.Redact == nil {
		o.Redact = func(s string) string { return s }
	}
	o.MaxRuns = cmp.Or(o.MaxRuns, 10000)
	e := &Engine{Reader: journal.NewReader(o.Runs, o.Sessions, o.Forms), opts: o, log: o.Logger, live: map[string]*Run{}}
	e.timers.places = make(chan struct{}, dueBatch)
	e.ctx, e.cancel = context.WithCancelCause(context.Background())
	return e
}

// admit takes a place among the moving runs; force also beyond their number, for runs that exist already.
func (e *Engine) admit(r *Run, force bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.draining:
		return fault.New(fault.ServerDraining, "The server is stopping.").After(5 * time.Second)
	case len(e.live) >= e.opts.MaxRuns && !force:
		return fault.New(fault.Overloaded, "%d runs are in progress.", len(e.live)).After(time.Second)
	case e.live[r.Row.ID] != nil:
		return fault.New(fault.RunConflict, "The run is already in progress.")
	}
	e.enterLocked(r)
	return nil
}

func (e *Engine) enterLocked(r *Run) {
	e.live[r.Row.ID] = r
	e.moving.Add(1)
	e.opts.Metrics.InflightRuns.Set(float64(len(e.live)))
}

// release gives the place back.
func (e *Engine) release(r *Run) {
	e.vacate(r)
	e.moving.Done()
}

// vacate lets others take up the run. It is done before anybody can see that the run has ended or waits, so that who
// sees it can resume or abort it at once.
func (e *Engine) vacate(r *Run) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.live[r.Row.ID] == r {
		delete(e.live, r.Row.ID)
		e.opts.Metrics.InflightRuns.Set(float64(len(e.live)))
	}
}

// launch moves an admitted run in a goroutine of its own.
func (e *Engine) launch(r *Run, drive func() error) {
	r.unseal()
	go func() {
		defer e.release(r)
		r.advance(drive)
	}()
}

// Drain refuses new runs and waits for those that move. When ctx ends first, it cancels them: those that can continue
// after a restart are left as they are on disk, the others end as aborted. It returns when no goroutine is left, or a few
// seconds after the cancellation if a driver does not return.
func (e *Engine) Drain(ctx context.Context) error {
	e.mu.Lock()
	e.draining = true
	e.mu.Unlock()
	e.timers.stop()
	idle := make(chan struct{})
	go func() {
		e.moving.Wait()
		if e.opts.Wait != nil {
			ctx, cancel := context.WithTimeout(context.Background(), Grace)
			defer cancel()
			e.opts.Wait(ctx)
		}
		close(idle)
	}()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
	}
	e.cancel(errShutdown)
	select {
	case <-idle:
		return nil
	case <-time.After(Grace + 2*time.Second):
		return fault.New(fault.ShutdownTimeout, "%d run(s) did not end in time.", e.Moving())
	}
}

var errShutdown = fault.New(fault.ShutdownTimeout, "The server stopped before the run ended.")

// Moving is the number of runs that a goroutine moves.
func (e *Engine) Moving() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.live)
}

func (e *Engine) moved(runID string) *Run {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.live[runID]
}
