package run

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"sync"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/store"
)

// Identity is what never changes about a run.
type Identity struct {
	ID      string
	Number  int64 // in the order of creation
	Owner   string
	Session string // empty: none
}

// identities remembers the runs that were asked for last, so that a check of who may see a run costs no read.
type identities struct {
	mu   sync.Mutex // guards the fields below
	byID map[string]Identity
}

const maxIdentities = 4096

// forget drops runs that are erased.
func (k *identities) forget(runs []*store.Run) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, run := range runs {
		delete(k.byID, run.ID)
	}
}

// Identify returns a run's identity; run-not-found when there is none.
func (e *Engine) Identify(ctx context.Context, runID string) (Identity, error) {
	e.known.mu.Lock()
	known, ok := e.known.byID[runID]
	e.known.mu.Unlock()
	if ok {
		return known, nil
	}
	row, err := e.Find(ctx, runID)
	if err != nil {
		return Identity{}, err
	}
	v := Identity{row.ID, row.N, row.Owner, row.Session}
	e.known.mu.Lock()
	defer e.known.mu.Unlock()
	if e.known.byID == nil || len(e.known.byID) >= maxIdentities {
		e.known.byID = map[string]Identity{}
	}
	e.known.byID[runID] = v
	return v, nil
}

// Find returns a run's row; run-not-found when there is none.
func (e *Engine) Find(ctx context.Context, runID string) (*store.Run, error) {
	row, err := e.opts.Runs.Get(ctx, runID)
	if err != nil {
		return nil, missing(err, runID)
	}
	return row, nil
}

func missing(err error, runID string) error {
	if errors.Is(err, store.ErrNotFound) {
		return fault.New(fault.RunNotFound, "There is no run %q.", Clip(runID, 128))
	}
	return err
}

// Read reads a run with its record as they were at one moment; run-not-found when there is none.
func (e *Engine) Read(ctx context.Context, runID string) (row *store.Run, rec *Record, err error) {
	read := func(tx *store.Tx) (err error) {
		if row, err = e.opts.Runs.Find(tx, runID); err == nil {
			rec, err = Load(tx, e.opts.Runs, row)
		}
		return err
	}
	err = e.opts.Runs.View(ctx, func(tx *store.Tx) (err error) {
		if row, err = e.opts.Runs.Find(tx, runID); err == nil && row.Status.Terminal() { // nothing changes any more, so no snapshot is needed
			rec, err = Load(tx, e.opts.Runs, row)
		}
		return err
	})
	if err == nil && rec == nil {
		err = e.opts.Runs.Snapshot(ctx, read)
	}
	return row, rec, missing(err, runID)
}

// PendingOf reads what a run waits for.
func (e *Engine) PendingOf(tx *store.Tx, row *store.Run) ([]Approval, error) {
	if row.Slots&(1<<store.PendingSlot) == 0 {
		return nil, nil
	}
	return pendingOf(tx, e.opts.Runs, row)
}

// replayPage is how many stored events are read at a time.
const replayPage = 500

// Replay yields the durable events of a run after sequence number after, as they were published on the given view,
// until there are no more. It holds no transaction while it yields.
func (e *Engine) Replay(ctx context.Context, runID string, v event.View, after int, yield func(*hub.Entry) error) error {
	x := expander{e: e}
	for {
		page, err := e.page(ctx, &x, runID, v, after)
		if err != nil {
			return missing(err, runID)
		}
		for _, entry := range page {
			if err := yield(entry); err != nil {
				return err
			}
			after = entry.Pos.Seq
		}
		if len(page) < replayPage {
			return nil
		}
	}
}

// page reads the events of a run after one, with an expander that may have read some before.
func (e *Engine) page(ctx context.Context, x *expander, runID string, v event.View, after int) (entries []*hub.Entry, err error) {
	err = e.opts.Runs.Snapshot(ctx, func(tx *store.Tx) error {
		row, err := e.opts.Runs.Find(tx, runID)
		if err != nil {
			return err
		}
		stored, err := e.opts.Runs.Events(tx, row.N, after, replayPage)
		x.begin(tx, row)
		for _, s := range stored {
			ev, err := x.expand(row, s)
			if err != nil {
				return err
			}
			entry := &hub.Entry{Pos: hub.Position{Epoch: row.N, Seq: s.Seq}, Type: ev.Type, Payload: ev.Payload, Owner: row.Owner, Before: s.Transient,
				ID: event.Cursor{View: v, Run: row.ID, Seq: s.Seq}.String()}
			if s.Type == event.AgentEnd && v != event.SessionView {
				var at End
				if err := json.Unmarshal(s.Payload, &at); err != nil {
					return err
				}
				if at.Status.Terminal() && s.Seq < row.Events { // it was held, and continued
					at.Status = store.Awaiting
				}
				entry.Lifecycle = lifecycleOf(at.Status)
			}
			entries = append(entries, entry)
		}
		return err
	})
	return entries, err
}

