package server

import (
	"context"
	"fmt"
	"os"
	"time"

	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/server/health"
	"agentd/server/secret"
	"agentd/store"
)

// overdue is after how many intervals a checkpoint is missed.
const overdue = 3

// blocked counts the threads that are due and cannot continue, of at most 1000.
func (s *Server) blocked(ctx context.Context, p *parts) (n int, err error) {
	soon, cancel := context.WithTimeout(ctx, health.Timeout/2)
	defer cancel()
	err = p.db.Runs().View(soon, func(tx *store.Tx) (err error) {
		n, err = p.db.Threads().Blocked(tx)
		return err
	})
	return n, err
}

// health makes the checks of the parts that exist.
func (s *Server) health(p *parts, secrets secret.Report) *health.Rollup {
	r := health.New(Version, time.Now())
	found := func(status health.Status, message string, fields ...any) health.Result {
		return health.Result{Status: status, Message: message, Fields: fields}
	}
	r.Register("storage", func(ctx context.Context) health.Result {
		size, limit := p.db.WALSize(), int64(s.cfg.Health.WALWarnThresholdBytes)
		status, message := health.OK, ""
		soon, cancel := context.WithTimeout(ctx, health.Timeout/2) // so that the result comes before the check's own timeout
		defer cancel()
		switch err := p.db.Ping(soon); {
		case err != nil:
			s.log.Error("storage check failed", "error", err)
			status, message = health.Fail, fault.Of(err).Message
		case p.engine.Altered() > 0:
			status, message = health.Fail, "What is stored of tool calls was changed, and they were not made; the log names them."
		case size > limit:
			status, message = health.Warn, "The write-ahead log is large: a reader may hold an old snapshot."
		}
		return found(status, message, "walSizeBytes", size, "warnThresholdBytes", limit)
	})
	r.Register("secrets", func(context.Context) health.Result { return found(health.OK, "", "activeStore", secrets.Active) })
	r.Register("encryption", func(context.Context) health.Result {
		return found(health.OK, "", "enabled", false, "peerDepInstalled", false)
	})
	r.Register("replayBuffer", func(context.Context) health.Result {
		st := p.hub.Stats()
		return found(health.OK, "", "eventsBuffered", st.Events, "subscriptions", st.Subscriptions)
	})
	r.Register("workflowTimers", func(ctx context.Context) health.Result {
		blocked, err := s.blocked(ctx, p)
		status, message := health.OK, ""
		switch {
		case err != nil:
			status, message = health.Fail, fault.Of(err).Message
		case blocked > 0:
			status, message = health.Warn, "Threads of workflows are due and cannot continue: list them with `agentd workflows threads WORKFLOW --blocked`, and resume them."
		}
		return found(status, message, "blockedThreads", blocked)
	})
	r.Register("connections", func(context.Context) health.Result {
		open, limit := p.connections.count(), p.connections.max
		status, message := health.OK, ""
		f, err := os.Open(os.DevNull)
		if err == nil {
			f.Close()
		}
		switch {
		case exhausted(err):
			status, message = health.Fail, "No more files can be opened: programs and connections fail."
		case open >= limit:
			status, message = health.Warn, "server.maxConnections connections are open. For a new one, the server closes an idle one, or refuses the new one."
		}
		return found(status, message, "open", open, "max", limit)
	})
	if p.audit == nil {
		return r
	}
	r.Register("audit", func(ctx context.Context) health.Result {
		entries := p.audit.Head().Size
		status, message := health.OK, ""
		err, lag := p.audit.Check(ctx), p.audit.Lag()
		if err != nil {
			s.log.Error("audit check failed", "error", err)
		}
		if b := p.audit.Broken(); b != nil {
			status, message = health.Fail, fmt.Sprintf("The audit chain is broken at entry %d (%s); "+
				"verify it, stop the server, and accept the break with `agentd audit accept`.", b.Seq, b.Reason)
		} else if lag >= audit.MaxLag {
			status, message = health.Fail, "Entries have waited in the database for ten seconds to be chained. The server refuses what it must record."
		} else if err != nil {
			status, message = health.Warn, "The audit chain cannot be written. Entries wait in the database."
		} else if lag >= audit.WarnLag {
			status, message = health.Warn, "Entries wait in the database for more than a second to be chained."
		} else if p.audit.Uncovered() > overdue*s.cfg.Audit.Checkpoint.Interval.Duration() {
			status, message = health.Warn, "The audit chain has entries that no checkpoint covers, because none can be written."
		}
		return found(status, message, "entries", entries)
	})
	return r
}
