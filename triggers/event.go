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

// An Event is something that happened outside.
type Event struct {
	Name    string
	ID      string            // of several events with one id from one emitter, the first one counts; empty: the engine makes one
	Data    json.RawMessage   // any JSON; nil: null
	Headers map[string]string // of the webhook that brought it
	By      string            // the principal that emits it
	Emitter string            // whom ids are unique for; By when empty
	// Also is written in each transaction that records a firing; its error prevents that one. Nil: nothing is.
	Also func(tx *store.Tx, fired Firing) error
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

// Emit fires the triggers of an event. What it returns is durable. When it fails for one trigger, others may have fired: whoever sends
// the event again, with the same id, gets their outcomes and fires the rest. Errors: config-invalid, and what prevents that anything
// is recorded.
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
	now := time.Now().UnixMilli()
	done := 0
	e.mu.Lock()
	concerned := e.events[ev.Name]
	e.mu.Unlock()
	for _, en := range concerned {
		f := &store.Firing{Slot: "e:" + ev.ID, Emitter: ev.Emitter, Due: now, Origin: OfEvent, By: ev.By}
		fires, err := e.emit(ctx, en, f, scopeOf(en.id, now, now, data, ev.Headers), also(en, ev.Also))
		if errors.Is(err, errDone) {
			err = nil
			done++
		}
		if err != nil {
			return out, err
		}
		if fires {
			out.Fired = append(out.Fired, TriggerFired{en.id, f.Outcome, f.Reason, f.Run})
		}
	}
	out.Duplicate = done > 0 && done == len(out.Fired)
	return out, nil
}

// emit fires one trigger of an event, unless its condition is false.
func (e *Engine) emit(ctx context.Context, en *entry, f *store.Firing, scope expr.Map, also func(*store.Tx, *store.Firing) error) (concerned bool, err error) {
	en.mu.Lock()
	defer en.mu.Unlock()
	if en.firable(time.Now().UnixMilli()) != nil {
		return false, nil
	}
	if c := en.decl.condition; c != nil {
		holds, err := c.Test(scope)
		if err == nil && !holds {
			return false, nil
		}
		if err != nil {
			f.Trigger, f.ID, f.Dues, f.At = en.n, newID(), 1, time.Now().UnixMilli()
			if err = e.fail(ctx, en, en.row, f, err, nil, also); errors.Is(err, store.ErrConflict) {
				err = errDone
			}
			return true, err
		}
	}
	return true, e.fire(ctx, en, f, scope, nil, also)
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
