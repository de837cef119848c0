// Package id makes ids: UUIDv7 text, which sorts by time.
package id

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"sync/atomic"
	"time"
)

// last is the time and sequence of the newest id: the first 60 bits that vary, version left out. It belongs to the
// process because the order does.
var last atomic.Uint64

// New returns a UUID of version 7 (RFC 9562 section 5.7) in its lower-case text form of 36 characters. It is safe for
// concurrent use.
//
// Ids sort as text in the order in which one process made them. The 12 bits after the millisecond hold the fraction
// of it (section 6.2, method 3); where that does not rise, because two calls fall together or the clock was set back,
// they count on from the newest id. The remaining 62 bits are from crypto/rand.
func New() string {
	var b [16]byte
	rand.Read(b[8:]) // never fails: the process ends when the system has no randomness
	v := next(time.Now())
	binary.BigEndian.PutUint64(b[:8], v>>12<<16|0x7000|v&0xfff)
	b[8] = b[8]&0x3f | 0x80

	var text [36]byte
	hex.Encode(text[0:8], b[0:4])
	hex.Encode(text[9:13], b[4:6])
	hex.Encode(text[14:18], b[6:8])
	hex.Encode(text[19:23], b[8:10])
	hex.Encode(text[24:36], b[10:16])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return string(text[:])
}

// next is now as milliseconds and 4096ths of one, or one above the newest value if that is greater.
func next(now time.Time) uint64 {
	fraction := uint64(now.Nanosecond()) % 1e6 * 4096 / 1e6
	v := uint64(now.UnixMilli())<<12 | fraction
	for {
		newest := last.Load()
		mine := max(v, newest+1)
		if last.CompareAndSwap(newest, mine) {
			return mine
		}
	}
}
