package run

import (
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/store"
	"context"
	"errors"
)

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
		return fault.New(fault.SessionNotFound, "There is no session %q.", journal.Clip(sessionID, 128))
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
	e.Forget(erased)
	if ok, err := e.opts.Sessions.Checkpoint(ctx); err != nil || !ok {
		e.log.Warn("erased data remains in the write-ahead log until its next checkpoint", "error", err)
	}
	return nil
}
