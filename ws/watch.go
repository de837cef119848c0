package ws

import (
	"context"
	"sync"
)

// watch shuts a connection whose context ends while it reads, or while it writes. It stays with a context from one
// operation to the next, so that a loop that hands over the same one each time pays for it once.
type watch struct {
	mu     sync.Mutex
	ended  <-chan struct{} // of the context that it stays with; nil: none
	leave  func() bool
	active bool // an operation goes on under that context
	closed bool
}

// begin tells that an operation starts on c. The error is that the context has ended: then nothing may start, and the
// connection is as it was.
func (w *watch) begin(ctx context.Context, c *Conn) error {
	ended := ctx.Done()
	if ended == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if w.ended != ended && !w.closed {
		if w.leave != nil {
			w.leave()
		}
		w.ended = ended
		w.leave = context.AfterFunc(ctx, func() {
			w.mu.Lock()
			hit := w.active && w.ended == ended
			w.mu.Unlock()
			if hit {
				c.shut(context.Cause(ctx))
			}
		})
	}
	w.active = true
	return nil
}

// end tells that the operation is over.
func (w *watch) end() {
	w.mu.Lock()
	w.active = false
	w.mu.Unlock()
}

// close makes the context forget the connection.
func (w *watch) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.leave != nil {
		w.leave()
	}
	w.ended, w.leave = nil, nil
}
