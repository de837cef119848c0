package triggers

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"agentd/server/fault"
	"agentd/store"
)

// takeEnded returns the runs whose end is not accounted for yet.
func (e *Engine) takeEnded() []ending {
	e.mu.Lock()
	defer e.mu.Unlock()
	ended := e.ended
	e.ended = nil
	return ended
}

// settle accounts for runs that have ended, and has their triggers looked at where firings wait.
func (e *Engine) settle(ctx context.Context, ended []ending) {
	for some := range slices.Chunk(ended, settleBatch) {
		if err := e.close(ctx, some); err != nil {
			e.opts.Logger.Warn("the ends of triggers' runs are accounted for later", "runs", len(some), "error", fault.Of(err).Message)
		}
	}
}

// close accounts for the ends of runs in one transaction. An empty status says that the run is gone.
func (e *Engine) close(ctx context.Context, ended []ending) error {
	open := make([]store.Firing, len(ended)) // the zero value: none, or its trigger is gone
	entries := map[int64]*entry{}
	err := e.opts.Store.View(ctx, func(tx *store.Tx) error {
		for i, run := range ended {
			f, err := e.opts.Store.OfRun(tx, run.run)
			if en := e.numbered(f.Trigger); en != nil {
				open[i], entries[en.n] = f, en
			} else if err != nil && !errors.Is(err, store.ErrNotFound) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	rows := map[int64]*store.Trigger{}
	for _, en := range slices.SortedFunc(maps.Values(entries), func(a, b *entry) int { return strings.Compare(a.id, b.id) }) { // the order of locks
		en.mu.Lock()
		defer en.mu.Unlock()
		if !en.gone {
			row := en.row
			row.Updated, rows[en.n] = time.Now().UnixMilli(), &row
		}
	}
	for i, run := range ended {
		row := rows[open[i].Trigger]
		switch {
		case row == nil:
		case run.status == store.Completed:
			row.Failures = 0
		case run.status == store.Failed:
			e.failed(ctx, row, entries[row.N].decl)
		}
	}
	if err := e.opts.Store.Update(ctx, func(tx *store.Tx) error {
		for i := range open {
			f := open[i]
			if f.Open = false; rows[f.Trigger] == nil {
				continue
			}
			if err := e.opts.Store.Change(tx, &f); err != nil && !errors.Is(err, store.ErrNotFound) {
				return err
			}
		}
		for _, row := range rows {
			if err := e.opts.Store.Set(tx, row); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	for n, row := range rows {
		if entries[n].row = *row; entries[n].queue {
			e.plan(entries[n], 0)
		}
	}
	for i, run := range ended {
		if row := rows[open[i].Trigger]; row != nil && run.status != "" {
			e.count(row.ID, run.status == store.Completed)
		}
	}
	return nil
}

// settleOpen accounts for all runs that have ended unnoticed, before a crash or because they were erased, and starts what is queued.
func (e *Engine) settleOpen(ctx context.Context) {
	for after := int64(0); ctx.Err() == nil; {
		open, err := e.opts.Store.Opened(ctx, after, openBatch)
		if err != nil {
			e.opts.Logger.Warn("open firings cannot be read", "error", fault.Of(err).Message)
			return
		}
		var ended []ending
		queues := map[*entry]bool{}
		for _, o := range open {
			after = o.N
			switch {
			case o.Run == "":
				if en := e.numbered(o.Trigger); en != nil {
					queues[en] = true
				}
			case o.Status == "", o.Status.Terminal():
				ended = append(ended, ending{o.Run, o.Status})
			}
		}
		for en := range queues {
			en.mu.Lock()
			en.queue = true
			en.mu.Unlock()
			e.plan(en, 0)
		}
		e.settle(ctx, ended)
		if len(open) < openBatch {
			return
		}
	}
}
