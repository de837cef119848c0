package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"agentd/metrics"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/server/id"
	"agentd/store"
)

// Options are what an engine works with.
type Options struct {
	Agents   *Registry
	Runs     *store.Runs
	Sessions *store.Sessions
	Hub      *hub.Hub
	Metrics  *metrics.Inventory
	Logger   *slog.Logger
	MaxRuns  int // runs that may move at once; 10000 when 0
	// Redact takes known secrets out of the message of an error before it is told or kept; nil: there are none.
	Redact func(string) string
	// Audit is told of what a commit is going to make durable, and returns when that is recorded: nothing that must be
	// recorded has an effect before. An error, which must be typed, keeps the commit from being made. What is told and
	// then not committed is told again with its Void set; a crash between the two leaves it told. Nil: nobody is told.
	Audit func(context.Context, []Happening) error
	// Lineages names whom each of the principals counts as where it matters that two of them are different. Nil: each
	// counts as itself.
	Lineages func(ctx context.Context, principals []string) ([]string, error)
}

// Engine runs agents. It is safe for concurrent use. Its goroutines, one per run that moves, end with [Engine.Drain].
type Engine struct {
	opts Options
	log  *slog.Logger

	// ctx is the parent of every run; it is cancelled when a drain has waited long enough.
	ctx    context.Context
	cancel context.CancelCauseFunc
	moving sync.WaitGroup
	known  identities

	altered atomic.Int64 // stored calls that were found changed

	mu       sync.Mutex             // guards the fields below
	live     map[string]*run        // by run id: the runs that a goroutine moves
	expiries map[string]*time.Timer // by run id: when an approval of it expires
	hushed   map[string][]*run      // by session: runs that were aborted before their turn, and not shown there yet
	draining bool
}

// driver moves runs of one kind of agent.
type driver interface {
	// accept checks an input before the run exists and says how the first messages tell it.
	accept(input json.RawMessage) (form string, err error)
	// open adds to the first move of a run whatever belongs there beside agent.start and the input.
	open(r *run, m *move)
	// drive moves the run until it has ended or waits. An error ends it; errLeft leaves it as it is on disk.
	drive(r *run) error
	// resumable reports whether a run can go on from what is on disk.
	resumable(r *run) bool
}

// errLeft says that a run is to be left as it is on disk, for the next start of the server to take up.
var errLeft = errors.New("the run is left for the next start")

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
	e := &Engine{opts: o, log: o.Logger, live: map[string]*run{}, expiries: map[string]*time.Timer{}, hushed: map[string][]*run{}}
	e.ctx, e.cancel = context.WithCancelCause(context.Background())
	return e
}

// StartRequest asks for a run.
type StartRequest struct {
	AgentID   string
	Input     json.RawMessage // any JSON; nil or null is the empty string
	SessionID string          // empty: none. A session that does not exist is made.
	UserID    string          // empty: none
	By        string          // the principal that asks; anonymous when empty
	Lineage   string          // whom the principal counts as; By when empty
	MayJoin   bool            // it may join a session that another has made
	Queue     bool            // wait for the session's turn instead of failing with session-busy
	// Also is written in the transaction that makes the run; its error keeps the run from being made. The status is
	// running, or pending while the run waits for its session's turn.
	Also func(tx *store.Tx, runID string, status store.Status) error
}

