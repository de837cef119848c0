package audit

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math"
	"slices"

	"agentd/server/tracecontext"
	"agentd/store"
)

// What a verification can find.
const (
	BrokenMissing     = "missing"             // an entry is not there
	BrokenLink        = "broken-link"         // an entry does not refer to the one before it
	BrokenContents    = "contents-changed"    // the sealed part of an entry does not belong to its hash
	BrokenHash        = "hash-mismatch"       // an entry does not have its hash
	BrokenTruncated   = "truncated"           // a checkpoint or the running server has seen entries that are gone
	BrokenLog         = "inconsistent-log"    // a checkpoint was made for other entries than these
	BrokenSignature   = "bad-signature"       // a checkpoint or the record of a pruning is not signed with the key
	BrokenCheckpoints = "checkpoints-missing" // the checkpoint file lacks its latest line
	BrokenOutbox      = "outbox-changed"      // entries that waited in the database to be chained were changed, or are gone
)

// Verification says what to verify, and against what.
type Verification struct {
	From, To    int64             // sequence numbers, both included; 0: from the first, to the last; To below 0: none
	Checkpoints string            // the checkpoint file; empty: none
	PublicKey   ed25519.PublicKey // that must have signed; nil: the one that the chain itself names
}

// Verdict is the result of a verification. It names only the first place where a chain is broken.
type Verdict struct {
	OK       bool   `json:"ok"`
	Count    int64  `json:"count" doc:"Checked entries."`
	BrokenAt int64  `json:"brokenAt,omitempty" doc:"The first bad sequence number."`
	Reason   string `json:"reason,omitempty" doc:"What is wrong at this place: missing, broken-link, contents-changed, hash-mismatch, truncated, inconsistent-log, bad-signature, checkpoints-missing or outbox-changed."`
	Expected string `json:"expected,omitempty"`
	Actual   string `json:"actual,omitempty"`

	Contents    bool         `json:"contents" doc:"The contents were compared with the hashes. This requires the passphrase."`
	Waiting     int          `json:"waiting,omitempty" doc:"Entries that are durable in the database and were not chained yet. They were checked, too."`
	Checkpoints int          `json:"checkpoints" doc:"Checkpoints that match the chain."`
	Accepted    []Acceptance `json:"accepted,omitempty" doc:"Accepted breaks, oldest first. The verification compares the chain with its state at the time of acceptance."`

	PrunedThrough int64 `json:"prunedThrough,omitempty" doc:"The last entry that was pruned."`
	Head          *Head `json:"head,omitempty" doc:"The tree over all entries, if all were checked. Keep it to compare later verifications with it."`
}

// breach is the break that a verdict reports.
func (v *Verdict) breach() Break {
	return Break{Seq: v.BrokenAt, Reason: v.Reason, Expected: v.Expected, Actual: v.Actual}
}

// Verify walks the chain in constant memory. The verdict reports what is wrong with the chain; an error means that it could not
// be read. Verify may leave out entries that are appended meanwhile. One verification runs at a time.
func (l *Log) Verify(ctx context.Context, v Verification) (verdict Verdict, err error) {
	defer func() {
		result := "broken"
		switch {
		case err != nil:
			result = "error"
		case verdict.OK:
			result = "whole"
		}
		if l.opts.Metrics.AuditVerifications.With(result).Inc(); err == nil {
			err = l.judge(&v, &verdict)
		}
	}()
	select {
	case l.walking <- struct{}{}:
		defer func() { <-l.walking }()
	case <-ctx.Done():
		return Verdict{}, context.Cause(ctx)
	}
	if err := l.settle(ctx); err != nil {
		tracecontext.Log(ctx, l.log).Error("entries that wait could not be chained before the verification", "error", err)
	}
	for {
		w, err := l.verifyOnce(ctx, v)
		if err != nil {
			return Verdict{}, err
		}
		if w.verdict.OK {
			return w.verdict, nil
		}
		// A prune in progress makes rows appear to be missing.
		if after, err := l.file.State(ctx); err != nil || bytes.Equal(w.stub, after.Values[valueStub]) {
			return w.verdict, err
		}
	}
}

// verifier is one walk.
type verifier struct {
	l       *Log
	key     ed25519.PublicKey
	stub    []byte // as it was stored when the walk began
	whole   bool   // from the beginning, so that the tree is known
	to      int64
	next    int64 // the sequence number that must come
	prev    []byte
	tree    edge
	verdict Verdict

	points []point     // heads that the tree must still lead to, the smallest first
	heads  *headReader // of the checkpoint file; nil: none are read
	listed Head        // the latest of the file so far
	ours   bool        // the file is the one that belongs to the chain
	kept   *Checkpoint // the latest that was made, as the chain itself holds it

	size    int64 // of the chain when the walk began; the fields below are as of then, too
	chained int64 // the last row of the outbox that was chained
	sound   bool  // the chain says so itself
	waiting []waitingRow

	good int64 // size of the latest head that fitted

	accepted   map[AcceptedBreak]bool
	collecting bool            // breaks of entries are collected, and the walk continues
	breaks     []AcceptedBreak // that were collected

	text, ad, plain []byte
}

