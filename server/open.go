package server

import (
	"context"

	"agentd/server/agent"
	"agentd/server/audit"
	"agentd/server/hub"
)

// Local is what a server runs agents with, without a listener: it is for a process that runs an agent itself.
type Local struct {
	server *Server
	parts  *parts
}

// Open opens the store and makes the declared agents, as [Server.Start] does, but binds nothing and calls no hook.
// Nobody can call from outside, so authentication is off and needs no pepper. Runs that another process has left are
// not taken up: they wait for the next Start. Errors are those of Start. Close must be called.
func Open(ctx context.Context, o Options) (*Local, error) {
	s, err := New(o)
	if err != nil {
		return nil, err
	}
	cfg := *s.cfg // valid as it was given: terms of approvals ask for tokens, and stay in force
	cfg.Auth.Kind, cfg.Auth.PepperRef = "none", ""
	s.cfg = &cfg
	err = s.open(ctx)
	l := &Local{s, s.parts}
	if err != nil {
		if l.parts != nil {
			l.Close() //nolint:errcheck // the first error is the one to report
		}
		return nil, err
	}
	return l, nil
}

// Engine runs the agents.
func (l *Local) Engine() *agent.Engine { return l.parts.engine }

// Hub has the events of the runs.
func (l *Local) Hub() *hub.Hub { return l.parts.hub }

// Audit is the audit chain; nil: there is none.
func (l *Local) Audit() *audit.Log { return l.parts.audit }

// Close cancels the runs that still move and closes the store. Those that can go on are left on disk, and the next
// Start takes them up.
func (l *Local) Close() error { return l.server.unwind(l.parts) }
