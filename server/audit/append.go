package audit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"agentd/server/fault"
	"agentd/store"
)

// Append adds records to the chain, one after the other, all or none of them. It returns when they are durable: in the
// outbox, if the log has one, from which they are chained in the order of their commits, and else in the chain. Its error is
// audit-unavailable, unless a record itself is wrong. Records of other callers may share the transaction.
func (l *Log) Append(ctx context.Context, records ...Record) error {
	p, err := l.Prepare(records...)
	if err != nil || p == nil {
		return err
	}
	if l.outbox != nil {
		return unavailable(l.outbox.rows.Update(ctx, p.Write))
	}
	return unavailable(l.file.Update(ctx, p.Write))
}

// Prepared is records that are encoded.
type Prepared []pending

// Prepare encodes records. The error is as that of [Log.Append]; nil for no records.
func (l *Log) Prepare(records ...Record) (Prepared, error) {
	switch {
	case len(records) == 0:
		return nil, nil
	case l.keys == nil || l.opts.ReadOnly:
		return nil, unavailable(errors.New("it is open for reading only"))
	case l.Lag() >= MaxLag:
		return nil, unavailable(errors.New("entries wait for too long to be chained"))
	}
	p, now := make(Prepared, len(records)), time.Now()
	for i := range records {
		c, err := records[i].encode()
		if err != nil {
			return nil, err
		}
		if p[i] = (pending{c, now.UnixMilli(), false}); !records[i].At.IsZero() {
			p[i].ts = records[i].At.UnixMilli()
		}
	}
	return p, nil
}

// Write adds the records in a transaction of the database that has the log's outbox: with what they record, or not at all.
func (p Prepared) Write(tx *store.Tx) error {
	if len(p) > 0 {
		tx.Leave(p)
	}
	return nil
}

// Limits of the records that wait to be written without a caller.
const (
	maxNoted  = 4096
	manyNoted = 512                   // then they wait no longer
	noteDelay = 50 * time.Millisecond // how long they wait for others, where there is an outbox
)

// Note is [Log.Append] that does not wait: the next transaction to begin writes the records. While the chain cannot be
// written, and while too many records wait, Note waits too.
func (l *Log) Note(ctx context.Context, records ...Record) error {
	p, err := l.Prepare(records...)
	if err != nil || p == nil {
		return err
	}
	l.mu.Lock()
	full, first := len(l.noted)+len(p) > maxNoted, !l.posted
	if !full && !first {
		l.noted = append(l.noted, p...)
	}
	many := len(l.noted) == manyNoted
	l.posted = true
	l.mu.Unlock()
	switch {
	case first:
		err = l.post(ctx, p)
	case full && l.outbox != nil:
		err = l.outbox.rows.Update(ctx, p.Write)
	case full:
		err = l.file.Update(ctx, p.Write)
	case many && l.outbox != nil:
		l.outbox.rows.Kick()
	}
	return unavailable(err)
}

// post has the next transaction write records, and those that are noted by then.
func (l *Log) post(ctx context.Context, p Prepared) (err error) {
	var others Prepared
	write := func(tx *store.Tx) error {
		l.mu.Lock()
		others, l.noted, l.posted = append(others, l.noted...), nil, false
		l.mu.Unlock()
		return errors.Join(p.Write(tx), others.Write(tx))
	}
	if l.outbox != nil {
		err = l.outbox.rows.Post(ctx, noteDelay, write)
	} else {
		err = l.file.Post(ctx, write)
	}
	if err != nil { // it was not queued: the next Note tries again with the others
		l.mu.Lock()
		l.noted, l.posted = append(others, l.noted...), false
		l.mu.Unlock()
	}
	return err
}

// encode encodes a record. A record that is too large, or has no canonical form, is refused.
func (r *Record) encode() (contents, error) {
	b := begin(string(r.Action), r.Actor, r.Context, r.Decision)
	if r.Metadata != nil {
		var err error
		if b, err = form.AppendValue(append(b, metadataMember...), r.Metadata); err != nil {
			return nil, fault.New(fault.AuditPayload, "The record %s cannot be encoded: %v.", r.Action, err)
		}
	}
	c := finish(b, r.Target[:min(len(r.Target), maxTarget)])
	if n := len(c); n > maxContents {
		return nil, fault.New(fault.AuditPayload, "The record %s has %d bytes, more than %d.", r.Action, n, maxContents)
	}
	return c, nil
}

// A pending entry has no place in the chain yet.
type pending struct {
	contents
	ts   int64 // milliseconds since 1970
	lost bool  // it stands for entries of the outbox that were changed or are gone
}

// A tip is the end of the chain: the tree over all entries, whose size is the last sequence number, and the last hash.
type tip struct {
	tree edge
	hash node
}

