package store

import "context"

// SetTimer sets when a run is looked at next, in milliseconds since 1970; 0 clears it.
func (r *Runs) SetTimer(tx *Tx, run, due int64) error { return setTimer(tx, run, due) }

func setTimer(tx *Tx, run, due int64) error {
	if due == 0 {
		_, err := tx.exec("DELETE FROM timers WHERE run = ?", run)
		return err
	}
	return tx.put(1, "INSERT INTO timers (run, due) VALUES (?,?) ON CONFLICT (run) DO UPDATE SET due = excluded.due", run, due)
}

// Due returns the ids of runs whose timers are due at a time, the earliest first, at most limit, and when the first of the
// others is due; 0: there is none.
func (r *Runs) Due(ctx context.Context, at int64, limit int) (ids []string, next int64, err error) {
	type timer struct {
		run string
		due int64
	}
	timers, err := view(ctx, r.db, func(tx *Tx) ([]timer, error) {
		return all(tx, func(t *timer, to []any) []any { return append(to, &t.run, &t.due) },
			"SELECT r.id, t.due FROM timers t INDEXED BY timers_by_due JOIN runs r ON r.n = t.run ORDER BY t.due LIMIT ?", limit+1)
	})
	for _, t := range timers {
		if t.due > at || len(ids) == limit {
			return ids, t.due, err
		}
		ids = append(ids, t.run)
	}
	return ids, 0, err
}

// NextDue returns when the first timer is due; 0: there is none.
func (r *Runs) NextDue(ctx context.Context) (due int64, err error) {
	return view(ctx, r.db, func(tx *Tx) (due int64, err error) {
		return due, tx.row("SELECT coalesce((SELECT due FROM timers INDEXED BY timers_by_due ORDER BY due LIMIT 1), 0)").Scan(&due)
	})
}
