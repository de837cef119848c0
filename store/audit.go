package store

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// Audit is the file of an audit chain: rows that are added at its end, and a few named values. It has a schema, a lock
// and a writer of its own, and knows nothing of what the rows mean.
type Audit struct{ db *DB }

// AuditRow is a row of the chain.
type AuditRow struct {
	Seq, TS          int64
	Prev, Hash, Seal []byte
}

// OpenAudit opens the file of a chain as [Open] opens a database, with the same errors.
func OpenAudit(ctx context.Context, o Options) (*Audit, error) {
	o.schema = chainSchema
	db, err := Open(ctx, o)
	if err != nil {
		return nil, err
	}
	return &Audit{db}, nil
}

// Close ends the use of the file.
func (a *Audit) Close() error { return a.db.Close() }

// Path is the absolute path of the file.
func (a *Audit) Path() string { return a.db.Path() }

// Ping is [DB.Ping].
func (a *Audit) Ping(ctx context.Context) error { return a.db.Ping(ctx) }

// Verify is [DB.Verify].
func (a *Audit) Verify(ctx context.Context) ([]Damage, error) { return a.db.Verify(ctx) }

// Update is [DB.Update].
func (a *Audit) Update(ctx context.Context, fn func(*Tx) error) error { return a.db.Update(ctx, fn) }

// Snapshot is [DB.Snapshot].
func (a *Audit) Snapshot(ctx context.Context, fn func(*Tx) error) error {
	return a.db.Snapshot(ctx, fn)
}

// Sync makes durable what was committed before. With durability "full" each commit is that by itself.
func (a *Audit) Sync() error {
	if a.db.opts.Durability != "normal" {
		return nil
	}
	for _, path := range []string{a.Path() + "-wal", filepath.Dir(a.Path())} { // SQLite has no POSIX locks on its log: closing it is safe
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// auditRows is how many rows one statement adds: the fewer statements, the less each row costs.
const auditRows = 16

const (
	auditInsert = "INSERT INTO audit_log (seq, ts, prev_hash, hash, sealed) VALUES "
	auditValues = "(?,?,?,?,?)"
)

var auditInsertMany = auditInsert + strings.TrimSuffix(strings.Repeat(auditValues+",", auditRows), ",")

// Append adds rows. ErrConflict says that one of them is there already.
func (a *Audit) Append(tx *Tx, rows []AuditRow) error {
	args := make([]any, 0, 5*auditRows)
	for len(rows) > 0 {
		n, query := 1, auditInsert+auditValues
		if len(rows) >= auditRows {
			n, query = auditRows, auditInsertMany
		}
		args = args[:0]
		for _, r := range rows[:n] {
			args = append(args, r.Seq, r.TS, r.Prev, r.Hash, r.Seal)
		}
		if err := tx.put(int64(n), query, args...); err != nil {
			return translate(err)
		}
		rows = rows[n:]
	}
	return nil
}

// Tail is the last row without its sealed part; ok is false when there is none.
func (a *Audit) Tail(tx *Tx) (r AuditRow, ok bool, err error) {
	err = translate(tx.row("SELECT seq, ts, prev_hash, hash FROM audit_log ORDER BY seq DESC LIMIT 1").Scan(&r.Seq, &r.TS, &r.Prev, &r.Hash))
	if errors.Is(err, ErrNotFound) {
		return r, false, nil
	}
	return r, err == nil, err
}

// Scan calls fn for at most limit rows from one sequence number to another, both included, in ascending order or, with
// desc, beginning at the end. What a row refers to is valid until fn returns. It reports how many rows there were.
func (a *Audit) Scan(ctx context.Context, from, to int64, limit int, desc bool, fn func(*AuditRow) error) (n int, err error) {
	query := "SELECT seq, ts, prev_hash, hash, sealed FROM audit_log WHERE seq BETWEEN ? AND ? ORDER BY seq LIMIT ?"
	if desc {
		query = strings.Replace(query, "ORDER BY seq", "ORDER BY seq DESC", 1)
	}
	var prev, hash, seal sql.RawBytes
	err = a.db.View(ctx, func(tx *Tx) error {
		rows, err := tx.query(query, from, to, limit)
		if err != nil {
			return err
		}
		defer rows.Close()
		var r AuditRow
		for rows.Next() {
			if err := (checked{rows}).Scan(&r.Seq, &r.TS, &prev, &hash, &seal); err != nil {
				return err
			}
			r.Prev, r.Hash, r.Seal = prev, hash, seal
			n++
			if err := fn(&r); err != nil {
				return err
			}
		}
		return rows.Err()
	})
	return n, err
}

// Hashes calls fn with the sequence number and the hash of at most limit rows, in ascending order.
func (a *Audit) Hashes(ctx context.Context, from, to int64, limit int, fn func(seq int64, hash []byte) error) (n int, err error) {
	err = a.db.View(ctx, func(tx *Tx) error {
		rows, err := tx.query("SELECT seq, hash FROM audit_log WHERE seq BETWEEN ? AND ? ORDER BY seq LIMIT ?", from, to, limit)
		if err != nil {
			return err
		}
		defer rows.Close()
		var seq int64
		var hash sql.RawBytes
		for rows.Next() {
			if err := (checked{rows}).Scan(&seq, &hash); err != nil {
				return err
			}
			n++
			if err := fn(seq, hash); err != nil {
				return err
			}
		}
		return rows.Err()
	})
	return n, err
}

// Prune deletes the rows up to a sequence number, and reports how many there were.
func (a *Audit) Prune(tx *Tx, through int64) (int64, error) {
	return tx.exec("DELETE FROM audit_log WHERE seq <= ?", through)
}

// Value is a named value; nil when there is none.
func (a *Audit) Value(tx *Tx, name string) (v []byte, err error) {
	err = translate(tx.row("SELECT value FROM audit_meta WHERE key = ?", name).Scan(&v))
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	return v, err
}

// SetValue sets a named value.
func (a *Audit) SetValue(tx *Tx, name string, v []byte) error {
	return tx.put(1, "INSERT INTO audit_meta (key, value) VALUES (?,?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", name, v)
}
