package server_test

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
)

// cutter forwards TCP connections and cuts them off: the nth, counted from 0, after limit(n) bytes of the server's; 0 is
// no limit.
type cutter struct {
	address string // host:port
	to      string
	limit   func(n int) int64
	group   sync.WaitGroup
}

// newCutter starts a cutter before a server. It ends with the test.
func newCutter(t *testing.T, to string, limit func(n int) int64) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{address: l.Addr().String(), to: to, limit: limit}
	ctx := t.Context()
	c.group.Go(func() {
		for n := 0; ; n++ {
			near, err := l.Accept()
			if err != nil {
				return
			}
			c.group.Go(func() { c.forward(ctx, near, limit(n)) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		c.group.Wait() // the context has ended
	})
	return c
}

func (c *cutter) forward(ctx context.Context, near net.Conn, limit int64) {
	defer near.Close()
	far, err := new(net.Dialer).DialContext(ctx, "tcp", c.to)
	if err != nil {
		return
	}
	defer far.Close()
	ctx, cut := context.WithCancel(ctx)
	c.group.Go(func() {
		defer cut()
		io.Copy(far, near) //nolint:errcheck // it ends somehow
	})
	c.group.Go(func() {
		defer cut()
		if limit > 0 {
			io.CopyN(near, far, limit) //nolint:errcheck
			return
		}
		io.Copy(near, far) //nolint:errcheck
	})
	<-ctx.Done()
}
