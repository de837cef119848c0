package triggers

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"agentd/server/expr"
	"agentd/server/fault"
	"agentd/server/id"
	"agentd/store"
)

func newID() string { return id.New() }

// maxEventID is the longest id of an event, in bytes.
const maxEventID = 256

// maxInputs is about how many bytes of inputs a transaction records.
const maxInputs = 16 << 20

// An Event is something that happened outside.
type Event struct {
	Name    string
	ID      string            // of several events with one id from one emitter, the first one counts; empty: the engine makes one
	Data    json.RawMessage   // any JSON; nil: null
	Headers map[string]string // of the webhook that brought it
	By      string            // the principal that emits it
	Emitter string            // whom ids are unique for; By when empty
	// Also is written in the transaction that records the first firings, with the event's id; its error prevents them. Nil: nothing is.
	Also func(tx *store.Tx, id string) error
}

// TriggerFired is what became of an event for one trigger.
type TriggerFired struct {
	Trigger string `json:"trigger"`
	Outcome string `json:"outcome" enum:"queued|fired|skipped|failed"`
	Reason  string `json:"reason,omitempty"`
	RunID   string `json:"runId,omitempty"`
}

// Emitted is what became of an event.
type Emitted struct {
	ID    string         `json:"id" doc:"The event's id."`
	Fired []TriggerFired `json:"fired" doc:"What became of it, for each trigger that it concerns."`
	// Duplicate says that the emitter has sent an event with this id before: nothing has fired now.
	Duplicate bool `json:"duplicate,omitempty" doc:"Nothing has fired now, because this event came before."`
}

// Emit fires the triggers of an event. What it returns is durable. One transaction records the firings of 1000 triggers, or fewer if
// their inputs have more than 16 MiB: either all of them have a row, or none. Those whose run cannot start now, because the server is overloaded for instance, are queued. Errors:
// config-invalid, and what prevents that anything is recorded; who sends the event again, with the same id, fires what is not recorded.
func (e *Engine) Emit(ctx context.Context, ev Event) (Emitted, error) {
	if ev.ID == "" {
		ev.ID = id.New()
	}
	if ev.Emitter == "" {
		ev.Emitter = ev.By
	}
	var issues []fault.Issue
	if !validName(ev.Name) {
		issues = append(issues, fault.At("has 1 to 128 characters of A-Z a-z 0-9 . _ -", "name"))
	}
	if len(ev.ID) > maxEventID || strings.ContainsFunc(ev.ID, func(r rune) bool { return r <= ' ' || r > '~' }) {
		issues = append(issues, fault.At("has 1 to 256 visible ASCII characters", "id"))
	}
	var data any
	if ev.Data != nil {
		var err error
		if data, err = expr.Decode(ev.Data); err != nil {
			issues = append(issues, fault.At(err.Error(), "data"))
		}
	}
	out := Emitted{ID: ev.ID, Fired: []TriggerFired{}}
	if issues != nil {
		return out, fault.Invalid("The event is not valid.", issues...)
	}
	e.mu.Lock()
	concerned := e.events[ev.Name]
	e.mu.Unlock()
	out.Duplicate = true
	for len(concerned) > 0 {
		all, n, err := e.emit(ctx, concerned[:min(len(concerned), rowsAtOnce)], &ev, data)
		if err != nil {
			return out, err
		}
		concerned = concerned[n:]
		for _, o := range all {
			if o.starts && o.f.Outcome == Queued {
				e.begin(ctx, o)
			}
			out.Fired = append(out.Fired, TriggerFired{o.en.id, o.f.Outcome, o.f.Reason, o.f.Run})
			out.Duplicate = out.Duplicate && o.known
		}
	}
	out.Duplicate = out.Duplicate && len(out.Fired) > 0
	return out, nil
}

// An occurrence is an event for one of its triggers.
type occurrence struct {
	en     *entry
	row    store.Trigger // afterwards
	f      store.Firing
	known  bool // the event came before
	starts bool // its run has not begun yet
	with   carry
	err    error // of its expressions
}