// Start makes a run durable and sets it going. When it returns a handle, the run will end even if the process is
// killed; ctx ends the wait for the store only. Errors: route-handler-missing, config-invalid, scope-denied, session-busy,
// server-draining, overloaded, storage-failed.
func (e *Engine) Start(ctx context.Context, req StartRequest) (*Handle, error) {
	reg := e.opts.Agents.Agent(req.AgentID)
	if reg == nil {
		return nil, fault.New(fault.RouteHandlerMissing, "No agent %q is registered.", req.AgentID)
	}
	if len(req.Input) == 0 || string(req.Input) == "null" {
		req.Input = json.RawMessage(`""`)
	}
	d := reg.driver()
	form, err := d.accept(req.Input)
	if err != nil {
		return nil, err
	}
	if req.SessionID != "" && !event.ValidID(req.SessionID) {
		return nil, fault.Invalid("The session id is not valid.", fault.At("has 1 to 128 characters of A-Z a-z 0-9 _ -", "sessionId"))
	}
	runID := id.New()
	r := e.newRun(store.Run{ID: runID, Kind: "agent", Owner: reg.ID, Current: reg.ID, Session: req.SessionID, User: req.UserID,
		InputForm: form, Usage: zeroUsage, Models: noModels, Created: now(), StartedBy: cmp.Or(req.By, anonymous)}, &record{}, reg)
	if req.By != "" && req.By != anonymous {
		r.pays = cmp.Or(req.Lineage, req.By) // so that nobody looks it up
	}
	if err := e.admit(r, false); err != nil {
		return nil, err
	}
	started := false
	defer func() {
		if !started {
			e.release(r)
		}
	}()
	first, err := r.firstMove(req.Input)
	if err != nil {
		return nil, err
	}
	waiting := r.waitingMove(req.Input)
	var m *move
	var n int64
	write := func(before *past, read bool) error {
		return e.opts.Runs.Update(ctx, func(tx *store.Tx) error {
			m = first
			if req.SessionID != "" {
				busy, err := e.joinSession(tx, r, req)
				if err != nil {
					return err
				}
				switch {
				case busy:
					m = waiting
				case !read:
					if before, err = e.readPast(tx, req.SessionID, reg); err != nil {
						return err
					}
				default:
					if err := before.isNow(tx, e.opts.Sessions, req.SessionID); err != nil {
						return err
					}
				}
				if !busy && before != nil {
					first.precede(before)
				}
			}
			if req.Also != nil {
				if err := req.Also(tx, runID, m.row.Status); err != nil {
					return err
				}
			}
			n, err = e.opts.Runs.Apply(tx, m.change())
			return err
		})
	}
	err = errGoneOn
	for reads := 0; errors.Is(err, errGoneOn) && reads < pastReads; reads++ {
		var before *past
		if req.SessionID != "" {
			if before, err = e.pastOf(ctx, req.SessionID, reg); err != nil {
				return nil, err
			}
		}
		err = write(before, true)
	}
	if errors.Is(err, errGoneOn) {
		err = write(nil, false)
	}
	if err != nil {
		return nil, err
	}
	started = true
	r.committed(m, n)
	if m == waiting {
		e.release(r) // whoever ends the run before it takes it up
		return &Handle{ID: runID, number: n, status: store.Pending, run: r, waiting: true}, nil
	}
	e.launch(r, func() error { return d.drive(r) })
	return &Handle{ID: runID, number: n, status: store.Running, run: r}, nil
}

// joinSession makes the session when there is none and reports whether another run of it has not ended. Of a session that
// the principal may not join, the error is scope-denied and says nothing more.
func (e *Engine) joinSession(tx *store.Tx, r *run, req StartRequest) (busy bool, err error) {
	sess, err := e.opts.Sessions.Find(tx, req.SessionID)
	maker := cmp.Or(req.Lineage, req.By, anonymous)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return false, e.opts.Sessions.Insert(tx, store.Session{ID: req.SessionID, User: cmp.Or(req.UserID, anonymous), Agent: req.AgentID, Created: tx.Now(), Maker: maker})
	case err != nil:
		return false, err
	case sess.Maker != maker && !req.MayJoin:
		scope := "sessions:write:" + sess.ID
		return false, fault.New(fault.ScopeDenied, "Another principal has made the session; the scope %s is needed to join it.", scope).With("required", scope)
	case req.UserID != "" && sess.User != req.UserID && sess.User != anonymous:
		return false, fault.Invalid("The session belongs to another user.", fault.At("is not the session's user", "userId"))
	case sess.Closed != 0:
		return false, fault.Invalid("The session is closed.", fault.At("names a closed session", "sessionId"))
	}
	open, err := e.opts.Runs.Open(tx, req.SessionID)
	if err != nil || len(open) == 0 {
		return false, err
	}
	if !req.Queue {
		return false, fault.New(fault.SessionBusy, "Run %s of the session has not ended.", open[0].ID).
			With("runId", open[0].ID).With("status", open[0].Status)
	}
	if len(open) > maxWaiting {
		return false, fault.New(fault.Overloaded, "%d runs of the session wait already.", maxWaiting).After(5 * time.Second)
	}
	return true, nil
}

// anonymous is the principal, and the user of a session, where none is told.
const anonymous = "anonymous"

// maxWaiting is how many runs may wait for their turn in one session.
const maxWaiting = 100

// admit takes a place among the moving runs; force also beyond their number, for runs that exist already.
func (e *Engine) admit(r *run, force bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.draining:
		return fault.New(fault.ServerDraining, "The server is stopping.").After(5 * time.Second)
	case len(e.live) >= e.opts.MaxRuns && !force:
		return fault.New(fault.Overloaded, "%d runs are under way.", len(e.live)).After(time.Second)
	case e.live[r.row.ID] != nil:
		return fault.New(fault.RunConflict, "The run is moving already.")
	}
	e.live[r.row.ID] = r
	e.moving.Add(1)
	e.opts.Metrics.InflightRuns.Set(float64(len(e.live)))
	return nil
}

// release gives the place back.
func (e *Engine) release(r *run) {
	e.vacate(r)
	e.moving.Done()
}

