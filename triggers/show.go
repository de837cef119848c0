package triggers

import (
	"context"
	"slices"
	"strings"
	"time"

	"agentd/auth"
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/store"
)

// State is a trigger as it is shown. Times are RFC 3339.
type State struct {
	ID              string   `json:"id"`
	Kind            string   `json:"kind" enum:"cron|interval|idle|event"`
	Spec            string   `json:"spec" doc:"The cron text, the milliseconds of an interval or a quiet time, or the name of the event."`
	Timezone        string   `json:"timezone,omitempty" doc:"Of a cron text; UTC when absent."`
	CallbackRef     string   `json:"callbackRef" doc:"What it starts: agent: or workflow: and the id. For a trigger that is not declared, its own id."`
	NextFireAt      string   `json:"nextFireAt,omitempty" doc:"Its next due; absent for events, and for triggers that do not fire."`
	LastFiredAt     string   `json:"lastFiredAt,omitempty"`
	MissedFires     int64    `json:"missedFires" doc:"Dues of the latest catch-up that did not fire. The next firing on time resets it."`
	Disabled        bool     `json:"disabled"`
	DisabledReason  string   `json:"disabledReason,omitempty"`
	Orphaned        bool     `json:"orphaned,omitempty" doc:"The configuration does not declare it."`
	Expired         bool     `json:"expired,omitempty"`
	ExpiresAt       string   `json:"expiresAt,omitempty"`
	CatchUpPolicy   string   `json:"catchupPolicy,omitempty" enum:"none|last|all"`
	MaxCatchUpRuns  int      `json:"maxCatchupRuns,omitempty"`
	CatchUpWindowMs int64    `json:"catchupWindowMs,omitempty" doc:"Absent: the greater of a day and two periods."`
	JitterMs        int64    `json:"jitterMs,omitempty"`
	Overlap         string   `json:"overlap,omitempty" enum:"skip|queue|allow"`
	Failures        int      `json:"failures" doc:"Failed starts and runs in a row."`
	Tags            []string `json:"tags,omitempty"`
	CreatedAt       string   `json:"createdAt"`
	UpdatedAt       string   `json:"updatedAt,omitempty"`
}

// Firing is a row of the ledger as it is shown.
type Firing struct {
	ID      string `json:"id"`
	Trigger string `json:"trigger"`
	Slot    string `json:"slot" doc:"What the firing is for, once for each trigger and emitter: t: and the due in milliseconds, e: and the event's id, i: and the last activity, or m: and the firing's id."`
	Due     string `json:"due"`
	LastDue string `json:"lastDue,omitempty" doc:"Of a range of missed dues."`
	Count   int64  `json:"count" doc:"Dues in the range, else 1."`
	At      string `json:"at" doc:"When the row was written."`
	Origin  string `json:"origin" enum:"schedule|catchup|manual|event|idle"`
	Outcome string `json:"outcome" enum:"queued|fired|skipped|failed|missed"`
	Reason  string `json:"reason,omitempty"`
	RunID   string `json:"runId,omitempty"`
	FiredBy string `json:"firedBy,omitempty" doc:"The principal that fired the trigger or emitted the event."`
}

// optional is a time as it is shown; 0: none.
func optional(ms int64) string {
	if ms == 0 {
		return ""
	}
	return message.Millis(ms)
}

func shown(trigger string, f *store.Firing) Firing {
	return Firing{ID: f.ID, Trigger: trigger, Slot: f.Slot, Due: message.Millis(f.Due), LastDue: optional(f.LastDue), Count: f.Dues, At: message.Millis(f.At),
		Origin: f.Origin, Outcome: f.Outcome, Reason: f.Reason, RunID: f.Run, FiredBy: f.By}
}

// stateLocked is the trigger as it is shown.
func (en *entry) stateLocked(now int64) State {
	row := &en.row
	s := State{ID: row.ID, Kind: row.Kind, Spec: row.Spec, CallbackRef: row.ID, LastFiredAt: optional(row.LastFired), MissedFires: row.Missed, Disabled: row.Disabled,
		DisabledReason: row.Reason, Orphaned: en.decl == nil, Expired: en.expired(now), Failures: row.Failures, CreatedAt: message.Millis(row.Created), UpdatedAt: optional(row.Updated)}
	d := en.decl
	if d == nil {
		return s
	}
	s.CallbackRef = "agent:" + d.Agent
	if d.Workflow != "" {
		s.CallbackRef = "workflow:" + d.Workflow
	}
	s.Timezone, s.ExpiresAt, s.Overlap, s.Tags = d.Timezone, optional(d.ExpiresAt), d.Overlap, d.Tags
	if d.Kind == CronKind || d.Kind == IntervalKind {
		s.CatchUpPolicy, s.MaxCatchUpRuns, s.CatchUpWindowMs, s.JitterMs = d.CatchUpPolicy, d.MaxCatchUpRuns, d.CatchUpWindowMs, d.JitterMs
		if next := d.next(row.Cursor); next != 0 && !row.Disabled {
			s.NextFireAt = message.Millis(next - d.delay)
		}
	}
	return s
}

