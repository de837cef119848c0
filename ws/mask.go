package ws

import (
	"encoding/binary"
	"math/bits"
)

// mask combines p with the key (section 5.3), which masks as well as unmasks, and returns the key as the rest of the
// payload needs it.
//
// Eight words of 64 bits a turn, on slices whose length the compiler knows, reach memory speed without unsafe code.
func mask(p []byte, key uint32) uint32 {
	if len(p) >= 8 {
		k := uint64(key)<<32 | uint64(key)
		for len(p) >= 64 {
			b := p[:64:64]
			binary.LittleEndian.PutUint64(b[0:], binary.LittleEndian.Uint64(b[0:])^k)
			binary.LittleEndian.PutUint64(b[8:], binary.LittleEndian.Uint64(b[8:])^k)
			binary.LittleEndian.PutUint64(b[16:], binary.LittleEndian.Uint64(b[16:])^k)
			binary.LittleEndian.PutUint64(b[24:], binary.LittleEndian.Uint64(b[24:])^k)
			binary.LittleEndian.PutUint64(b[32:], binary.LittleEndian.Uint64(b[32:])^k)
			binary.LittleEndian.PutUint64(b[40:], binary.LittleEndian.Uint64(b[40:])^k)
			binary.LittleEndian.PutUint64(b[48:], binary.LittleEndian.Uint64(b[48:])^k)
			binary.LittleEndian.PutUint64(b[56:], binary.LittleEndian.Uint64(b[56:])^k)
			p = p[64:]
		}
		for len(p) >= 8 {
			binary.LittleEndian.PutUint64(p, binary.LittleEndian.Uint64(p)^k)
			p = p[8:]
		}
	}
	for i := range p {
		p[i] ^= byte(key)
		key = bits.RotateLeft32(key, -8)
	}
	return key
}
