package audit

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"os"
	"slices"
	"time"

	"agentd/server/fault"
	"agentd/store"
)

// A Break is what is known to be wrong with a chain: the first place, as a [Verdict] names it.
type Break struct {
	Seq      int64  `json:"seq"`
	Reason   string `json:"reason"`
	Expected string `json:"expected,omitempty"`
	Actual   string `json:"actual,omitempty"`
	Found    int64  `json:"foundAt" doc:"Milliseconds since 1970; foundAtIso is the same."`
	FoundISO string `json:"foundAtIso,omitempty"` // in a verdict only
}

// Broken is what is known to be wrong with the chain; nil: nothing. While there is something, entries are appended, but no
// checkpoint is signed.
func (l *Log) Broken() *Break {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.broken
}

// distrust remembers that the chain is broken, also for later processes.
func (l *Log) distrust(b Break) {
	b.Found = time.Now().UnixMilli()
	l.mu.Lock()
	first := l.broken == nil
	if first {
		l.broken = &b
	}
	l.mu.Unlock()
	if !first || l.opts.ReadOnly {
		return
	}
	l.log.Error("the audit chain is broken; no checkpoint is signed until somebody accepts that with agentd audit accept",
		"seq", b.Seq, "reason", b.Reason, "expected", b.Expected, "actual", b.Actual)
	text, err := json.Marshal(b)
	if err == nil {
		err = l.file.Update(context.Background(), func(tx *store.Tx) error { return l.file.SetValue(tx, valueBroken, text) })
	}
	if err != nil {
		l.log.Error("the break of the audit chain could not be recorded", "error", err)
	}
}

// judge draws the consequences of a verification of the chain itself.
func (l *Log) judge(v *Verification, found *Verdict) error {
	own := l.opts.Checkpoints.Path
	if l.opts.ReadOnly || v.PublicKey != nil && !bytes.Equal(v.PublicKey, l.public) || v.Checkpoints != "" && v.Checkpoints != own {
		return nil
	}
	if !found.OK {
		l.distrust(Break{Seq: found.BrokenAt, Reason: found.Reason, Expected: found.Expected, Actual: found.Actual})
		return nil
	}
	if l.Broken() == nil || found.Head == nil || v.Checkpoints != own {
		return nil
	}
	// Somebody has put back what was missing.
	if err := l.file.Update(context.Background(), func(tx *store.Tx) error { return l.file.SetValue(tx, valueBroken, []byte{}) }); err != nil {
		return err
	}
	l.log.Warn("the audit chain is whole again")
	l.mu.Lock()
	l.broken = nil
	l.mu.Unlock()
	return nil
}

// known is what the values of a chain say about its beginning and its latest checkpoint.
type known struct {
	stub   *stub
	line   []byte      // of the latest checkpoint; nil: none
	head   *Checkpoint // that line, when the chain's key has signed it
	grown  edge        // the tree of that checkpoint, when it is stored as it was signed
	broken *Break

	accepted []Acceptance // oldest first
}

// known reads them. Only what is signed with a key counts.
func (l *Log) known(tx *store.Tx, key ed25519.PublicKey) (k known, err error) {
	if k.stub, err = readStub(tx, l.file); err != nil {
		return k, err
	}
	var tree, text []byte
	if k.line, err = l.file.Value(tx, valueHead); err == nil {
		tree, err = l.file.Value(tx, valueEdge)
	}
	if err == nil {
		text, err = l.file.Value(tx, valueBroken)
	}
	if err == nil {
		k.accepted, err = l.acceptances(tx, key)
	}
	if err != nil {
		return k, err
	}
	if c, err := ParseCheckpoint(k.line); err == nil && c.Verify(key) {
		k.head = &c
		if e, ok := parseEdge(tree); ok && e.size > 0 && headOf(&e) == c.Head {
			k.grown = e
		}
	}
	if len(text) > 0 {
		if k.broken = new(Break); json.Unmarshal(text, k.broken) != nil {
			return k, unusable("the record of its break is damaged")
		}
	}
	return k, nil
}

// acceptances are those that are signed with a key, oldest first.
func (l *Log) acceptances(tx *store.Tx, key ed25519.PublicKey) (all []Acceptance, err error) {
	text, err := l.file.Value(tx, valueAccepts)
	for line := range bytes.Lines(text) {
		if c, err := ParseCheckpoint(line); err == nil && c.Accepted != nil && c.Verify(key) {
			all = append(all, *c.Accepted)
		}
	}
	return all, err
}