// batch chains and inserts the entries of a transaction together. Only the caller that commits uses it; see [store.Batch].
type batch struct {
	log     *Log
	tip     tip   // as of the last commit
	chained int64 // the row of the outbox up to which entries were chained, as of the last commit
	stale   bool  // both must be read again: a commit failed, or another process has appended

	begun   time.Time // when the closures of the transaction had run; the fields below belong to it, too
	pending []pending
	rows    []store.AuditRow
	next    tip // after the commit
	through int64
}

// through is left by a closure that has left the entries of the outbox up to this row.
type through int64

// Flush chains, seals and inserts the entries that closures have left. If another process has appended to the file
// meanwhile, the store runs the transaction again. It then continues from the new end, and no other process can append until
// it commits.
func (b *batch) Flush(tx *store.Tx, left []any) error {
	b.begun, b.pending, b.rows = time.Now(), b.pending[:0], nil
	if len(left) == 0 {
		return nil
	}
	if b.stale {
		if err := b.reload(tx); err != nil {
			return err
		}
	}
	b.through = b.chained
	for _, v := range left {
		switch v := v.(type) {
		case Prepared:
			b.pending = append(b.pending, v...)
		case through:
			b.through = int64(v)
		}
	}
	b.rows, b.next = make([]store.AuditRow, len(b.pending)), tip{b.tip.tree.clone(), b.tip.hash}
	prev := b.tip.hash[:]
	var text, bound []byte
	for i := range b.pending {
		c, seq := &b.pending[i], b.next.tree.size+1
		if c.lost {
			b.log.distrust(tx, Break{Seq: seq, Reason: BrokenOutbox})
		}
		text = c.appendEntry(text[:0], seq, c.ts, prev, nil)
		hash := sha256.Sum256(text)
		bound = appendBound(bound[:0], seq, hash[:])
		b.rows[i] = store.AuditRow{Seq: seq, TS: c.ts, Prev: prev, Hash: hash[:], Seal: seal(b.log.keys.contents, c.contents, bound)}
		b.next.tree.add(hash[:])
		b.next.hash, prev = hash, b.rows[i].Hash
	}
	err := b.log.file.Append(tx, b.rows)
	if err == nil {
		err = b.log.file.Set(tx, map[string][]byte{valueChained: b.log.keys.sealChained(b.through, b.next.tree.size)})
	}
	b.stale = err != nil
	return err
}

// End implements [store.Batch].
func (b *batch) End(err error) {
	l, n := b.log, len(b.rows)
	switch {
	case err != nil:
		b.stale = true
		l.log.Error("audit entries were not written", "error", err)
	case n > 0:
		for i := range b.rows {
			if r := &b.rows[i]; l.opts.Committed != nil {
				c := b.pending[i].contents
				l.opts.Committed(r.Seq, c.appendEntry(make([]byte, 0, len(c)+208), r.Seq, r.TS, r.Prev, r.Hash))
			}
		}
		b.tip, b.chained = b.next, b.through
		l.see(b.tip.tree)
		if h := l.heads; h != nil && h.entries > 0 && b.tip.tree.size-h.size() >= h.entries {
			select {
			case l.due <- struct{}{}:
			default:
			}
		}
	default:
		return
	}
	l.appended(n, b.begun, err)
	clear(b.pending)
	b.pending, b.rows = b.pending[:0], nil
}

// reload reads the tip from the file. tx is the open transaction; nil while the log is being opened.
func (b *batch) reload(tx *store.Tx) error {
	ctx, l := context.Background(), b.log
	k, err := l.read(ctx, l.public)
	if err != nil {
		return err
	}
	if k.Tail != nil && len(k.Tail.Hash) != sha256.Size {
		return unusable("the hash of entry %d is damaged", k.Tail.Seq)
	}
	from := k.edge()
	if size := b.tip.tree.size; size > 0 { // the tree that this process has grown itself, if the entries are still there
		same := k.stub != nil && k.stub.Through >= size
		if _, err := l.file.Scan(ctx, store.Span{From: size, To: size, Bare: true}, func(r *store.AuditRow) error {
			same = same || bytes.Equal(r.Hash, b.tip.hash[:])
			return nil
		}); err != nil {
			return err
		}
		if same {
			from = b.tip.tree.clone()
		} else {
			l.distrust(tx, Break{Seq: size, Reason: BrokenTruncated, Expected: hex.EncodeToString(b.tip.hash[:])})
		}
	}
	next := tip{tree: from}
	if k.stub != nil {
		next.hash = k.stub.node
	}
	if k.Tail != nil {
		// For entries that are missing, which a verification finds, the tree has leaves to which no checkpoint that was
		// signed before will ever fit.
		if err := l.hashes(ctx, from.size+1, k.Tail.Seq, true, func(hash []byte) error { next.tree.add(hash); return nil }); err != nil {
			return err
		}
		next.hash = node(k.Tail.Hash)
	}
	if l.keys != nil {
		b.chained, _, _ = l.keys.openChained(k.Values[valueChained]) // a verification checks it
	}
	b.tip, b.stale = next, false
	l.see(b.tip.tree)
	return nil
}
