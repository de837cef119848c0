// Package server builds, starts and stops everything: [New], [Server.Agents], [Server.Start], [Server.Shutdown].
//
//	New: the configuration is valid, agents can be registered
//	Start: hooks.BeforeStart -> secrets -> store and migrations -> audit chain -> agents, triggers -> bind -> recovery -> serve -> daemons -> hooks.OnReady
//	Shutdown: hooks.BeforeShutdown -> new work is refused -> daemons end -> runs drain -> streams end -> listener -> audit chain -> store
//
// All that can fail is done before the listener is bound.
package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"agentd/auth"
	"agentd/metrics"
	"agentd/retention"
	"agentd/server/agent"
	"agentd/server/audit"
	"agentd/server/config"
	"agentd/server/fault"
	"agentd/server/gate"
	"agentd/server/health"
	"agentd/server/hub"
	"agentd/server/notify"
	"agentd/server/secret"
	"agentd/server/stream"
	"agentd/server/workflow"
	"agentd/store"
	"agentd/triggers"
)

// Version is this program's version. A build may set it with -ldflags "-X agentd/server.Version=...".
var Version = "0.1.0"

// Options are what a server is made from. Every field is optional.
type Options struct {
	Config *config.Config // nil: the defaults
	Logger *slog.Logger   // nil: silence
	Hooks  Hooks
	// Listener is used instead of one that the configuration names. The server closes it.
	Listener net.Listener
	// Command names the process in the store's lock file; empty: start.
	Command string
	// LiteralSecrets allows references of the scheme literal:, where the environment allows them too.
	LiteralSecrets bool
}

// Hooks are called at the ends of the server's life. An error of BeforeStart or OnReady fails the start; one of
// BeforeShutdown is logged.
type Hooks struct {
	BeforeStart    func(context.Context, *config.Config) error
	OnReady        func(context.Context, Address) error
	BeforeShutdown func(ctx context.Context, inflight int) error
}

// Server is one server. Its methods may be called from any goroutine.
type Server struct {
	cfg    *config.Config
	log    *slog.Logger
	hooks  Hooks
	opts   Options
	agents *agent.Registry

	workflows *workflow.Workflows
	triggers  *triggers.Engine
	known     *secret.Redactor // takes secrets out of the log and of messages
	access    Access

	mu      sync.Mutex // guards the fields below
	started bool
	parts   *parts
	addr    Address
}

// parts is what exists while a server is started.
type parts struct {
	db       *store.DB
	audit    *audit.Log // nil: there is none
	hub      *hub.Hub
	engine   *agent.Engine
	verifier *auth.Verifier
	metrics  *metrics.Inventory
	gate     *gate.Gate
	streams  *stream.Service
	keys     *gate.Keys // nil: none are remembered
	http     *http.Server
	listener net.Listener
	closers  []func() error // in the order of what they close

	connections *connections

	retention *retention.Daemon
	notify    *notify.Daemon
	health    *health.Rollup
	daemons   sync.WaitGroup     // what does things by itself; it ends before the runs drain
	retire    context.CancelFunc // ends the daemons

	starting   atomic.Bool // the start has not ended
	background sync.WaitGroup
	stop       context.CancelFunc // ends the background goroutines
	failed     chan error         // of a background goroutine; holds one
}

