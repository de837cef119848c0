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

// Append adds records to the chain, one after the other, all or none of them. It returns when they are durable. Its error is
// audit-unavailable, unless a record itself is wrong. Records of other callers may share the transaction.
func (l *Log) Append(ctx context.Context, records ...Record) error {
	return l.add(ctx, l.file.Update, records)
}

// Note is [Log.Append] that does not wait: the next transaction to begin writes the records. While the chain cannot be
// written, and while too many records wait, Note waits too.
func (l *Log) Note(ctx context.Context, records ...Record) error {
	return l.add(ctx, l.file.Post, records)
}

func (l *Log) add(ctx context.Context, write func(context.Context, func(*store.Tx) error) error, records []Record) error {
	if l.keys == nil || l.opts.ReadOnly {
		return unavailable(errors.New("it is open for reading only"))
	}
	all, now := make([]pending, len(records)), time.Now()
	for i := range records {
		c, err := records[i].encode()
		if err != nil {
			return err
		}
		if all[i] = (pending{c, now.UnixMilli()}); !records[i].At.IsZero() {
			all[i].ts = records[i].At.UnixMilli()
		}
	}
	if len(all) == 0 {
		return nil
	}
	return unavailable(write(ctx, func(*store.Tx) error {
		l.batch.pending = append(l.batch.pending, all...)
		return nil
	}))
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
	ts int64 // milliseconds since 1970
}

// A tip is the end of the chain: the tree over all entries, whose size is the last sequence number, and the last hash.
type tip struct {
	tree edge
	hash node
}

// batch chains and inserts the entries of a transaction together. Only the caller that commits uses it; see [store.Batch].
type batch struct {
	log   *Log
	tip   tip  // as of the last commit
	stale bool // the tip must be read again: a commit failed, or another process has appended

	begun   time.Time // when the transaction began; the fields below belong to it, too
	pending []pending
	rows    []store.AuditRow
	next    tip // after the commit
}

// Begin implements [store.Batch].
func (b *batch) Begin() { b.begun, b.pending = time.Now(), b.pending[:0] }

// Flush chains, seals and inserts the pending entries. If another process has appended to the file meanwhile, the store runs
// the transaction again. It then continues from the new end, and no other process can append until it commits.
func (b *batch) Flush(tx *store.Tx) error {
	if len(b.pending) == 0 {
		return nil
	}
	if b.stale {
		if err := b.reload(tx); err != nil {
			return err
		}
	}
	b.rows, b.next = make([]store.AuditRow, len(b.pending)), tip{b.tip.tree.clone(), b.tip.hash}
	prev := b.tip.hash[:]
	var text, bound []byte
	for i := range b.pending {
		c, seq := &b.pending[i], b.next.tree.size+1
		text = c.appendEntry(text[:0], seq, c.ts, prev, nil)
		hash := sha256.Sum256(text)
		bound = appendBound(bound[:0], seq, hash[:])
		b.rows[i] = store.AuditRow{Seq: seq, TS: c.ts, Prev: prev, Hash: hash[:], Seal: seal(b.log.keys.contents, c.contents, bound)}
		b.next.tree.add(hash[:])
		b.next.hash, prev = hash, b.rows[i].Hash
	}
	err := b.log.file.Append(tx, b.rows)
	b.stale = err != nil
	return err
}

// End implements [store.Batch].
func (b *batch) End(err error) {
	l, n := b.log, len(b.pending)
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
		b.tip = b.next
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
	b.tip, b.stale = next, false
	l.see(b.tip.tree)
	return nil
}
