package ws

import (
	"bytes"
	"net"
)

const (
	smallInput = 512     // bytes that a connection keeps to read into; enough for any header with any control payload
	largeInput = 8 << 10 // bytes of the buffer that it takes for a burst
)

// input reads ahead. While little comes it reads into its small buffer. After a read that filled it, it takes a larger one
// from the pool, which goes back when it is empty and the burst is over.
type input struct {
	b     []byte // small, or that of large
	r, w  int    // b[r:w] has been read from the connection and not been used
	burst bool   // the last read filled the buffer, so there is more to come
	large *buffer
	small []byte
}

// init begins with bytes that have been read already.
func (in *input) init(early []byte) {
	in.small = make([]byte, smallInput)
	in.b = in.small
	if len(early) > len(in.b) {
		in.enlarge(len(early))
	}
	in.w = copy(in.b, early)
}

func (in *input) buffered() int { return in.w - in.r }

// peek returns the first n bytes, which fill has provided. They stay where they are until the next call of fill.
func (in *input) peek(n int) []byte { return in.b[in.r : in.r+n : in.r+n] }

func (in *input) skip(n int) { in.r += n }

// fill reads once, after what is buffered.
func (in *input) fill(nc net.Conn) error {
	switch {
	case in.burst && in.large == nil:
		in.enlarge(largeInput)
	case in.r == in.w && !in.burst:
		in.release()
	}
	if in.r > 0 {
		in.w = copy(in.b, in.b[in.r:in.w])
		in.r = 0
	}
	n, err := nc.Read(in.b[in.w:])
	in.w += n
	in.burst = in.w == len(in.b)
	if n > 0 {
		return nil // an error will come again
	}
	return err
}

// enlarge continues in a buffer of at least n bytes, from the small one.
func (in *input) enlarge(n int) {
	in.large = getBuffer(n)
	b := in.large.b[:cap(in.large.b)]
	in.w = copy(b, in.b[in.r:in.w])
	in.r, in.b = 0, b
}

// release continues in the small buffer, when nothing is buffered.
func (in *input) release() {
	if in.large != nil {
		in.large.free()
		in.large, in.b = nil, in.small
	}
	in.r, in.w = 0, 0
}

// detach leaves all memory that peek may have returned to those who have it, and continues in other memory.
func (in *input) detach() {
	ahead := bytes.Clone(in.b[in.r:in.w])
	*in = input{}
	in.init(ahead)
}
