package store

import (
	"context"
	"time"
)

// Outbox is the entries of the audit chain that wait in the database: rows that are added at the end, and deleted at the
// beginning once they are chained. The last row stays. It knows nothing of what the rows mean.
type Outbox struct{ access }

// OutboxRow is a row of the outbox.
type OutboxRow struct {
	ID     int64 // from 1, without gaps, in the order of the commits
	Sealed []byte
}

// Outbox returns the repository.
func (db *DB) Outbox() *Outbox { return &Outbox{access{db}} }

// Join makes a batch take part in the transactions of the database. It must be called before there are any.
func (o *Outbox) Join(batch Batch) { o.db.writer.batch = batch }

// Update is [DB.Update], but a closure that has its place in the queue runs even when ctx is done.
func (o *Outbox) Update(ctx context.Context, fn func(*Tx) error) error {
	return o.db.writer.insist(ctx, fn)
}

// Post is Update that does not wait: fn runs in the next transaction, which begins within a time. While commits fail, and
// while too many wait, Post does wait.
func (o *Outbox) Post(ctx context.Context, within time.Duration, fn func(*Tx) error) error {
	return o.db.writer.post(ctx, within, fn)
}

// Kick has a transaction begin for what was posted.
func (o *Outbox) Kick() { o.db.writer.kick() }

var outboxInsert = newInsertion("INSERT INTO audit_outbox (id, sealed) VALUES ", 2)

// Append adds rows.
func (o *Outbox) Append(tx *Tx, rows []OutboxRow) error {
	values := make([]any, 0, 2*len(rows))
	for _, r := range rows {
		values = append(values, r.ID, r.Sealed)
	}
	return tx.putMany(&outboxInsert, values)
}

// Last is the number of the last row; 0: there was none yet.
func (o *Outbox) Last(tx *Tx) (n int64, err error) {
	return n, tx.row("SELECT coalesce(max(id), 0) FROM audit_outbox").Scan(&n)
}

// outboxBytes is the size at which a page of the outbox ends.
const outboxBytes = 4 << 20

// After returns the rows after a number in order, as many as make a page; more: there may be others.
func (o *Outbox) After(ctx context.Context, id int64, limit int) (rows []OutboxRow, more bool, err error) {
	left := outboxBytes
	err = o.db.View(ctx, func(tx *Tx) error {
		return tx.collect(func(s scanner) error {
			var r OutboxRow
			err := s.Scan(&r.ID, &r.Sealed)
			rows = append(rows, r)
			if left -= len(r.Sealed); err == nil && left <= 0 {
				err = errEnough
			}
			return err
		}, "SELECT id, sealed FROM audit_outbox WHERE id > ? ORDER BY id LIMIT ?", id, limit)
	})
	return rows, left <= 0 || len(rows) == limit, err
}

// Delete deletes the rows before a number.
func (o *Outbox) Delete(tx *Tx, before int64) error {
	_, err := tx.exec("DELETE FROM audit_outbox WHERE id < ?", before)
	return err
}
