package server

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"time"

	"agentd/auth"
	"agentd/metrics"
	"agentd/server/agent"
	"agentd/server/audit"
	"agentd/server/commentary"
	"agentd/server/fault"
	"agentd/server/gate"
	"agentd/server/hub"
	"agentd/server/journal"
	"agentd/server/manifest"
	"agentd/server/outbound"
	"agentd/server/proc"
	"agentd/server/rest"
	"agentd/server/run"
	"agentd/server/session"
	"agentd/server/stream"
	"agentd/server/trace"
	"agentd/server/workflow"
	"agentd/store"
	"agentd/triggers"
)

// Limits of the HTTP server. Bodies and event streams have other deadlines.
const (
	headerTimeout = 10 * time.Second
	idleTimeout   = 120 * time.Second
	maxHeader     = 64 << 10
)

// open builds everything that a start needs, up to but without the listener.
func (s *Server) open(ctx context.Context) error {
	cfg := s.cfg
	if cfg.Storage.Encryption.Enabled {
		return fault.New(fault.EncryptionUnsupported, "storage.encryption.enabled is true, but agentd cannot encrypt the database.")
	}
	secrets, kept, err := s.secrets()
	if err != nil {
		return err
	}
	secrets.Literals = s.opts.LiteralSecrets
	var key []byte
	if cfg.Auth.Kind == "token" {
		if key, err = s.pepper(secrets); err != nil {
			return err
		}
	}
	var chain audit.Options
	if cfg.Audit.Enabled {
		if chain, err = AuditOptions(cfg, secrets); err != nil {
			return err
		}
	}
	written := lastWritten(cfg.Resolve(cfg.Storage.Path))
	p := &parts{failed: make(chan error, 1), stop: func() {}, retire: func() {}}
	s.parts = p
	p.metrics = metrics.New(Version)
	p.metrics.Process()
	p.db, err = store.Open(ctx, store.Options{Committed: p.committed, Path: cfg.Resolve(cfg.Storage.Path), Durability: cfg.Storage.Durability, Logger: s.log,
		Holder: store.Holder{Command: s.opts.Command}, ReadOnly: s.access == Read, Beside: s.access == Beside})
	if err != nil {
		return err
	}
	p.onStop(p.db.Close)
	sessions := session.New(p.db.Sessions())
	programs := proc.NewLimit(cfg.Server.MaxPrograms)
	guard := outbound.New(outbound.Options{AllowPrivate: cfg.Outbound.AllowPrivate, Logger: s.log, Denied: s.refusedDial(p)})
	if p.notify, err = s.openNotify(p, secrets, guard); err != nil {
		return err
	}
	declared, err := manifest.Build(manifest.Options{Config: cfg, Offline: !s.runs(), Secrets: secrets, Spills: p.db.Runs(), Sessions: sessions, Logger: s.log,
		Known: s.known, Programs: programs, Workflow: s.workflows.Call, Outbound: guard})
	if err != nil {
		return err
	}
	p.onStop(func() error { declared.Close(); return nil })
	for _, reg := range declared.Agents {
		if err := s.agents.Register(reg); err != nil {
			return err
		}
	}
	for _, id := range slices.Sorted(maps.Keys(cfg.Workflows)) {
		g, problems := cfg.Graph(id)
		if len(problems) > 0 {
			return fault.Invalid("The workflow is not valid.", fault.At(problems[0].Message, append([]any{"workflows", id}, problems[0].Path...)...))
		}
		if err := s.workflows.Declare(id, g); err != nil {
			return err
		}
	}
	for _, id := range slices.Sorted(maps.Keys(cfg.Triggers)) {
		if err := s.triggers.Declare(id, cfg.Triggers[id].Declaration()); err != nil {
			return err
		}
	}
	hooks, err := s.webhooks(secrets)
	if err != nil {
		return err
	}
	buffer := cfg.Server.Stream.ReplayBuffer
	ttl := time.Duration(buffer.TTLSeconds) * time.Second
	p.hub = hub.New(hub.Options{MaxEvents: buffer.MaxEvents, TTL: ttl})
	p.connections = newConnections(connectionLimit(cfg.Server.MaxConnections), cfg.Server.TrustProxy, p.metrics.HTTPRefused, s.log)
	p.metrics.HTTPConnections.Sample(func() (float64, error) { return float64(p.connections.count()), nil })
	p.metrics.Programs.Sample(func() (float64, error) { running, _ := programs.Load(); return float64(running), nil })
	p.metrics.ProgramsWaiting.Sample(func() (float64, error) { _, waiting := programs.Load(); return float64(waiting), nil })
	p.metrics.WorkflowBlocked.Sample(func() (float64, error) { n, err := s.blocked(context.Background(), p); return float64(n), err })
	p.metrics.ApprovalsPending.Sample(func() (float64, error) { n, err := s.awaiting(p); return float64(n), err })
	p.metrics.TriggersOverdue.Sample(func() (float64, error) { return s.triggers.Overdue().Seconds(), nil })
	p.metrics.NotifyWaiting.Sample(func() (float64, error) {
		st, err := p.notify.Status(context.Background())
		return float64(st.Waiting), err
	})
	p.metrics.DiskFree.Sample(func() (float64, error) { n, err := p.db.Free(); return float64(n), err })
	p.metrics.WALSize.Sample(func() (float64, error) { return float64(p.db.WALSize()), nil })
	p.metrics.ReplayBufferEvents.Sample(func() (float64, error) { return float64(p.hub.Stats().Events), nil })
	if err := s.openAudit(ctx, p, chain); err != nil {
		return err
	}
	if p.audit != nil {
		p.onStop(p.audit.Close)
	}
	var noted func(*store.Run, store.Status, []run.Happening) func(*store.Tx) error
	if len(cfg.Notify) > 0 {
		noted = p.notify.Note
	}
	p.engine = agent.New(s.agents, run.Options{Notify: noted, Owner: s.workflows.Owner, Forms: map[string]journal.Form{store.Workflow: s.workflows.Form()}, Runs: p.db.Runs(), Sessions: p.db.Sessions(), Hub: p.hub, Metrics: p.metrics, Logger: s.log,
		Redact: s.known.Piece, Audit: s.auditTools(p), AuditStarts: p.audit != nil && s.cfg.Audit.ToolEvents == "all",
		Lineages: auth.Lineages(p.db.Tokens()), Ended: s.triggers.Ended, Wait: func(ctx context.Context) {
			if err := declared.Tools.Wait(ctx); err != nil {
				s.log.Warn("a tool has not returned", "kind", store.Workflow)
			}
		}})
	permits := auth.Permits(p.db.Tokens(), cfg.Auth.Kind == "none")
	mayJoin := func(ctx context.Context, principal, session string) (bool, error) {
		write := auth.Scope{Resource: "sessions", Action: "write", Target: session}
		if permitted, known := s.triggers.Permits(principal, write); known {
			return permitted, nil
		}
		return permits(ctx, principal, write)
	}
	s.workflows.Attach(workflow.Options{MayJoin: mayJoin, Kernel: p.engine.Engine, Threads: p.db.Threads(), Runs: p.db.Runs(), Tools: declared.Tools, Metrics: p.metrics, Logger: s.log,
		AuditStarts: p.audit != nil && s.cfg.Audit.ToolEvents == "all"})
	s.triggers.Attach(triggers.Options{Store: p.db.Triggers(), Metrics: p.metrics, Logger: s.log, Start: s.fire(p), Missed: p.missed,
		Exists: func(agent, graph string) bool {
			_, found := s.workflows.Get(graph)
			return found || s.agents.Agent(agent) != nil
		}})
	if err := s.triggers.Load(ctx, s.access == Read || s.access == Beside); err != nil {
		return err
	}
	if key != nil {
		if err := s.openAuth(p, key); err != nil {
			return err
		}
	}
	var limiter, perToken *gate.Limiter
	if rate := cfg.Server.RateLimit; rate.Enabled {
		limiter = gate.NewLimiter(rate.Window.Duration(), rate.PerIPRequests)
		if rate.PerTokenRequests > 0 {
			perToken = gate.NewLimiter(rate.Window.Duration(), rate.PerTokenRequests)
		}
	}
	tickets := auth.NewTickets(cfg.Server.WS.TicketTTL.Duration())
	p.gate = gate.New(gate.Options{BasePath: cfg.Server.BasePath, TrustProxy: cfg.Server.TrustProxy, Verifier: p.verifier, Tickets: tickets, Metrics: p.metrics, Logger: s.log,
		Limiter: limiter, PerToken: perToken, Audit: gate.Audit{Log: p.audit, Trailing: cfg.Audit.Wait == "writes"},
		CORS: gate.CORS(cfg.Server.CORS), CSRF: gate.CSRF(cfg.Server.CSRF),
		Origins: gate.Origins{Bound: cfg.Server.Host, AllowHosts: cfg.Server.AllowHosts, AllowOrigins: cfg.Server.CORS.AllowOrigins}})
	p.health = s.health(p, kept, declared.Providers, written)
	p.onStop(func() error { p.health.Wait(); return nil })
	feeds := &rest.Feeds{Engine: p.engine, Audit: p.audit, Keep: ttl}
	runs := &rest.Runs{Engine: p.engine, Feeds: feeds, SSE: cfg.Server.SSE.Enabled, Base: cfg.Server.BasePath, Record: p.gate.Record, Workflows: s.workflows}
	api := &rest.API{Base: cfg.Server.BasePath, Version: Version, MaxBody: int64(cfg.Server.MaxBodyBytes), Engine: p.engine}
	if keys := cfg.Server.Idempotency; keys.Enabled {
		p.keys = gate.NewKeys(gate.KeyOptions{Records: p.db.Keys(), TTL: time.Duration(keys.TTLSeconds) * time.Second, Require: keys.RequireKey,
			CheckBody: keys.CheckBodyFingerprint, CacheSize: keys.LRUCacheSize, Logger: s.log})
		p.metrics.IdempotencyHits.Sample(func() (float64, error) { return p.keys.HitRatio(), nil })
		api.Keys = p.keys
	}
	redact := cfg.Server.WS.CommentarySanitization
	p.streams = stream.New(stream.Options{Hub: p.hub, Verifier: p.verifier, Tickets: tickets, Feed: feeds.Of, Cancel: runs.Cancel, Record: p.gate.Record,
		KeepAlive: cfg.Server.SSE.KeepAlive.Duration(), Queue: cfg.Server.Stream.PerConnectionQueueLimit, Version: Version,
		Sanitiser: commentary.New(commentary.Policy(redact.Policy), redact.ApplyToEvents),
		Redacted:  s.redacted(p), Logger: s.log})
	p.metrics.Connections.Sample(func() (float64, error) { return float64(p.streams.Clients()), nil })
	if p.verifier != nil {
		p.verifier.OnRevoke(tickets.Revoke)
		p.verifier.OnRevoke(p.streams.Revoked)
	}
	runs.Streams = p.streams
	api.Add(&rest.Agents{Registry: s.agents, Runs: runs}, &rest.Workflows{Workflows: s.workflows, Runs: runs, Keys: p.keys}, runs, &rest.Approvals{Runs: runs},
		&rest.Sessions{Sessions: sessions, Runs: runs, Keys: p.keys, Events: cfg.Server.SSE.Path, Version: Version},
		&rest.Notifications{Daemon: p.notify}, &rest.Spans{Traces: trace.New(p.db.Runs(), p.db.Sessions()), Version: Version}, &rest.Triggers{Engine: s.triggers})
	if len(hooks) > 0 {
		api.Add(&rest.Hooks{Hooks: hooks, Engine: s.triggers, Signed: p.gate.Signed})
	}
	if cfg.Server.WS.Enabled {
		api.Add(&rest.Realtime{Path: cfg.Server.WS.Path, Streams: p.streams, Tickets: tickets})
	}
	if p.verifier != nil {
		api.Add(&rest.Tokens{Issuer: p.verifier.Issuer()})
	}
	if p.audit != nil {
		api.Add(&rest.Audit{Log: p.audit, Checkpoints: chain.Checkpoints.Path})
	}
	p.retention = s.openRetention(p)
	api.Add(&rest.Retention{Daemon: p.retention})
	system := &rest.System{Health: p.health, Unready: p.unready, Secrets: kept, MetricsPath: cfg.Metrics.Path, MetricsScoped: cfg.Metrics.RequireAuth, Document: api.Document}
	if cfg.Metrics.Enabled {
		system.Metrics = p.metrics
	}
	api.Add(system)
	api.Mount(p.gate)
	p.http = &http.Server{Handler: p.connections.handler(p.gate), ConnState: p.connections.state, ConnContext: p.connections.context,
		ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)}
	p.onStop(p.halt)
	return nil
}

