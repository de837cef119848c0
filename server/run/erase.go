package run

import (
	"context"
	"errors"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/tracecontext"
	"agentd/store"
)

// EraseSession deletes a session for good: its record, its runs, the threads that are linked to it, and all that was said in
// them, on disk and in the replay buffer. A run of it that is running keeps it from being erased; one that waits is erased with
// it. also, if not nil, is written in the same transaction. Errors: session-not-found, session-busy, storage-failed.
func (e *Engine) EraseSession(ctx context.Context, sessionID string, also func(*store.Tx) error) error {
	err := e.Erase(ctx, func(tx *store.Tx) ([]*store.Run, error) {
		erased, err := e.opts.Sessions.Erase(tx, sessionID)
		if err == nil && also != nil {
			err = also(tx)
		}
		return erased, err
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return fault.New(fault.SessionNotFound, "There is no session %q.", journal.Clip(sessionID, 128))
	case errors.Is(err, store.ErrConflict):
		return fault.New(fault.SessionBusy, "A run of the session is in progress.").Advise("Abort that run first.")
	case err != nil:
		return err
	}
	e.opts.Hub.Drop(event.OfSession(sessionID).String()) // also if it had no runs
	return nil
}

// Erase runs a function that erases, in a transaction, and returns the runs that it has erased. Afterwards nothing in memory
// shows them, see [Engine.Erased], and the freed space is overwritten. It returns the function's errors.
func (e *Engine) Erase(ctx context.Context, erase func(*store.Tx) ([]*store.Run, error)) error {
	err := e.EraseOld(ctx, func(tx *store.Tx) ([]*store.Run, []string, error) {
		runs, err := erase(tx)
		return runs, nil, err
	})
	if err != nil {
		return err
	}
	e.Overwrite(ctx)
	return nil
}

// EraseOld is [Engine.Erase] for many erasures: the caller calls [Engine.Overwrite] once after
// all of them. The function also returns the ids of the sessions that it has erased.
func (e *Engine) EraseOld(ctx context.Context, erase func(*store.Tx) ([]*store.Run, []string, error)) error {
	var forget func()
	var sessions []string
	err := e.opts.Sessions.Update(ctx, func(tx *store.Tx) error {
		var erased []*store.Run
		var err error
		if erased, sessions, err = erase(tx); err == nil {
			forget, err = e.Erased(tx, erased)
		}
		return err
	})
	if err != nil {
		return err
	}
	forget()
	for _, id := range sessions { // also if they had no runs
		e.opts.Hub.Drop(event.OfSession(id).String())
	}
	return nil
}

// Overwrite empties the write-ahead log, which may hold copies of erased rows.
func (e *Engine) Overwrite(ctx context.Context) {
	if ok, err := e.opts.Sessions.Checkpoint(ctx); err != nil || !ok {
		tracecontext.Log(ctx, e.log).Warn("erased data remains in the write-ahead log until its next checkpoint", "error", err)
	}
}

// Erased returns the function that removes erased runs from memory. The caller calls it once the transaction that erased them is
// committed. Subscribers of erased subjects are disconnected; a subject that other runs share keeps their events. Hosts of erased
// runs check what they wait for, and the next runs of sessions that remain begin.
func (e *Engine) Erased(tx *store.Tx, erased []*store.Run) (forget func(), err error) {
	stay := map[string]bool{} // whether a session of an erased run is still there
	for _, run := range erased {
		if _, known := stay[run.Session]; known || run.Session == "" {
			continue
		}
		_, err := e.opts.Sessions.Find(tx, run.Session)
		if stay[run.Session] = err == nil; err != nil && !errors.Is(err, store.ErrNotFound) {
			return nil, err
		}
	}
	return func() {
		e.drop(erased, stay)
		e.Forget(erased)
		for session, stays := range stay {
			if stays {
				e.next(session)
			}
		}
	}, nil
}

// drop takes erased runs out of the hub, and arms the timer of hosts that stay.
func (e *Engine) drop(erased []*store.Run, stay map[string]bool) {
	gone, hosted := map[int64]bool{}, false
	for _, run := range erased {
		gone[run.N] = true
		hosted = hosted || run.Host != 0 || run.Caller() != ""
	}
	purged := map[string]bool{}
	for _, run := range erased {
		for _, v := range views(run) {
			s, err := event.ParseSubject(v.subject)
			shared := err == nil && s.Run == "" && (s.Kind != event.SessionEvents || stay[s.Owner])
			switch {
			case !shared:
				e.opts.Hub.Drop(v.subject)
			case !purged[v.subject]:
				purged[v.subject] = true
				e.opts.Hub.Purge(v.subject, gone)
			}
		}
	}
	if hosted {
		e.timers.arm(e, now())
	}
}
