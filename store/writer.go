package store

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
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
	batch  Batch         // nil: none
	places chan struct{} // one token per closure that waits or runs
	lead   chan struct{} // holds a token while somebody leads; guards c and batch

	c         *conn // owned by the leader
	committed bool  // what the leader has begun; the leader's, too

	mu     sync.Mutex // guards the fields below
	queue  []*command // a leader takes commands from its front
	closed bool
	failed error // of the last COMMIT or reopening; nil after one that succeeded

	work sync.WaitGroup // of goroutines that lead for posted commands
}

// A Batch takes part in each transaction of a writer. It writes what the closures leave with it, once for all of them. Its
// methods are called by one goroutine at a time.
type Batch interface {
	// Flush gets what those closures have left that succeeded, in their order; nothing, if they left none. An error rolls
	// the transaction back. After ErrConflict it is tried again.
	Flush(tx *Tx, left []any) error
	End(error) // the transaction is durable, or it has failed for all of its closures
}

type command struct {
	fn    func(*Tx) error
	err   error
	panic any
	done  chan struct{} // nil: nobody waits for it, and it stays queued until it is committed
}

func (c *command) posted() bool { return c.done == nil }

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
	return db.update(ctx, fn, 0)
}

// linger is how long a change that nobody waits for waits for company.
const linger = time.Millisecond

// UpdateSoon is [DB.Update] for a change that nobody waits for: it joins the next transaction of another caller, and has one
// of its own only when none begins within a millisecond. While others write, it costs no commit.
func (db *DB) UpdateSoon(ctx context.Context, fn func(*Tx) error) error {
	return db.update(ctx, fn, linger)
}

func (db *DB) update(ctx context.Context, fn func(*Tx) error, patience time.Duration) error {
	if db.opts.ReadOnly {
		return fault.New(fault.StorageFailed, "The database is open for reading only.")
	}
	return db.writer.update(ctx, fn, patience)
}

