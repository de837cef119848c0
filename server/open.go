package server

import (
	"context"
	"net"
	"os"
	"os/user"
	"strconv"
	"sync"

	"agentd/auth"
	"agentd/server/gate"
)

// An Access is what a process without a listener does with the database.
type Access int

// Only Run reads the secrets of providers, tools and agents.
const (
	serving Access = iota // what Start does
	Read                  // reads; another process may hold the database, and nothing is recorded
	Beside                // writes beside the process that holds the database
	Hold                  // holds the database
	Run                   // holds the database, and runs agents
)

// Local is a server without a listener: its API, for the process that has opened it.
type Local struct {
	server *Server
	parts  *parts
	pipe   *pipe
}

// mostBody is how long the body of a request inside the process may be: an export, or the input of a run, as JSON.
const mostBody = 128 << 20

// Open opens the database as [Server.Start] does, but binds nothing, calls no hook and takes up no run that another
// process has left. All that is asked for through Dial is done by the operator, that is by the user of this process. Only
// with tokens, the API can make them, which takes the key of their hashes. Errors are those of Start. Close must be called.
func Open(ctx context.Context, o Options, access Access, tokens bool) (*Local, error) {
	s, err := New(o)
	if err != nil {
		return nil, err
	}
	cfg := *s.cfg // valid as it was given: terms of approvals ask for tokens, and stay in force
	if cfg.Auth.Kind = "token"; !tokens {
		cfg.Auth.Kind, cfg.Auth.PepperRef = "none", ""
	}
	cfg.Server.Idempotency.Enabled = false // a request that does not leave the process is not sent twice
	cfg.Server.MaxBodyBytes = max(cfg.Server.MaxBodyBytes, mostBody)
	cfg.Server.SSE.Enabled = true
	cfg.Audit.Enabled = cfg.Audit.Enabled && access != Read
	s.cfg, s.access = &cfg, access
	err = s.open(ctx)
	l := &Local{server: s, parts: s.parts, pipe: &pipe{accepts: make(chan net.Conn), closed: make(chan struct{})}}
	if err != nil {
		if l.parts != nil {
			l.Close() //nolint:errcheck // the first error is the one to report
		}
		return nil, err
	}
	within := gate.Inside(context.WithoutCancel(ctx), auth.Operator(Operator()))
	l.parts.listener, l.parts.http.BaseContext = l.pipe, func(net.Listener) context.Context { return within }
	l.parts.run(s.log, "http", l.parts.serve)
	return l, nil
}

// Operator is the name of the user of this process.
func Operator() string {
	id := strconv.Itoa(os.Getuid())
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}

// Dial connects to the API. It suits [http.Transport]; the address does not matter.
func (l *Local) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case l.pipe.accepts <- far:
		return near, nil
	case <-l.pipe.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Close cancels the runs that still move and closes the database. Those that can continue stay on disk, and the next Start
// resumes them.
func (l *Local) Close() error { return l.server.unwind(l.parts) }

// A pipe is a listener whose connections [Local.Dial] makes.
type pipe struct {
	accepts chan net.Conn
	once    sync.Once
	closed  chan struct{}
}

func (p *pipe) Accept() (net.Conn, error) {
	select {
	case c := <-p.accepts:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipe) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipe) Addr() net.Addr { return &net.UnixAddr{Name: "inside", Net: "pipe"} }
