package server

import (
	"context"
	"errors"
	"strings"
	"time"

	"agentd/server/audit"
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

// EraseAgain erases the session, the thread or the run that an entry of the chain says was erased. It reports whether there was
// one, and records it in the chain of this database. The error is store.ErrConflict while one of its runs continues. Close makes the
// log shorter, which may hold copies of what was erased.
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
	err = p.engine.EraseOld(ctx, func(tx *store.Tx) (runs []*store.Run, sessions []string, err error) {
		switch what {
		case "session":
			runs, err = p.db.Sessions().Erase(tx, name)
			sessions = []string{name}
		case "thread":
			workflow, thread, _ := strings.Cut(name, "/")
			var row store.Thread
			if row, err = p.db.Threads().Find(tx, workflow, thread); err == nil {
				runs, err = p.db.Threads().Erase(tx, row.N)
			}
		case "run":
			runs, err = p.db.Runs().Erase(tx, name)
		}
		if err == nil {
			err = also(tx)
		}
		return runs, sessions, err
	})
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}