// New makes a server. It opens nothing. The error is config-invalid.
func New(o Options) (*Server, error) {
	if o.Config == nil {
		o.Config = config.Default()
	} else if err := o.Config.Validate(); err != nil {
		return nil, err
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Command == "" {
		o.Command = "start"
	}
	known := &secret.Redactor{}
	log := slog.New(known.Handler(o.Logger.Handler()))
	return &Server{cfg: o.Config, log: log, hooks: o.Hooks, opts: o, agents: &agent.Registry{}, workflows: workflow.New(), triggers: triggers.New(triggers.Options{}), known: known}, nil
}

// Agents is the registry of agents. Those that the configuration declares are added by Start.
func (s *Server) Agents() *agent.Registry { return s.agents }

// Workflows is the registry of workflows, and what can be done with their threads while the server is started. Those that the
// configuration declares are added by Start.
func (s *Server) Workflows() *workflow.Workflows { return s.workflows }

// Triggers is the registry of triggers, and fires them while the server is started. Those that the configuration declares are added
// by Start.
func (s *Server) Triggers() *triggers.Engine { return s.triggers }

// Engine runs agents; nil while the server is not started.
func (s *Server) Engine() *agent.Engine {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.parts == nil {
		return nil
	}
	return s.parts.engine
}

// Start opens the store, binds the listener and serves, and returns when the server is ready. After an error nothing
// of it is left. Errors are faults whose kind names the phase: pre-bind-*, store-*, schema-*, migration-failed,
// bind-failed, lifecycle-double-start.
func (s *Server) Start(ctx context.Context) (Address, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started {
		return Address{}, fault.New(fault.DoubleStart, "The server is already running.")
	}
	addr, err := s.start(ctx)
	if err != nil {
		if s.parts != nil {
			s.unwind(s.parts)
			s.parts = nil
		}
		return Address{}, err
	}
	s.started, s.addr = true, addr
	return addr, nil
}

func (s *Server) start(ctx context.Context) (Address, error) {
	if h := s.hooks.BeforeStart; h != nil {
		if err := h(ctx, s.cfg); err != nil {
			return Address{}, err
		}
	}
	if err := s.open(ctx); err != nil {
		return Address{}, err
	}
	p := s.parts
	p.starting.Store(true)
	listener, addr, err := s.listen()
	if err != nil {
		return Address{}, err
	}
	p.listener = listener
	if err := p.db.Announce(store.Holder{Command: s.opts.Command, Address: addr.URL(s.cfg.Server.BasePath)}); err != nil {
		return Address{}, fault.New(fault.StoreUnusable, "The lock file cannot be written: %v.", err).Because(err)
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	p.stop = stop
	p.run(s.log, "hub", func() error {
		return p.hub.Run(background, time.Duration(s.cfg.Server.Stream.ReplayBuffer.PruneIntervalSeconds)*time.Second)
	})
	if p.verifier != nil {
		p.run(s.log, "verifier", func() error { return p.verifier.Run(background) })
	}
	if p.audit != nil {
		p.run(s.log, "audit", func() error { return p.audit.Run(background) })
	}
	if err := s.auditStart(ctx, p); err != nil {
		return Address{}, err
	}
	begun := time.Now()
	if err := s.workflows.Unblock(ctx); err != nil {
		return Address{}, err
	}
	going, err := p.engine.Recover(ctx)
	if err != nil {
		return Address{}, err
	}
	if going > 0 {
		s.log.Info("runs resumed", "runs", going, "ms", time.Since(begun).Milliseconds())
	}
	daemons, retire := context.WithCancel(background)
	p.retire = retire
	p.daemon(daemons, s.log, "retention", p.retention.Run)
	p.run(s.log, "http", p.serve)
	p.daemon(daemons, s.log, "triggers", s.triggers.Run)
	p.daemon(daemons, s.log, "notify", p.notify.Run)
	if p.notify.Wants(notify.AuditBroken, notify.HealthFailing) {
		p.daemon(daemons, s.log, "watch", s.watch(p))
	}
	for _, text := range Warnings(s.cfg) {
		s.log.Warn("configuration", "warning", text)
	}
	s.log.Info("listening", "address", addr.URL(s.cfg.Server.BasePath), "version", Version, "pid", os.Getpid())
	if h := s.hooks.OnReady; h != nil {
		if err := h(ctx, addr); err != nil {
			return Address{}, err
		}
	}
	p.starting.Store(false)
	return addr, nil
}

// unready is why the server takes no new work, whatever the checks find; empty if it does.
func (p *parts) unready() string {
	switch {
	case p.starting.Load():
		return "starting"
	case p.gate.Draining() != nil:
		return "draining"
	}
	return ""
}

// serve answers requests until the listener is closed.
func (p *parts) serve() error {
	if err := p.http.Serve(p.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// run owns a goroutine until unwind.
func (p *parts) run(log *slog.Logger, name string, fn func() error) {
	p.background.Go(func() {
		if err := fn(); err != nil {
			log.Error("background task failed", "task", name, "error", err)
			select {
			case p.failed <- fmt.Errorf("%s: %w", name, err):
			default:
			}
		}
	})
}

// daemon is run for what ends before the runs drain.
func (p *parts) daemon(ctx context.Context, log *slog.Logger, name string, fn func(context.Context) error) {
	p.daemons.Add(1)
	p.run(log, name, func() error {
		defer p.daemons.Done()
		return fn(ctx)
	})
}

// endDaemons ends the daemons and waits for them.
func (p *parts) endDaemons() {
	p.retire()
	p.daemons.Wait()
}

// Failed yields the error of a background task that ended before its time, after which the server should be stopped.
func (s *Server) Failed() <-chan error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.parts == nil {
		return nil
	}
	return s.parts.failed
}

// Shutdown stops the server: new work is refused at once, runs get server.shutdown.drainTimeoutMs or until ctx ends to
// finish, and runs that can continue after a restart stay on disk. The error is lifecycle-not-started, or what went wrong.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started {
		return fault.New(fault.NotStarted, "The server does not run.")
	}
	s.started = false
	p := s.parts
	s.parts = nil
	if h := s.hooks.BeforeShutdown; h != nil {
		if err := h(ctx, p.engine.Moving()); err != nil {
			s.log.Error("hook failed", "hook", "beforeShutdown", "error", err)
		}
	}
	p.gate.Drain()
	p.endDaemons()
	drain, cancel := context.WithTimeout(ctx, s.cfg.Server.Shutdown.DrainTimeout.Duration())
	defer cancel()
	err := p.engine.Drain(drain)
	return errors.Join(err, s.auditStop(p), s.unwind(p))
}

// unwind stops what has been started, in reverse order. It is the end of a shutdown and of a failed start.
func (s *Server) unwind(p *parts) error {
	var errs []error
	for _, stop := range slices.Backward(p.closers) {
		errs = append(errs, stop())
	}
	return errors.Join(errs...)
}

// onStop adds what unwind does before all that was added earlier.
func (p *parts) onStop(stop func() error) { p.closers = append(p.closers, stop) }

// halt ends runs, streams and requests, and waits for the goroutines.
func (p *parts) halt() error {
	p.endDaemons()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	err := p.engine.Drain(ended)
	p.stop() // ends the hub
	limit, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	p.streams.Shutdown(limit)
	cancel()
	limit, cancel = context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if p.http.Shutdown(limit) != nil {
		err = errors.Join(err, p.http.Close())
	}
	if p.listener != nil {
		p.listener.Close()
	}
	p.background.Wait()
	return err
}

// NewLogger makes the log that observability.logger asks for: json, pretty or silent.
func NewLogger(form string, w io.Writer) *slog.Logger {
	switch form {
	case "silent":
		return slog.New(slog.DiscardHandler)
	case "pretty":
		return slog.New(slog.NewTextHandler(w, nil))
	}
	return slog.New(slog.NewJSONHandler(w, nil))
}
