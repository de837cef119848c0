package store

import (
	"cmp"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
)

// Audit is the file of an audit chain: rows that are added at its end, and a few named values. Its schema, its lock and its
// writer are not those of the database. It knows nothing of what the rows mean.
type Audit struct{ db *DB }

// AuditRow is a row of the chain.
type AuditRow struct {
	Seq, TS          int64
	Prev, Hash, Seal []byte
}

// OpenAudit opens the file of a chain as [Open] opens a database, with the same errors. The batch takes part in its
// transactions.
func OpenAudit(ctx context.Context, o Options, batch Batch) (*Audit, error) {
	o.schema = chainSchema
	db, err := Open(ctx, o)
	if err != nil {
		return nil, err
	}
	db.writer.batch = batch
	return &Audit{db}, nil
}

// Close makes durable what was posted, and ends the use of the file.
func (a *Audit) Close() error { return a.db.Close() }

// Path is the absolute path of the file.
func (a *Audit) Path() string { return a.db.Path() }

// Ping is [DB.Ping].
func (a *Audit) Ping(ctx context.Context) error { return a.db.Ping(ctx) }

// Failed is the error of the last commit; nil after one that succeeded.
func (a *Audit) Failed() error { return a.db.writer.broken() }

// Verify is [DB.Verify].
func (a *Audit) Verify(ctx context.Context) ([]Damage, error) { return a.db.Verify(ctx) }

// Update is [DB.Update], but a closure that has its place in the queue runs even when ctx is done.
func (a *Audit) Update(ctx context.Context, fn func(*Tx) error) error {
	return a.db.writer.insist(ctx, fn)
}

// Post is Update that does not wait: fn runs in the first transaction that begins from now on, or in a later one if that
// fails. While commits fail, and while too many wait, Post does wait.
func (a *Audit) Post(ctx context.Context, fn func(*Tx) error) error {
	return a.db.writer.post(ctx, 0, fn)
}

// Sync makes durable what was committed before. With durability "full" each commit is that by itself.
func (a *Audit) Sync() error {
	if a.db.opts.Durability != "normal" {
		return nil
	}
	err := Sync(a.Path() + "-wal") // SQLite has no POSIX locks on its log: closing it is safe
	return cmp.Or(err, Sync(filepath.Dir(a.Path())))
}

// Sync makes durable what a file holds, or which files a folder has.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

var auditInsert = newInsertion("INSERT INTO audit_log (seq, ts, prev_hash, hash, sealed) VALUES ", 5)

// Append adds rows. ErrConflict says that one of them is there already.
func (a *Audit) Append(tx *Tx, rows []AuditRow) error {
	values := make([]any, 0, 5*len(rows))
	for i := range rows {
		r := &rows[i]
		values = append(values, r.Seq, r.TS, r.Prev, r.Hash, r.Seal)
	}
	return tx.putMany(&auditInsert, values)
}

// AuditState is what the file of a chain holds beside its rows, and the end of these.
type AuditState struct {
	Values map[string][]byte
	Tail   *AuditRow // the last row without its sealed part; nil: there are no rows
}

// State reads the state at one moment.
func (a *Audit) State(ctx context.Context) (s AuditState, err error) {
	err = a.db.Snapshot(ctx, func(tx *Tx) error {
		s, err = a.StateIn(tx)
		return err
	})
	return s, err
}

// Value reads a named value in a transaction; nil: it was never set.
func (a *Audit) Value(tx *Tx, name string) (value []byte, err error) {
	err = tx.row("SELECT value FROM audit_meta WHERE key = ?", name).Scan(&value)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	return value, err
}

