package store

import (
	"context"
	"encoding/json"
	"errors"
)

// Notification is a row of what is told to the outside. Times are milliseconds since 1970.
type Notification struct {
	N        int64 // in the order of the commits; given by Add
	ID       string
	Target   string
	Sequence int64 // among those of the target, from 1; given by Add
	Type     string
	Body     json.RawMessage
	At       int64
	State    string // waiting, delivered or dead
	Attempts int
	Began    int64  // when the first attempt ended; 0: none has
	Due      int64  // the next attempt comes no earlier; 0: at once
	Status   int    // of the last answer; 0: there was none
	Failure  string // why the latest attempt failed; empty: it has not, or there was none
	Trace    string // traceparent of the run that it is about; empty: it is about none
}

// NotifyTarget is the row of a receiver.
type NotifyTarget struct {
	ID       string
	Sequence int64 // of its latest notification
	Disabled bool
	Failures int   // in a row
	Probe    int64 // the next probe comes no earlier; 0: at once
}

// Notifications is the repository of notifications and their targets.
type Notifications struct{ access }

// Notifications gives access to notifications.
func (db *DB) Notifications() *Notifications { return &Notifications{access{db}} }

var notifications = declare("notifications", "n, id, target, sequence, type, body, at, state, attempts, began, due, status, failure, traceparent", "",
	func(v *Notification, to []any) []any {
		return append(to, &v.N, &v.ID, &v.Target, &v.Sequence, &v.Type, text{&v.Body}, &v.At, &v.State, &v.Attempts, opt(&v.Began), opt(&v.Due), &v.Status, opt(&v.Failure), opt(&v.Trace))
	})

var notifyTargets = declare("notify_targets", "id, sequence, disabled, failures, probe", "", func(v *NotifyTarget, to []any) []any {
	return append(to, &v.ID, &v.Sequence, &v.Disabled, &v.Failures, opt(&v.Probe))
}).replacing("id", "disabled, failures, probe")

// Add adds a notification that waits, and sets its number and its sequence.
func (r *Notifications) Add(tx *Tx, v *Notification) (err error) {
	err = tx.row(`INSERT INTO notify_targets (id, sequence, disabled, failures) VALUES (?, 1, 0, 0)
		ON CONFLICT (id) DO UPDATE SET sequence = sequence + 1 RETURNING sequence`, v.Target).Scan(&v.Sequence)
	if err != nil {
		return err
	}
	v.State = "waiting"
	args := notifications.values(tx, v, nil)
	args[0] = nil // SQLite gives it the next number
	v.N, err = tx.insert(1, notifications.into, args...)
	return err
}

// Target returns a target; one that nothing was added for has the zero row.
func (r *Notifications) Target(ctx context.Context, id string) (NotifyTarget, error) {
	v, err := view(ctx, r.db, func(tx *Tx) (NotifyTarget, error) { return notifyTargets.one(tx, "WHERE id = ?", id) })
	if errors.Is(err, ErrNotFound) {
		return NotifyTarget{ID: id}, nil
	}
	return v, err
}

// Next returns what waits for a target: untried ones in their order, then those to try again, the earliest due first; of each at
// most limit.
func (r *Notifications) Next(ctx context.Context, target string, limit int) (list []Notification, err error) {
	return view(ctx, r.db, func(tx *Tx) ([]Notification, error) {
		untried, err := notifications.all(tx, "INDEXED BY notifications_untried WHERE target = ? AND state = 'waiting' AND attempts = 0 ORDER BY n LIMIT ?", target, limit)
		if err != nil {
			return nil, err
		}
		tried, err := notifications.all(tx, "INDEXED BY notifications_retries WHERE target = ? AND state = 'waiting' AND attempts > 0 ORDER BY due, n LIMIT ?", target, limit)
		return append(untried, tried...), err
	})
}

