package triggers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"agentd/auth"
	"agentd/server/expr"
	"agentd/server/fault"
	"agentd/server/id"
	"agentd/store"
)

// Origins of firings.
const (
	OfSchedule = "schedule"
	OfCatchUp  = "catchup"
	OfManual   = "manual"
	OfEvent    = "event"
	OfIdle     = "idle"
)

// Outcomes of firings.
const (
	Queued  = "queued"
	Fired   = "fired"
	Skipped = "skipped"
	Failed  = "failed"
	Missed  = "missed"
)

// Reasons of firings that were skipped; those of failed ones are codes of faults.
const (
	Overlap   = "overlap"
	QueueFull = "queue-full"
)

// A carry is what a run is started with, evaluated when the trigger fires.
type carry struct {
	Input   json.RawMessage `json:"input,omitempty"`
	Session string          `json:"session,omitempty"`
}

// errDone reports that the slot has its firing already.
var errDone = errors.New("the slot has a firing")

// fire makes a firing durable and starts its run, or says in the ledger why there is none. f has its slot, due and origin; scope the
// values of the expressions. The caller holds the entry's lock. move changes the trigger's row in the same transaction, and also is
// written there; both may be nil. The error is errDone for a slot that has a firing, which f becomes; what prevents that anything is
// recorded, such as storage-failed, overloaded or server-draining; or also's.
func (e *Engine) fire(ctx context.Context, en *entry, f *store.Firing, scope expr.Scope, move func(*store.Trigger), also func(*store.Tx, *store.Firing) error) error {
	now := time.Now().UnixMilli()
	f.Trigger, f.ID, f.Dues, f.At = en.n, cmp.Or(f.ID, id.New()), 1, now
	row := en.row
	if move != nil {
		move(&row)
	}
	var queued, running int
	err := e.opts.Store.View(ctx, func(tx *store.Tx) (err error) {
		queued, running, err = e.earlier(tx, f)
		return err
	})
	if err != nil {
		return err
	}
	with, err := en.decl.evaluate(scope)
	if err != nil {
		return e.fail(ctx, en, row, f, err, nil, also)
	}
	starts, err := en.decide(f, with, queued, running)
	switch {
	case err != nil:
		return err
	case starts:
		return e.start(ctx, en, row, f, with, also)
	}
	return e.record(ctx, en, row, f, also)
}

// earlier counts the firings of the trigger that are queued or whose run has not ended. The error is errDone if the slot of f has a
// firing, which f becomes.
func (e *Engine) earlier(tx *store.Tx, f *store.Firing) (queued, running int, err error) {
	known, err := e.opts.Store.At(tx, f.Trigger, f.Slot, f.Emitter)
	if err == nil {
		*f = known
		return 0, 0, errDone
	}
	if errors.Is(err, store.ErrNotFound) {
		queued, running, err = e.opts.Store.Waiting(tx, f.Trigger)
	}
	return queued, running, err
}

// decide reports whether a firing starts its run now, and makes it queued or skipped if not.
func (en *entry) decide(f *store.Firing, with carry, queued, running int) (starts bool, err error) {
	switch {
	case en.decl.Overlap == OverlapAllow, queued+running == 0:
		return true, nil
	case en.decl.Overlap == OverlapSkip && f.Origin != OfCatchUp:
		f.Outcome, f.Reason = Skipped, Overlap
	case queued >= en.decl.queueBound():
		f.Outcome, f.Reason = Skipped, QueueFull
	default:
		en.queue = true
		err = queue(f, with)
	}
	return false, err
}

// queue has a firing wait, with what its run is started with.
func queue(f *store.Firing, with carry) (err error) {
	f.Outcome, f.Open = Queued, true
	f.Carry, err = json.Marshal(with)
	return err
}

// evaluate returns what a run is started with.
func (c *common) evaluate(scope expr.Scope) (with carry, err error) {
	if c.input != nil {
		v, err := c.input.Eval(scope)
		if err == nil {
			with.Input, err = expr.Encode(v)
		}
		if err != nil {
			return with, err
		}
	}
	if c.session != nil {
		v, err := c.session.Eval(scope)
		if err != nil {
			return with, err
		}
		var ok bool
		if with.Session, ok = v.(string); !ok {
			return with, fault.Invalid("The expression of the session did not give a text.", fault.At("want a text", "session"))
		}
	}
	return with, nil
}

// principal is the name of the principal of a trigger's runs.
func (en *entry) principal() string { return Prefix + en.id }

// start starts the run of a firing. row is the trigger's afterwards.
func (e *Engine) start(ctx context.Context, en *entry, row store.Trigger, f *store.Firing, with carry, also func(*store.Tx, *store.Firing) error) error {
	d := &en.decl.Declaration
	var fired store.Firing
	var moved store.Trigger
	var refused error // by what is recorded beside the run
	_, err := e.opts.Start(ctx, Start{Agent: d.Agent, Workflow: d.Workflow, Input: with.Input, Session: with.Session, User: d.User, By: en.principal(),
		FiredBy: f.By, MayJoin: en.decl.covers(auth.Scope{Resource: "sessions", Action: "write", Target: with.Session}), Origin: originPrefix + f.ID,
		Also: func(tx *store.Tx, runID string, _ store.Status) error {
			fired = *f
			fired.Outcome, fired.Reason, fired.Run, fired.Open, fired.Next, fired.Carry = Fired, "", runID, true, 0, nil
			moved = row
			moved.LastFired, moved.Updated = tx.Now(), tx.Now()
			if f.Origin != OfCatchUp {
				moved.Missed = 0
			}
			refused = e.write(tx, &moved, &fired, also)
			return refused
		}})
	if err == nil {
		*f, en.row = fired, moved
		e.noteFired(f)
		return nil
	}
	if refused != nil {
		return refused
	}
	return e.fail(ctx, en, row, f, err, &with, also)
}