// StateIn reads the state in a transaction.
func (a *Audit) StateIn(tx *Tx) (s AuditState, err error) {
	s.Values = map[string][]byte{}
	err = tx.collect(func(row scanner) error {
		var name string
		var value []byte
		err := row.Scan(&name, &value)
		s.Values[name] = value
		return err
	}, "SELECT key, value FROM audit_meta")
	if err != nil {
		return s, err
	}
	var r AuditRow
	err = tx.row("SELECT seq, ts, prev_hash, hash FROM audit_log ORDER BY seq DESC LIMIT 1").Scan(&r.Seq, &r.TS, &r.Prev, &r.Hash)
	if errors.Is(err, ErrNotFound) {
		return s, nil
	}
	s.Tail = &r
	return s, err
}

// Ends returns the sequence numbers of the first and of the last row; 0 when there are none.
func (a *Audit) Ends(ctx context.Context) (first, last int64, err error) {
	err = a.db.View(ctx, func(tx *Tx) error {
		return tx.row(`SELECT coalesce((SELECT seq FROM audit_log ORDER BY seq LIMIT 1), 0),
			coalesce((SELECT seq FROM audit_log ORDER BY seq DESC LIMIT 1), 0)`).Scan(&first, &last)
	})
	return first, last, err
}

// Times returns the earliest and the latest time of the rows with from <= seq <= to; 0 when there are none.
func (a *Audit) Times(ctx context.Context, from, to int64) (earliest, latest int64, err error) {
	err = a.db.View(ctx, func(tx *Tx) error {
		return tx.row("SELECT coalesce(min(ts), 0), coalesce(max(ts), 0) FROM audit_log WHERE seq BETWEEN ? AND ?", from, to).Scan(&earliest, &latest)
	})
	return earliest, latest, err
}

// A Span selects rows of a chain.
type Span struct {
	From, To int64 // sequence numbers, both included; To 0: to the end
	Limit    int   // at most so many rows; 0: all
	Newest   bool  // begin at the end
	Bare     bool  // without the sealed parts
}

// auditPage is how many rows one statement reads: a longer one would keep the log of the file from being truncated.
const auditPage = 4096

// Scan calls fn for each row of a span, in ascending order unless the newest are wanted first, and reports how many there
// were. What a row refers to is valid until fn returns; its hash is never nil.
func (a *Audit) Scan(ctx context.Context, s Span, fn func(*AuditRow) error) (n int, err error) {
	query := "SELECT seq, ts, prev_hash, hash, sealed FROM audit_log WHERE seq BETWEEN ? AND ? ORDER BY seq LIMIT ?"
	if s.Newest {
		query = strings.Replace(query, "ORDER BY seq", "ORDER BY seq DESC", 1)
	}
	if s.Bare {
		query = strings.Replace(query, "sealed", "x''", 1)
	}
	s.To, s.Limit = cmp.Or(s.To, math.MaxInt64), cmp.Or(s.Limit, math.MaxInt)
	for page := auditPage; page == auditPage && n < s.Limit; {
		if err := context.Cause(ctx); err != nil {
			return n, err
		}
		page = 0
		if err := a.db.View(ctx, func(tx *Tx) error {
			var r AuditRow
			err := tx.collect(func(row scanner) error {
				if err := row.Scan(&r.Seq, &r.TS, &r.Prev, &r.Hash, &r.Seal); err != nil {
					return err
				}
				if r.Hash == nil {
					r.Hash = []byte{}
				}
				page++
				return fn(&r)
			}, query, s.From, s.To, min(auditPage, s.Limit-n))
			if s.Newest {
				s.To = r.Seq - 1
			} else {
				s.From = r.Seq + 1
			}
			return err
		}); err != nil {
			return n, err
		}
		n += page
	}
	return n, nil
}

// Prune deletes the rows up to a sequence number, and reports how many there were.
func (a *Audit) Prune(tx *Tx, through int64) (int64, error) {
	return tx.exec("DELETE FROM audit_log WHERE seq <= ?", through)
}

// Set sets named values.
func (a *Audit) Set(tx *Tx, values map[string][]byte) error {
	for name, v := range values {
		if err := tx.put(1, "INSERT INTO audit_meta (key, value) VALUES (?,?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", name, v); err != nil {
			return err
		}
	}
	return nil
}
