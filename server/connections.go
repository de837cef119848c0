package server

import (
	"container/list"
	"context"
	"errors"
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
	"agentd/server/gate"
)

const (
	// mostConnections is the limit where the process may have more files open than twice that.
	mostConnections = 10_000
	// maxRefusing is how many connections too many may be open besides, so that their clients read the refusal; fewer where
	// the limit is low.
	maxRefusing = 32
	// refusalTime is how long one of them stays open.
	refusalTime = time.Second
	// shortOfFiles is how long a listener waits for a file that is closed elsewhere before it accepts again.
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
// connection that has been idle longest makes room. Where none is idle, the new one is refused: its request is answered
// with 503 or, where the client waits for a TLS handshake, it is closed. A connection counts until it is closed, whatever
// its protocol.
type connections struct {
	max     int
	share   int // of one network; max where all may come from a proxy
	surplus int // how many of those that are refused may be open
	log     *slog.Logger
	refused *metrics.Counter

	mu       sync.Mutex // guards the fields below and those of the connections
	open     int
	refusing int                  // of those that are refused
	of       map[netip.Prefix]int // how many a network has
	idle     list.List            // of *counted; the one that has been idle longest is in front
}

// newConnections makes a limit. Where all connections may be those of a proxy, an address has no share.
func newConnections(limit int, proxied bool, refused *metrics.Counter, log *slog.Logger) *connections {
	share := limit
	if !proxied {
		share = max(1, limit*3/4)
	}
	return &connections{max: limit, share: share, surplus: min(maxRefusing, max(4, limit/4)), log: log, refused: refused,
		of: map[netip.Prefix]int{}}
}

// admit counts a new connection. Where there is no room for it, it is nil or, if the client can be answered, one that
// is going to be refused.
func (c *connections) admit(conn net.Conn, silent bool) *counted {
	var from netip.Prefix // that of a Unix socket is the zero one, which has no share
	if addr, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		from = auth.Network(addr.AddrPort().Addr())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := &counted{Conn: conn, all: c, from: from}
	greedy := from.IsValid() && c.of[from] >= c.share
	if greedy || c.open >= c.max {
		room := c.idle.Front()
		for greedy && room != nil && room.Value.(*counted).from != from {
			room = room.Next()
		}
		if room == nil {
			c.refused.Inc()
			if silent || c.refusing >= c.surplus {
				return nil
			}
			c.refusing++
			k.refused = true
			time.AfterFunc(refusalTime, func() { k.Close() }) //nolint:errcheck // it is over either way
			return k
		}
		old := room.Value.(*counted)
		old.leaveLocked()
		old.Conn.Close() //nolint:errcheck // net/http finds it closed, and closes it again
	}
	c.open++
	c.of[from]++
	return k
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

type refusedKey struct{}

// context is for [http.Server.ConnContext]: it marks the requests of a connection that is refused.
func (c *connections) context(ctx context.Context, conn net.Conn) context.Context {
	if k, ok := conn.(*counted); ok && k.refused {
		return context.WithValue(ctx, refusedKey{}, true)
	}
	return ctx
}

// handler refuses the requests of a connection too many. The others are next's.
func (c *connections) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Context().Value(refusedKey{}) == nil {
			next.ServeHTTP(w, r)
			return
		}
		f := fault.New(fault.Overloaded, "%d connections are open, or this address has as many as one address may have.", c.max)
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("Connection", "close")
		h.Set("Retry-After", "1")
		h.Set("X-Content-Type-Options", "nosniff")
		gate.JSON(w, f.Kind.Status, map[string]any{"error": f.Kind.Code, "message": f.Message, "hint": f.NextStep()})
	})
}

// limit puts the limit before a listener. Silent says that its clients speak TLS, so that the answer would mean nothing
// to them.
func (c *connections) limit(l net.Listener, silent bool) net.Listener {
	return &limited{Listener: l, all: c, silent: silent}
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
			time.Sleep(shortOfFiles)
			continue
		case err != nil:
			return nil, err
		}
		l.short = false
		if k := l.all.admit(conn, l.silent); k != nil {
			return k, nil
		}
		conn.Close()
	}
}

// counted is a connection within the limit.
type counted struct {
	net.Conn
	all     *connections
	from    netip.Prefix
	refused bool // beyond the limit

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
func (c *counted) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// leaveLocked counts the connection no more.
func (c *counted) leaveLocked() {
	if c.gone {
		return
	}
	c.idleLocked(false)
	c.gone = true
	if c.refused {
		c.all.refusing--
	} else {
		c.all.open--
		if c.all.of[c.from]--; c.all.of[c.from] == 0 {
			delete(c.all.of, c.from)
		}
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