func (en *entry) state() State {
	en.mu.Lock()
	defer en.mu.Unlock()
	return en.stateLocked(time.Now().UnixMilli())
}

// List returns the triggers in the order of their ids.
func (e *Engine) List() []State {
	all := e.all()
	list := make([]State, len(all))
	for i, en := range all {
		list[i] = en.state()
	}
	return list
}

// Get returns a trigger, or trigger-not-found.
func (e *Engine) Get(id string) (State, error) {
	en, err := e.find(id)
	if err != nil {
		return State{}, err
	}
	return en.state(), nil
}

// MaxNext is how many dues [Engine.Next] returns at most.
const MaxNext = 1000

// Next returns the next n dues of a trigger; none for one that has no schedule or does not fire. Errors: trigger-not-found, config-invalid.
func (e *Engine) Next(id string, n int) ([]time.Time, error) {
	en, err := e.find(id)
	if err != nil {
		return nil, err
	}
	if n < 1 || n > MaxNext {
		return nil, fault.Invalid("The request is not valid.", fault.At("want a number from 1 to 1000", "n"))
	}
	en.mu.Lock()
	defer en.mu.Unlock()
	now := time.Now().UnixMilli()
	if en.firable(now) != nil {
		return nil, nil
	}
	s, ok := en.decl.dues(en.row.Cursor)
	if !ok {
		return nil, nil
	}
	dues := s.Upcoming(at(max(en.row.Cursor, now)), n)
	if end := en.decl.ExpiresAt; end != 0 {
		dues = slices.DeleteFunc(dues, func(due time.Time) bool { return due.UnixMilli() >= end })
	}
	return dues, nil
}

// MaxFirings is how many firings [Engine.Firings] returns at most.
const MaxFirings = 1000

// Firings returns firings of a trigger, the latest first, and where the next page begins; 0: this is the last one. before is what an
// earlier call returned; 0: from the latest. The error is trigger-not-found.
func (e *Engine) Firings(ctx context.Context, id string, before int64, limit int) (page []Firing, next int64, err error) {
	en, err := e.find(id)
	if err != nil {
		return nil, 0, err
	}
	limit = min(max(limit, 1), MaxFirings)
	var rows []store.Firing
	err = e.opts.Store.View(ctx, func(tx *store.Tx) (err error) {
		rows, err = e.opts.Store.Ledger(tx, en.n, before, limit)
		return err
	})
	page = make([]Firing, len(rows))
	for i := range rows {
		page[i] = shown(id, &rows[i])
		next = rows[i].N
	}
	if len(rows) < limit {
		next = 0
	}
	return page, next, err
}

// SetDisabled disables or enables a trigger. An enabled one continues at the present: what was due in between is forgotten. also is
// written in the same transaction; nil: nothing. The error is trigger-not-found.
func (e *Engine) SetDisabled(ctx context.Context, id string, disabled bool, also func(*store.Tx, State) error) (State, error) {
	en, err := e.find(id)
	if err != nil {
		return State{}, err
	}
	en.mu.Lock()
	defer en.mu.Unlock()
	if en.gone {
		return State{}, fault.New(fault.TriggerNotFound, "There is no trigger %q any more.", id)
	}
	before, now := en.row, time.Now().UnixMilli()
	if en.row.Disabled != disabled {
		en.row.Disabled, en.row.Reason, en.row.Updated = disabled, "", now
		if !disabled {
			en.row.Failures, en.row.Missed = 0, 0
			if en.row.Kind != IdleKind {
				en.row.Cursor = now
			}
		}
	}
	s := en.stateLocked(now)
	err = e.opts.Store.Update(ctx, func(tx *store.Tx) error {
		err := e.opts.Store.Set(tx, &en.row)
		if err == nil && also != nil {
			err = also(tx, s)
		}
		return err
	})
	if err != nil {
		en.row = before
		return State{}, err
	}
	en.queue = !disabled
	e.plan(en, 0)
	e.nudge()
	return s, nil
}

