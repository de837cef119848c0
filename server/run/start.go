package run

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math"
	"time"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/server/id"
	"agentd/server/journal"
	"agentd/server/span"
	"agentd/server/tracecontext"
	"agentd/store"
)

// StartRequest asks for a run.
type StartRequest struct {
	Kind      string          // of the owner; agent when empty
	Owner     string          // its id
	Input     json.RawMessage // any JSON; nil or null is the empty string
	SessionID string          // empty: none. A session that does not exist is made.
	UserID    string          // empty: none
	By        string          // the principal that asks; anonymous when empty
	Lineage   string          // whom the principal counts as; By when empty
	MayJoin   bool            // it may join a session that another has made
	Own       int64           // the thread whose own the session is: it may join it, and the session goes with it; 0: none
	Detached  bool            // nobody waits for its end but who subscribes to its events
	Queue     bool            // wait for the session's turn instead of failing with session-busy
	// Origin names what the run is started for: a firing of a trigger, for instance. Of several starts with the same one,
	// the first makes a run and the others return it. Empty: none.
	Origin string
	Host   int64 // the thread, or the run, that the run is a task of; see [store.Run]. 0: none
	Thread int64 // the thread that the run continues; 0: the run begins one, if its driver has threads
	Carry  any   // becomes Run.Carry
	// Then is written in the transaction that makes the run, after its row; n is its number. Its error prevents the run.
	Then func(tx *store.Tx, n int64) error
	// Also is written in the transaction that makes the run; its error prevents the run. The status is running, or pending
	// while the run waits for its session's turn.
	Also func(tx *store.Tx, runID string, status store.Status) error

	trace json.RawMessage // what the run keeps of the request that it is started by, see [span.Keep]
	links bool            // the session is only linked: the run takes no turn in it
}

// Anonymous is the principal, and the user of a session, where none is known.
const Anonymous = "anonymous"

// maxWaiting is how many runs may wait for their turn in one session.
const maxWaiting = 100

var (
	zeroUsage = json.RawMessage(`{"promptTokens":0,"completionTokens":0,"totalTokens":0}`)
	noModels  = json.RawMessage(`{}`)
)

// Start makes a run durable and sets it going. When it returns a handle, the run will end even if the process is
// killed; ctx ends the wait for the store only, and says which trace the run continues. Errors: route-handler-missing,
// config-invalid, scope-denied, session-busy, server-draining, overloaded, storage-failed.
func (e *Engine) Start(ctx context.Context, req StartRequest) (*Handle, error) {
	req.Kind = cmp.Or(req.Kind, "agent")
	owner := e.opts.Owner(req.Kind, req.Owner)
	if owner == nil {
		return nil, fault.New(fault.RouteHandlerMissing, "No %s %q is registered.", req.Kind, req.Owner)
	}
	if len(req.Input) == 0 || string(req.Input) == "null" {
		req.Input = json.RawMessage(`""`)
	}
	form, err := owner.Driver.Accept(req.Input)
	if err != nil {
		return nil, err
	}
	if req.SessionID != "" && !event.ValidID(req.SessionID) {
		return nil, fault.Invalid("The session id is not valid.", fault.At("has 1 to 128 characters of A-Z a-z 0-9 _ -", "sessionId"))
	}
	r := e.newRun(store.Run{ID: id.New(), Kind: req.Kind, Owner: req.Owner, Current: req.Owner, Session: req.SessionID, User: req.UserID, Origin: req.Origin,
		Host: req.Host, Thread: req.Thread,
		InputForm: form, Usage: zeroUsage, Models: noModels, Created: now(), StartedBy: cmp.Or(req.By, Anonymous)}, &journal.Record{})
	if req.By != "" && req.By != Anonymous {
		r.pays = cmp.Or(req.Lineage, req.By) // so that nobody looks it up
	}
	r.detached, r.Carry = req.Detached, req.Carry
	_, req.links = owner.Driver.(Recipient)
	caller := tracecontext.From(ctx)
	if req.trace = span.Keep(caller); req.trace != nil {
		r.trace = span.TraceOf(r.id, req.trace)
	}
	r.trace.Request = caller.Request
	if err := e.admit(r, false); err != nil {
		return nil, err
	}
	m, n, earlier, err := e.insert(ctx, r, req)
	switch {
	case err != nil:
		e.release(r)
		return nil, err
	case earlier != nil:
		e.release(r)
		return &Handle{ID: earlier.ID, Number: earlier.N, Status: earlier.Status, run: r, waiting: true}, nil
	}
	if m.Run.Thread = cmp.Or(req.Thread, n); !req.links {
		m.Run.Thread = 0
	}
	r.committed(m, n)
	h := &Handle{ID: r.Row.ID, Number: n, Status: r.Row.Status, run: r, waiting: r.Row.Status == store.Pending}
	if h.waiting {
		e.release(r) // whoever ends the run before it takes it up
	} else {
		e.launch(r, func() error { return owner.Driver.Drive(r) })
	}
	return h, nil
}

