package ws

import (
	"context"
	"net"
	"sync"
	"time"
)

// Conn is a connection after its handshake. Its methods may be called from any goroutine, but only one may read.
type Conn struct {
	nc       net.Conn
	client   bool // this side is
	protocol string
	options  Options
	born     time.Time
	done     chan struct{} // closed when the connection is shut

	// reading is held by who reads: it is full while somebody does. It guards what follows.
	reading   chan struct{}
	readWatch watch
	readErr   error // why no further message can be read
	peerDone  bool  // the peer's close frame has come
	hurried   bool  // nc has a read deadline
	in        input
	msg       message

	// writing is held by who writes. It guards what follows.
	writing    chan struct{}
	writeWatch watch
	closeSent  bool      // so nothing more may be sent (section 5.5.1)
	writeBy    time.Time // the deadline that nc has

	// mu guards what follows. It is held for moments only, so whoever reads or writes may take it.
	mu       sync.Mutex
	err      error // why the connection is of no more use: the first cause
	shutDown bool
	pongDue  bool
	pong     []byte        // the payload to send when pongDue
	lastPong time.Duration // since born; 0: none
}

// newConn takes over nc, of which early has been read already.
func newConn(nc net.Conn, early []byte, client bool, protocol string, o Options) *Conn {
	c := &Conn{
		nc:       nc,
		client:   client,
		protocol: protocol,
		options:  o.withDefaults(),
		born:     time.Now(),
		done:     make(chan struct{}),
		reading:  make(chan struct{}, 1),
		writing:  make(chan struct{}, 1),
	}
	c.in.init(early)
	return c
}

// Protocol tells the subprotocol that the handshake has settled on, or "".
func (c *Conn) Protocol() string { return c.protocol }

// LastPong tells when the last pong came, or the zero time. With Ping, one loop can keep any number of connections alive.
func (c *Conn) LastPong() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lastPong == 0 {
		return time.Time{}
	}
	return c.born.Add(c.lastPong)
}

// CloseNow closes the TCP connection, without a close frame. Calls that read or write end with ErrClosed. It does no harm
// to a connection that is closed already.
func (c *Conn) CloseNow() { c.shut(ErrClosed) }

// shut ends all use of the connection, for a cause that counts if it is the first.
func (c *Conn) shut(cause error) {
	c.fail(cause)
	c.mu.Lock()
	first := !c.shutDown
	c.shutDown = true
	c.mu.Unlock()
	if !first {
		return
	}
	close(c.done)
	c.nc.Close() //nolint:errcheck // there is nobody left to whom it would matter
	c.readWatch.close()
	c.writeWatch.close()
}

// fail settles why the connection is of no more use, unless that is settled, and returns what is settled.
func (c *Conn) fail(cause error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = cause
	}
	return c.err
}

// failure returns why the connection is of no more use, or nil.
func (c *Conn) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// acquire takes a lock of the connection. The error is the end of the context, or why the connection was shut.
func (c *Conn) acquire(ctx context.Context, lock chan struct{}) error {
	select {
	case lock <- struct{}{}:
		return nil
	default:
	}
	select {
	case lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.done:
		return c.failure()
	}
}
