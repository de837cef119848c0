package retention

import (
	"context"
	"errors"
	"time"

	"agentd/store"
)

// Settings are the windows of the rules, in days; 0: the rule deletes nothing because of age.
type Settings struct {
	Enabled            bool // sweep at start and then in each interval
	Interval           time.Duration
	SpansDays          int
	FiringsDays        int
	NotificationsDays  int
	DeadDays           int // of notifications
	Idempotency        bool
	WorkflowThreads    int
	SessionsDays       int
	SessionsClosedOnly bool
	RunsDays           int
	AuditDays          int
}

const day = 24 * time.Hour

// A Rule is a row of the table of what a sweep deletes.
type Rule struct {
	Name    string
	Setting string // what switches it on
	Table   string
	Deletes string // what, in which order
	Keeps   string // what protects a row; empty: nothing else
	Most    int64  // rows that remain, however young they are; 0: any number

	days func(*Settings) int // 0: off; -1: on, and no matter of days
	pass func(*pass) error
}

// Rules is the table, in the order of a sweep. What may refer to others goes before them.
var Rules = []Rule{
	{Name: "spans", Setting: "retention.spansDays", Table: "spans", Most: 5_000_000,
		Deletes: "Batches of spans that were written before the window, and the oldest above the maximum; oldest first.",
		Keeps:   "Spans of a run that has not ended, or that is part of a tree of runs that has not ended.",
		days:    func(s *Settings) int { return s.SpansDays }, pass: func(p *pass) error { return p.capped(p.d.o.Expiry.SpansOver, p.d.o.Expiry.Spans) }},
	{Name: "firings", Setting: "retention.firingsDays", Table: "firings", Most: 1_000_000,
		Deletes: "Firings of triggers that were written before the window, and the oldest above the maximum; oldest first.",
		Keeps:   "A firing that is queued or whose run has not ended, and the latest of each trigger.",
		days:    func(s *Settings) int { return s.FiringsDays }, pass: func(p *pass) error { return p.capped(p.d.o.Expiry.FiringsOver, p.d.o.Expiry.Firings) }},
	{Name: "notifications", Setting: "retention.notificationsDays", Table: "notifications",
		Deletes: "Notifications that were written before the window and delivered; oldest first.", Keeps: "A notification that was not delivered.",
		days: func(s *Settings) int { return s.NotificationsDays }, pass: func(p *pass) error { return p.rows(p.d.o.Expiry.Delivered, store.Before(p.before)) }},
	{Name: "deadNotifications", Setting: "retention.deadNotificationsDays", Table: "notifications",
		Deletes: "Notifications that were written before the window and that agentd does not try to deliver any more; oldest first.", Keeps: "A notification that waits for its delivery.",
		days: func(s *Settings) int { return s.DeadDays }, pass: func(p *pass) error { return p.rows(p.d.o.Expiry.Dead, store.Before(p.before)) }},
	{Name: "idempotency", Setting: "retention.idempotency", Table: "idempotency_records",
		Deletes: "Records of requests with an Idempotency-Key that have expired; oldest first.",
		Keeps:   "The record of a request that started or resumed a run, while the run exists.",
		days: func(s *Settings) int {
			if s.Idempotency {
				return -1
			}
			return 0
		}, pass: func(p *pass) error { return p.rows(p.d.o.Expiry.Keys, store.Before(p.now+1)) }},
	{Name: "workflowThreads", Setting: "retention.workflowThreadsDays", Table: "threads",
		Deletes: "Threads of workflows that ended before the window, with their runs, with what they hosted and with their own sessions; oldest first.",
		Keeps:   "A thread that has not ended, that another run hosts, or whose runs hold a part of the transcript of another session.",
		days:    func(s *Settings) int { return s.WorkflowThreads },
		pass: func(p *pass) error {
			x := p.d.o.Expiry
			return p.erasures("thread", x.Threads, func(tx *store.Tx, at store.Place) (*store.Expired, error) { return x.Thread(tx, at, p.before) })
		}},
	{Name: "sessions", Setting: "retention.sessionsDays", Table: "sessions",
		Deletes: "Sessions whose latest message is older than the window, with their runs and linked threads; oldest first. With retention.sessionsClosedOnly, only closed sessions.",
		Keeps:   "A session with a run or thread that has not ended, that holds approvals or that ended within the window, and the session of a thread, which goes with the thread.",
		days:    func(s *Settings) int { return s.SessionsDays },
		pass: func(p *pass) error {
			x := p.d.o.Expiry
			return p.erasures("session", x.Sessions, func(tx *store.Tx, at store.Place) (*store.Expired, error) {
				return x.Session(tx, at, p.before, p.d.o.Settings.SessionsClosedOnly)
			})
		}},
	{Name: "runs", Setting: "retention.runsDays", Table: "runs",
		Deletes: "Runs of agents without a session that ended before the window, with all runs that they called; first to end first.",
		Keeps:   "A run with a session, which goes with the session, a run that holds approvals, and a part of a tree of runs that has not ended before the window.",
		days:    func(s *Settings) int { return s.RunsDays },
		pass: func(p *pass) error {
			x := p.d.o.Expiry
			return p.erasures("run", x.Runs, func(tx *store.Tx, at store.Place) (*store.Expired, error) { return x.Run(tx, at, p.before) })
		}},
	{Name: "audit", Setting: "retention.auditDays", Table: "audit chain",
		Deletes: "Entries of the audit chain that are older than the window; a signed record replaces them.",
		Keeps:   "The latest entry. Of a broken chain, everything.",
		days:    func(s *Settings) int { return s.AuditDays },
		pass: func(p *pass) (err error) {
			if p.d.o.Prune != nil {
				p.deleted, err = p.d.o.Prune(p.ctx, time.UnixMilli(p.before), p.dry)
			}
			return err
		}},
}

