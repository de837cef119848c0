package audit

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"agentd/store"
)

const (
	chainDelay = 40 * time.Millisecond // how long committed entries wait for others, so that they share a commit of the chain
	chainRows  = 512                   // rows of the outbox that one transaction chains
	rowBytes   = 256 << 10             // at which the entries of a transaction get another row
	sweepRows  = 256                   // chained rows that stay until they are deleted together
	markEvery  = 50 * time.Millisecond

	// WarnLag is how long entries may wait to be chained before health warns.
	WarnLag = time.Second
	// MaxLag is how long entries may wait before the log refuses records.
	MaxLag = 10 * time.Second
)

// outbox has the entries wait in the database, in the transactions of what they record, and chains them. It is the batch of
// the database's writer.
//
//	Prepared.Write --> a row of the outbox, with the effect: COMMIT --> every caller returns
//	                       \--> within 50 ms, one goroutine: rows --> the chain, and the number of the last one, in one transaction
//
// After a crash, the rows with larger numbers than that one are chained by the next process.
type outbox struct {
	log  *Log
	rows *store.Outbox

	// Of the writer.
	added []store.OutboxRow
	plain []byte
	swept int64

	chained atomic.Int64  // the last row that was chained, as far as this process knows
	synced  atomic.Int64  // the last row that was chained for good, even if the power is cut
	turn    chan struct{} // holds a token while rows are chained
	due     chan struct{} // holds a token when there are rows to be chained
	stop    chan struct{}
	done    sync.WaitGroup

	mu    sync.Mutex // guards the field below
	marks []mark     // the rows that wait, oldest first: some of them
}

// A mark says when a row was committed, and with it all before.
type mark struct {
	row int64
	at  time.Time
}

// Flush implements [store.Batch]. The entries of a transaction make one row, or few.
func (o *outbox) Flush(tx *store.Tx, left []any) error {
	o.added = o.added[:0]
	if len(left) == 0 {
		return nil
	}
	last, err := o.rows.Last(tx)
	if err != nil {
		return err
	}
	last = max(last, o.chained.Load()) // the database may be new, or a copy that was made before
	for i, v := range left {
		o.plain = v.(Prepared).appendTo(o.plain)
		if len(o.plain) >= rowBytes || i == len(left)-1 {
			last++
			o.added = append(o.added, store.OutboxRow{ID: last, Sealed: o.log.keys.sealRow(last, o.plain)})
			o.plain = o.plain[:0]
		}
	}
	synced := o.synced.Load()
	if err := o.rows.Append(tx, o.added); err != nil || synced-o.swept < sweepRows {
		return err
	}
	o.swept = synced
	return o.rows.Delete(tx, synced)
}

// End implements [store.Batch].
func (o *outbox) End(err error) {
	if err != nil || len(o.added) == 0 {
		return
	}
	m := mark{o.added[len(o.added)-1].ID, time.Now()}
	clear(o.added)
	o.added = o.added[:0]
	o.mu.Lock()
	if n := len(o.marks); n == 0 || m.at.Sub(o.marks[n-1].at) >= markEvery {
		o.marks = append(o.marks, m)
	} else {
		o.marks[n-1].row = m.row
	}
	o.mu.Unlock()
	select {
	case o.due <- struct{}{}:
	default:
	}
}

// Lag is how long the oldest entry has waited to be chained; 0 if none waits.
func (l *Log) Lag() time.Duration {
	if l.outbox == nil {
		return 0
	}
	l.outbox.mu.Lock()
	defer l.outbox.mu.Unlock()
	if len(l.outbox.marks) == 0 {
		return 0
	}
	return time.Since(l.outbox.marks[0].at)
}

// openOutbox makes the outbox part of the database's transactions, and chains what waits.
func (l *Log) openOutbox(ctx context.Context) error {
	o := l.outbox
	if o == nil {
		return nil
	}
	o.chained.Store(l.batch.chained)
	o.rows.Join(o)
	if err := o.chain(ctx); err != nil {
		return err
	}
	o.done.Go(o.run)
	return nil
}

// abandon returns the last row of the outbox, for a new chain: all of them belong to one that is gone.
func (o *outbox) abandon(ctx context.Context) (last int64, err error) {
	err = o.rows.View(ctx, func(tx *store.Tx) error {
		last, err = o.rows.Last(tx)
		return err
	})
	if last > 0 {
		o.log.log.Warn("the audit chain is new: entries that waited in the database for an earlier chain cannot be chained", "throughRow", last)
	}
	return last, err
}

// run chains what is committed, until the log is closed.
func (o *outbox) run() {
	for wait := chainDelay; ; {
		select {
		case <-o.due:
		case <-o.stop:
			return
		}
		select {
		case <-time.After(wait):
		case <-o.stop:
			return
		}
		if wait = chainDelay; o.chain(context.Background()) != nil {
			wait = time.Second // the error is logged where it occurs
			select {
			case o.due <- struct{}{}:
			default:
			}
		}
	}
}

// close chains what waits, and deletes what is chained.
func (o *outbox) close() error {
	close(o.stop)
	o.done.Wait()
	ctx := context.Background()
	if err := o.chain(ctx); err != nil {
		return err
	}
	if o.log.opts.Beside {
		return nil // the holder deletes them
	}
	if err := o.log.sync(); err != nil {
		return err
	}
	return o.rows.Update(ctx, func(tx *store.Tx) error { return o.rows.Delete(tx, o.synced.Load()) })
}

