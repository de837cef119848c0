package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Trigger is the row of a trigger. Times are milliseconds since 1970.
type Trigger struct {
	N         int64 // given by Insert
	ID        string
	Kind      string
	Spec      string
	Schedule  string // all that its dues follow from
	Cursor    int64  // the last due that is accounted for
	Disabled  bool
	Reason    string // why it is disabled; empty: nobody said
	Failures  int    // failed starts and runs in a row
	Missed    int64  // dues of the latest catch-up that did not fire
	LastFired int64  // 0: never
	Created   int64
	Updated   int64
}

// Firing is a row of the ledger: a due or an event, or a range of missed dues, and what became of it.
type Firing struct {
	N       int64 // in the order of the ledger; given by Add
	Trigger int64 // number of the trigger
	ID      string
	Slot    string // unique among those of the trigger and the emitter
	Emitter string // of an event: the principal; else empty
	Due     int64
	LastDue int64 // of a range; 0: one due
	Dues    int64 // in the range
	At      int64 // when the row was written
	Origin  string
	Outcome string
	Reason  string
	Run     string // id; empty: none
	By      string // who fired or emitted; empty: nobody

	Open     bool // it is queued, or the end of its run is not accounted for
	Attempts int  // failed starts
	Next     int64
	Carry    json.RawMessage // of a queued one: what its run is started with
}

// Triggers is the repository of triggers and their ledger.
type Triggers struct{ access }

// Triggers gives access to triggers.
func (db *DB) Triggers() *Triggers { return &Triggers{access{db}} }

var triggers = declare("triggers", "n, id, kind, spec, schedule, cursor, disabled, reason, failures, missed, last_fired, created_at, updated_at", "",
	func(t *Trigger, to []any) []any {
		return append(to, &t.N, &t.ID, &t.Kind, &t.Spec, &t.Schedule, &t.Cursor, &t.Disabled, opt(&t.Reason), &t.Failures, &t.Missed,
			opt(&t.LastFired), &t.Created, &t.Updated)
	})

var firings = declare("firings", `n, trigger_n, id, slot, emitter, due, last_due, dues, at, origin, outcome, reason, run_id, fired_by, open,
	attempts, next_at, carry`, "", func(f *Firing, to []any) []any {
	return append(to, &f.N, &f.Trigger, &f.ID, &f.Slot, &f.Emitter, &f.Due, opt(&f.LastDue), &f.Dues, &f.At, &f.Origin, &f.Outcome, opt(&f.Reason),
		opt(&f.Run), opt(&f.By), &f.Open, &f.Attempts, opt(&f.Next), text{&f.Carry})
})

// Insert adds a trigger and sets its number; ErrConflict when its id is taken.
func (r *Triggers) Insert(tx *Tx, t *Trigger) (err error) {
	args := triggers.values(tx, t, nil)
	args[0] = nil // SQLite gives it the next number
	t.N, err = tx.insert(1, triggers.into, args...)
	return err
}

// Set writes what can change of a trigger, or returns ErrNotFound.
func (r *Triggers) Set(tx *Tx, t *Trigger) error {
	changed, err := tx.exec(`UPDATE triggers SET kind = ?, spec = ?, schedule = ?, cursor = ?, disabled = ?, reason = ?, failures = ?, missed = ?,
		last_fired = ?, updated_at = ? WHERE n = ?`, &t.Kind, &t.Spec, &t.Schedule, &t.Cursor, &t.Disabled, opt(&t.Reason), &t.Failures, &t.Missed,
		opt(&t.LastFired), &t.Updated, &t.N)
	if err == nil && changed == 0 {
		err = ErrNotFound
	}
	return err
}

// All returns all triggers, in the order of their ids.
func (r *Triggers) All(ctx context.Context) ([]Trigger, error) {
	return view(ctx, r.db, func(tx *Tx) ([]Trigger, error) { return triggers.all(tx, "ORDER BY id") })
}

// Delete deletes a trigger and its ledger.
func (r *Triggers) Delete(tx *Tx, n int64) error {
	_, err := tx.exec("DELETE FROM firings INDEXED BY firings_by_trigger WHERE trigger_n = ?", n)
	if err == nil {
		_, err = tx.exec("DELETE FROM triggers WHERE n = ?", n)
	}
	return err
}

// Add adds a firing and sets its number; ErrConflict when its slot is taken.
func (r *Triggers) Add(tx *Tx, f *Firing) (err error) {
	args := firings.values(tx, f, nil)
	args[0] = nil
	f.N, err = tx.insert(1, firings.into, args...)
	return err
}

// Change writes what can change of a firing, or returns ErrNotFound.
func (r *Triggers) Change(tx *Tx, f *Firing) error {
	changed, err := tx.exec("UPDATE firings SET outcome = ?, reason = ?, run_id = ?, open = ?, attempts = ?, next_at = ?, carry = ? WHERE n = ?",
		&f.Outcome, opt(&f.Reason), opt(&f.Run), &f.Open, &f.Attempts, opt(&f.Next), text{&f.Carry}, &f.N)
	if err == nil && changed == 0 {
		err = ErrNotFound
	}
	return err
}

// At returns the firing of a slot, or ErrNotFound.
func (r *Triggers) At(tx *Tx, trigger int64, slot, emitter string) (Firing, error) {
	return firings.one(tx, "WHERE trigger_n = ? AND slot = ? AND emitter = ?", trigger, slot, emitter)
}

// Ledger returns the firings of a trigger before a number, the latest first; before 0: from the end.
func (r *Triggers) Ledger(tx *Tx, trigger, before int64, limit int) ([]Firing, error) {
	if before == 0 {
		before = 1 << 62
	}
	return firings.all(tx, "INDEXED BY firings_by_trigger WHERE trigger_n = ? AND n < ? ORDER BY n DESC LIMIT ?", trigger, before, limit)
}