// A pass is one rule of one sweep.
type pass struct {
	ctx         context.Context
	d           *Daemon
	rule        *Rule
	dry         bool
	now, before int64 // the window begins then; both in milliseconds since 1970
	deleted     int64
}

// deleter is what deletes a page of single rows after one place and up to another one.
type deleter func(tx *store.Tx, after, upTo store.Place, limit int, dry bool) (store.Page, error)

// capped deletes what is older than the window, and as much more as is over the maximum of the rule.
func (p *pass) capped(over func(*store.Tx, int64) (store.Place, error), delete deleter) error {
	var upTo store.Place
	err := p.d.o.Expiry.View(p.ctx, func(tx *store.Tx) (err error) {
		upTo, err = over(tx, p.rule.Most)
		return err
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if err != nil || upTo.At < p.before {
		upTo = store.Before(p.before)
	}
	return p.rows(delete, upTo)
}

// rows deletes single rows, page by page.
func (p *pass) rows(delete deleter, upTo store.Place) error {
	for last := (store.Place{}); ; {
		var page store.Page
		limit := p.d.pace.rows
		err := p.d.batch(p.ctx, p.dry, func(tx *store.Tx) (err error) {
			page, err = delete(tx, last, upTo, limit, p.dry)
			return err
		})
		if err != nil {
			return err
		}
		last = page.Last
		p.deleted += int64(page.Deleted)
		if page.Looked < limit {
			return nil
		}
	}
}

// erasures deletes what consists of many rows: as much in one transaction as has a thousand rows, and at least one.
func (p *pass) erasures(what string, find func(tx *store.Tx, after store.Place, before int64, limit int) ([]store.Place, error),
	take func(*store.Tx, store.Place) (*store.Expired, error)) error {
	for last := (store.Place{}); ; {
		var found []store.Place
		if err := p.d.o.Expiry.View(p.ctx, func(tx *store.Tx) (err error) {
			found, err = find(tx, last, p.before, maxRows)
			return err
		}); err != nil || len(found) == 0 {
			return err
		}
		last = found[len(found)-1]
		for len(found) > 0 {
			done, deleted, err := p.erase(what, found, take)
			if err != nil {
				return err
			}
			found, p.deleted = found[done:], p.deleted+int64(deleted)
		}
	}
}

// erase handles the first of what was found, and returns how many of them it has looked at and deleted.
func (p *pass) erase(what string, found []store.Place, take func(*store.Tx, store.Place) (*store.Expired, error)) (done, deleted int, err error) {
	each := func(tx *store.Tx) (runs []*store.Run, sessions []string, err error) {
		rows, names, limit, begun := 0, []string{}, p.d.pace.rows, time.Now()
		defer func() { p.d.pace.took(time.Since(begun)) }()
		for done = 0; done < len(found) && done < limit; done++ {
			v, err := take(tx, found[done])
			if err != nil {
				return nil, nil, err
			}
			if v == nil {
				continue
			}
			if rows += v.Rows; rows > limit && len(names) > 0 {
				break
			}
			names = append(names, v.Name)
			if p.dry {
				continue
			}
			r, s, err := v.Delete()
			if err != nil {
				return nil, nil, err
			}
			runs, sessions = append(runs, r...), append(sessions, s...)
		}
		deleted = len(names)
		if p.dry || deleted == 0 || p.d.o.Record == nil {
			return runs, sessions, nil
		}
		write, err := p.d.o.Record(what, names)
		if err == nil {
			err = write(tx)
		}
		return runs, sessions, err
	}
	if p.dry {
		return done, deleted, p.d.batch(p.ctx, true, func(tx *store.Tx) error {
			_, _, err := each(tx)
			return err
		})
	}
	err = p.d.paced(p.ctx, func() error { return p.d.o.Erase(p.ctx, each) })
	p.d.erased = p.d.erased || deleted > 0
	return done, deleted, err
}