// sync makes durable what is in the chain. With durability "full", each commit is that by itself.
func (l *Log) sync() error {
	chained := int64(0)
	if l.outbox != nil {
		chained = l.outbox.chained.Load()
	}
	err := l.file.Sync()
	if err == nil && l.outbox != nil {
		l.outbox.synced.Store(chained)
	}
	return err
}

// settle chains the entries that were recorded before, so that a reader of the chain finds them.
func (l *Log) settle(ctx context.Context) error {
	if l.opts.ReadOnly || l.outbox == nil {
		return nil
	}
	l.mu.Lock()
	posted := l.posted
	l.mu.Unlock()
	if posted {
		if err := l.outbox.rows.Update(ctx, func(*store.Tx) error { return nil }); err != nil {
			return unavailable(err)
		}
	}
	l.outbox.mu.Lock()
	waiting := len(l.outbox.marks) > 0 || l.opts.Beside // then rows of another process may wait
	l.outbox.mu.Unlock()
	if !waiting {
		return nil
	}
	return l.outbox.chain(ctx)
}

// chain chains what waits.
func (o *outbox) chain(ctx context.Context) error {
	select {
	case o.turn <- struct{}{}:
		defer func() { <-o.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for more := true; more; {
		var err error
		if more, err = o.page(context.WithoutCancel(ctx)); err != nil {
			return unavailable(err)
		}
	}
	return nil
}

// page chains as many rows as one transaction takes, and reports whether there may be more.
func (o *outbox) page(ctx context.Context) (more bool, err error) {
	l, last := o.log, int64(0)
	err = l.file.Update(ctx, func(tx *store.Tx) error {
		value, err := l.file.Value(tx, valueChained)
		if err != nil {
			return err
		}
		var sound bool
		last, _, sound = l.keys.openChained(value)
		var rows []store.OutboxRow
		if rows, more, err = o.rows.After(ctx, last, chainRows); err != nil {
			return err
		}
		if !sound && (value != nil || len(rows) > 0) {
			tx.Leave(Prepared{lostRows(0, 0)}) // rows may be chained again
		} else if !sound {
			tx.Leave(through(0)) // the chain is of an earlier version
		}
		for _, r := range rows {
			entries, ok := l.keys.openRow(&r)
			if !ok || r.ID != last+1 {
				entries = append(Prepared{lostRows(last+1, r.ID)}, entries...)
			}
			tx.Leave(entries)
			last = r.ID
		}
		if len(rows) > 0 {
			tx.Leave(through(last))
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	if o.chained.Store(last); l.opts.Durability != "normal" {
		o.synced.Store(last)
	}
	o.mu.Lock()
	o.marks = slices.DeleteFunc(o.marks, func(m mark) bool { return m.row <= last })
	o.mu.Unlock()
	return more, nil
}

// lostRows is the entry that stands for rows that were changed or are gone.
func lostRows(from, to int64) pending {
	r := Record{Actor: Actor{Kind: ActorSystem, ID: "agentd/audit"}, Action: AuditDamaged, Target: "audit", Decision: Failed,
		Metadata: map[string]any{"fromRow": from, "toRow": to}}
	c, _ := r.encode() // it is small, and of whole numbers
	return pending{c, time.Now().UnixMilli(), true}
}

// appendTo writes entries as a row has them: of each the time, the length and the contents.
func (p Prepared) appendTo(b []byte) []byte {
	for i := range p {
		b = binary.BigEndian.AppendUint64(b, uint64(p[i].ts))
		b = binary.BigEndian.AppendUint32(b, uint32(len(p[i].contents)))
		b = append(b, p[i].contents...)
	}
	return b
}

// sealRow seals the entries of a row.
func (k *keys) sealRow(row int64, plain []byte) []byte {
	return seal(k.outbox, plain, binary.BigEndian.AppendUint64(nil, uint64(row)))
}

// openRow returns the entries of a row; ok is false for a row that somebody else has made, or that was made for another place.
func (k *keys) openRow(r *store.OutboxRow) (entries Prepared, ok bool) {
	plain, err := open(k.outbox, nil, r.Sealed, binary.BigEndian.AppendUint64(nil, uint64(r.ID)))
	if err != nil {
		return nil, false
	}
	return readRow(plain)
}

// readRow is the inverse of appendTo. The entries refer to the text.
func readRow(plain []byte) (entries Prepared, ok bool) {
	for len(plain) >= 12 {
		n := int64(binary.BigEndian.Uint32(plain[8:]))
		if n > int64(len(plain)-12) {
			return nil, false
		}
		entries = append(entries, pending{contents: plain[12 : 12+n], ts: int64(binary.BigEndian.Uint64(plain))})
		plain = plain[12+n:]
	}
	return entries, len(plain) == 0
}

// A waiting row is one of the outbox, and how many entries it holds; ok is false if it is not as it was sealed.
type waitingRow struct {
	id int64
	n  int
	ok bool
}

// waiting reads the outbox.
func (o *outbox) waiting(ctx context.Context) (all []waitingRow, err error) {
	last := int64(0)
	for {
		rows, _, err := o.rows.After(ctx, last, chainRows)
		if err != nil || len(rows) == 0 {
			return all, err
		}
		for i := range rows {
			entries, ok := o.log.keys.openRow(&rows[i])
			all = append(all, waitingRow{rows[i].ID, len(entries), ok})
			last = rows[i].ID
		}
	}
}
