package audit

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"time"

	"agentd/server/fault"
	"agentd/store"
)

// An Acceptance records who accepted that a chain is broken, and why. The chain continues from there. Verification compares it
// with its state at that moment, and reports every acceptance.
type Acceptance struct {
	At     int64           `json:"at" doc:"Milliseconds since 1970; atIso is the same."`
	AtISO  string          `json:"atIso,omitempty"` // in a verdict only
	By     string          `json:"by"`
	Reason string          `json:"reason"`
	Seq    int64           `json:"seq" doc:"The entry that records it."`
	First  Break           `json:"first" doc:"What a verification found first."`
	Breaks []AcceptedBreak `json:"breaks,omitempty" doc:"Every entry that differed from its original."`

	// The checkpoint file up to the acceptance. Its heads may have been signed for entries that are gone.
	HeadBytes  int64  `json:"headBytes"`
	HeadSHA256 string `json:"headSha256"`
}

// AcceptedBreak is one broken place of a chain, in its state at the time of acceptance.
type AcceptedBreak struct {
	Seq    int64  `json:"seq"`
	To     int64  `json:"to,omitempty" doc:"The last of the entries that are missing."`
	Reason string `json:"reason"`
	SHA256 string `json:"sha256,omitempty" doc:"Of the entry's row."`
}

// Limits of an acceptance: a checkpoint has at most 16 KiB.
const (
	maxBreaks = 64
	maxReason = 1000
)

// Accept lets a broken chain continue. It records the acceptance in the chain, and signs it with the next head in the
// checkpoint file. No other process may hold the chain. Errors: audit-whole if nothing is broken, audit-unusable if too
// much is.
func (l *Log) Accept(ctx context.Context, reason string, by Actor) (Acceptance, error) {
	a := Acceptance{At: time.Now().UnixMilli(), By: by.Kind + ":" + by.ID, Reason: strings.ToValidUTF8(reason, "\ufffd")}
	if l.heads == nil {
		return a, unavailable(errors.New("it is not open to sign checkpoints"))
	}
	if a.Reason == "" || len(a.Reason) > maxReason {
		return a, fault.Invalid("The reason for accepting the break is missing.", fault.At("has 1 to 1000 bytes", "reason"))
	}
	before := l.Broken()
	found, err := l.Verify(ctx, Verification{Checkpoints: l.opts.Checkpoints.Path})
	if err != nil {
		return a, err
	}
	if found.OK {
		return a, fault.New(fault.AuditWhole, "The audit chain is whole. There is nothing to accept.")
	}
	a.First = found.breach()
	a.First.Found = a.At
	if before != nil { // later entries may make the break appear in another place
		a.First = *before
	}
	if a.Breaks, err = l.rebase(ctx); err != nil {
		return a, err
	}
	if a.HeadBytes, err = l.heads.file.Seek(0, io.SeekEnd); err == nil {
		a.HeadSHA256, err = digest(l.heads.file, a.HeadBytes)
	}
	if err != nil {
		return a, err
	}
	err = l.Append(ctx, Record{Actor: by, Action: AuditAccept, Target: "audit", Decision: Success,
		Metadata: map[string]any{"reason": a.Reason, "brokenAt": a.First.Seq, "broken": a.First.Reason, "places": len(a.Breaks)}})
	if err != nil {
		return a, err
	}
	tree := l.tree()
	a.Seq = tree.size
	if err := l.cover(ctx, tree, &a); err != nil {
		return a, err
	}
	l.mu.Lock()
	l.broken = nil
	l.lost = append(l.lost, lost([]Acceptance{a})...)
	l.mu.Unlock()
	return a, nil
}

// lost lists the entries whose unreadable contents were accepted.
func lost(accepted []Acceptance) (seqs []int64) {
	for _, a := range accepted {
		for _, b := range a.Breaks {
			if b.Reason == BrokenContents || b.Reason == BrokenHash {
				seqs = append(seqs, b.Seq)
			}
		}
	}
	return seqs
}

// lostEntry is shown in place of an entry whose contents are lost.
func lostEntry(r *store.AuditRow) Entry {
	return Entry{Seq: r.Seq, TS: r.TS, Actor: Actor{Kind: ActorSystem, ID: "unknown"}, Action: string(AuditDamaged), Decision: Failed,
		PrevHash: hex.EncodeToString(r.Prev), Hash: hex.EncodeToString(r.Hash)}
}

// rebase makes the entries, as they are now, the chain, and returns the broken places.
func (l *Log) rebase(ctx context.Context) ([]AcceptedBreak, error) {
	k, err := l.read(ctx, l.public)
	if err != nil {
		return nil, err
	}
	w := l.verifier(l.public, &k, nil)
	w.collecting = true
	if w.begin(k.stub) != nil {
		return nil, unusable("the record of its pruning is not signed, so nothing says where it begins")
	}
	if err := w.walk(ctx); err != nil {
		return nil, err
	}
	if len(w.prev) != sha256.Size {
		return nil, unusable("the hash of entry %d is damaged", w.next-1)
	}
	return w.breaks, l.file.Update(ctx, func(*store.Tx) error { // where nobody appends
		l.batch.tip, l.batch.stale = tip{w.tree, node(w.prev)}, false
		l.see(w.tree)
		return nil
	})
}

// iso formats a time in milliseconds since 1970 as in answers; it is empty for 0.
func iso(ms int64) string {
	if ms == 0 {
		return ""
	}
	return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z")
}

// accept makes the verifier skip accepted breaks.
func (w *verifier) accept(all []Acceptance) {
	w.verdict.Accepted = all
	w.accepted = map[AcceptedBreak]bool{}
	for i, a := range all {
		all[i].AtISO, all[i].First.FoundISO = iso(a.At), iso(a.First.Found)
		for _, b := range a.Breaks {
			w.accepted[b] = true
		}
	}
}

// fails is broken for a place of the chain, whose row is r, unless that place was accepted in this state.
func (w *verifier) fails(b AcceptedBreak, r *store.AuditRow, expected, actual string) error {
	if r != nil {
		sum := sha256.New()
		for _, part := range [][]byte{binary.BigEndian.AppendUint64(nil, uint64(r.TS)), r.Prev, r.Hash, r.Seal} {
			sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
			sum.Write(part)
		}
		b.SHA256 = hex.EncodeToString(sum.Sum(nil))
	}
	switch {
	case w.accepted[b]:
		return nil
	case !w.collecting:
		return w.broken(b.Seq, b.Reason, expected, actual)
	case len(w.breaks) == maxBreaks || b.To-b.Seq >= maxGap:
		return unusable("it is broken in more places than can be accepted")
	}
	w.breaks = append(w.breaks, b)
	return nil
}
