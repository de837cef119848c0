package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/server/health"
	"agentd/server/provider"
	"agentd/server/secret"
	"agentd/server/shape"
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

// awaiting counts the runs that wait for a decision.
func (s *Server) awaiting(p *parts) (n int, err error) {
	soon, cancel := context.WithTimeout(context.Background(), health.Timeout/2)
	defer cancel()
	err = p.db.Runs().View(soon, func(tx *store.Tx) (err error) {
		n, err = p.db.Runs().CountAwaiting(tx)
		return err
	})
	return n, err
}

// committed counts a transaction of the store.
func (p *parts) committed(closures int, took time.Duration, err error) {
	if err != nil {
		p.metrics.CommitFailures.Inc()
		return
	}
	p.metrics.CommitLatency.Observe(took.Seconds())
	p.metrics.Changes.Add(float64(closures))
}

// What the checks tolerate.
const (
	slowFor      = 10 * time.Second // a database that takes no write
	failedInARow = 3                // calls of a provider
	overdueWarns = time.Minute      // a trigger that is due
	overdueFails = 5 * time.Minute
	bufferWarns  = 5 * time.Minute // after the replay buffer was full
)

func found(status health.Status, message string, fields ...any) health.Result {
	return health.Result{Status: status, Message: message, Fields: fields}
}

// lastWritten is when a database was last written; zero: there is none.
func lastWritten(path string) (latest time.Time) {
	for _, name := range []string{path, path + "-wal"} {
		if info, err := os.Stat(name); err == nil && info.ModTime().After(latest) {
			latest = info.ModTime()
		}
	}
	return latest
}

