package store

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"agentd/server/fault"

	"modernc.org/sqlite"
)

const (
	maxQueue = 1024 // closures that may wait; a caller beyond waits for a place
	maxBatch = 256  // closures in one transaction
)

// writer commits closures in groups. There is no writer goroutine: of the callers that wait, the one that holds lead
// runs the batch for all. Nothing has to be started or stopped, and a lone caller pays no hand-over.
type writer struct {
	db     *DB
	places chan struct{} // one token per closure that waits or runs
	lead   chan struct{} // holds a token while somebody leads; guards c

	c *conn // owned by the leader

	mu     sync.Mutex // guards the fields below
	queue  []*command
	closed bool
	failed error // of the last COMMIT or reopening; nil after one that succeeded
}

type command struct {
	fn    func(*Tx) error
	taken bool // by a leader, under writer.mu: it can no longer be withdrawn
	err   error
	panic any
	done  chan struct{}
}

func (w *writer) init(db *DB, c *conn) {
	w.db, w.c = db, c
	w.places = make(chan struct{}, maxQueue)
	w.lead = make(chan struct{}, 1)
}

// Update runs fn in a write transaction and returns when it is committed or has failed. fn's writes are kept wholly
// or not at all; they are not kept when fn returns an error. Closures of other callers may share the transaction and
// the commit, each seeing the writes of those before it.
//
// fn may run more than once, so it must leave nothing behind but its writes and what it assigns anew each time. It
// must do nothing slow: no tool, model or network call. ctx bounds the wait for a turn; once fn has begun, Update
// waits for its end.
func (db *DB) Update(ctx context.Context, fn func(*Tx) error) error {
	if db.opts.ReadOnly {
		return fault.New(fault.StorageFailed, "The database is open for reading only.")
	}
	return db.writer.update(ctx, fn)
}

func (w *writer) update(ctx context.Context, fn func(*Tx) error) error {
	select {
	case w.places <- struct{}{}:
		defer func() { <-w.places }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	cmd := &command{fn: fn, done: make(chan struct{})}
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return fault.New(fault.StorageFailed, "The store is closed.")
	}
	w.queue = append(w.queue, cmd)
	w.mu.Unlock()

	select {
	case <-cmd.done:
	case w.lead <- struct{}{}:
		for !cmd.finished() {
			runtime.Gosched() // lets callers that are about to queue join this batch
			w.commit(w.take())
		}
		<-w.lead
	case <-ctx.Done():
		if w.withdraw(cmd) {
			return context.Cause(ctx)
		}
		<-cmd.done
	}
	if cmd.panic != nil {
		panic(cmd.panic)
	}
	return w.db.met(cmd.err)
}

func (c *command) finished() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

func (w *writer) take() []*command {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := min(len(w.queue), maxBatch)
	batch := w.queue[:n:n]
	w.queue = w.queue[n:]
	if len(w.queue) == 0 {
		w.queue = nil
	}
	for _, cmd := range batch {
		cmd.taken = true
	}
	return batch
}

func (w *writer) withdraw(cmd *command) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if cmd.taken {
		return false
	}
	for i, q := range w.queue {
		if q == cmd {
			w.queue = append(w.queue[:i:i], w.queue[i+1:]...)
			break
		}
	}
	return true
}

// commit runs a batch to its end. Closures run without savepoints first, which is what nearly always succeeds; when
// one fails after it has written, the transaction is rolled back and the batch runs again with a savepoint each.
func (w *writer) commit(batch []*command) {
	if len(batch) == 0 {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			// A defect of the writer itself: closures' panics do not come here. The process must not live on with
			// half a writer, so nobody gets to recover this one.
			go panic(fmt.Sprintf("store: writing failed: %v\n%s", p, debug.Stack()))
			select {}
		}
	}()
	err := w.attempt(batch, false)
	if errors.Is(err, errMixed) {
		err = w.attempt(batch, true)
	}
	if err != nil {
		w.db.opts.Logger.Error("commit failed", "error", err, "closures", len(batch))
		for _, cmd := range batch {
			cmd.err, cmd.panic = translate(err), nil
		}
		w.recover(err)
	}
	w.mu.Lock()
	w.failed = translate(err)
	w.mu.Unlock()
	for _, cmd := range batch {
		close(cmd.done)
	}
}

