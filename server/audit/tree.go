package audit

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
)

// Merkle tree hashes of RFC 6962 section 2.1, over the 32-byte hashes of the entries: entry seq is leaf seq-1.

type node = [sha256.Size]byte

func leafOf(hash []byte) node {
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
// sizes are the bits of size. With it, a tree grows and tells its root without its leaves.
type edge struct {
	size  int64
	peaks []node
}

// grow adds a leaf.
func (e *edge) grow(leaf node) {
	for n := e.size; n&1 == 1; n >>= 1 {
		last := len(e.peaks) - 1
		leaf = join(e.peaks[last], leaf)
		e.peaks = e.peaks[:last]
	}
	e.peaks = append(e.peaks, leaf)
	e.size++
}

// root is the hash of the whole tree.
func (e *edge) root() node {
	if e.size == 0 {
		return sha256.Sum256(nil)
	}
	root := e.peaks[len(e.peaks)-1]
	for i := len(e.peaks) - 2; i >= 0; i-- {
		root = join(e.peaks[i], root)
	}
	return root
}

func (e *edge) clone() edge { return edge{e.size, append([]node(nil), e.peaks...)} }

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
