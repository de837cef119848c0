package store

import "context"

// SetTimer sets when a run is looked at next, in milliseconds since 1970; 0 clears it.
func (r *Runs) SetTimer(tx *Tx, run, due int64) error {
	if due == 0 {
		_, err := tx.exec("DELETE FROM timers WHERE run = ?", run)
		return err
	}
	return tx.put(1, "INSERT INTO timers (run, due) VALUES (?,?) ON CONFLICT (run) DO UPDATE SET due = excluded.due", run, due)
}

// replaceTimer is SetTimer for one who has read the timer as was; 0: there was none. One that was set meanwhile stays.
func (r *Runs) replaceTimer(tx *Tx, run, was, due int64) (err error) {
	if due == 0 {
		_, err = tx.exec("DELETE FROM timers WHERE run = ? AND due = ?", run, was)
	} else {
		_, err = tx.exec("INSERT INTO timers (run, due) VALUES (?,?) ON CONFLICT (run) DO UPDATE SET due = excluded.due WHERE due = ?", run, due, was)
	}
	return err
}

// Hasten makes a run due at a time at the latest. Its timer is another one than before in any case, so that a change
// which replaces that leaves this one.
func (r *Runs) Hasten(tx *Tx, run, at int64) error {
	return tx.put(1, "INSERT INTO timers (run, due) VALUES (?,?) ON CONFLICT (run) DO UPDATE SET due = min(excluded.due, due - 1)", run, at)
}

// Timer returns when a run is looked at next; 0: it has no timer.
func (r *Runs) Timer(tx *Tx, run int64) (due int64, err error) {
	return due, tx.row("SELECT coalesce((SELECT due FROM timers WHERE run = ?), 0)", run).Scan(&due)
}

// A Timer is when a run is looked at next.
type Timer struct {
	RunID string
	At    int64
}

// Due returns the timers that are due at a time, the earliest first, at most limit, and when the first of the others is due;
// 0: there is none.
func (r *Runs) Due(ctx context.Context, at int64, limit int) (due []Timer, next int64, err error) {
	timers, err := view(ctx, r.db, func(tx *Tx) ([]Timer, error) {
		return all(tx, func(t *Timer, to []any) []any { return append(to, &t.RunID, &t.At) },
			"SELECT r.id, t.due FROM timers t INDEXED BY timers_by_due JOIN runs r ON r.n = t.run ORDER BY t.due LIMIT ?", limit+1)
	})
	for i, t := range timers {
		if t.At > at || i == limit {
			return timers[:i], t.At, err
		}
	}
	return timers, 0, err
}

// NextDue returns when the first timer is due; 0: there is none.
func (r *Runs) NextDue(ctx context.Context) (due int64, err error) {
	return view(ctx, r.db, func(tx *Tx) (due int64, err error) {
		return due, tx.row("SELECT coalesce((SELECT due FROM timers INDEXED BY timers_by_due ORDER BY due LIMIT 1), 0)").Scan(&due)
	})
}
