package store

import (
	"errors"
	"slices"
)

// Expiry is the repository of what retention deletes. A method that deletes does so in the caller's transaction. With dry, it
// only counts.
type Expiry struct{ access }

// Expiry gives access to what retention deletes.
func (db *DB) Expiry() *Expiry { return &Expiry{access{db}} }

// A Place is a position in the order in which a rule reads a table. The zero value is before all rows.
type Place struct {
	At  int64  // a time in milliseconds since 1970
	Key int64  // of the row
	ID  string // of the row, where that is a text
}

// Before is the place of the last row that is older than a time.
func Before(at int64) Place { return Place{At: at - 1, Key: maxKey} }

const maxKey = 1<<63 - 1

// A Page is what a method has looked at.
type Page struct {
	Looked  int   // how many rows; fewer than the limit: there are no more
	Deleted int   // of them
	Last    Place // of the last one
}

// Spans deletes batches of spans after one place and up to another one, and looks at no more than limit. It leaves the spans of
// runs that have not ended, and those of runs that were called or hosted by one that has not ended.
func (x *Expiry) Spans(tx *Tx, after, upTo Place, limit int, dry bool) (p Page, err error) {
	rows, err := all(tx, func(p *Place, to []any) []any { return append(to, &p.At, &p.Key) },
		"SELECT at, key FROM spans INDEXED BY spans_by_age WHERE (at, key) > (?, ?) AND at <= ? ORDER BY at, key LIMIT ?", after.At, after.Key, upTo.At, limit)
	ended := map[int64]bool{} // by the number of the run
	for _, row := range rows {
		if row.At == upTo.At && row.Key > upTo.Key {
			break
		}
		p.Looked, p.Last = p.Looked+1, row
		n := row.Key >> 24
		if _, known := ended[n]; err == nil && !known {
			ended[n], err = x.ended(tx, n)
		}
		if err != nil || !ended[n] {
			continue
		}
		if p.Deleted++; !dry {
			_, err = tx.exec("DELETE FROM spans WHERE key = ?", row.Key)
		}
	}
	return p, err
}

// SpansOver returns the place up to which spans are deleted so that most remain, or ErrNotFound when there are no more.
func (x *Expiry) SpansOver(tx *Tx, most int64) (p Place, err error) {
	return p, tx.row("SELECT at, key FROM spans INDEXED BY spans_by_age ORDER BY at DESC, key DESC LIMIT 1 OFFSET ?", most).Scan(&p.At, &p.Key)
}

// Firings deletes firings of triggers after one place and up to another one, in the order in which they were written, and looks at
// no more than limit. It leaves those that are queued or whose run has not ended, and the latest of each trigger.
func (x *Expiry) Firings(tx *Tx, after, upTo Place, limit int, dry bool) (p Page, err error) {
	type firing struct {
		Place
		trigger int64
		open    bool
	}
	rows, err := all(tx, func(f *firing, to []any) []any { return append(to, &f.At, &f.Key, &f.trigger, &f.open) },
		"SELECT at, n, trigger_n, open FROM firings WHERE n > ? ORDER BY n LIMIT ?", after.Key, limit)
	latest := map[int64]int64{} // by trigger
	for _, row := range rows {
		if row.Key > upTo.Key || row.At > upTo.At {
			break
		}
		p.Looked, p.Last = p.Looked+1, row.Place
		if _, known := latest[row.trigger]; err == nil && !known {
			var n int64
			err = tx.row("SELECT n FROM firings INDEXED BY firings_by_trigger WHERE trigger_n = ? ORDER BY n DESC LIMIT 1", row.trigger).Scan(&n)
			latest[row.trigger] = n
		}
		if err != nil || row.open || row.Key == latest[row.trigger] {
			continue
		}
		if p.Deleted++; !dry {
			_, err = tx.exec("DELETE FROM firings WHERE n = ?", row.Key)
		}
	}
	return p, err
}

// FiringsOver returns the place up to which firings are deleted so that most remain, or ErrNotFound when there are no more.
func (x *Expiry) FiringsOver(tx *Tx, most int64) (p Place, err error) {
	return p, tx.row("SELECT at, n FROM firings ORDER BY n DESC LIMIT 1 OFFSET ?", most).Scan(&p.At, &p.Key)
}

