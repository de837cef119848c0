package audit

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math/bits"

	"agentd/store"
)

// Merkle tree hashes of RFC 6962 section 2.1, over the 32-byte hashes of the entries: entry seq is leaf seq-1.

type node = [sha256.Size]byte

// leafOf is the leaf of an entry with a hash; that of an entry that is missing, whose hash is nil, is empty.
func leafOf(hash []byte) node {
	if hash == nil {
		return node{}
	}
	var b [1 + sha256.Size]byte
	copy(b[1:], hash)
	return sha256.Sum256(b[:1+min(len(hash), sha256.Size)])
}

func join(left, right node) node {
	var b [1 + 2*sha256.Size]byte
	b[0] = 1
	copy(b[1:], left[:])
	copy(b[1+sha256.Size:], right[:])
	return sha256.Sum256(b[:])
}

// edge is the right edge of a tree: the roots of the complete trees that it consists of, the largest first. Their
// sizes are the bits of size. It is enough to grow the tree and to compute its root.
type edge struct {
	size  int64
	peaks []node
}

// add adds the leaf of an entry.
func (e *edge) add(hash []byte) { e.grow(hash, nil) }

// grow adds the leaf of an entry, and extends the paths of proofs by the parts of the tree that it joins.
func (e *edge) grow(hash []byte, proofs []Proof) {
	leaf, from := leafOf(hash), e.size
	for width := int64(1); e.size&width != 0; width <<= 1 {
		last := len(e.peaks) - 1
		extend(proofs, from-width, from, e.size+1, e.peaks[last], leaf)
		leaf, from = join(e.peaks[last], leaf), from-width
		e.peaks = e.peaks[:last]
	}
	e.peaks = append(e.peaks, leaf)
	e.size++
}

// root is the hash of the whole tree.
func (e *edge) root() node { return e.fold(nil) }

// fold is root, and extends the paths of proofs up to it.
func (e *edge) fold(proofs []Proof) node {
	if e.size == 0 {
		return sha256.Sum256(nil)
	}
	last := len(e.peaks) - 1
	root, from := e.peaks[last], e.size&(e.size-1) // the last tree is as wide as the lowest bit of the size
	for i := last - 1; i >= 0; i-- {
		left := from & (from - 1)
		extend(proofs, left, from, e.size, e.peaks[i], root)
		root, from = join(e.peaks[i], root), left
	}
	return root
}

func (e *edge) clone() edge { return edge{e.size, append([]node(nil), e.peaks...)} }

// head is the head that a checkpoint signs.
func (e *edge) head() Head {
	root := e.root()
	return Head{Size: e.size, RootHash: hex.EncodeToString(root[:]), LastSeq: e.size}
}

// bytes is the edge as it is stored.
func (e *edge) bytes() []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(e.size))
	for _, p := range e.peaks {
		b = append(b, p[:]...)
	}
	return b
}

// parseEdge reads what bytes wrote; ok is false when it is damaged.
func parseEdge(b []byte) (e edge, ok bool) {
	if len(b) < 8 {
		return e, false
	}
	size := binary.BigEndian.Uint64(b)
	b = b[8:]
	if size > 1<<62 || len(b) != bits.OnesCount64(size)*sha256.Size {
		return e, false
	}
	e.size = int64(size)
	for ; len(b) > 0; b = b[sha256.Size:] {
		e.peaks = append(e.peaks, node(b[:sha256.Size]))
	}
	return e, true
}

// maxGap is how many entries may be missing in one place of a chain that is used at all.
const maxGap = 1 << 20

// hashes calls fn with the hash of each entry of a range. With gaps, that of an entry that is missing is nil; without, one
// is an error.
func (l *Log) hashes(ctx context.Context, from, to int64, gaps bool, fn func(hash []byte) error) error {
	upTo := func(seq int64) error {
		if from < seq && (!gaps || seq-from > maxGap) {
			return unusable("the entries from %d to %d are missing", from, seq-1)
		}
		for ; from < seq; from++ {
			if err := fn(nil); err != nil {
				return err
			}
		}
		return nil
	}
	if from > to {
		return nil
	}
	_, err := l.file.Scan(ctx, store.Span{From: from, To: to, Bare: true}, func(r *store.AuditRow) error {
		if err := upTo(r.Seq); err != nil {
			return err
		}
		from++
		return fn(r.Hash)
	})
	if err != nil {
		return err
	}
	return upTo(to + 1)
}