// Remove deletes a trigger with its ledger. Its runs continue. One that is declared comes back, as a new one, when the server starts
// again. The error is trigger-not-found.
func (e *Engine) Remove(ctx context.Context, id string, also func(*store.Tx) error) error {
	en, err := e.find(id)
	if err != nil {
		return err
	}
	return e.remove(ctx, []*entry{en}, func(*entry) bool { return true }, also)
}

// remove deletes those of some triggers that are to go, in one transaction. It asks while they cannot change.
func (e *Engine) remove(ctx context.Context, all []*entry, goes func(*entry) bool, also func(*store.Tx) error) error {
	var list []*entry
	for _, en := range all {
		en.mu.Lock()
		defer en.mu.Unlock()
		if !en.gone && goes(en) {
			list = append(list, en)
		}
	}
	err := e.opts.Store.Update(ctx, func(tx *store.Tx) error {
		for _, en := range list {
			if err := e.opts.Store.Delete(tx, en.n); err != nil {
				return err
			}
		}
		if also != nil {
			return also(tx)
		}
		return nil
	})
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, en := range list {
		en.gone, en.planned = true, never
		delete(e.owed, en)
		if e.entries[en.id] == en {
			delete(e.entries, en.id)
		}
	}
	e.indexLocked()
	return nil
}

// Pruned names the triggers that a prune has deleted.
type Pruned struct {
	Disabled []string
	Orphaned []string // and not disabled
}

// Prune deletes triggers that are disabled, or that the configuration does not declare, with their ledgers.
func (e *Engine) Prune(ctx context.Context, disabled, orphaned bool, also func(*store.Tx, Pruned) error) (p Pruned, err error) {
	goes := func(en *entry) bool {
		switch {
		case disabled && en.row.Disabled:
			p.Disabled = append(p.Disabled, en.id)
		case orphaned && en.decl == nil:
			p.Orphaned = append(p.Orphaned, en.id)
		default:
			return false
		}
		return true
	}
	err = e.remove(ctx, e.all(), goes, func(tx *store.Tx) error {
		if also == nil {
			return nil
		}
		return also(tx, p)
	})
	return p, err
}

// Status is how the engine does.
type Status struct {
	Running  bool
	Active   int // triggers that can fire
	Disabled int
	Orphaned int
	Deferred int           // triggers that have missed dues
	Missed   int64         // those dues
	Lag      time.Duration // from the latest due on time to its start
	Overdue  time.Duration // how long the trigger that waits longest has been due
	LastFire int64         // milliseconds since 1970; 0: none since the start
}

// Status reports how the engine does. It looks at all triggers.
func (e *Engine) Status() (s Status) {
	now := time.Now().UnixMilli()
	for _, en := range e.all() {
		if !en.mu.TryLock() { // it is being fired
			s.Active++
			continue
		}
		switch {
		case en.row.Disabled:
			s.Disabled++
		case en.decl == nil:
			s.Orphaned++
		case !en.expired(now):
			s.Active++
		}
		if en.row.Missed > 0 {
			s.Deferred++
			s.Missed += en.row.Missed
		}
		en.mu.Unlock()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s.Running, s.Lag, s.LastFire, s.Overdue = e.running, time.Duration(e.lag)*time.Millisecond, e.fired, e.overdueLocked(now)
	return s
}

// Overdue is that of [Engine.Status], which takes longer.
func (e *Engine) Overdue() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.overdueLocked(time.Now().UnixMilli())
}

func (e *Engine) overdueLocked(now int64) (overdue time.Duration) {
	if len(e.turns) > 0 && e.turns[0].en.planned == e.turns[0].at && e.turns[0].at > 0 {
		// After a step of the clock or a suspend it is due for less than it seems: since the engine has last looked.
		overdue = min(time.Duration(now-e.turns[0].at)*time.Millisecond, time.Since(e.last))
	}
	for _, since := range e.owed {
		overdue = max(overdue, time.Duration(now-since)*time.Millisecond)
	}
	return max(overdue, 0)
}

// Permits reports whether the principal of a trigger's runs, by its name, may do something. known is false for other principals.
func (e *Engine) Permits(principal string, required auth.Scope) (permitted, known bool) {
	id, known := strings.CutPrefix(principal, Prefix)
	if !known {
		return false, false
	}
	id, _, _ = strings.Cut(id, store.For)
	en, err := e.find(id)
	return err == nil && en.decl != nil && en.decl.covers(required), true
}
