package server

import (
	"container/list"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"agentd/auth"
	"agentd/metrics"
	"agentd/server/fault"
	"agentd/server/message"
)

const (
	// mostConnections is the limit where the process may have more files open than twice that.
	mostConnections = 10_000
	// maxRefusing is how many refused connections may be open besides, so that their clients read the answer; fewer where
	// the limit is low.
	maxRefusing = 32
	// refusalTime is how long one of them may be.
	refusalTime = time.Second
	// shortOfFiles is how long to wait for a file that is closed elsewhere before the next attempt to accept.
	shortOfFiles = 250 * time.Millisecond
)

// openFiles is how many files the process may have open. Go has raised the soft limit to the hard one at the start.
func openFiles() int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 1024 // what systems commonly give
	}
	return int(min(uint64(l.Cur), 1<<30))
}

// connectionLimit is the effective server.maxConnections. For 0, half of the files are left for the store, for programs,
// which take up to six each while they start, and for connections that the server makes.
func connectionLimit(configured int) int {
	if configured > 0 {
		return configured
	}
	return max(1, min(openFiles()/2, mostConnections))
}

// connections is a limit on what listeners accept. Beyond it, and beyond the share that one address may have of it, the
// connection that has been idle longest makes room. Where none is idle, the new one is refused: with 503 or, where the
// client waits for a TLS handshake, by closing it. A connection counts until it is closed, whatever its protocol.
type connections struct {
	max     int
	share   int // of one network; max where all may come from a proxy
	log     *slog.Logger
	answer  []byte // to a request of a connection that is refused
	refused *metrics.Counter
	freed   chan struct{} // holds a token when one was closed lately

	mu   sync.Mutex // guards the fields below and those of the connections
	open int
	of   map[netip.Prefix]int // how many a network has
	idle list.List            // of *counted; the one that has been idle longest is in front

	places chan struct{}  // one token per refused connection that is answered
	work   sync.WaitGroup // of those
}

// newConnections makes a limit. Where all connections may be those of a proxy, an address has no share.
func newConnections(limit int, proxied bool, refused *metrics.Counter, log *slog.Logger) *connections {
	share := limit
	if !proxied {
		share = max(1, limit*3/4)
	}
	return &connections{max: limit, share: share, log: log, answer: refusal(limit), refused: refused, freed: make(chan struct{}, 1),
		places: make(chan struct{}, min(maxRefusing, max(4, limit/4))), of: map[netip.Prefix]int{}}
}

// admit counts a new connection, unless there is no room for it.
func (c *connections) admit(conn net.Conn) (*counted, bool) {
	var from netip.Prefix // that of a Unix socket is the zero one, which has no share
	if addr, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		from = auth.Network(addr.AddrPort().Addr())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	greedy := from.IsValid() && c.of[from] >= c.share
	if greedy || c.open >= c.max {
		room := c.idle.Front()
		for greedy && room != nil && room.Value.(*counted).from != from {
			room = room.Next()
		}
		if room == nil {
			return nil, false
		}
		old := room.Value.(*counted)
		old.leaveLocked()
		old.Conn.Close() //nolint:errcheck // net/http finds it closed, and closes it again
	}
	c.open++
	c.of[from]++
	return &counted{Conn: conn, all: c, from: from}, true
}

// count is how many connections are open.
func (c *connections) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open
}

// state is for [http.Server.ConnState].
func (c *connections) state(conn net.Conn, now http.ConnState) {
	if below, ok := conn.(interface{ NetConn() net.Conn }); ok { // TLS
		conn = below.NetConn()
	}
	if k, ok := conn.(*counted); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		k.idleLocked(now == http.StateIdle)
	}
}

// refusal is the whole answer to a request of a connection too many, in the form of all others.
func refusal(limit int) []byte {
	f := fault.New(fault.Overloaded, "%d connections are open, or this address has as many as one address may have.", limit).After(time.Second)
	body, err := message.Encode(map[string]any{"error": f.Kind.Code, "message": f.Message, "hint": f.NextStep()})
	if err != nil {
		panic(err) // nothing in it can fail
	}
	return fmt.Appendf(nil, "HTTP/1.1 %d Service Unavailable\r\nCache-Control: no-store\r\nConnection: close\r\nContent-Length: %d\r\n"+
		"Content-Type: application/json\r\nRetry-After: %d\r\nX-Content-Type-Options: nosniff\r\n\r\n%s\n",
		f.Kind.Status, len(body)+1, f.RetryAfter/time.Second, body)
}