// update waits for another caller to lead, and leads when its patience ends.
func (w *writer) update(ctx context.Context, fn func(*Tx) error, patience time.Duration) error {
	cmd := &command{fn: fn, done: make(chan struct{})}
	if err := w.enqueue(ctx, cmd); err != nil {
		return err
	}
	if patience > 0 {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case <-cmd.done:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	return w.await(ctx, cmd)
}

// insist is update, but a command that has its place in the queue is not withdrawn when ctx is done.
func (w *writer) insist(ctx context.Context, fn func(*Tx) error) error {
	if w.db.opts.ReadOnly {
		return w.db.Update(ctx, fn)
	}
	cmd := &command{fn: fn, done: make(chan struct{})}
	if err := w.enqueue(ctx, cmd); err != nil {
		return err
	}
	return w.await(context.WithoutCancel(ctx), cmd)
}

// post queues a closure that nobody waits for; a transaction begins within a time. While commits fail, it waits like update.
func (w *writer) post(ctx context.Context, within time.Duration, fn func(*Tx) error) error {
	if w.broken() != nil {
		return w.update(ctx, fn, 0)
	}
	err := w.enqueue(ctx, &command{fn: fn})
	if within > 0 {
		time.AfterFunc(within, w.kick)
	} else {
		w.kick()
	}
	return err
}

// enqueue waits for a place in the queue and takes it.
func (w *writer) enqueue(ctx context.Context, cmd *command) error {
	select {
	case w.places <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		<-w.places
		return fault.New(fault.StorageFailed, "The store is closed.")
	}
	w.queue = append(w.queue, cmd)
	return nil
}

// await returns when a command of the queue is done, or ctx is before somebody has taken it. Whoever finds no leader leads.
func (w *writer) await(ctx context.Context, cmd *command) error {
	defer func() { <-w.places }()
	select {
	case <-cmd.done:
	case w.lead <- struct{}{}:
		for !cmd.finished() {
			runtime.Gosched() // lets callers that are about to queue join this batch
			batch := w.take()
			if err := w.commit(batch); err != nil && batch[0].posted() && w.withdraw(cmd) {
				cmd.err = translate(err) // posted commands stay ahead of it
				break
			}
		}
		<-w.lead
		w.kick()
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

// kick has a goroutine lead while there are posted commands. Each leader kicks when it has released the lead; commands that
// somebody waits for need no kick.
func (w *writer) kick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.failed != nil || !slices.ContainsFunc(w.queue, (*command).posted) {
		return
	}
	select {
	case w.lead <- struct{}{}:
	default:
		return
	}
	w.work.Go(func() {
		for batch := w.take(); len(batch) > 0; batch = w.take() {
			if w.commit(batch) != nil {
				break
			}
		}
		<-w.lead
		w.kick()
	})
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
	if w.queue = w.queue[n:]; len(w.queue) == 0 {
		w.queue = nil
	}
	return batch
}

// withdraw takes a command out of the queue, unless a leader has taken it.
func (w *writer) withdraw(cmd *command) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.Index(w.queue, cmd)
	if i < 0 {
		return false
	}
	w.queue = append(w.queue[:i:i], w.queue[i+1:]...)
	return true
}

// commit runs a batch to its end. Closures run without savepoints first, which is what nearly always succeeds; when
// one fails after it has written, the transaction is rolled back and the batch runs again with a savepoint each. The error
// is that of the whole batch; posted commands then go back to the queue, unless the writer is being closed.
func (w *writer) commit(batch []*command) error {
	if len(batch) == 0 {
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			// A defect of the writer itself: closures' panics do not come here. The process must not live on with
			// half a writer, so nobody gets to recover this one.
			go panic(fmt.Sprintf("store: writing failed: %v\n%s", p, debug.Stack()))
			select {}
		}
	}()
	var err error
	savepoints, began := false, time.Now()
	w.committed = false
	for range 4 {
		if err = w.attempt(batch, savepoints); err == errMixed {
			savepoints = true
		} else if !errors.Is(err, ErrConflict) {
			break
		}
	}
	if err != nil {
		w.db.opts.Logger.Error("commit failed", "error", err, "closures", len(batch))
		for _, cmd := range batch {
			cmd.err, cmd.panic = translate(err), nil
		}
		w.recover(err)
	}
	if tell := w.db.opts.Committed; tell != nil && (w.committed || err != nil) {
		tell(len(batch), time.Since(began), err)
	}
	if w.batch != nil {
		w.batch.End(err)
	}
	var kept []*command
	w.mu.Lock()
	w.failed = translate(err)
	for _, cmd := range batch {
		switch {
		case !cmd.posted():
		case err != nil && !w.closed:
			kept = append(kept, cmd)
		default:
			<-w.places
		}
	}
	w.queue = append(kept, w.queue...)
	w.mu.Unlock()
	for _, cmd := range batch {
		if !cmd.posted() {
			close(cmd.done)
		}
	}
	return err
}

// errMixed says that a closure failed after it had written and others share its transaction.
var errMixed = errors.New("a closure of the batch failed")