// Delivered and Dead delete notifications after one place and up to another one, in the order in which they were written, and look at
// no more than limit: those that were delivered, and those that are not tried any more.
func (x *Expiry) Delivered(tx *Tx, after, upTo Place, limit int, dry bool) (Page, error) {
	return x.notifications(tx, "delivered", after, upTo, limit, dry)
}

// Dead is documented with [Expiry.Delivered].
func (x *Expiry) Dead(tx *Tx, after, upTo Place, limit int, dry bool) (Page, error) {
	return x.notifications(tx, "dead", after, upTo, limit, dry)
}

func (x *Expiry) notifications(tx *Tx, state string, after, upTo Place, limit int, dry bool) (p Page, err error) {
	type row struct {
		Place
		state string
	}
	rows, err := all(tx, func(v *row, to []any) []any { return append(to, &v.At, &v.Key, &v.state) },
		"SELECT at, n, state FROM notifications WHERE n > ? ORDER BY n LIMIT ?", after.Key, limit)
	for _, v := range rows {
		if v.At > upTo.At {
			break
		}
		if p.Looked, p.Last = p.Looked+1, v.Place; err != nil || v.state != state {
			continue
		}
		if p.Deleted++; !dry {
			_, err = tx.exec("DELETE FROM notifications WHERE n = ?", v.Key)
		}
	}
	return p, err
}

// ended reports whether a run has ended, and so have all runs above it. One that does not exist has.
func (x *Expiry) ended(tx *Tx, n int64) (bool, error) {
	runs := x.db.Runs()
	run, err := runs.Number(tx, n)
	for err == nil {
		if !settled(run) {
			return false, nil
		}
		run, err = runs.Above(tx, run)
	}
	if errors.Is(err, ErrNotFound) {
		return true, nil
	}
	return false, err
}

// settled reports whether a run has ended and holds no approvals, with which it could continue.
func settled(run *Run) bool { return run.Status.Terminal() && run.Slots&(1<<PendingSlot) == 0 }

// Keys deletes up to limit records of requests with a key that had expired at a time. A record that is bound to a run does not
// expire while the run exists.
func (x *Expiry) Keys(tx *Tx, after, upTo Place, limit int, dry bool) (p Page, err error) {
	rows, err := all(tx, func(p *Place, to []any) []any { return append(to, &p.At, &p.Key) },
		`SELECT expires_at, rowid FROM idempotency_records INDEXED BY idempotency_by_expiry WHERE bound = 0 AND (expires_at, rowid) > (?, ?)
		AND expires_at <= ? ORDER BY expires_at, rowid LIMIT ?`, after.At, after.Key, upTo.At, limit)
	for _, row := range rows {
		p.Looked, p.Last, p.Deleted = p.Looked+1, row, p.Deleted+1
		if err == nil && !dry {
			_, err = tx.exec("DELETE FROM idempotency_records WHERE rowid = ?", row.Key)
		}
	}
	return p, err
}

// Sessions returns up to limit sessions after a place that were created before a time, the oldest first.
func (x *Expiry) Sessions(tx *Tx, after Place, before int64, limit int) ([]Place, error) {
	return all(tx, func(p *Place, to []any) []any { return append(to, &p.At, &p.ID) },
		"SELECT created_at, id FROM sessions INDEXED BY sessions_by_age WHERE (created_at, id) > (?, ?) AND created_at < ? ORDER BY created_at, id LIMIT ?",
		after.At, after.ID, before, limit)
}

// Threads returns up to limit threads after a place that were created before a time, the oldest first.
func (x *Expiry) Threads(tx *Tx, after Place, before int64, limit int) (list []Place, err error) {
	rows, err := all(tx, func(p *Place, to []any) []any { return append(to, &p.At, &p.Key) },
		"SELECT created_at, n FROM threads WHERE n > ? ORDER BY n LIMIT ?", after.Key, limit)
	return slices.DeleteFunc(rows, func(p Place) bool { return p.At >= before }), err
}