// limit puts the limit before a listener. Silent says that its clients speak TLS, so that the answer would mean nothing
// to them.
func (c *connections) limit(l net.Listener, silent bool) net.Listener {
	return &limited{Listener: l, all: c, silent: silent, closed: make(chan struct{})}
}

// exhausted reports whether an error is for want of files, in the process or the system, or of the system's memory, which
// may pass. net/http would end the server for the latter.
func exhausted(err error) bool {
	number, ok := errors.AsType[syscall.Errno](err)
	return ok && (number == syscall.EMFILE || number == syscall.ENFILE || number == syscall.ENOBUFS || number == syscall.ENOMEM)
}

// limited is a listener with a limit. One goroutine accepts.
type limited struct {
	net.Listener
	all    *connections
	silent bool
	short  bool // of files; logged
	once   sync.Once
	closed chan struct{}
}

// Accept returns the next connection that is within the limit. While the process is short of files it waits, since to
// ask again at once would only take time from those who may set some free.
func (l *limited) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		switch {
		case exhausted(err):
			if !l.short {
				l.all.log.Error("connections wait: the process cannot open more files", "error", fault.Innermost(err), "open", l.all.count())
			}
			l.short = true
			select {
			case <-l.all.freed:
			case <-time.After(shortOfFiles):
			case <-l.closed:
			}
			continue // a listener that is closed says so itself
		case err != nil:
			return nil, err
		}
		l.short = false
		if k, ok := l.all.admit(conn); ok {
			return k, nil
		}
		l.refuse(conn)
	}
}

func (l *limited) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

func (l *limited) refuse(conn net.Conn) {
	c := l.all
	c.refused.Inc()
	if l.silent {
		conn.Close()
		return
	}
	select {
	case c.places <- struct{}{}:
		c.work.Go(func() {
			defer func() { <-c.places }()
			c.explain(conn)
		})
	default: // so many wait for their answer that this one may miss it
		conn.SetWriteDeadline(time.Now().Add(10 * time.Millisecond)) //nolint:errcheck // it is gone then
		conn.Write(c.answer)                                         //nolint:errcheck // it is closed either way
		conn.Close()
	}
}

// explain answers the first request, or what has come of it, and closes the connection. An answer before the request would
// be none, and a client that is still sending when the connection is closed would not get it.
func (c *connections) explain(conn net.Conn) {
	defer conn.Close()
	end := time.Now().Add(refusalTime)
	conn.SetDeadline(end)                                 //nolint:errcheck // the reads and writes fail
	conn.SetReadDeadline(time.Now().Add(refusalTime / 2)) //nolint:errcheck // likewise
	conn.Read(make([]byte, 512))                          //nolint:errcheck // a client that is silent gets the answer too
	if _, err := conn.Write(c.answer); err != nil || closeWrite(conn) != nil {
		return
	}
	conn.SetReadDeadline(end)                         //nolint:errcheck // the read fails
	io.Copy(io.Discard, io.LimitReader(conn, 64<<10)) //nolint:errcheck // it is over either way
}

// closeWrite closes the half of a connection that the server writes.
func closeWrite(conn net.Conn) error {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// counted is a connection within the limit.
type counted struct {
	net.Conn
	all  *connections
	from netip.Prefix

	// guarded by all.mu
	idle *list.Element // in the list of all; nil while it is not idle
	gone bool
}

func (c *counted) Close() error {
	err := c.Conn.Close()
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	c.leaveLocked()
	return err
}

// CloseWrite is for net/http, which closes the half that it has written when the client may still be sending.
func (c *counted) CloseWrite() error { return closeWrite(c.Conn) }

// leaveLocked counts the connection no more.
func (c *counted) leaveLocked() {
	if c.gone {
		return
	}
	c.idleLocked(false)
	c.gone = true
	c.all.open--
	if c.all.of[c.from]--; c.all.of[c.from] == 0 {
		delete(c.all.of, c.from)
	}
	select {
	case c.all.freed <- struct{}{}:
	default:
	}
}

// idleLocked notes whether the connection is idle from now on.
func (c *counted) idleLocked(idle bool) {
	if c.idle != nil {
		c.all.idle.Remove(c.idle)
		c.idle = nil
	}
	if idle && !c.gone {
		c.idle = c.all.idle.PushBack(c)
	}
}