// edge is the largest tree over at most so many entries that the chain's key vouches for.
func (k *known) edge(most int64) edge {
	var e edge
	if k.stub != nil {
		e = k.stub.edge
	}
	if k.grown.size > e.size && k.grown.size <= most {
		e = k.grown
	}
	return e.clone()
}

// examine holds the entries since the latest checkpoint to it and to each other, so that a start neither signs what was
// changed nor has to read the whole chain. It reads the whole chain once if the tree of that checkpoint is not stored.
func (l *Log) examine(ctx context.Context) error {
	var k known
	var tail store.AuditRow
	err := l.file.Snapshot(ctx, func(tx *store.Tx) (err error) {
		if k, err = l.known(tx, l.public); err == nil {
			tail, _, err = l.file.Tail(tx)
		}
		return err
	})
	if err != nil {
		return err
	}
	if k.broken != nil {
		l.mu.Lock()
		l.broken = k.broken
		l.mu.Unlock()
		l.log.Error("the audit chain is known to be broken; accept that with agentd audit accept", "seq", k.broken.Seq, "reason", k.broken.Reason)
		return nil
	}
	w := &verifier{l: l, key: l.public, whole: true, to: math.MaxInt64, tree: k.edge(tail.Seq), prev: make([]byte, sha256.Size),
		heads: &headReader{r: bufio.NewReader(bytes.NewReader(nil))}}
	if err := w.resume(ctx, &k); err == nil {
		err = w.walk(ctx)
		if err == nil {
			err = w.end()
		}
		if err != nil && !errors.Is(err, errBroken) {
			return err
		}
	} else if !errors.Is(err, errBroken) {
		return err
	}
	if v := &w.verdict; !v.OK {
		l.distrust(Break{Seq: v.BrokenAt, Reason: v.Reason, Expected: v.Expected, Actual: v.Actual})
	}
	return nil
}

// resume prepares a walk that begins after the verifier's tree, and looks at the heads that it must lead to.
func (w *verifier) resume(ctx context.Context, k *known) error {
	w.accept(k.accepted)
	size := w.tree.size
	w.next = size + 1
	if k.stub != nil && k.stub.Through == size {
		w.prev = k.stub.node[:]
	} else if size > 0 {
		w.next, w.prev = size, nil
		if n, err := w.l.file.Scan(ctx, size, size, 1, false, func(r *store.AuditRow) error { w.prev = slices.Clone(r.Hash); return w.contents(r) }); err != nil {
			return err
		} else if n == 0 {
			return w.broken(size, BrokenMissing, "", "")
		}
		w.next = size + 1
	}
	if k.line != nil && k.head == nil {
		return w.broken(1, BrokenSignature, "", "")
	}
	if k.head != nil {
		w.points = append(w.points, point{k.head.Head.Size, k.head.Head.RootHash})
	}
	if h := w.l.heads; h != nil {
		if h.damaged {
			return w.broken(h.last.Load()+1, BrokenSignature, "", "")
		}
		if k.head != nil && (h.latest == nil || h.latest.Head.Size < k.head.Head.Size) {
			return w.broken(k.head.Head.Size, BrokenCheckpoints, k.head.Head.RootHash, "")
		}
		if h.latest != nil {
			w.points = append(w.points, point{h.latest.Head.Size, h.latest.Head.RootHash})
		}
	}
	w.points = slices.DeleteFunc(w.points, func(p point) bool { return p.size < size })
	slices.SortFunc(w.points, func(a, b point) int { return int(a.size - b.size) })
	return w.compare()
}

// covered reports whether the checkpoint file of a chain has something in it.
func covered(o Options) bool {
	info, err := os.Stat(o.Checkpoints.Path)
	return o.Checkpoints.Path != "" && err == nil && info.Size() > 0
}

// orphaned refuses to make a chain beside the checkpoints of one that was moved or emptied.
func orphaned(o Options) error {
	info, err := os.Stat(o.Path)
	if err == nil && info.Size() > 0 || err != nil && !errors.Is(err, os.ErrNotExist) || !covered(o) {
		return nil
	}
	return fault.New(fault.AuditUnusable, "The audit chain %s is missing or empty, but its checkpoints are there: %s.", o.Path, o.Checkpoints.Path).
		Advise("Put the chain's file back; to begin a new chain, move its checkpoints to where they are kept.")
}

// edgePoint is the tree that the chain stores beside its latest checkpoint, as a head that must fit; ok is false when it
// is damaged.
func edgePoint(tree []byte) (p point, ok bool) {
	e, ok := parseEdge(tree)
	if !ok {
		return p, false
	}
	root := e.root()
	return point{e.size, hex.EncodeToString(root[:])}, true
}
