// Package stream delivers events to clients, over WebSocket (svc.protocol.v1) and as Server-Sent Events.
//
// A client that comes back names the last event it has seen. What follows that event is taken from the hub's ring
// and, where the ring does not reach back that far, from the durable events of the run; positions decide, so that
// nothing is delivered twice and no durable event is missed, also after a restart.
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
	"time"

	"agentd/auth"
	"agentd/server/audit"
	"agentd/server/commentary"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
)

// Options are what a service works with.
type Options struct {
	Hub      *hub.Hub
	Verifier *auth.Verifier // nil: nobody has to tell who calls
	Tickets  *auth.Tickets  // where there is a Verifier
	// Feed finds what a subject shows.
	Feed func(ctx context.Context, s event.Subject) (Feed, error)
	// Cancel aborts a run, without waiting for its end, and reports whether there was something to abort.
	Cancel func(ctx context.Context, p auth.Principal, runID string, c Cancellation) (bool, error)

	// Record writes the entry of what a WebSocket client asks for, with the error if it is refused, before the client is
	// answered. Its error refuses the request. Nil: nothing is recorded.
	Record func(ctx context.Context, p auth.Principal, r audit.Record, refused error) error

	KeepAlive time.Duration         // silence after which an SSE client gets a comment
	Queue     int                   // entries that may wait for one client, and KiB; beyond, it is cut off with flow.throttled
	Version   string                // of the server
	Sanitiser *commentary.Sanitiser // nil: nothing is sanitised
	// Redacted is told of each event that is delivered sanitised, once. It must not block.
	Redacted func(transport string, d *commentary.Decision)
	Logger   *slog.Logger // nil: silence
}

// A Cancellation says how a client wants a run to be aborted.
type Cancellation struct {
	Action             audit.Action
	Reason             string
	Drain              bool
	OnPendingApprovals string // deny, hold or fail; empty: deny
}

// Service is all clients that watch events. It is safe for concurrent use.
type Service struct {
	opts  Options
	group sync.WaitGroup // readers and writers of clients
	heavy sync.Mutex     // held by who reads a long frame

	mu      sync.Mutex // guards the fields below
	clients map[*client]struct{}
	revoked []string // the latest tokens: one whose check was under way is refused, too
	closing bool
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
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.drainingLocked()
}

func (s *Service) drainingLocked() error {
	if !s.closing {
		return nil
	}
	return fault.New(fault.ServerDraining, "The server is stopping.").After(5 * time.Second)
}

// enter counts a client, whose reader calls close.
func (s *Service) enter(c *client) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.drainingLocked(); err != nil {
		return err
	}
	s.clients[c] = struct{}{}
	s.group.Add(1)
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

// Clients is how many connections there are.
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

// Shutdown refuses new clients, tells all that there are that the server stops, and waits for them to go. When ctx ends
// first, their connections are cut.
func (s *Service) Shutdown(ctx context.Context) {
	s.mu.Lock()
	s.closing = true
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