// emit records an event for some triggers in one transaction, without those whose condition is false, and returns how many of the list
// it has looked at: fewer than all when their inputs are large. It starts the run of a single one; those of several are queued, and
// begin when all of them are durable.
func (e *Engine) emit(ctx context.Context, list []*entry, ev *Event, data any) (all []*occurrence, n int, err error) {
	for _, en := range list { // in the order of locks
		en.mu.Lock()
		defer en.mu.Unlock()
	}
	now := time.Now().UnixMilli()
	var fresh []*occurrence
	if err := e.opts.Store.View(ctx, func(tx *store.Tx) error {
		size := 0
		for n = 0; n < len(list) && size < maxInputs; n++ {
			en := list[n]
			if en.firable(now) != nil {
				continue
			}
			o := &occurrence{en: en, row: en.row, f: store.Firing{Trigger: en.n, ID: id.New(), Slot: "e:" + ev.ID, Emitter: ev.Emitter, Due: now, Dues: 1, At: now, Origin: OfEvent, By: ev.By}}
			scope, holds := scopeOf(en.id, now, now, data, ev.Headers), true
			if c := en.decl.condition; c != nil {
				holds, o.err = c.Test(scope)
			}
			if o.err == nil && !holds {
				continue
			}
			all = append(all, o)
			queued, running, err := e.earlier(tx, &o.f)
			if o.known = errors.Is(err, errDone); o.known {
				continue
			} else if err != nil {
				return err
			}
			if o.err == nil {
				o.with, o.err = en.decl.evaluate(scope)
			}
			if o.err == nil {
				o.starts, err = en.decide(&o.f, o.with, queued, running)
			}
			if err != nil {
				return err
			}
			fresh, size = append(fresh, o), size+len(o.with.Input)+len(o.with.Session)
		}
		return nil
	}); err != nil || len(fresh) == 0 {
		return all, n, err
	}
	if o := fresh[0]; len(fresh) == 1 && o.starts { // its run is in the same transaction
		err := e.start(ctx, o.en, o.row, &o.f, o.with, func(tx *store.Tx, _ *store.Firing) error { return ev.also(tx) })
		if o.starts = false; err == nil {
			ev.Also = nil
		}
		return all, n, err
	}
	for _, o := range fresh {
		switch o.row.Updated = now; {
		case o.err != nil:
			err = e.refuse(ctx, o.en, &o.row, &o.f, o.err, nil)
		case o.starts:
			err = queue(&o.f, o.with)
		}
		if err != nil {
			return nil, 0, err
		}
	}
	rows := make([]store.Firing, len(fresh))
	if err := e.opts.Store.Update(ctx, func(tx *store.Tx) error {
		for i, o := range fresh {
			rows[i] = o.f
			if err := e.write(tx, &o.row, &rows[i], nil); err != nil {
				return err
			}
		}
		return ev.also(tx)
	}); err != nil {
		return nil, 0, err
	}
	ev.Also = nil
	for i, o := range fresh {
		o.f, o.en.row = rows[i], o.row
		if o.err != nil {
			e.count(o.en.id, false)
		}
	}
	return all, n, nil
}

// begin starts the run of a queued occurrence, unless somebody else was first. What cannot start now, Run starts later.
func (e *Engine) begin(ctx context.Context, o *occurrence) {
	o.en.mu.Lock()
	defer o.en.mu.Unlock()
	f := o.f
	err := e.opts.Store.View(ctx, func(tx *store.Tx) (err error) {
		f, err = e.opts.Store.At(tx, f.Trigger, f.Slot, f.Emitter)
		return err
	})
	if err == nil && f.Outcome == Queued {
		if err = o.en.firable(time.Now().UnixMilli()); err == nil {
			err = e.start(ctx, o.en, o.en.row, &f, o.with, nil)
		}
	}
	if err == nil {
		o.f = f
		return
	}
	o.en.queue = true
	e.planBy(o.en, time.Now().Add(again).UnixMilli())
}

// also writes what the emitter records beside the firings.
func (ev *Event) also(tx *store.Tx) error {
	if ev.Also == nil {
		return nil
	}
	return ev.Also(tx, ev.ID)
}

// also passes a firing, as it is shown, to what a caller writes in its transaction; nil for nothing.
func also(en *entry, fn func(*store.Tx, Firing) error) func(*store.Tx, *store.Firing) error {
	if fn == nil {
		return nil
	}
	return func(tx *store.Tx, f *store.Firing) error { return fn(tx, shown(en.id, f)) }
}

// FireRequest asks to fire a trigger now.
type FireRequest struct {
	ID string
	By string // the principal that asks
	// Also is written in the transaction that records the firing; its error prevents it.
	Also func(tx *store.Tx, fired Firing) error
}

// Fire fires a trigger now. It never moves a schedule. Errors: trigger-not-found, trigger-not-firable, and what prevents that anything
// is recorded.
func (e *Engine) Fire(ctx context.Context, req FireRequest) (Firing, error) {
	en, err := e.find(req.ID)
	if err != nil {
		return Firing{}, err
	}
	en.mu.Lock()
	defer en.mu.Unlock()
	now := time.Now().UnixMilli()
	if err := en.firable(now); err != nil {
		return Firing{}, err
	}
	f := &store.Firing{ID: newID(), Due: now, Origin: OfManual, By: req.By}
	f.Slot = "m:" + f.ID
	if err := e.fire(ctx, en, f, scopeOf(en.id, now, now, nil, nil), nil, also(en, req.Also)); err != nil {
		return Firing{}, err
	}
	return shown(en.id, f), nil
}
