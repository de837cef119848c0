package ws

import (
	"crypto/subtle"
	"encoding/binary"
	"math/bits"
)

// mask combines p with the key (section 5.3), which masks as well as unmasks, and returns the key as the rest of the
// payload needs it.
func mask(p []byte, key uint32) uint32 {
	var keys [64]byte // a multiple of the key, so that each turn begins with its first byte
	for i := 0; i < len(keys); i += 4 {
		binary.LittleEndian.PutUint32(keys[i:], key)
	}
	key = bits.RotateLeft32(key, -8*(len(p)%4))
	for len(p) > 0 {
		p = p[subtle.XORBytes(p, p, keys[:]):]
	}
	return key
}
