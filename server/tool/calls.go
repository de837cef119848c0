package tool

import (
	"context"
	"sync"
)

// calls counts the goroutines of calls that have not returned, those given up included.
type calls struct {
	mu   sync.Mutex // guards all; idle is non-nil while somebody waits, and closed when n falls to zero
	n    int
	idle chan struct{}
}

func (c *calls) enter() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
}

func (c *calls) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n--; c.n == 0 && c.idle != nil {
		close(c.idle)
		c.idle = nil
	}
}

// Wait blocks until no call is running, those that [Set.Execute] has given up included, or until ctx is done, and then
// returns its cause. A shutdown calls it after the last Execute has returned.
func (s *Set) Wait(ctx context.Context) error {
	c := &s.calls
	c.mu.Lock()
	if c.n == 0 {
		c.mu.Unlock()
		return nil
	}
	if c.idle == nil {
		c.idle = make(chan struct{})
	}
	idle := c.idle
	c.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
