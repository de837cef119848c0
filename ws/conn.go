package ws

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Conn is a connection after its handshake. Any goroutine may call its methods, but only one may read.
type Conn struct {
	nc       net.Conn
	protocol string
	options  Options
	born     time.Time

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

	pong     atomic.Pointer[[]byte] // the payload of the pong that is due; nil: none is
	lastPong atomic.Int64           // nanoseconds since born; 0: none

	mu  sync.Mutex // guards err
	err error      // why the connection is of no more use: the first cause
}

// newConn takes over nc, of which early has been read already.
func newConn(nc net.Conn, early []byte, protocol string, o Options) *Conn {
	c := &Conn{
		nc:       nc,
		protocol: protocol,
		options:  o.withDefaults(),
		born:     time.Now(),
		reading:  make(chan struct{}, 1),
		writing:  make(chan struct{}, 1),
	}
	c.in.init(early)
	return c
}

// Protocol returns the subprotocol of the handshake, or "".
func (c *Conn) Protocol() string { return c.protocol }

// LastPong returns when the last pong came, or the zero time. With Ping, one loop can keep any number of connections alive.
func (c *Conn) LastPong() time.Time {
	since := c.lastPong.Load()
	if since == 0 {
		return time.Time{}
	}
	return c.born.Add(time.Duration(since))
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