func (s *Server) openAuth(p *parts, key []byte) (err error) {
	c := s.cfg.Auth
	p.verifier, err = auth.NewVerifier(auth.Options{Tokens: p.db.Tokens(), Pepper: key, Prefix: c.TokenPrefix, Envs: c.TokenEnvironments,
		PerIPFailureThreshold: c.PerIPFailureThreshold, PerIPLockout: c.PerIPLockout.Duration(), Logger: s.log})
	return err
}

// fire starts what triggers start.
func (s *Server) fire(p *parts) func(context.Context, triggers.Start) (string, error) {
	return func(ctx context.Context, f triggers.Start) (string, error) {
		by := f.By
		if f.FiredBy != "" {
			by += store.For + f.FiredBy
		}
		if f.Workflow != "" {
			h, err := s.workflows.Execute(ctx, workflow.ExecuteRequest{WorkflowID: f.Workflow, Input: f.Input, SessionID: f.Session, UserID: f.User, By: by, Lineage: f.By,
				MayJoin: f.MayJoin, Detached: true, Origin: f.Origin,
				Also: func(tx *store.Tx, st workflow.Started) error { return f.Also(tx, st.RunID, st.Status) }})
			if err != nil {
				return "", err
			}
			return h.RunID, nil
		}
		h, err := p.engine.Start(ctx, run.StartRequest{Owner: f.Agent, Input: f.Input, SessionID: f.Session, UserID: f.User, By: by, Lineage: f.By, MayJoin: f.MayJoin,
			Queue: true, Detached: true, Origin: f.Origin, Also: f.Also})
		if err != nil {
			return "", err
		}
		return h.ID, nil
	}
}