// A point is a head that the tree must have.
type point struct {
	Head
	listed bool // it is of the checkpoint file; the next line follows it
}

var errBroken = errors.New("audit: the chain is broken")

// verifier makes a walk over all entries. begin, expect or resume say where it begins and what the entries must lead to.
func (l *Log) verifier(key ed25519.PublicKey, k *known, waiting []waitingRow) *verifier {
	w := &verifier{l: l, key: key, waiting: waiting, stub: k.Values[valueStub], whole: true, next: 1, to: math.MaxInt64, prev: make([]byte, sha256.Size), verdict: Verdict{Contents: l.keys != nil}}
	if k.Tail != nil {
		w.size = k.Tail.Seq
	}
	if w.sound = true; l.keys != nil {
		var size int64
		w.chained, size, w.sound = l.keys.openChained(k.Values[valueChained])
		w.sound = w.sound && size == w.size || k.Values[valueChained] == nil && len(w.waiting) == 0 // nil: the chain is of an earlier version
	}
	w.accept(k.accepted)
	return w
}

// begin has the walk begin where the chain does.
func (w *verifier) begin(st *stub) error {
	if st == nil {
		return nil
	}
	w.verdict.PrunedThrough = st.Through
	if !signed(w.key, st.Signature, st, "signature") {
		return w.broken(st.Through, BrokenSignature, "", st.Signature)
	}
	w.next, w.prev, w.tree, w.good = st.Through+1, st.node[:], st.edge.clone(), st.Through
	return nil
}

func (l *Log) verifyOnce(ctx context.Context, v Verification) (*verifier, error) {
	if v.PublicKey == nil {
		v.PublicKey = l.public
	}
	// A row of the outbox is deleted when it is chained. A head is written after its entries, and to the file before the chain.
	// So the outbox is read first, then the chain's own heads, then the file, then the entries.
	var rows []waitingRow
	if l.outbox != nil && l.keys != nil && v.To == 0 {
		var err error
		if rows, err = l.outbox.waiting(ctx); err != nil {
			return nil, err
		}
	}
	k, err := l.read(ctx, v.PublicKey)
	w := l.verifier(v.PublicKey, &k, rows)
	if errors.Is(err, errStub) {
		err = w.broken(1, BrokenSignature, "", "")
	} else if err == nil {
		err = w.expect(&v, &k)
	}
	if w.heads != nil {
		defer w.heads.file.Close()
	}
	return w, w.finish(ctx, err)
}

// finish makes the walk, unless its beginning has failed. What is broken is in the verdict.
func (w *verifier) finish(ctx context.Context, err error) error {
	if err == nil {
		err = w.walk(ctx)
	}
	if err == nil {
		err = w.end()
	}
	if errors.Is(err, errBroken) {
		return nil
	}
	return err
}

// broken writes what is wrong into the verdict.
func (w *verifier) broken(seq int64, reason, expected, actual string) error {
	w.verdict.BrokenAt, w.verdict.Reason, w.verdict.Expected, w.verdict.Actual = seq, reason, expected, actual
	return errBroken
}

// expect finds where the walk begins and which heads it must lead to.
func (w *verifier) expect(v *Verification, k *known) (err error) {
	seen := w.l.Head()
	w.ours = v.Checkpoints != "" && v.Checkpoints == w.l.opts.Checkpoints.Path
	if w.heads, err = readHeads(v.Checkpoints, k.accepted); err != nil {
		return err
	}
	if err := w.begin(k.stub); err != nil {
		return err
	}
	w.to = cmp.Or(v.To, w.to)
	if w.whole = v.From <= w.next; !w.whole {
		w.next, w.prev = v.From, nil
	}
	if err := w.load(); err != nil || !w.whole {
		return err
	}
	if seen.Size > 0 {
		w.must(seen, false)
	}
	if text := k.Values[valueEdge]; text != nil {
		e, ok := parseEdge(text)
		if !ok {
			return w.broken(max(w.good, 1), BrokenLog, "", hex.EncodeToString(text))
		}
		w.must(e.head(), false)
	}
	return w.keep(k)
}

// keep adds the checkpoint that the chain itself holds, and compares the tree with which the walk begins.
func (w *verifier) keep(k *known) error {
	if k.Values[valueHead] != nil {
		if w.kept = k.head; w.kept == nil {
			c, _ := ParseCheckpoint(k.Values[valueHead])
			return w.broken(max(c.Head.Size, 1), BrokenSignature, "", c.Signature)
		}
		w.must(w.kept.Head, false)
	}
	return w.compare()
}

// must adds a head that the tree must have.
func (w *verifier) must(h Head, listed bool) {
	w.points = append(w.points, point{h, listed})
	slices.SortStableFunc(w.points, func(a, b point) int { return cmp.Compare(a.Size, b.Size) })
}