// write writes a firing and the row of its trigger.
func (e *Engine) write(tx *store.Tx, row *store.Trigger, f *store.Firing, also func(*store.Tx, *store.Firing) error) (err error) {
	if f.N == 0 {
		err = e.opts.Store.Add(tx, f)
	} else {
		err = e.opts.Store.Change(tx, f)
	}
	if err == nil {
		err = e.opts.Store.Set(tx, row)
	}
	if err == nil && also != nil {
		err = also(tx, f)
	}
	return err
}

// record writes a firing that starts nothing now.
func (e *Engine) record(ctx context.Context, en *entry, row store.Trigger, f *store.Firing, also func(*store.Tx, *store.Firing) error) error {
	row.Updated = time.Now().UnixMilli()
	err := e.opts.Store.Update(ctx, func(tx *store.Tx) error { return e.write(tx, &row, f, also) })
	if err == nil {
		en.row = row
	}
	return err
}

// passing are the faults of a start after which nothing is recorded: they say nothing of the trigger.
var passing = []*fault.Kind{fault.Overloaded, fault.ServerDraining, fault.StorageFailed, fault.StorageCorrupt, fault.AuditUnavailable}

func passes(err error) bool {
	for _, kind := range passing {
		if fault.Is(err, kind) {
			return true
		}
	}
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// fail records that a start has failed, or queues the firing for the next attempt. with is nil if there is nothing to start.
func (e *Engine) fail(ctx context.Context, en *entry, row store.Trigger, f *store.Firing, cause error, with *carry, also func(*store.Tx, *store.Firing) error) error {
	now := time.Now().UnixMilli()
	if passes(cause) {
		if with == nil || f.N != 0 || f.Origin == OfManual || f.Origin == OfEvent || !fault.Is(cause, fault.Overloaded) {
			return cause
		}
		return e.wait(ctx, en, row, f, *with, now+again.Milliseconds())
	}
	err := e.refuse(ctx, en, &row, f, cause, with)
	if err == nil {
		err = e.record(ctx, en, row, f, also)
	}
	if err == nil && f.Outcome == Failed {
		e.count(en.id, false)
	} else if err == nil {
		e.planBy(en, f.Next)
	}
	return err
}

// refuse makes a firing failed, or queued for the next attempt.
func (e *Engine) refuse(ctx context.Context, en *entry, row *store.Trigger, f *store.Firing, cause error, with *carry) (err error) {
	code, message := reasonOf(cause)
	e.log(ctx).Warn("a trigger could not start its run", "trigger", en.id, "firing", f.ID, "code", code, "error", message)
	f.Attempts++
	f.Outcome, f.Reason, f.Open, f.Next, f.Carry = Failed, code, false, 0, nil
	if retry := en.decl.Retry; with != nil && f.Attempts < retry.MaxAttempts {
		f.Next, en.queue = time.Now().UnixMilli()+min(max(retry.BackoffMs, 1)<<min(f.Attempts-1, 20), dayMs), true
		return queue(f, *with)
	}
	e.failed(ctx, row, en.decl)
	return nil
}

// wait queues a firing of a schedule that the server had no room for, so that its due is not missed.
func (e *Engine) wait(ctx context.Context, en *entry, row store.Trigger, f *store.Firing, with carry, next int64) (err error) {
	var queued int
	if err := e.opts.Store.View(ctx, func(tx *store.Tx) (err error) {
		queued, _, err = e.opts.Store.Waiting(tx, row.N)
		return err
	}); err != nil {
		return err
	}
	if f.Outcome, f.Reason = Skipped, QueueFull; queued < en.decl.queueBound() {
		f.Reason, f.Next, en.queue = fault.Overloaded.Code, next, true
		if err := queue(f, with); err != nil {
			return err
		}
	}
	return e.record(ctx, en, row, f, nil)
}

// reasonOf is the code of what prevented a start, and its message.
func reasonOf(err error) (code, message string) {
	if x, ok := errors.AsType[*expr.Error](err); ok {
		return x.Code, x.Error()
	}
	f := fault.Of(err)
	return f.Kind.Code, f.Message
}

// failed counts a failure in a row, and disables the trigger that has had too many.
func (e *Engine) failed(ctx context.Context, row *store.Trigger, c *compiled) {
	row.Failures++
	if c != nil && c.DisableAfter > 0 && row.Failures >= c.DisableAfter && !row.Disabled {
		row.Disabled, row.Reason = true, fmt.Sprintf("%d failures in a row", row.Failures)
		e.log(ctx).Error("a trigger was disabled", "trigger", row.ID, "failures", row.Failures)
	}
}

// maxLabels is how many triggers have a metric of their own.
const maxLabels = 1000

// count counts a firing whose run has completed, or that failed.
func (e *Engine) count(trigger string, completed bool) {
	status := "error"
	if completed {
		status = "success"
	}
	e.mu.Lock()
	if len(e.entries) > maxLabels {
		trigger = "other"
	}
	e.mu.Unlock()
	e.opts.Metrics.TriggerFires.With(trigger, status).Inc()
}

func (e *Engine) noteFired(f *store.Firing) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fired = max(e.fired, f.At)
	if f.Origin == OfSchedule {
		e.lag = f.At - f.Due
	}
}

// scopeOf is the values that the expressions of a trigger see.
func scopeOf(trigger string, due, now int64, event any, headers map[string]string) expr.Map {
	shown := make(map[string]any, len(headers))
	for name, value := range headers {
		shown[strings.ToLower(name)] = value
	}
	return expr.Map{"trigger": trigger, "due": at(due).UTC(), "now": at(now).UTC(), "event": event, "headers": shown}
}
