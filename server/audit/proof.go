package audit

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"math/bits"
	"slices"

	"agentd/server/fault"
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
	proofs, err := l.Proofs(ctx, []int64{seq}, size)
	if err != nil {
		return Proof{}, err
	}
	return proofs[0], nil
}

// Proofs makes the proofs for several entries, whose sequence numbers ascend, and reads each hash once.
func (l *Log) Proofs(ctx context.Context, seqs []int64, size int64) ([]Proof, error) {
	if len(seqs) == 0 {
		return nil, nil
	}
	k, err := l.read(ctx, l.public)
	if err != nil {
		return nil, err
	}
	st := cmp.Or(k.stub, &stub{})
	if seqs[0] <= st.Through || seqs[len(seqs)-1] > size || !slices.IsSorted(seqs) {
		return nil, fault.Invalid("This entry has no proof.", fault.At("is an entry of the tree that is not pruned", "seq"))
	}
	proofs := make([]Proof, len(seqs))
	for i, seq := range seqs {
		proofs[i] = Proof{Seq: seq, TreeSize: size, Path: []string{}}
	}
	g := &grower{l: l, ctx: ctx, pruned: st.edge, gaps: len(k.accepted) > 0}
	root := g.prove(proofs, 0, size)
	if g.err != nil {
		return nil, g.err
	}
	for i := range proofs {
		proofs[i].RootHash = hex.EncodeToString(root[:])
	}
	return proofs, nil
}

// grower computes hashes of parts of the tree.
type grower struct {
	l      *Log
	ctx    context.Context
	pruned edge
	gaps   bool // entries may be missing, which somebody has accepted
	err    error
}

// prove is MTH(D[from:to]) of the RFC. To the paths of the proofs, which are those of leaves there, it adds what
// PATH(leaf, D[from:to]) has.
func (g *grower) prove(proofs []Proof, from, to int64) node {
	switch {
	case g.err != nil:
		return node{}
	case len(proofs) == 0, to-from == 1:
		return g.hash(from, to)
	}
	k := from + int64(1)<<(bits.Len64(uint64(to-from-1))-1)
	n := 0
	for n < len(proofs) && proofs[n].Seq <= k {
		n++
	}
	left, right := g.prove(proofs[:n], from, k), g.prove(proofs[n:], k, to)
	for i := range proofs {
		sibling := right
		if i >= n {
			sibling = left
		}
		proofs[i].Path = append(proofs[i].Path, hex.EncodeToString(sibling[:]))
	}
	return join(left, right)
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
	g.err = g.l.hashes(g.ctx, from+e.size+1, to, g.gaps, func(hash []byte) error { e.add(hash); return nil })
	return e.root()
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