// load takes the next line of the checkpoint file.
func (w *verifier) load() error {
	c, ok, err := w.heads.next()
	switch {
	case !ok && err == nil:
		return nil
	case err != nil || !c.Verify(w.key):
		return w.broken(max(c.Head.Size, w.good+1), BrokenSignature, "", c.Signature)
	case c.Head.Size < w.listed.Size:
		return w.broken(c.Head.Size, BrokenLog, w.listed.RootHash, c.Head.RootHash)
	}
	w.listed = c.Head
	w.must(c.Head, true)
	return nil
}

// compare compares the tree with the heads of its present size. It does not check heads of pruned entries.
func (w *verifier) compare() error {
	for len(w.points) > 0 && w.points[0].Size <= w.tree.size {
		p := w.points[0]
		w.points = w.points[1:]
		if p.Size == w.tree.size {
			if root := w.tree.head().RootHash; root != p.RootHash {
				return w.broken(w.good+1, BrokenLog, p.RootHash, root)
			}
		}
		if !p.listed {
			continue
		}
		w.verdict.Checkpoints++
		w.good = max(w.good, p.Size)
		if err := w.load(); err != nil {
			return err
		}
	}
	return nil
}

func (w *verifier) walk(ctx context.Context) error {
	if w.next > w.to {
		return nil
	}
	_, err := w.l.file.Scan(ctx, store.Span{From: w.next, To: w.to}, w.row)
	return err
}

// row checks one entry.
func (w *verifier) row(r *store.AuditRow) error {
	if r.Seq != w.next {
		if err := w.fails(AcceptedBreak{Seq: w.next, To: r.Seq - 1, Reason: BrokenMissing}, nil, hex.EncodeToString(r.Prev), ""); err != nil {
			return err
		}
		for ; w.next < r.Seq; w.next++ {
			w.tree.add(nil)
		}
		w.prev = nil
	}
	if w.prev != nil && !bytes.Equal(r.Prev, w.prev) {
		if err := w.fails(AcceptedBreak{Seq: r.Seq, Reason: BrokenLink}, r, hex.EncodeToString(w.prev), hex.EncodeToString(r.Prev)); err != nil {
			return err
		}
	}
	if len(r.Hash) != sha256.Size || len(r.Prev) != sha256.Size {
		if err := w.fails(AcceptedBreak{Seq: r.Seq, Reason: BrokenHash}, r, "", hex.EncodeToString(r.Hash)); err != nil {
			return err
		}
	} else if w.l.keys != nil {
		if err := w.contents(r); err != nil {
			return err
		}
	}
	w.prev = append(w.prev[:0], r.Hash...)
	w.next++
	w.verdict.Count++
	if w.whole {
		w.tree.add(r.Hash)
		return w.compare()
	}
	return nil
}

// contents decrypts an entry and computes its hash again.
func (w *verifier) contents(r *store.AuditRow) error {
	w.ad = appendBound(w.ad[:0], r.Seq, r.Hash)
	plain, err := open(w.l.keys.contents, w.plain[:0], r.Seal, w.ad)
	if err != nil {
		return w.fails(AcceptedBreak{Seq: r.Seq, Reason: BrokenContents}, r, "", hex.EncodeToString(r.Hash))
	}
	w.plain = plain
	text := contents(plain).appendEntry(w.text[:0], r.Seq, r.TS, r.Prev, nil)
	sum := sha256.Sum256(text)
	if text == nil || !bytes.Equal(sum[:], r.Hash) {
		return w.fails(AcceptedBreak{Seq: r.Seq, Reason: BrokenHash}, r, hex.EncodeToString(sum[:]), hex.EncodeToString(r.Hash))
	}
	if w.text = text; bytes.HasPrefix(plain, damaged) {
		return w.fails(AcceptedBreak{Seq: r.Seq, Reason: BrokenOutbox}, r, "", hex.EncodeToString(r.Hash))
	}
	return nil
}

// damaged is how the contents of an entry begin that stands for lost rows of the outbox.
var damaged = []byte(`{"action":"` + AuditDamaged + `"`)

// end checks that no head of the chain lies beyond the last entry.
func (w *verifier) end() error {
	if w.whole {
		head := w.tree.head()
		switch {
		case len(w.points) > 0 && w.points[0].Size <= w.to:
			return w.broken(w.next, BrokenTruncated, w.points[0].RootHash, head.RootHash)
		case w.to < math.MaxInt64:
		case w.kept != nil && w.kept.Head.Size > w.listed.Size && w.ours:
			return w.broken(w.kept.Head.Size, BrokenCheckpoints, w.kept.Head.RootHash, "")
		default:
			w.verdict.Head = &head
		}
	}
	return w.outbox()
}

// outbox checks the rows of the outbox that are not chained, and what the chain says of those that are.
func (w *verifier) outbox() error {
	if !w.sound && w.to == math.MaxInt64 {
		return w.broken(w.size+1, BrokenOutbox, "", "")
	}
	next := w.chained + 1
	for _, r := range w.waiting {
		if r.id < next {
			continue
		}
		if r.id != next || !r.ok {
			return w.broken(w.size+int64(w.verdict.Waiting)+1, BrokenOutbox, "", "")
		}
		w.verdict.Waiting += r.n
		next++
	}
	w.verdict.OK = true
	return nil
}