// insert writes the first move of a run: one that starts it, or one that keeps it until its session's turn comes. earlier
// is the run that has the same origin.
func (e *Engine) insert(ctx context.Context, r *Run, req StartRequest) (m *Move, n int64, earlier *store.Run, err error) {
	first, err := r.start(req.Input, store.Session{})
	if err != nil {
		return nil, 0, nil, err
	}
	record, err := e.record(first.happened)
	if err != nil {
		return nil, 0, nil, err
	}
	err = e.opts.Runs.Update(ctx, func(tx *store.Tx) error {
		if req.Origin != "" {
			if earlier, err = e.opts.Runs.ByOrigin(tx, req.Origin); !errors.Is(err, store.ErrNotFound) {
				return err
			}
		}
		if err := e.tooDeep(tx, &r.Row); err != nil {
			return err
		}
		m = first
		if req.SessionID != "" {
			sess, busy, err := e.JoinSession(tx, req)
			switch {
			case err != nil:
				return err
			case req.links:
			case busy:
				m = r.Move()
				m.Run.Status = store.Pending
				m.Slot(store.InputSlot, req.Input)
			case sess.Holders(req.Owner) != nil:
				if m, err = r.start(req.Input, sess); err != nil {
					return err
				}
			default:
				m.follow(r, sess)
			}
		}
		if req.trace != nil {
			m.Slot(store.TraceSlot, req.trace)
		}
		if req.Also != nil {
			if err := req.Also(tx, r.Row.ID, m.Run.Status); err != nil {
				return err
			}
		}
		if err := m.encode(); err != nil {
			return err
		}
		if n, err = e.opts.Runs.Apply(tx, &m.Change); err == nil && req.Then != nil {
			err = req.Then(tx, n)
		}
		if err == nil {
			err = record(tx)
		}
		return err
	})
	return m, n, earlier, err
}