// Runs returns up to limit runs of agents after a place that ended before a time, the first to end first: runs without a
// session that nothing called or hosts.
func (x *Expiry) Runs(tx *Tx, after Place, before int64, limit int) ([]Place, error) {
	return all(tx, func(p *Place, to []any) []any { return append(to, &p.At, &p.Key) },
		`SELECT finished_at, n FROM runs INDEXED BY runs_ended WHERE finished_at IS NOT NULL AND session_id IS NULL AND parent IS NULL AND host IS NULL
		AND kind <> 'workflow' AND (finished_at, n) > (?, ?) AND finished_at < ? ORDER BY finished_at, n LIMIT ?`, after.At, after.Key, before, limit)
}

// An Expired is something that retention may delete, with all that goes with it.
type Expired struct {
	Name string // of a session its id, of a thread WORKFLOW/THREAD, of a run its id
	Rows int    // about how many rows that is
	e    *erasure
}

// Delete deletes it, and returns the runs and the ids of the sessions that it has deleted.
func (v *Expired) Delete() (runs []*Run, sessions []string, err error) {
	runs, err = v.e.finish()
	for id := range v.e.sessions {
		sessions = append(sessions, id)
	}
	return runs, sessions, err
}

// Session returns the session at a place if it may be deleted: its latest message, or without one the session itself, is older
// than a time, it is closed or need not be, and no thread owns it. Nil: it may not, see expired.
func (x *Expiry) Session(tx *Tx, at Place, before int64, closed bool) (*Expired, error) {
	v, err := x.db.Sessions().Find(tx, at.ID)
	if err != nil || closed && v.Closed == 0 || v.Thread != 0 {
		return nil, missing(err)
	}
	e := x.newErasure(tx)
	return x.expired(e, v.ID, before, e.session(v.ID))
}

// Thread returns the thread at a place if it may be deleted: it has ended before a time, and nothing hosts it. Nil: it may not, see
// expired.
func (x *Expiry) Thread(tx *Tx, at Place, before int64) (*Expired, error) {
	th, err := x.db.Threads().Number(tx, at.Key)
	if err != nil || th.Host != 0 {
		return nil, missing(err)
	}
	e := x.newErasure(tx)
	return x.expired(e, th.Workflow+"/"+th.ID, before, e.thread(th.N))
}

// Run returns the run at a place if it may be deleted. Nil: it may not, see expired.
func (x *Expiry) Run(tx *Tx, at Place, before int64) (*Expired, error) {
	run, err := x.db.Runs().Number(tx, at.Key)
	if err != nil {
		return nil, missing(err)
	}
	e := x.newErasure(tx)
	return x.expired(e, run.ID, before, e.run(run))
}

// missing is err, unless it says that there is no such row.
func missing(err error) error {
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// expired returns what e would delete, or nil if a part of it must stay: a run that has not ended before the time, that holds
// approvals, whose messages are the transcript of a session that stays, or that was called or hosted by a run that stays and has
// not ended.
func (x *Expiry) expired(e *erasure, name string, before int64, err error) (*Expired, error) {
	if err != nil {
		return nil, missing(err)
	}
	v := &Expired{Name: name, e: e, Rows: len(e.sessions)}
	for _, run := range e.runs {
		if !settled(run) || run.Finished >= before || e.needs(run, nil) {
			return nil, nil
		}
		v.Rows += 2 + run.Events + run.Messages + run.Step + run.Calls + run.Spans
		above, err := x.db.Runs().Above(e.tx, run)
		if err == nil && !e.known[above.N] {
			var ended bool
			if ended, err = x.ended(e.tx, above.N); err == nil && !ended {
				return nil, nil
			}
		}
		if missing(err) != nil {
			return nil, err
		}
	}
	for id := range e.sessions {
		s, err := x.db.Sessions().Find(e.tx, id)
		if err != nil || max(s.Updated, s.Created) >= before {
			return nil, missing(err)
		}
	}
	for n := range e.threads {
		th, err := x.db.Threads().Number(e.tx, n)
		if err != nil || th.Updated >= before {
			return nil, missing(err)
		}
		v.Rows += 2 + th.Step - th.Folded + th.Tasks
	}
	return v, nil
}
