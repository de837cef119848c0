package triggers

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"agentd/server/id"
	"agentd/store"
)

// miss records the dues that do not fire, in ranges, and moves the cursor behind them. Dues that the ledger has already split a range:
// they were accounted for before the clock was set back.
func (e *Engine) miss(ctx context.Context, en *entry, a account) error {
	e.opts.Logger.Info("a trigger has missed dues", "trigger", en.id, "missed", a.missed)
	s, _ := en.decl.dues(en.row.Cursor)
	for from, missed := a.firstMissed-1, int64(0); from < a.lastMissed; {
		now := time.Now().UnixMilli()
		row, until := en.row, a.lastMissed
		if err := e.opts.Store.Update(ctx, func(tx *store.Tx) error {
			row, until = en.row, a.lastMissed
			row.Missed, row.Updated = missed, now
			known, err := e.opts.Store.Accounted(tx, en.n, from+1, until, rowsAtOnce)
			if err != nil {
				return err
			}
			if len(known) == rowsAtOnce {
				until = known[rowsAtOnce-1].Due
			}
			after := from
			for _, k := range append(known, store.Firing{Due: until + 1}) {
				if k.Due <= until && s.Count(at(k.Due-1), at(k.Due)) == 0 {
					continue // the interval had another begin then
				}
				if n := s.Count(at(after), at(k.Due-1)); n > 0 {
					first, _ := s.Next(at(after))
					f := &store.Firing{Trigger: en.n, ID: id.New(), Slot: slot(first.UnixMilli()), Due: first.UnixMilli(), LastDue: s.Newest(at(after), at(k.Due-1), 1)[0].UnixMilli(),
						Dues: n, At: now, Origin: OfCatchUp, Outcome: Missed}
					if err = e.opts.Store.Add(tx, f); err == nil && e.opts.Missed != nil {
						err = e.opts.Missed(tx, cmp.Or(en.decl.Agent, en.decl.Workflow), shown(en.id, f))
					}
					if err != nil {
						return err
					}
					row.Missed += n
				}
				after = k.Due
			}
			for _, last := range s.Newest(at(from), at(until), 1) {
				row.Cursor = last.UnixMilli()
			}
			return e.opts.Store.Set(tx, &row)
		}); err != nil {
			return err
		}
		en.row, from, missed = row, until, row.Missed
	}
	return nil
}

// slot is the slot of a due.
func slot(due int64) string { return "t:" + strconv.FormatInt(due, 10) }

// unmiss ends the ranges of missed dues at a trigger's cursor, which the clock has moved back: the dues after it will be due again.
func (e *Engine) unmiss(tx *store.Tx, c *compiled, row *store.Trigger) error {
	for {
		ahead, err := e.opts.Store.Ahead(tx, row.N, row.Cursor, rowsAtOnce)
		if err != nil {
			return err
		}
		for i := range ahead {
			f := &ahead[i]
			s, ok := c.dues(f.Due - c.EveryMs)
			if !ok {
				return nil
			}
			last := int64(0)
			for _, due := range s.Newest(at(f.Due-1), at(row.Cursor), 1) {
				last = due.UnixMilli()
			}
			if err := e.opts.Store.Cut(tx, f.N, last, min(s.Count(at(f.Due-1), at(row.Cursor)), f.Dues)); err != nil {
				return err
			}
		}
		if len(ahead) < rowsAtOnce {
			return nil
		}
	}
}
