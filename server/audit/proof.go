package audit

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
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

// Proofs makes proofs for entries, whose sequence numbers ascend, in the tree over the first size entries. It reads the hashes
// of all of these that are not pruned, once.
func (l *Log) Proofs(ctx context.Context, seqs []int64, size int64) ([]Proof, error) {
	if len(seqs) == 0 {
		return nil, nil
	}
	if err := l.settle(ctx); err != nil {
		return nil, err
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
	tree := st.edge.clone()
	err = l.hashes(ctx, tree.size+1, size, len(k.accepted) > 0, func(hash []byte) error { tree.grow(hash, proofs); return nil })
	if err != nil {
		return nil, err
	}
	root := tree.fold(proofs)
	for i := range proofs {
		proofs[i].RootHash = hex.EncodeToString(root[:])
	}
	return proofs, nil
}

// extend extends the paths of proofs when two parts of the tree are joined: the path of an entry in one part gets the root of
// the other. l is the root over the leaves from left to right-1, and r over those from right to end-1.
func extend(proofs []Proof, left, right, end int64, l, r node) {
	at, _ := slices.BinarySearchFunc(proofs, left+1, func(p Proof, seq int64) int { return cmp.Compare(p.Seq, seq) })
	for ; at < len(proofs) && proofs[at].Seq <= end; at++ {
		sibling := l
		if proofs[at].Seq <= right {
			sibling = r
		}
		proofs[at].Path = append(proofs[at].Path, hex.EncodeToString(sibling[:]))
	}
}

// RootOf computes the root to which a proof leads from the hash of its entry; ok is false for a malformed proof. The proof
// holds if a head of its size with that root is signed.
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
