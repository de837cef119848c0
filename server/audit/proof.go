package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"math/bits"

	"agentd/server/fault"
	"agentd/store"
)

// Proof shows that an entry is in the tree that a checkpoint has signed (RFC 6962 section 2.1.1).
type Proof struct {
	Seq      int64    `json:"seq"`
	TreeSize int64    `json:"treeSize"`
	RootHash string   `json:"rootHash"`
	Path     []string `json:"path"` // from the leaf to the root, hex
}

// Proof makes the proof for an entry in the tree over the first size entries. It reads the hashes of all of these that
// are not pruned.
func (l *Log) Proof(ctx context.Context, seq, size int64) (Proof, error) {
	var st *stub
	if err := l.file.Snapshot(ctx, func(tx *store.Tx) (err error) {
		st, err = readStub(tx, l.file)
		return err
	}); err != nil {
		return Proof{}, err
	}
	if st == nil {
		st = &stub{}
	}
	if seq <= st.Through || seq > size {
		return Proof{}, fault.Invalid("There is no proof for this entry.", fault.At("is an entry of the tree that is not pruned", "seq"))
	}
	g := &grower{l: l, ctx: ctx, pruned: st.edge}
	path := g.path(seq-1, 0, size)
	p := Proof{Seq: seq, TreeSize: size, Path: []string{}}
	for _, n := range path {
		p.Path = append(p.Path, hex.EncodeToString(n[:]))
	}
	if g.err != nil {
		return Proof{}, g.err
	}
	hash := g.hashAt(seq)
	root, ok := RootOf(hash[:], p)
	if g.err != nil || !ok {
		return Proof{}, g.err
	}
	p.RootHash = hex.EncodeToString(root)
	return p, nil
}

// grower computes hashes of parts of the tree.
type grower struct {
	l      *Log
	ctx    context.Context
	pruned edge
	err    error
}

// path is PATH(leaf, D[from:to]) of the RFC.
func (g *grower) path(leaf, from, to int64) []node {
	if to-from == 1 || g.err != nil {
		return nil
	}
	k := from + int64(1)<<(bits.Len64(uint64(to-from-1))-1)
	if leaf < k {
		return append(g.path(leaf, from, k), g.hash(k, to))
	}
	return append(g.path(leaf, k, to), g.hash(from, k))
}

// hash is MTH(D[from:to]) of the RFC. What is pruned is in the edge: a part of the tree left of an entry that is not
// pruned begins where one of its complete trees does.
func (g *grower) hash(from, to int64) node {
	var e edge
	at := int64(0)
	for _, p := range g.pruned.peaks {
		size := int64(1) << (63 - bits.LeadingZeros64(uint64(g.pruned.size-at)))
		if at >= from && at+size <= to {
			e.peaks = append(e.peaks, p)
			e.size += size
		}
		at += size
	}
	if g.err == nil {
		g.err = g.grow(&e, from, to)
	}
	if g.err != nil {
		return node{}
	}
	return e.root()
}

func (g *grower) grow(e *edge, from, to int64) error {
	for from+e.size < to {
		if _, err := g.l.file.Hashes(g.ctx, from+e.size+1, to, scanPage, func(seq int64, hash []byte) error {
			if seq != from+e.size+1 {
				return errGap
			}
			e.grow(leafOf(hash))
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

func (g *grower) hashAt(seq int64) (hash node) {
	n, err := g.l.file.Hashes(g.ctx, seq, seq, 1, func(_ int64, h []byte) error {
		copy(hash[:], h)
		return nil
	})
	if g.err == nil && (err != nil || n == 0) {
		g.err = errGap
	}
	return hash
}

// RootOf is the root that a proof leads to from the hash of its entry; ok is false when the proof is malformed. The
// proof holds when that is the root of a signed head of the proof's size.
func RootOf(hash []byte, p Proof) (root []byte, ok bool) {
	at, last := p.Seq-1, p.TreeSize-1
	if len(hash) != sha256.Size || at < 0 || at > last {
		return nil, false
	}
	r := leafOf(hash)
	for _, text := range p.Path { // RFC 9162 section 2.1.3.2
		b, err := hex.DecodeString(text)
		if err != nil || len(b) != sha256.Size || last == 0 {
			return nil, false
		}
		if at&1 == 1 || at == last {
			r = join(node(b), r)
			for at&1 == 0 && at != 0 {
				at, last = at>>1, last>>1
			}
		} else {
			r = join(r, node(b))
		}
		at, last = at>>1, last>>1
	}
	return r[:], last == 0
}