// Ended writes how an attempt ended, and the target after it.
func (r *Notifications) Ended(tx *Tx, v *Notification, t *NotifyTarget) error {
	_, err := tx.exec("UPDATE notifications SET state = ?, attempts = ?, began = ?, due = ?, status = ?, failure = ? WHERE n = ? AND state = 'waiting'",
		&v.State, &v.Attempts, opt(&v.Began), opt(&v.Due), &v.Status, opt(&v.Failure), &v.N)
	if err == nil {
		_, err = notifyTargets.insert(tx, t)
	}
	return err
}

// Waiting counts those that wait, up to a limit.
func (r *Notifications) Waiting(ctx context.Context, limit int) (n int, err error) {
	return view(ctx, r.db, func(tx *Tx) (n int, err error) {
		return n, tx.row("SELECT count(*) FROM (SELECT 1 FROM notifications INDEXED BY notifications_waiting WHERE state = 'waiting' LIMIT ?)", limit).Scan(&n)
	})
}

// Bury makes the oldest of those that wait dead.
func (r *Notifications) Bury(tx *Tx, count int) error {
	_, err := tx.exec(`UPDATE notifications SET state = 'dead', failure = 'too many notifications waited' WHERE n IN
		(SELECT n FROM notifications INDEXED BY notifications_waiting WHERE state = 'waiting' ORDER BY n LIMIT ?)`, count)
	return err
}

// Abandon makes up to limit of those that wait for a target dead, and returns how many those are.
func (r *Notifications) Abandon(tx *Tx, target string, limit int) (int64, error) {
	return tx.exec(`UPDATE notifications SET state = 'dead', failure = 'the receiver is declared no more' WHERE n IN
		(SELECT n FROM notifications INDEXED BY notifications_waiting WHERE state = 'waiting' AND target = ? ORDER BY n LIMIT ?)`, target, limit)
}

// Targets returns all targets that something was added for.
func (r *Notifications) Targets(ctx context.Context) ([]NotifyTarget, error) {
	return view(ctx, r.db, func(tx *Tx) ([]NotifyTarget, error) { return notifyTargets.all(tx, "WHERE id > '' ORDER BY id") })
}

// Again has a notification that was not delivered wait afresh.
func (r *Notifications) Again(tx *Tx, n int64) error {
	_, err := tx.exec("UPDATE notifications SET state = 'waiting', attempts = 0, began = NULL, due = NULL WHERE n = ? AND state <> 'delivered'", n)
	return err
}

// DeadOf returns the numbers of up to limit dead notifications of a target, the oldest first.
func (r *Notifications) DeadOf(tx *Tx, target string, limit int) ([]int64, error) {
	return all(tx, func(n *int64, to []any) []any { return append(to, n) },
		"SELECT n FROM notifications INDEXED BY notifications_dead WHERE state = 'dead' AND target = ? ORDER BY n LIMIT ?", target, limit)
}

// Enable lets attempts at a target begin again, as if none had failed.
func (r *Notifications) Enable(tx *Tx, target string) error {
	_, err := tx.exec("UPDATE notify_targets SET disabled = 0, failures = 0, probe = NULL WHERE id = ?", target)
	return err
}

// Get returns a notification, or ErrNotFound.
func (r *Notifications) Get(tx *Tx, id string) (Notification, error) {
	return notifications.one(tx, "WHERE id = ?", id)
}

// List returns up to limit notifications in a state, or in any, before a number; the newest first.
func (r *Notifications) List(ctx context.Context, state string, before int64, limit int) ([]Notification, error) {
	rest := map[string]string{"waiting": "INDEXED BY notifications_waiting WHERE state = 'waiting' AND", "dead": "INDEXED BY notifications_dead WHERE state = 'dead' AND",
		"delivered": "WHERE state = 'delivered' AND", "": "WHERE"}[state]
	return view(ctx, r.db, func(tx *Tx) ([]Notification, error) {
		return notifications.all(tx, rest+" n < ? ORDER BY n DESC LIMIT ?", before, limit)
	})
}
