package audit

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"slices"
	"time"

	"agentd/store"
)

// A Break is the first broken place of a chain, as a [Verdict] names it.
type Break struct {
	Seq      int64  `json:"seq"`
	Reason   string `json:"reason"`
	Expected string `json:"expected,omitempty"`
	Actual   string `json:"actual,omitempty"`
	Found    int64  `json:"foundAt" doc:"Milliseconds since 1970; foundAtIso is the same."`
	FoundISO string `json:"foundAtIso,omitempty"` // in a verdict only
}

// Broken returns the known break of the chain, or nil. While there is one, the log appends entries but signs no checkpoint.
func (l *Log) Broken() *Break {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.broken
}

// distrust records that the chain is broken, also for later processes. tx is the open transaction, or nil.
func (l *Log) distrust(tx *store.Tx, b Break) {
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
	l.log.Error("the audit chain is broken; the server signs no checkpoint until somebody accepts that with agentd audit accept",
		"seq", b.Seq, "reason", b.Reason, "expected", b.Expected, "actual", b.Actual)
	text, err := json.Marshal(b)
	record := func(tx *store.Tx) error { return l.file.Set(tx, map[string][]byte{valueBroken: text}) }
	if err == nil && tx != nil {
		err = record(tx)
	} else if err == nil {
		err = l.file.Update(context.Background(), record)
	}
	if err != nil {
		l.log.Error("the break of the audit chain could not be recorded", "error", err)
	}
}

// judge records the result of a verification of the chain itself.
func (l *Log) judge(v *Verification, found *Verdict) error {
	own := l.opts.Checkpoints.Path
	if l.opts.ReadOnly || v.PublicKey != nil && !bytes.Equal(v.PublicKey, l.public) || v.Checkpoints != "" && v.Checkpoints != own {
		return nil
	}
	if !found.OK {
		l.distrust(nil, found.breach())
		return nil
	}
	if l.Broken() == nil || found.Head == nil || v.Checkpoints != own {
		return nil
	}
	// Somebody has restored the original entries.
	err := l.file.Update(context.Background(), func(tx *store.Tx) error { return l.file.Set(tx, map[string][]byte{valueBroken: {}}) })
	if err != nil {
		return err
	}
	l.log.Warn("the audit chain is whole again")
	l.mu.Lock()
	l.broken = nil
	l.mu.Unlock()
	return nil
}

// known is what the file of a chain holds beside its entries.
type known struct {
	store.AuditState
	stub     *stub       // nil: the chain was never pruned
	head     *Checkpoint // the latest, when the chain's key has signed it
	grown    edge        // the tree of that checkpoint, when the one that is stored is the one that was signed
	broken   *Break
	accepted []Acceptance // oldest first
}

// read reads it. A checkpoint or an acceptance counts only if it is signed with the key.
func (l *Log) read(ctx context.Context, key ed25519.PublicKey) (k known, err error) {
	if k.AuditState, err = l.file.State(ctx); err != nil {
		return k, err
	}
	k.accepted = acceptances(k.Values[valueAccepts], key)
	if text := k.Values[valueStub]; text != nil {
		if k.stub, err = parseStub(text); err != nil {
			return k, err
		}
	}
	if c, err := ParseCheckpoint(k.Values[valueHead]); err == nil && c.Verify(key) {
		k.head = &c
		if e, ok := parseEdge(k.Values[valueEdge]); ok && e.size > 0 && e.head() == c.Head {
			k.grown = e
		}
	}
	if text := k.Values[valueBroken]; len(text) > 0 {
		if k.broken = new(Break); json.Unmarshal(text, k.broken) != nil {
			return k, unusable("the record of its break is damaged")
		}
	}
	return k, nil
}

// acceptances returns those that are signed with a key, oldest first.
func acceptances(lines []byte, key ed25519.PublicKey) (all []Acceptance) {
	for line := range bytes.Lines(lines) {
		if c, err := ParseCheckpoint(line); err == nil && c.Accepted != nil && c.Verify(key) {
			all = append(all, *c.Accepted)
		}
	}
	return all
}

// edge is the largest stored tree within the chain that its key has signed.
func (k *known) edge() edge {
	var e edge
	if k.stub != nil {
		e = k.stub.edge
	}
	if k.Tail != nil && k.grown.size > e.size && k.grown.size <= k.Tail.Seq {
		e = k.grown
	}
	return e.clone()
}

// examine verifies the entries since the latest checkpoint, so that a start signs no changed entry and need not read the whole
// chain. It reads the whole chain if the tree of that checkpoint is not stored.
func (l *Log) examine(ctx context.Context) error {
	k, err := l.read(ctx, l.public)
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
	w := l.verifier(l.public, &k, nil)
	if err := w.finish(ctx, w.resume(ctx, &k)); err != nil {
		return err
	}
	if !w.verdict.OK {
		l.distrust(nil, w.verdict.breach())
	}
	return nil
}

// resume prepares a walk that begins after the largest signed tree, and collects the heads that it must lead to.
func (w *verifier) resume(ctx context.Context, k *known) error {
	if err := w.begin(k.stub); err != nil {
		return err
	}
	if e := k.edge(); e.size > w.tree.size {
		w.next, w.prev, w.tree = e.size+1, nil, e
		_, err := w.l.file.Scan(ctx, store.Span{From: e.size, To: e.size}, func(r *store.AuditRow) error {
			w.prev = slices.Clone(r.Hash)
			return w.contents(r)
		})
		if err == nil && w.prev == nil {
			err = w.broken(e.size, BrokenMissing, "", "")
		}
		if err != nil {
			return err
		}
	}
	if h := w.l.heads; h != nil {
		if h.damaged {
			return w.broken(h.size()+1, BrokenSignature, "", "")
		}
		if c := h.latest.Load(); c != nil {
			w.listed = c.Head
			w.must(c.Head, false)
		}
		w.ours = true
	}
	return w.keep(k)
}