// attempt runs a batch in one transaction. The error is that of the whole batch; each command has its own.
func (w *writer) attempt(batch []*command, savepoints bool) (err error) {
	if w.c == nil {
		if err := w.reopen(); err != nil {
			return err
		}
	}
	if err := w.c.run("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	defer func() {
		if w.committed {
			return
		}
		if undone := w.c.run("ROLLBACK"); undone != nil {
			err = errors.Join(err, undone)
		}
	}()
	now, wrote := time.Now(), false
	var left []any
	for _, cmd := range batch {
		if savepoints {
			if err := w.c.run("SAVEPOINT one"); err != nil {
				return err
			}
		}
		tx := &Tx{c: w.c, now: now}
		cmd.err, cmd.panic = nil, nil
		cmd.call(tx)
		failed := cmd.err != nil || cmd.panic != nil
		switch {
		case failed && systemic(cmd.err):
			return cmd.err
		case failed && tx.wrote && savepoints:
			if err := w.c.run("ROLLBACK TO one"); err != nil {
				return err
			}
		case failed && tx.wrote && len(batch) > 1:
			return errMixed
		case failed && tx.wrote:
			return nil // its own error stands, and nothing is left to commit
		}
		if !failed {
			wrote, left = wrote || tx.wrote, append(left, tx.left...)
		}
		if savepoints {
			if err := w.c.run("RELEASE one"); err != nil {
				return err
			}
		}
	}
	if w.batch != nil {
		tx := &Tx{c: w.c, now: now}
		if err := w.batch.Flush(tx, left); err != nil {
			return err
		}
		wrote = wrote || tx.wrote
	}
	if !wrote {
		return nil
	}
	if err := w.c.run("COMMIT"); err != nil {
		return err
	}
	w.committed = true
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

// systemic reports whether an error of one closure dooms the whole transaction.
func systemic(err error) bool {
	_, own := errors.AsType[*sqlite.Error](err)
	return fault.Is(err, fault.StorageFailed) || own && fault.Is(err, fault.StorageCorrupt)
}

// recover throws the connection away after a failed commit; the next batch opens another.
func (w *writer) recover(err error) {
	var se *sqlite.Error
	if w.c != nil && (!errors.As(err, &se) || spoils(se.Code())) {
		w.c.close() //nolint:errcheck // it has failed
		w.c = nil
	}
}

func (w *writer) reopen() error {
	if err := abandoned(w.db.opts.Path); err != nil { // SQLite would begin an empty file anew
		return err
	}
	c, err := newConn(context.Background(), w.db.write)
	if err = translate(err); err != nil && !systemic(err) {
		err = fault.New(fault.StorageFailed, "The store could not reopen its file.").Because(err)
	}
	w.c = c
	return err
}

const truncate = "PRAGMA wal_checkpoint(TRUNCATE)"

// Checkpoint folds the write-ahead log into the database and empties it, so that nothing erased is left in it. ok is
// false when a reader kept it from doing so; a later checkpoint will.
func (db *DB) Checkpoint(ctx context.Context) (ok bool, err error) {
	err = db.writer.between(ctx, func(tx *Tx) (err error) {
		ok, err = checkpoint(tx)
		return err
	})
	return ok, err
}

func checkpoint(tx *Tx) (ok bool, err error) {
	var busy, frames, done int
	err = tx.row(truncate).Scan(&busy, &frames, &done)
	return busy == 0, err
}

// between runs fn on the write connection, outside of transactions.
func (w *writer) between(ctx context.Context, fn func(*Tx) error) error {
	select {
	case w.lead <- struct{}{}:
		defer func() { <-w.lead; w.kick() }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if w.c == nil {
		if err := w.reopen(); err != nil {
			return err
		}
	}
	return translate(fn(&Tx{c: w.c}))
}

// broken is the error of the last commit, nil when it succeeded.
func (w *writer) broken() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed
}

// close refuses new closures, waits for those that wait, and truncates the log if that is ours. The error says, too, that
// posted closures were lost.
func (w *writer) close() error {
	w.mu.Lock()
	if w.closed || w.lead == nil {
		w.mu.Unlock()
		return nil
	}
	w.closed = true
	w.mu.Unlock()
	w.lead <- struct{}{}
	w.work.Wait()
	var lost error
	for batch := w.take(); len(batch) > 0; batch = w.take() {
		if err := w.commit(batch); err != nil && slices.ContainsFunc(batch, (*command).posted) {
			lost = err
		}
	}
	if w.c == nil {
		return lost
	}
	if w.db.opts.Beside {
		return errors.Join(lost, w.c.close()) // truncating the log would make the holder's writers wait
	}
	err := w.c.run(truncate)
	if err != nil {
		err = fmt.Errorf("truncating the log: %w", err)
	}
	return errors.Join(lost, err, w.c.close())
}
