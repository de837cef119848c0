package triggers

import (
	"context"
	"time"

	"agentd/server/fault"
	"agentd/store"
)

// Restored accounts for the time that a restored database knows nothing of, which may have happened already: the dues since the
// backup are missed and, unless resume, queued firings fail. It is called in the place of Run, after Load. The next Run starts at the
// present.
func (e *Engine) Restored(ctx context.Context, resume bool) error {
	for _, en := range e.all() {
		if err := e.restored(ctx, en, resume); err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) restored(ctx context.Context, en *entry, resume bool) error {
	en.mu.Lock()
	defer en.mu.Unlock()
	if now := time.Now().UnixMilli(); en.firable(now) == nil && en.decl.Kind != EventKind {
		a := en.decl.accountFor(en.row.Cursor, now, true, true)
		if a.missed > 0 {
			if err := e.miss(ctx, en, a); err != nil {
				return err
			}
		}
	}
	for !resume {
		var queued []store.Firing
		if err := e.opts.Store.View(ctx, func(tx *store.Tx) (err error) {
			queued, err = e.opts.Store.Queued(tx, en.n, rowsAtOnce)
			return err
		}); err != nil || len(queued) == 0 {
			return err
		}
		if err := e.opts.Store.Update(ctx, func(tx *store.Tx) error {
			for i := range queued {
				f := &queued[i]
				f.Outcome, f.Reason, f.Open, f.Next, f.Carry = Failed, fault.Restored.Code, false, 0, nil
				if err := e.opts.Store.Change(tx, f); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}
