// Package stream delivers events to clients, over WebSocket (svc.protocol.v1) and as Server-Sent Events.
//
// A client that comes back names the last event it has seen. The events after that one come from the hub's ring and,
// where the ring does not reach back that far, from the durable events of the run. Positions decide which, so that the
// client gets no event twice and misses no durable event, also after a restart.
//
//	hub --> queue of the client --> writer --> wire (WebSocket or SSE) --> connection
//	         store --> replay ------^  ^-------- tasks <-- reader <-------------'
//
// A client has one goroutine, its reader, and a writer only while there is something to write.
package stream

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"agentd/auth"
	"agentd/server/audit"
	"agentd/server/commentary"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
)

// Options configure a service.
type Options struct {
	Hub      *hub.Hub
	Verifier *auth.Verifier // nil: every caller is anonymous
	Tickets  *auth.Tickets  // required with a Verifier
	// Feed finds the feed of a subject.
	Feed func(ctx context.Context, s event.Subject) (Feed, error)
	// Cancel aborts a run, without waiting for its end, and reports whether there was something to abort.
	Cancel func(ctx context.Context, p auth.Principal, runID string, c Cancellation) (bool, error)

	// Record writes the entry of what a WebSocket client asks for, with the error if it is refused, before the client is
	// answered. Its error refuses the request. Nil: nothing is recorded.
	Record func(ctx context.Context, p auth.Principal, r audit.Record, refused error) error

	KeepAlive time.Duration         // silence after which an SSE client gets a comment
	Queue     int                   // entries, and KiB, that may wait for one client; beyond, it is cut off with flow.throttled
	Version   string                // of the server
	Sanitiser *commentary.Sanitiser // nil: nothing is sanitised
	// Redacted is called once for each event that is delivered sanitised. It must not block.
	Redacted func(transport string, d *commentary.Decision)
	Logger   *slog.Logger // nil: silence
}

// A Cancellation is a client's request to abort a run.
type Cancellation struct {
	Action             audit.Action
	Reason             string
	Drain              bool
	OnPendingApprovals string // deny, hold or fail; empty: deny
}

// Service serves all clients that watch events. It is safe for concurrent use.
type Service struct {
	opts  Options
	group sync.WaitGroup // readers and writers of clients
	heavy sync.Mutex     // held while a long frame is parsed

	closing atomic.Bool // set under mu
	mu      sync.Mutex  // guards the fields below
	clients map[*client]struct{}
	revoked []string // the latest tokens: one whose check was under way is refused, too
}

// maxRevoked is how many revoked tokens are remembered.
const maxRevoked = 1000

// New makes a service. [Service.Shutdown] ends it.
func New(o Options) *Service {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Service{opts: o, clients: map[*client]struct{}{}}
}

// draining returns the error that refuses new clients while the server stops.
func (s *Service) draining() error {
	if !s.closing.Load() {
		return nil
	}
	return fault.New(fault.ServerDraining, "The server is stopping.").After(5 * time.Second)
}

// start counts a client, whose reader calls close, and lets its writer use the wire. It fails while the server stops.
func (s *Service) start(c *client, silence time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.draining(); err != nil {
		return err
	}
	s.clients[c] = struct{}{}
	s.group.Add(1)
	c.start(silence)
	if id := c.principal.TokenID; id != "" && slices.Contains(s.revoked, id) {
		c.finish(endRevoked)
	}
	return nil
}

func (s *Service) leave(c *client) {
	s.mu.Lock()
	delete(s.clients, c)
	s.mu.Unlock()
	s.group.Done()
}

// Clients returns the number of connections.
func (s *Service) Clients() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.clients)
}

// Revoked ends the connections of a token. It suits [auth.Verifier.OnRevoke].
func (s *Service) Revoked(tokenID string) {
	s.mu.Lock()
	if len(s.revoked) == maxRevoked {
		s.revoked = slices.Delete(s.revoked, 0, 1)
	}
	s.revoked = append(s.revoked, tokenID)
	s.mu.Unlock()
	s.each(func(c *client) {
		if c.principal.TokenID == tokenID {
			c.finish(endRevoked)
		}
	})
}

func (s *Service) each(do func(*client)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.clients {
		do(c)
	}
}

// Shutdown refuses new clients, ends the connections of all others and waits until they are gone. When ctx ends first, it
// cuts them.
func (s *Service) Shutdown(ctx context.Context) {
	s.mu.Lock()
	s.closing.Store(true)
	s.mu.Unlock()
	s.each(func(c *client) { c.finish(endShutdown) })
	gone := make(chan struct{})
	go func() {
		s.group.Wait()
		close(gone)
	}()
	select {
	case <-gone:
		return
	case <-ctx.Done():
	}
	s.each(func(c *client) { c.cut() })
	<-gone
}