// errMixed says that a closure failed after it had written and others share its transaction.
var errMixed = errors.New("a closure of the batch failed")

func (w *writer) attempt(batch []*command, savepoints bool) error {
	if w.c == nil {
		if err := w.reopen(); err != nil {
			return err
		}
	}
	if err := w.c.run("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	now := time.Now()
	wrote := false
	for _, cmd := range batch {
		if savepoints {
			if err := w.c.run("SAVEPOINT one"); err != nil {
				return errors.Join(err, w.c.run("ROLLBACK"))
			}
		}
		tx := &Tx{c: w.c, now: now}
		cmd.err, cmd.panic = nil, nil
		cmd.call(tx)
		failed := cmd.err != nil || cmd.panic != nil
		switch {
		case failed && systemic(cmd.err):
			return errors.Join(cmd.err, w.rollback())
		case savepoints && failed && tx.wrote:
			if err := w.c.run("ROLLBACK TO one"); err != nil {
				return errors.Join(err, w.rollback())
			}
		case failed && tx.wrote:
			err := w.rollback()
			if err == nil && len(batch) > 1 {
				return errMixed
			}
			return err // alone: its own error stands, and nothing is left to commit
		case !failed:
			wrote = wrote || tx.wrote
		}
		if savepoints {
			if err := w.c.run("RELEASE one"); err != nil {
				return errors.Join(err, w.rollback())
			}
		}
	}
	if !wrote {
		return w.rollback()
	}
	if err := w.c.run("COMMIT"); err != nil {
		w.rollback() //nolint:errcheck // the error of COMMIT is the one that counts
		return err
	}
	return nil
}

func (c *command) call(tx *Tx) {
	defer func() {
		if p := recover(); p != nil {
			c.panic = fmt.Sprintf("%v\n%s", p, debug.Stack()) // panics again in its own goroutine
		}
	}()
	c.err = translate(c.fn(tx))
}

func (w *writer) rollback() error { return w.c.run("ROLLBACK") }

// systemic reports whether an error of one closure dooms the whole transaction.
func systemic(err error) bool {
	_, own := errors.AsType[*sqlite.Error](err)
	return fault.Is(err, fault.StorageFailed) || own && fault.Is(err, fault.StorageCorrupt)
}

// recover throws the connection away after a failed commit; the next batch opens another.
func (w *writer) recover(err error) {
	var se *sqlite.Error
	if w.c != nil && (!errors.As(err, &se) || spoils(se.Code())) {
		w.c.discard()
		w.c = nil
	}
}

func (w *writer) reopen() error {
	if err := abandoned(w.db.opts.Path); err != nil { // SQLite would begin an empty file anew
		return err
	}
	c, err := newConn(context.Background(), w.db.write)
	if err != nil {
		return fault.New(fault.StorageFailed, "The store could not reopen its file.").Because(err)
	}
	w.c = c
	return nil
}

// Checkpoint folds the write-ahead log into the database and empties it, so that nothing erased is left in it. ok is
// false when a reader kept it from doing so; a later checkpoint will.
func (db *DB) Checkpoint(ctx context.Context) (ok bool, err error) {
	w := &db.writer
	select {
	case w.lead <- struct{}{}:
		defer func() { <-w.lead }()
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	if w.c == nil {
		if err := w.reopen(); err != nil {
			return false, err
		}
	}
	var busy, frames, done int
	err = w.c.c.QueryRowContext(context.Background(), "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &frames, &done)
	return busy == 0, translate(err)
}

// broken is the error of the last commit, nil when it succeeded.
func (w *writer) broken() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed
}

// close refuses new closures, waits for those that wait, and truncates the log if that is ours.
func (w *writer) close() error {
	w.mu.Lock()
	if w.closed || w.lead == nil {
		w.mu.Unlock()
		return nil
	}
	w.closed = true
	w.mu.Unlock()
	w.lead <- struct{}{}
	for batch := w.take(); len(batch) > 0; batch = w.take() {
		w.commit(batch)
	}
	if w.c == nil {
		return nil
	}
	if w.db.opts.Beside {
		return w.c.close() // truncating the log would make the holder's writers wait
	}
	_, err := w.c.c.ExecContext(context.Background(), "PRAGMA wal_checkpoint(TRUNCATE)")
	if err != nil {
		err = fmt.Errorf("truncating the log: %w", err)
	}
	return errors.Join(err, w.c.close())
}
