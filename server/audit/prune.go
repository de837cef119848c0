package audit

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"time"

	"agentd/server/fault"
	"agentd/store"
)

const stubLabel = "svc-audit-stub/1"

// stub tells where a chain begins that was pruned. Whoever verifies takes it for the genesis: it holds the hash that the
// first entry refers to and the edge of the tree, so that checkpoints made before go on to fit.
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

func (s *stub) signed() []byte {
	b, err := form.AppendValue(nil, map[string]any{"v": s.V, "through": s.Through, "hash": s.Hash, "tree": base64.StdEncoding.EncodeToString(s.Tree),
		"count": s.Count, "prunedAt": s.At, "by": s.By})
	if err != nil {
		panic(err) // nothing in it can fail
	}
	return b
}

func (s *stub) verify(key ed25519.PublicKey) bool {
	sig, err := base64.RawURLEncoding.DecodeString(s.Signature)
	return err == nil && ed25519.Verify(key, s.signed(), sig)
}

// readStub is where the chain was pruned; nil when it was not.
func readStub(tx *store.Tx, file *store.Audit) (*stub, error) {
	text, err := file.Value(tx, valueStub)
	if err != nil || text == nil {
		return nil, err
	}
	return parseStub(text)
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

// Pruned tells what a prune has done.
type Pruned struct {
	Deleted           int64 `json:"deleted"`
	FirstSurvivingSeq int64 `json:"firstSurvivingSeq,omitempty"`
}

// pruneBatch is how many entries one transaction deletes: appends wait that long.
const pruneBatch = 5000

// Prune deletes the oldest entries: as many as are older than a time, without a gap and so that at least retain are
// left. That is recorded in the chain, as done by the actor, before it is done; a signed record takes the place of what
// was deleted, with each batch, so that a crash leaves a chain that verifies.
func (l *Log) Prune(ctx context.Context, before time.Time, retain int64, by Actor) (Pruned, error) {
	if retain < 1 {
		return Pruned{}, fault.Invalid("At least one entry must stay.", fault.At("is at least 1", "retain"))
	}
	if l.keys == nil || l.opts.ReadOnly {
		return Pruned{}, unavailable(errors.New("it is open for reading only"))
	}
	var k known
	var tail store.AuditRow
	if err := l.file.Snapshot(ctx, func(tx *store.Tx) (err error) {
		if k, err = l.known(tx, l.public); err == nil {
			tail, _, err = l.file.Tail(tx)
		}
		return err
	}); err != nil {
		return Pruned{}, err
	}
	if k.broken != nil {
		return Pruned{}, unusable("it is broken at entry %d (%s), and nobody has accepted that", k.broken.Seq, k.broken.Reason)
	}
	st, gaps := k.stub, len(k.accepted) > 0
	if st == nil {
		st = &stub{}
	}
	first := st.Through + 1
	through, err := l.olderThan(ctx, first, tail.Seq-retain, before.UnixMilli(), gaps)
	if err != nil || through < first {
		return Pruned{FirstSurvivingSeq: min(first, tail.Seq)}, err
	}
	err = l.Append(ctx, Record{Actor: by, Action: AuditPrune, Target: "audit", Decision: Success,
		Metadata: map[string]any{"fromSeq": first, "throughSeq": through, "before": before.UnixMilli()}})
	for done := st.Through; err == nil && done < through; {
		if done = min(done+pruneBatch, through); gaps {
			done = through // a batch must not end where an entry is missing
		}
		err = l.pruneTo(ctx, st, done, by, gaps)
	}
	return Pruned{Deleted: st.Through - first + 1, FirstSurvivingSeq: st.Through + 1}, err
}

// olderThan is the last of the entries from first on that are all older than a time; it is not beyond most. With gaps,
// some may be missing.
func (l *Log) olderThan(ctx context.Context, first, most, before int64, gaps bool) (int64, error) {
	through := first - 1
	for through < most {
		n, err := l.file.Scan(ctx, through+1, most, scanPage, false, func(r *store.AuditRow) error {
			if r.TS >= before || r.Seq != through+1 && !gaps {
				return errGap
			}
			through = r.Seq
			return nil
		})
		if errors.Is(err, errGap) || err == nil && n == 0 {
			break
		}
		if err != nil {
			return 0, err
		}
	}
	return through, nil
}

// pruneTo deletes the entries up to one, and moves st there.
func (l *Log) pruneTo(ctx context.Context, st *stub, to int64, by Actor, gaps bool) error {
	next := stub{V: stubLabel, Through: to, Count: st.Count + to - st.Through, At: time.Now().UnixMilli(), By: by.Kind + ":" + by.ID, edge: st.edge.clone()}
	rows := int64(0)
	for next.edge.size < to {
		n, err := l.file.Hashes(ctx, next.edge.size+1, to, scanPage, func(seq int64, hash []byte) error {
			if seq != next.edge.size+1 && !gaps || len(hash) != sha256.Size {
				return unusable("entry %d is missing or damaged; verify the chain", next.edge.size+1)
			}
			for rows++; next.edge.size+1 < seq; {
				next.edge.grow(node{})
			}
			next.edge.grow(leafOf(hash))
			next.node = node(hash)
			return nil
		})
		if err == nil && n == 0 {
			err = errGap
		}
		if err != nil {
			return err
		}
	}
	next.Hash, next.Tree = hex.EncodeToString(next.node[:]), next.edge.bytes()
	next.Signature = base64.RawURLEncoding.EncodeToString(ed25519.Sign(l.keys.private, next.signed()))
	text, err := json.Marshal(next)
	if err != nil {
		return err
	}
	err = l.file.Update(ctx, func(tx *store.Tx) error {
		now, err := readStub(tx, l.file)
		if err != nil {
			return err
		}
		if now == nil && st.Through > 0 || now != nil && now.Through != st.Through {
			return unusable("another process prunes it at the same time")
		}
		if n, err := l.file.Prune(tx, to); err != nil || n != rows {
			return errors.Join(errGap, err)
		}
		return l.file.SetValue(tx, valueStub, text)
	})
	if err == nil {
		*st = next
	}
	return err
}