// Accounted returns the firings of a trigger's schedule whose due, or the first of their range, is in a span, the earliest first.
func (r *Triggers) Accounted(tx *Tx, trigger, first, last int64, limit int) (list []Firing, err error) {
	// Slots are in the order of their dues as long as these have the same number of digits.
	for from := first; from <= last && err == nil && len(list) < limit; {
		until := int64(10)
		for until <= from {
			until *= 10
		}
		var some []Firing
		some, err = firings.all(tx, "INDEXED BY firings_by_slot WHERE trigger_n = ? AND slot BETWEEN ? AND ? ORDER BY slot LIMIT ?",
			trigger, fmt.Sprint("t:", from), fmt.Sprint("t:", min(last, until-1)), limit-len(list))
		list, from = append(list, some...), until
	}
	return list, err
}

// Ahead returns ranges of missed dues of a trigger that end after a time.
func (r *Triggers) Ahead(tx *Tx, trigger, after int64, limit int) ([]Firing, error) {
	return firings.all(tx, "INDEXED BY firings_by_trigger WHERE trigger_n = ? AND last_due > ? ORDER BY n LIMIT ?", trigger, after, limit)
}

// Cut has a range of missed dues end earlier, and deletes it if no due is left.
func (r *Triggers) Cut(tx *Tx, n, last, dues int64) (err error) {
	if dues == 0 {
		_, err = tx.exec("DELETE FROM firings WHERE n = ?", n)
	} else {
		_, err = tx.exec("UPDATE firings SET last_due = ?, dues = ? WHERE n = ?", last, dues, n)
	}
	return err
}

// Queued returns the firings of a trigger that wait for their start, the first to start first.
func (r *Triggers) Queued(tx *Tx, trigger int64, limit int) ([]Firing, error) {
	return firings.all(tx, "INDEXED BY firings_open WHERE trigger_n = ? AND open = 1 AND run_id IS NULL ORDER BY n LIMIT ?", trigger, limit)
}

// Waiting counts the queued firings of a trigger, and those whose run has not ended.
func (r *Triggers) Waiting(tx *Tx, trigger int64) (queued, running int, err error) {
	err = tx.row(`SELECT count(*) FILTER (WHERE f.run_id IS NULL), count(r.id) FROM firings f INDEXED BY firings_open
		LEFT JOIN runs r INDEXED BY sqlite_autoindex_runs_1 ON r.id = f.run_id AND r.status NOT IN ('completed', 'failed', 'aborted')
		WHERE f.trigger_n = ? AND f.open = 1`, trigger).Scan(&queued, &running)
	return queued, running, err
}

// OpenFiring is an open firing with the status of its run; empty: it is queued, or the run is gone.
type OpenFiring struct {
	Firing
	Status Status
}

// Opened returns open firings after a number, in order.
func (r *Triggers) Opened(ctx context.Context, after int64, limit int) ([]OpenFiring, error) {
	return view(ctx, r.db, func(tx *Tx) ([]OpenFiring, error) {
		return all(tx, func(o *OpenFiring, to []any) []any {
			return append(to, &o.N, &o.Trigger, opt(&o.Run), opt((*string)(&o.Status)))
		},
			`SELECT f.n, f.trigger_n, f.run_id, r.status FROM firings f INDEXED BY firings_open_all LEFT JOIN runs r INDEXED BY sqlite_autoindex_runs_1 ON r.id = f.run_id
			WHERE f.open = 1 AND f.n > ? ORDER BY f.n LIMIT ?`, after, limit)
	})
}

// OfRun returns the open firing that started a run, or ErrNotFound.
func (r *Triggers) OfRun(tx *Tx, run string) (Firing, error) {
	return firings.one(tx, "INDEXED BY firings_open_run WHERE run_id = ? AND open = 1", run)
}

// recent is among how many of the latest runs the last activity is looked for.
const recent = 200

// Activity returns when something last happened, in a session, with an agent, or at all where both are empty, and whether a run
// is in progress there. It looks at the latest runs only and, for a session, at when it was made. What the principals in without have
// started or made does not count, and no time after until does.
func (r *Triggers) Activity(tx *Tx, session, agent string, without []string, until int64) (last int64, going bool, err error) {
	from, args := "runs", []any{}
	switch {
	case session != "":
		from, args = "runs WHERE session_id = ?", append(args, session)
	case agent != "":
		from, args = "runs INDEXED BY runs_by_owner WHERE owner_id = ? AND parent IS NULL AND host IS NULL", append(args, agent)
	}
	type seen struct {
		by     string
		last   int64
		status Status
	}
	found, err := all(tx, func(s *seen, to []any) []any { return append(to, opt(&s.by), &s.last, &s.status) },
		"SELECT started_by, max(created_at, coalesce(started_at, 0), coalesce(finished_at, 0)), status FROM "+from+" ORDER BY n DESC LIMIT ?", append(args, recent)...)
	if err != nil {
		return 0, false, err
	}
	ours := map[string]bool{}
	for _, by := range without {
		ours[by] = true
	}
	for _, s := range found {
		by, _, _ := strings.Cut(s.by, For)
		if !ours[by] {
			if going = going || s.status == Running || s.status == Pending; s.last <= until {
				last = max(last, s.last)
			}
		}
	}
	if session != "" && err == nil {
		var made seen
		err = tx.row("SELECT coalesce(made_by, ''), created_at FROM sessions WHERE id = ?", session).Scan(&made.by, &made.last)
		if errors.Is(err, ErrNotFound) {
			err = nil
		}
		if by, _, _ := strings.Cut(made.by, For); !ours[by] && made.last <= until {
			last = max(last, made.last)
		}
	}
	return last, going, err
}
