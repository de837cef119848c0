package ws

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Conn is a connection after its handshake. Any goroutine may call its methods, but only one may read.
type Conn struct {
	nc           net.Conn
	maxMessage   int
	writeTimeout time.Duration

	// reading is full while somebody reads, who owns what follows.
	reading  chan struct{}
	readErr  error // why no further message can be read
	peerDone bool  // the peer's close frame has come
	hurried  bool  // nc has a read deadline
	in       input
	msg      message

	// writing is full while somebody writes, who owns what follows.
	writing   chan struct{}
	closeSent bool      // so nothing more may be sent (section 5.5.1)
	writeBy   time.Time // the deadline that nc has

	pong   atomic.Pointer[[]byte] // the payload of the pong that is due; nil: none is
	pinged atomic.Bool            // the latest ping has no answer yet

	mu  sync.Mutex // guards err
	err error      // why the connection is of no more use: the first cause
}

// CloseNow closes the TCP connection, without a close frame. Calls that read or write, or wait for their turn, fail with
// ErrClosed. It does nothing to a connection that is closed already.
func (c *Conn) CloseNow() { c.shut(ErrClosed) }

// shut ends all use of the connection, for a cause that counts if it is the first. Whoever reads or writes fails.
func (c *Conn) shut(cause error) {
	c.fail(cause)
	c.nc.Close() //nolint:errcheck // nobody is left to whom it would matter
}

// fail sets why the connection is of no more use, unless that is set, and returns what is set.
func (c *Conn) fail(cause error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = cause
	}
	return c.err
}

// failure returns why the connection is of no more use, or nil.
func (c *Conn) failure() error { return c.fail(nil) }