// Backlog counts the durable events of a run after a number and before an entry of the same view, or all when that is
// nil, and returns the id of the last.
func (e *Engine) Backlog(ctx context.Context, runID string, v event.View, after int, before *hub.Entry) (n int, last string, err error) {
	row, err := e.Find(ctx, runID)
	if err != nil {
		return 0, "", err
	}
	n, last = backlog(row, v, after, before)
	return n, last, nil
}

func backlog(row *store.Run, v event.View, after int, before *hub.Entry) (int, string) {
	end := row.Events
	if before != nil && before.Pos.Epoch <= row.N {
		end = 0 // a later run's
		if before.Pos.Epoch == row.N {
			if end = before.Pos.Seq; before.Pos.Sub == 0 {
				end--
			}
		}
	}
	if end <= after {
		return 0, ""
	}
	return end - after, event.Cursor{View: v, Run: row.ID, Seq: end}.String()
}

// ReplaySession yields the durable events of a session's runs, in order: those after a position or, when that is zero,
// those of the runs that were made since the given time (milliseconds since 1970). A run that was aborted before its
// turn came is among them once its turn would have come.
func (e *Engine) ReplaySession(ctx context.Context, session string, after hub.Position, since int64, yield func(*hub.Entry) error) error {
	return e.eachOfSession(ctx, session, after, since, func(row *store.Run, seq int) error {
		return e.Replay(ctx, row.ID, event.SessionView, seq, yield)
	})
}

// SessionBacklog counts what ReplaySession would yield before an entry, or at all when that is nil, and returns the id of
// the last.
func (e *Engine) SessionBacklog(ctx context.Context, session string, after hub.Position, since int64, before *hub.Entry) (n int, last string, err error) {
	err = e.eachOfSession(ctx, session, after, since, func(row *store.Run, seq int) error {
		if more, id := backlog(row, event.SessionView, seq, before); more > 0 {
			n, last = n+more, id
		}
		return nil
	})
	return n, last, err
}

// eachOfSession calls fn for the runs of a session from the position's on, with the number of the event after which to
// begin.
func (e *Engine) eachOfSession(ctx context.Context, session string, after hub.Position, since int64, fn func(row *store.Run, seq int) error) error {
	from, first := max(after.Epoch, 1), int64(math.MaxInt64)
	for {
		var runs []*store.Run
		err := e.opts.Runs.View(ctx, func(tx *store.Tx) (err error) {
			open, err := e.opts.Runs.Open(tx, session)
			if err == nil && len(open) > 0 {
				first = open[0].N
			}
			if err == nil {
				runs, err = e.opts.Runs.List(tx, store.RunFilter{Session: session, From: from, Limit: replayPage})
			}
			return err
		})
		if err != nil {
			return err
		}
		for _, row := range runs {
			seq := 0
			switch {
			case row.Started == 0 && row.N >= first, after.Epoch == 0 && row.Created < since:
				continue
			case row.N == after.Epoch:
				seq = after.Seq
			}
			if err := fn(row, seq); err != nil {
				return err
			}
		}
		if len(runs) < replayPage {
			return nil
		}
		from = runs[len(runs)-1].N + 1
	}
}

// EraseSession deletes a session for good: its record, its runs, and all that was said in them, on disk and in the
// replay buffer. A run of it that is running keeps it from being erased; one that waits is erased with it. also, if not
// nil, is written in the same transaction. Errors: session-not-found, session-busy, storage-failed.
func (e *Engine) EraseSession(ctx context.Context, sessionID string, also func(*store.Tx) error) error {
	var erased []*store.Run
	err := e.opts.Sessions.Update(ctx, func(tx *store.Tx) (err error) {
		if erased, err = e.opts.Sessions.Erase(tx, sessionID); err == nil && also != nil {
			err = also(tx)
		}
		return err
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return fault.New(fault.SessionNotFound, "There is no session %q.", Clip(sessionID, 128))
	case errors.Is(err, store.ErrConflict):
		return fault.New(fault.SessionBusy, "A run of the session is in progress.").Advise("Abort that run first.")
	case err != nil:
		return err
	}
	e.opts.Hub.Drop(event.OfSession(sessionID).String())
	for _, run := range erased {
		for _, v := range views(run.Owner, run.ID, run.Session) {
			e.opts.Hub.Drop(v.subject)
		}
	}
	e.known.forget(erased)
	if ok, err := e.opts.Sessions.Checkpoint(ctx); err != nil || !ok {
		e.log.Warn("erased data remains in the write-ahead log until its next checkpoint", "error", err)
	}
	return nil
}