// JoinSession returns the session, which it makes when there is none, and reports whether another run of it has not ended. Of a
// session that the principal may not join, the error is scope-denied and says nothing more.
func (e *Engine) JoinSession(tx *store.Tx, req StartRequest) (sess store.Session, busy bool, err error) {
	sess, err = e.opts.Sessions.Find(tx, req.SessionID)
	maker := cmp.Or(req.Lineage, req.By, Anonymous)
	switch {
	case errors.Is(err, store.ErrNotFound):
		sess = store.Session{ID: req.SessionID, User: cmp.Or(req.UserID, Anonymous), Agent: req.Owner, Created: tx.Now(), Maker: maker, Thread: req.Own}
		return sess, false, e.opts.Sessions.Insert(tx, sess)
	case err != nil:
		return sess, false, err
	case sess.Maker != maker && !req.MayJoin && (req.Own == 0 || sess.Thread != req.Own):
		scope := "sessions:write:" + sess.ID
		return sess, false, fault.New(fault.ScopeDenied, "Another principal created the session. A run in it requires the scope %s.", scope).With("required", scope)
	case req.UserID != "" && sess.User != req.UserID && sess.User != Anonymous:
		return sess, false, fault.Invalid("The session belongs to another user.", fault.At("is not the session's user", "userId"))
	case sess.Closed != 0:
		return sess, false, fault.Invalid("The session is closed.", fault.At("names a closed session", "sessionId"))
	}
	if req.links {
		return sess, false, nil
	}
	open, err := e.opts.Runs.Open(tx, req.SessionID)
	switch {
	case err != nil || len(open) == 0:
		return sess, false, err
	case !req.Queue:
		return sess, false, fault.New(fault.SessionBusy, "Run %s of the session has not ended.", open[0].ID).
			With("runId", open[0].ID).With("status", open[0].Status)
	case len(open) > maxWaiting:
		return sess, false, fault.New(fault.Overloaded, "%d runs of the session already wait.", maxWaiting).After(5 * time.Second)
	}
	return sess, true, nil
}

// Handle follows a run that was started.
type Handle struct {
	ID      string
	Number  int64        // in the order of creation
	Status  store.Status // when it was started: running, or pending while it waits for its session's turn
	run     *Run
	waiting bool // another goroutine moves it
}

// Wait blocks until the run has ended or waits, and returns how it stands then. When ctx ends first, the run continues and
// the error is ctx's cause. A status of running says that the server is stopping and the run continues later.
func (h *Handle) Wait(ctx context.Context) (*store.Run, *journal.Record, journal.End, error) {
	if h.waiting {
		return h.run.e.Wait(ctx, h.ID)
	}
	select {
	case <-h.run.done:
	case <-ctx.Done():
		return nil, nil, journal.End{}, context.Cause(ctx)
	}
	row, rec := &h.run.Row, h.run.Record
	if row.Dormant() {
		return h.run.e.Wait(ctx, h.ID)
	}
	return row, rec, journal.EndOf(row, rec, max(h.run.endedAt, row.Finished)), nil
}

// Wait is [Handle.Wait] for any run, also one that this process takes up later: it watches the run's events. Further
// errors: run-not-found, and server-draining when the server stops first.
func (e *Engine) Wait(ctx context.Context, runID string) (*store.Run, *journal.Record, journal.End, error) {
	failed := func(err error) (*store.Run, *journal.Record, journal.End, error) { return nil, nil, journal.End{}, err }
	row, err := e.Find(ctx, runID)
	if err != nil {
		return failed(err)
	}
	some := make(chan struct{}, 1)
	events := hub.NewQueue(1<<20, math.MaxInt, func() {
		select {
		case some <- struct{}{}:
		default:
		}
	})
	sub, _ := e.opts.Hub.Subscribe(event.OfRun(row.Kind, row.Owner, runID).String(), events, nil)
	defer sub.Close()
	var lost error // why no more events come
	for {
		row, rec, err := e.Read(ctx, runID)
		if err != nil {
			return failed(err)
		}
		if journal.Lifecycle(row.Status) != "" {
			return row, rec, journal.EndOf(row, rec, now()), nil
		}
		for ended := lost != nil; !ended; {
			select {
			case <-some:
			case <-ctx.Done():
				return failed(context.Cause(ctx))
			}
			if err := events.Drain(func(d hub.Delivery) {
				if d.Entry == nil {
					lost = d.Sub.Err()
				}
				ended = ended || d.Entry == nil || d.Entry.Lifecycle != ""
			}); err != nil {
				return failed(err)
			}
		}
		if errors.Is(lost, hub.ErrClosed) {
			return failed(fault.New(fault.ServerDraining, "The server stops. The run continues when it is back.").With("runId", runID))
		}
	}
}
