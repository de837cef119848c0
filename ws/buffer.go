package ws

import (
	"math/bits"
	"sync"
)

// buffer is memory that is used for a while and given back.
type buffer struct {
	b []byte // as long as the user wants, within its capacity
}

// Buffers come in classes of 512 bytes, 2, 8, 32, 128 and 512 KiB and 2 MiB. Larger ones are left to the garbage collector.
const (
	minBuffer   = 512
	bufferSteps = 7
)

var buffers [bufferSteps]sync.Pool

// bufferClass returns the smallest class that holds n bytes; it is bufferSteps or more if there is none.
func bufferClass(n int) int {
	return (bits.Len(uint(max(n, 1)-1)/minBuffer) + 1) / 2
}

// getBuffer returns an empty buffer with room for at least n bytes.
func getBuffer(n int) *buffer {
	class := bufferClass(n)
	if class >= bufferSteps {
		return &buffer{make([]byte, 0, n)}
	}
	if b, ok := buffers[class].Get().(*buffer); ok {
		b.b = b.b[:0]
		return b
	}
	return &buffer{make([]byte, 0, minBuffer<<(2*class))}
}

// free gives the buffer back. Nobody may use it afterwards.
func (b *buffer) free() {
	if class := bufferClass(cap(b.b)); class < bufferSteps {
		buffers[class].Put(b)
	}
}
