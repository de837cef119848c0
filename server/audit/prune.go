package audit

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"time"

	"agentd/server/fault"
	"agentd/store"
)

const stubLabel = "svc-audit-stub/1"

// stub is the beginning of a pruned chain, where a verification starts. It holds the hash that the first entry refers to, and
// the edge of the tree, so that earlier checkpoints still fit.
type stub struct {
	V         string `json:"v"`
	Through   int64  `json:"through"` // the last entry that was pruned
	Hash      string `json:"hash"`    // of that entry
	Tree      []byte `json:"tree"`    // edge of the tree up to it
	Count     int64  `json:"count"`   // entries that were pruned, ever
	At        int64  `json:"prunedAt"`
	By        string `json:"by"`
	Signature string `json:"signature"` // base64url, of the canonical form of all else

	node node
	edge edge
}

// parseStub reads what pruneTo wrote. The signature is not checked.
func parseStub(text []byte) (*stub, error) {
	s := &stub{}
	if json.Unmarshal(text, s) != nil || s.V != stubLabel {
		return nil, errStub
	}
	hash, err := hex.DecodeString(s.Hash)
	e, ok := parseEdge(s.Tree)
	if err != nil || len(hash) != sha256.Size || !ok || e.size != s.Through || s.Through < 1 {
		return nil, errStub
	}
	s.node, s.edge = node(hash), e
	return s, nil
}

var errStub = unusable("the record of its pruning is damaged")

// Pruned is what a prune has done.
type Pruned struct {
	Deleted           int64 `json:"deleted"`
	FirstSurvivingSeq int64 `json:"firstSurvivingSeq,omitempty"`
}

// pruneBatch is how many entries one transaction deletes: appends wait that long.
const pruneBatch = 1000

// A prunable is what of a chain may be pruned.
type prunable struct {
	st             *stub
	first, through int64 // none, if through is below first
	gaps           bool
	tail           int64
}

// prunable finds the oldest entries, up to the first that is not older than a time, and leaves at least retain entries.
func (l *Log) prunable(ctx context.Context, before time.Time, retain int64) (p prunable, err error) {
	if retain < 1 {
		return p, fault.Invalid("At least one entry must stay.", fault.At("is at least 1", "retain"))
	}
	if l.keys == nil || l.opts.ReadOnly {
		return p, unavailable(errors.New("it is open for reading only"))
	}
	if err := l.settle(ctx); err != nil {
		return p, err
	}
	k, err := l.read(ctx, l.public)
	if err != nil {
		return p, err
	}
	if k.broken != nil {
		return p, unusable("it is broken at entry %d (%s), and nobody has accepted that", k.broken.Seq, k.broken.Reason)
	}
	p.st, p.gaps = cmp.Or(k.stub, &stub{}), len(k.accepted) > 0
	p.first, p.through = p.st.Through+1, p.st.Through
	if k.Tail != nil {
		p.tail = k.Tail.Seq
		p.through, err = l.olderThan(ctx, p.first, p.tail-retain, before.UnixMilli(), p.gaps)
	}
	return p, err
}

// Prunable returns how many entries [Log.Prune] would delete.
func (l *Log) Prunable(ctx context.Context, before time.Time, retain int64) (int64, error) {
	p, err := l.prunable(ctx, before, retain)
	return max(0, p.through-p.first+1), err
}

// Prune deletes the oldest entries, up to the first that is not older than a time, and leaves at least retain entries. It first
// appends an entry that names the actor. Each batch replaces the deleted entries by a signed stub, so that a crash leaves a
// chain that verifies.
func (l *Log) Prune(ctx context.Context, before time.Time, retain int64, by Actor) (Pruned, error) {
	p, err := l.prunable(ctx, before, retain)
	if err != nil || p.through < p.first {
		return Pruned{FirstSurvivingSeq: min(p.first, p.tail)}, err
	}
	err = l.Append(ctx, Record{Actor: by, Action: AuditPrune, Target: "audit", Decision: Success,
		Metadata: map[string]any{"fromSeq": p.first, "throughSeq": p.through, "before": before.UnixMilli()}})
	for done := p.st.Through; err == nil && done < p.through; {
		if done = min(done+pruneBatch, p.through); p.gaps {
			done = p.through // a batch must not end where an entry is missing
		}
		err = l.pruneTo(ctx, p.st, done, by, p.gaps)
	}
	return Pruned{Deleted: p.st.Through - p.first + 1, FirstSurvivingSeq: p.st.Through + 1}, err
}

// olderThan returns the last entry, at most the given one, up to which all entries from first on are older than a time. With
// gaps, entries may be missing.
func (l *Log) olderThan(ctx context.Context, first, most, before int64, gaps bool) (int64, error) {
	through := first - 1
	if most < first {
		return through, nil
	}
	_, err := l.file.Scan(ctx, store.Span{From: first, To: most, Bare: true}, func(r *store.AuditRow) error {
		if r.TS >= before || r.Seq != through+1 && !gaps {
			return errYoung
		}
		through = r.Seq
		return nil
	})
	if errors.Is(err, errYoung) {
		err = nil
	}
	return through, err
}

var errYoung = errors.New("audit: the entry is too young, or one before it is missing")

// pruneTo deletes the entries up to a number, and moves the stub there.
func (l *Log) pruneTo(ctx context.Context, st *stub, to int64, by Actor, gaps bool) error {
	next := stub{V: stubLabel, Through: to, Count: st.Count + to - st.Through, At: time.Now().UnixMilli(), By: by.Kind + ":" + by.ID, edge: st.edge.clone()}
	rows := int64(0)
	if err := l.hashes(ctx, st.Through+1, to, gaps, func(hash []byte) error {
		if next.edge.add(hash); hash == nil {
			return nil
		}
		if len(hash) != sha256.Size {
			return unusable("entry %d is damaged; verify the chain", next.edge.size)
		}
		rows++
		next.node = node(hash)
		return nil
	}); err != nil {
		return err
	}
	next.Hash, next.Tree = hex.EncodeToString(next.node[:]), next.edge.bytes()
	next.Signature = signature(l.keys.private, &next, "signature")
	text, err := json.Marshal(next)
	if err != nil {
		return err
	}
	err = l.file.Update(ctx, func(tx *store.Tx) error {
		s, err := l.file.StateIn(tx)
		if err != nil {
			return err
		}
		if now, err := parseStub(s.Values[valueStub]); err == nil && now.Through != st.Through || err != nil && st.Through > 0 {
			return unusable("another process prunes it at the same time")
		}
		if n, err := l.file.Prune(tx, to); err != nil || n != rows {
			return errors.Join(errPruned, err)
		}
		return l.file.Set(tx, map[string][]byte{valueStub: text})
	})
	if err == nil {
		*st = next
	}
	return err
}

var errPruned = errors.New("audit: the number of entries is not the one that was read")