// health makes the checks of the parts that exist. The database was last written at a time before this start.
func (s *Server) health(p *parts, secrets secret.Report, providers []*provider.Watched, written time.Time) *health.Rollup {
	start := time.Now()
	r := health.New(Version, start, s.log)
	r.Register("storage", s.storageCheck(p))
	r.Register("secrets", s.secretsCheck(secrets))
	r.Register("replayBuffer", func(context.Context) health.Result {
		st := p.hub.Stats()
		status, message := health.OK, ""
		if !st.Full.IsZero() && time.Since(st.Full) < bufferWarns {
			status, message = health.Warn, "The replay buffer is full, and drops events early: streams that reconnect miss deltas. Lower server.stream.replayBuffer.maxEvents or ttlSeconds."
		}
		return found(status, message, "eventsBuffered", st.Events, "subscriptions", st.Subscriptions)
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
	clock := health.NewClock(start, written)
	r.Register("clock", func(context.Context) health.Result { return clock.Look(time.Now(), time.Since(start)) })
	if len(providers) > 0 {
		r.Register("providers", providersCheck(providers))
	}
	if s.access == serving {
		r.Register("triggers", s.triggersCheck(p))
		r.Register("outbox", outboxCheck(p))
	}
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

// storageCheck commits to the database and reads that back, and looks at the log and the room on the disk.
func (s *Server) storageCheck(p *parts) health.Check {
	var slow time.Time // since when no write has ended in time; zero: the last one has
	return func(ctx context.Context) health.Result {
		size, limit := p.db.WALSize(), int64(s.cfg.Health.WALWarnThresholdBytes)
		free, unknown := p.db.Free()
		fields := []any{"walSizeBytes", size, "warnThresholdBytes", limit}
		if unknown == nil {
			fields = append(fields, "diskFreeBytes", free)
		}
		soon, cancel := context.WithTimeout(ctx, health.Timeout/2) // so that the result comes before the check's own timeout
		defer cancel()
		err := p.db.Ping(soon)
		if !errors.Is(err, store.ErrSlow) {
			slow = time.Time{}
		} else if slow.IsZero() {
			slow = time.Now()
		}
		status, message := health.OK, ""
		switch {
		case err != nil:
			s.log.Error("storage check failed", "error", err)
			if status, message = health.Fail, fault.Of(err).Message; !slow.IsZero() && time.Since(slow) < slowFor {
				status = health.Warn
			}
		case p.engine.Altered() > 0:
			status, message = health.Fail, "What is stored of tool calls was changed, and they were not made; the log names them."
		case unknown == nil && free < int64(s.cfg.Health.DiskWarnThresholdBytes):
			status, message = health.Warn, "The file system of the database is nearly full: make room, or lower what retention keeps."
		case size > limit:
			status, message = health.Warn, "The write-ahead log is large: a reader may hold an old snapshot."
		}
		return found(status, message, fields...)
	}
}

// secretsCheck looks whether the file of secrets can still be read, if the server has read it.
func (s *Server) secretsCheck(secrets secret.Report) health.Check {
	readable := func() bool {
		f, err := os.Open(s.cfg.SecretsPath())
		if err == nil {
			f.Close()
		}
		return err == nil
	}
	used := secrets.Active == "encrypted-file" && readable()
	return func(context.Context) health.Result {
		if used && !readable() {
			return found(health.Warn, "The file of secrets cannot be read any more: the next start fails.", "activeStore", secrets.Active)
		}
		return found(health.OK, "", "activeStore", secrets.Active)
	}
}

// providersCheck looks at how the last calls of each provider ended. It makes none.
func providersCheck(providers []*provider.Watched) health.Check {
	return func(context.Context) health.Result {
		status, message, failing := health.OK, "", shape.Object{}
		for _, p := range providers {
			if failures, code := p.Failures(); failures >= failedInARow {
				status, message = health.Warn, "The latest calls of the providers in failing have failed; the log and the runs show why."
				failing = append(failing, p.Name(), code)
			}
		}
		return found(status, message, "declared", len(providers), "failing", failing)
	}
}

// triggersCheck looks at the triggers that are due, have missed dues, or are declared no more.
func (s *Server) triggersCheck(p *parts) health.Check {
	return func(context.Context) health.Result {
		st := s.triggers.Status()
		status, message := health.OK, ""
		switch {
		case st.Overdue > overdueFails:
			status, message = health.Fail, "A trigger has been due for more than five minutes and has not fired; the log says why."
		case st.Overdue > overdueWarns:
			status, message = health.Warn, "A trigger has been due for more than a minute and has not fired."
		case st.Missed > 0:
			status, message = health.Warn, "Triggers have missed dues that are not caught up: `agentd triggers list` shows them. The next firing of a trigger ends this."
		case st.Orphaned > 0:
			status, message = health.Warn, "Triggers are stored that nothing declares any more: declare them, or remove them with `agentd triggers prune --orphaned`."
		}
		fields := []any{"running", st.Running, "active", st.Active, "disabled", st.Disabled, "deferred", st.Deferred, "orphaned", st.Orphaned,
			"missed", st.Missed, "overdueMs", st.Overdue.Milliseconds(), "lagMs", st.Lag.Milliseconds()}
		if st.LastFire > 0 {
			fields = append(fields, "lastFireAt", time.UnixMilli(st.LastFire).UTC().Format("2006-01-02T15:04:05.000Z"))
		}
		return found(status, message, fields...)
	}
}

// outboxCheck looks at the notifications that wait, and at their receivers.
func outboxCheck(p *parts) health.Check {
	return func(ctx context.Context) health.Result {
		st, err := p.notify.Status(ctx)
		status, message := health.OK, ""
		switch {
		case err != nil:
			status, message = health.Fail, fault.Of(err).Message
		case st.Full():
			status, message = health.Warn, "Too many notifications wait, and the oldest are given up: `agentd notify list` shows what its receivers answer."
		case st.Disabled > 0:
			status, message = health.Warn, "A receiver of notifications has answered 410 and gets none: remove it, or enable it with `agentd notify test`."
		case len(st.Failing) > 0:
			status, message = health.Warn, "A receiver of notifications has failed ten times in a row: `agentd notify list` says why."
		}
		return found(status, message, "receivers", st.Declared, "waiting", st.Waiting, "disabled", st.Disabled, "failing", len(st.Failing))
	}
}
