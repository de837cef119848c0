package server

import (
	"context"
	"time"

	"agentd/retention"
	"agentd/server/audit"
	"agentd/store"
)

// openRetention makes the daemon that deletes what is older than its window.
func (s *Server) openRetention(p *parts) *retention.Daemon {
	c := s.cfg.Retention
	o := retention.Options{Expiry: p.db.Expiry(), Erase: p.engine.EraseOld, Metrics: p.metrics, Logger: s.log,
		Settings: retention.Settings{Enabled: c.Enabled, Interval: c.Interval.Duration(), SpansDays: c.SpansDays, FiringsDays: c.FiringsDays, NotificationsDays: c.NotificationsDays, DeadDays: c.DeadDays, Idempotency: c.Idempotency && p.keys != nil,
			WorkflowThreads: c.WorkflowThreadsDays, SessionsDays: c.SessionsDays, SessionsClosedOnly: c.SessionsClosedOnly, RunsDays: c.RunsDays, AuditDays: c.AuditDays},
		Erased: func(ctx context.Context) {
			if p.keys != nil {
				p.keys.Forget()
			}
			p.engine.Overwrite(ctx)
		}}
	if p.audit != nil {
		o.Prune, o.Record, o.Swept = p.pruneChain, p.recordErased, func(v retention.Sweep) { s.note(p, sweepRecord(v)) }
	}
	return retention.New(o)
}

// pruneChain deletes the entries that are older than a time, or counts them. It leaves the latest one.
func (p *parts) pruneChain(ctx context.Context, before time.Time, dry bool) (int64, error) {
	if dry {
		return p.audit.Prunable(ctx, before, 1)
	}
	done, err := p.audit.Prune(ctx, before, 1, systemActor)
	return done.Deleted, err
}

// erasures are the actions of what retention erases, and what their targets begin with.
var erasures = map[string]audit.Action{"session": audit.SessionDelete, "thread": audit.ThreadDelete, "run": audit.RunDelete}

// recordErased returns what writes an entry for each thing that is erased, in the transaction that erases it.
func (p *parts) recordErased(what string, names []string) (func(*store.Tx) error, error) {
	records := make([]audit.Record, len(names))
	for i, name := range names {
		records[i] = audit.Record{Actor: systemActor, Action: erasures[what], Target: what + ":" + name, Decision: audit.Success}
	}
	entries, err := p.audit.Prepare(records...)
	return entries.Write, err
}

// sweepRecord is a sweep as the chain has it.
func sweepRecord(v retention.Sweep) audit.Record {
	r := audit.Record{Action: audit.RetentionSweep, Target: "retention", Decision: audit.Success, Metadata: map[string]any{}}
	failed := []string{}
	for _, result := range v.Results {
		if result.Deleted > 0 {
			r.Metadata[result.Rule] = result.Deleted
		}
		if result.Err != nil {
			failed = append(failed, result.Rule)
		}
	}
	if len(failed) > 0 {
		r.Decision, r.Metadata["failed"] = audit.Failed, failed
	}
	return r
}
