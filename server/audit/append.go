package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"agentd/store"
)

// waiting is what one caller wants to have in the chain.
type waiting struct {
	records []contents
	done    chan struct{} // nil: nobody waits for it
	err     error
}

// maxBatch is how many callers' records one transaction takes.
const maxBatch = 256

// Append returns when the records are durable, all or none of them, or with an error, which is audit-unavailable unless
// a record itself is wrong. They follow each other in the chain. Those of other callers may share their transaction.
func (l *Log) Append(ctx context.Context, records ...Record) error {
	w, err := l.prepare(records)
	if err != nil || len(records) == 0 {
		return err
	}
	return l.await(ctx, w)
}

// Note is [Log.Append] that does not wait: the records are in the first transaction that begins from now on. While the
// chain cannot be written, and while too many wait, it does wait.
func (l *Log) Note(ctx context.Context, records ...Record) error {
	w, err := l.prepare(records)
	if err != nil || len(records) == 0 {
		return err
	}
	l.mu.Lock()
	failed := l.failed
	l.mu.Unlock()
	if failed != nil {
		return l.await(ctx, w)
	}
	if err := l.enqueue(ctx, w); err != nil {
		return err
	}
	l.kick()
	return nil
}

func (l *Log) prepare(records []Record) (*waiting, error) {
	if l.keys == nil || l.opts.ReadOnly {
		return nil, unavailable(errors.New("it is open for reading only"))
	}
	now := time.Now()
	w := &waiting{records: make([]contents, len(records))}
	for i := range records {
		c, err := contentsOf(&records[i])
		if err != nil {
			return nil, err
		}
		if c.ts = now.UnixMilli(); !records[i].At.IsZero() {
			c.ts = records[i].At.UnixMilli()
		}
		w.records[i] = c
	}
	return w, nil
}

// enqueue takes a place and a position in the queue.
func (l *Log) enqueue(ctx context.Context, w *waiting) error {
	select {
	case l.places <- struct{}{}:
	case <-ctx.Done():
		return unavailable(context.Cause(ctx))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		<-l.places
		return unavailable(errors.New("it is closed"))
	}
	l.queue = append(l.queue, w)
	return nil
}

// await queues a record and returns when it is durable. Whoever finds no leader leads.
func (l *Log) await(ctx context.Context, w *waiting) error {
	w.done = make(chan struct{})
	if err := l.enqueue(ctx, w); err != nil {
		return err
	}
	select {
	case <-w.done:
	case l.lead <- struct{}{}:
		for !w.finished() {
			runtime.Gosched()  // lets callers that are about to queue join this batch
			l.commit(l.take()) //nolint:errcheck // everybody is told
		}
		<-l.lead
		l.kick()
	}
	return w.err
}

func (w *waiting) finished() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// kick sees to it that somebody leads while something is queued. Who waits leads himself; this is for the others.
func (l *Log) kick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.queue) == 0 {
		return
	}
	select {
	case l.lead <- struct{}{}:
	default:
		return // that one kicks when he is through
	}
	l.work.Go(func() {
		err := l.drain()
		<-l.lead
		if err == nil {
			l.kick()
		}
	})
}

// drain commits until nothing is queued or a commit fails. The caller leads.
func (l *Log) drain() error {
	for {
		batch := l.take()
		if len(batch) == 0 {
			return nil
		}
		if err := l.commit(batch); err != nil {
			return err
		}
	}
}

func (l *Log) take() []*waiting {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(len(l.queue), maxBatch)
	batch := l.queue[:n:n]
	if l.queue = l.queue[n:]; len(l.queue) == 0 {
		l.queue = nil
	}
	return batch
}

// commit makes a batch durable. What nobody waits for goes back to the queue when that fails. The caller leads.
func (l *Log) commit(batch []*waiting) error {
	if len(batch) == 0 {
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			// The process must not live on with half a leader.
			go panic(fmt.Sprintf("audit: appending failed: %v\n%s", p, debug.Stack()))
			select {}
		}
	}()
	begun := time.Now()
	var err error
	for range 3 {
		// Beside a process that holds the file, another may have appended: then this one builds on that, and keeps others from
		// appending meanwhile.
		if err = l.write(batch); !errors.Is(err, store.ErrConflict) {
			break
		}
	}
	if err != nil {
		err = unavailable(err)
		l.log.Error("audit append failed", "error", err, "callers", len(batch))
	}
	n := 0
	for _, w := range batch {
		n += len(w.records)
	}
	l.meter.appended(n, begun, err)
	var kept []*waiting
	l.mu.Lock()
	l.failed = err
	for _, w := range batch {
		if err != nil && w.done == nil {
			kept = append(kept, w)
		}
	}
	l.queue = append(kept, l.queue...)
	l.mu.Unlock()
	for range len(batch) - len(kept) {
		<-l.places
	}
	for _, w := range batch {
		if w.done != nil {
			w.err = err
			close(w.done)
		}
	}
	return err
}

// write chains, seals and inserts a batch in one transaction, and then advances the head.
func (l *Log) write(batch []*waiting) error {
	rows := make([]store.AuditRow, 0, len(batch))
	var seq int64
	var prev node
	var tree edge
	chain := func() {
		rows, seq, prev, tree = rows[:0], l.last, l.hash, l.tree.clone()
		var text, ad []byte
		for _, w := range batch {
			for _, c := range w.records {
				seq++
				text = c.appendEntry(text[:0], seq, c.ts, prev[:])
				hash := node(sha256.Sum256(text))
				ad = bound(ad[:0], seq, hash[:])
				rows = append(rows, store.AuditRow{Seq: seq, TS: c.ts, Prev: slices.Clone(prev[:]), Hash: hash[:], Seal: seal(l.keys.contents, c.whole(), ad)})
				tree.grow(leafOf(hash[:]))
				prev = hash
			}
		}
	}
	if !l.stale {
		chain()
	}
	err := l.file.Update(context.Background(), func(tx *store.Tx) error {
		if l.stale {
			if err := l.reload(context.Background()); err != nil {
				return err
			}
			chain()
		}
		return l.file.Append(tx, rows)
	})
	if err != nil {
		l.stale = true
		return err
	}
	l.last, l.hash, l.tree = seq, prev, tree
	l.see()
	if l.heads.due(seq) {
		select {
		case l.due <- struct{}{}:
		default:
		}
	}
	if l.opts.Committed != nil {
		for _, w := range batch {
			for _, c := range w.records {
				r := &rows[0]
				l.opts.Committed(r.Seq, c.line(r.Seq, r.TS, r.Prev, r.Hash))
				rows = rows[1:]
			}
		}
	}
	return nil
}

// see lets others see the head of the chain. The caller leads.
func (l *Log) see() {
	head := headOf(&l.tree)
	l.mu.Lock()
	l.seen, l.seenTree = head, l.tree
	l.mu.Unlock()
}

func headOf(e *edge) Head {
	root := e.root()
	return Head{Size: e.size, RootHash: hex.EncodeToString(root[:]), LastSeq: e.size}
}