// vacate lets others take up the run. It is done before anybody can see that the run has ended or waits, so that who
// sees it can resume or abort it at once.
func (e *Engine) vacate(r *run) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.live[r.row.ID] == r {
		delete(e.live, r.row.ID)
		e.opts.Metrics.InflightRuns.Set(float64(len(e.live)))
	}
}

// launch moves an admitted run in a goroutine of its own.
func (e *Engine) launch(r *run, drive func() error) {
	go func() {
		defer e.release(r)
		r.advance(drive)
	}()
}

// Drain refuses new runs and waits for those that move. When ctx ends first, it cancels them: those that can go on
// after a restart are left as they are on disk, the others end as aborted. It returns when no goroutine is left, or
// a few seconds after the cancellation if an agent does not end.
func (e *Engine) Drain(ctx context.Context) error {
	e.mu.Lock()
	e.draining = true
	for _, t := range e.expiries {
		t.Stop()
	}
	e.mu.Unlock()
	idle := make(chan struct{})
	go func() {
		e.moving.Wait()
		e.waitTools()
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
	case <-time.After(grace + 2*time.Second):
		return fault.New(fault.ShutdownTimeout, "%d run(s) did not end in time.", e.Moving())
	}
}

// waitTools waits for tool calls that were given up and have not returned.
func (e *Engine) waitTools() {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	for _, reg := range e.opts.Agents.Agents() {
		if reg.LLM != nil {
			if err := reg.LLM.Tools.Wait(ctx); err != nil {
				e.log.Warn("a tool has not returned", "agent", reg.ID)
			}
		}
	}
}

var errShutdown = fault.New(fault.ShutdownTimeout, "The server stopped before the run had ended.")

// Moving is the number of runs that a goroutine moves.
func (e *Engine) Moving() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.live)
}

func (e *Engine) moved(runID string) *run {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.live[runID]
}

// Handle follows a run that was started.
type Handle struct {
	ID      string
	number  int64
	status  store.Status // when it was started
	run     *run
	waiting bool // for its session's turn
}

// Number is the run's number in the order of creation.
func (h *Handle) Number() int64 { return h.number }

// Status is the run's status when it was started: running, or pending while it waits for its session's turn.
func (h *Handle) Status() store.Status { return h.status }

// Wait blocks until the run has ended or waits for an approval, and tells how. When ctx ends first, the run goes on
// and the error is ctx's cause. A status of running says that the server is stopping and the run goes on later.
func (h *Handle) Wait(ctx context.Context) (RunResult, error) {
	if h.waiting {
		return h.run.e.Wait(ctx, h.ID)
	}
	select {
	case <-h.run.done:
	case <-ctx.Done():
		return RunResult{}, context.Cause(ctx)
	}
	return result(&h.run.row, h.run.rec, ending(&h.run.row, h.run.rec, max(h.run.endedAt, h.run.row.Finished)))
}

// Wait is [Handle.Wait] for any run, also one that this process takes up later: it watches the run's events. Besides, the
// error is run-not-found, and server-draining when the server stops first.
func (e *Engine) Wait(ctx context.Context, runID string) (RunResult, error) {
	row, err := e.Find(ctx, runID)
	if err != nil {
		return RunResult{}, err
	}
	sub, _ := e.opts.Hub.Subscribe(event.OfAgentRun(row.Owner, runID).String(), 1<<20)
	defer sub.Close()
	for {
		var rec *record
		err := e.opts.Runs.Snapshot(ctx, func(tx *store.Tx) (err error) {
			if row, err = e.opts.Runs.Find(tx, runID); err == nil && lifecycleOf(row.Status) != "" {
				rec, err = load(tx, e.opts.Runs, row)
			}
			return err
		})
		if errors.Is(err, store.ErrNotFound) {
			err = fault.New(fault.RunNotFound, "No run %q.", clip(runID, 128))
		}
		if err != nil {
			return RunResult{}, err
		}
		if rec != nil {
			return result(row, rec, ending(row, rec, now()))
		}
		for ended := false; !ended; {
			batch, err := sub.Next(ctx)
			switch {
			case errors.Is(err, hub.ErrErased):
				ended = true
			case errors.Is(err, hub.ErrClosed):
				return RunResult{}, fault.New(fault.ServerDraining, "The server stops; the run goes on when it is back.").With("runId", runID)
			case err != nil:
				return RunResult{}, err
			}
			for _, entry := range batch {
				ended = ended || entry.Lifecycle != ""
			}
		}
	}
}

func now() int64 { return time.Now().UnixMilli() }

var (
	zeroUsage = json.RawMessage(`{"promptTokens":0,"completionTokens":0,"totalTokens":0}`)
	noModels  = json.RawMessage(`{}`)
)
