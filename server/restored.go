package server

import (
	"context"
	"errors"
	"strings"
	"time"

	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/store"
)

// EndLost accounts for the time since the backup: see [triggers.Engine.Restored]. Unless resume, it also ends what the restored
// database shows as moving, see [run.Engine.EndLost], and returns how many runs that are.
func (l *Local) EndLost(ctx context.Context, resume bool) (int, error) {
	if err := l.server.triggers.Restored(ctx, resume); err != nil || resume {
		return 0, err
	}
	return l.parts.engine.EndLost(ctx, time.Now().UnixMilli())
}

// EraseAgain erases the session or the thread that an entry of the chain says was erased. It reports whether there was one, and
// records it in the chain of this database. Errors: session-busy and thread-running.
func (l *Local) EraseAgain(ctx context.Context, e *audit.Entry) (erased bool, err error) {
	what, name, _ := strings.Cut(e.Target, ":")
	if e.Decision != audit.Success || erasures[what] != audit.Action(e.Action) {
		return false, nil
	}
	p := l.parts
	also := func(*store.Tx) error { return nil }
	if p.audit != nil {
		if also, err = p.recordErased(what, []string{name}); err != nil {
			return false, err
		}
	}
	switch what {
	case "session":
		err = p.engine.EraseSession(ctx, name, also)
	case "thread":
		workflow, thread, _ := strings.Cut(name, "/")
		err = p.engine.Erase(ctx, func(tx *store.Tx) ([]*store.Run, error) {
			row, err := p.db.Threads().Find(tx, workflow, thread)
			if err != nil {
				return nil, err
			}
			runs, err := p.db.Threads().Erase(tx, row.N)
			if err == nil {
				err = also(tx)
			}
			return runs, err
		})
		if errors.Is(err, store.ErrConflict) {
			err = fault.New(fault.ThreadRunning, "A run of the thread %q is in progress.", name).Because(err)
		}
	default:
		return false, nil // retention erases such runs again
	}
	if fault.Is(err, fault.SessionNotFound) || errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}
