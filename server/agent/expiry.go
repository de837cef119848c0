package agent

import (
	"context"
	"errors"
	"time"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/store"
)

// expiry is the principal that denies what nobody has decided in time.
const expiry = "expiry"

// expiryCheck is how late an approval may expire when the clock was set on.
const expiryCheck = 10 * time.Second

// watch sets a timer for the first approval of a run that expires, if one does. A timer of an earlier pause is replaced;
// one that fires too early or too late finds out from the store.
func (e *Engine) watch(runID string, pending []Approval) {
	first := int64(0)
	for _, a := range pending {
		if at := millis(a.ExpiresAt); at != 0 && (first == 0 || at < first) {
			first = at
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if t := e.expiries[runID]; t != nil {
		t.Stop()
		delete(e.expiries, runID)
	}
	if first != 0 {
		e.remindLocked(runID, time.UnixMilli(first))
	}
}

// remindLocked has the approvals of a run looked at when the clock tells a time. Timers do not follow the clock, so they
// look at it now and then.
func (e *Engine) remindLocked(runID string, at time.Time) {
	if e.draining {
		return
	}
	var t *time.Timer
	t = time.AfterFunc(min(time.Until(at), expiryCheck), func() {
		e.mu.Lock()
		early := !e.draining && e.expiries[runID] == t && time.Now().Before(at)
		if early {
			t.Reset(min(time.Until(at), expiryCheck))
		}
		e.mu.Unlock()
		if !early {
			e.expire(runID)
		}
	})
	e.expiries[runID] = t
}

// expire denies the approvals of a run whose time is over.
func (e *Engine) expire(runID string) {
	e.mu.Lock()
	if e.draining {
		e.mu.Unlock()
		return
	}
	delete(e.expiries, runID)
	e.moving.Add(1)
	e.mu.Unlock()
	defer e.moving.Done()

	var pending []Approval
	err := e.opts.Runs.View(e.ctx, func(tx *store.Tx) error {
		row, err := e.opts.Runs.Find(tx, runID)
		if err == nil && row.Status == store.Awaiting {
			pending, err = pendingOf(tx, e.opts.Runs, row)
		}
		return err
	})
	var over []Decision
	for _, a := range pending {
		if at := millis(a.ExpiresAt); at != 0 && at <= now() {
			over = append(over, Decision{ToolCallID: a.ToolCallID, SubRunToolCallID: a.SubRunToolCallID,
				Reason: "nobody decided before " + message.Millis(at)})
		}
	}
	if err == nil && len(over) > 0 {
		_, _, err = e.Resume(context.WithoutCancel(e.ctx), runID, over, expiry)
	} else if err == nil {
		e.watch(runID, pending)
	}
	switch {
	case err == nil, fault.Is(err, fault.RunNotSuspended), fault.Is(err, fault.ServerDraining):
	case errors.Is(err, store.ErrNotFound), fault.Is(err, fault.RunNotFound): // erased meanwhile
	case fault.Is(err, fault.RunConflict): // somebody decides now; if the run waits again, it is watched again
	case fault.Is(err, fault.StorageFailed), fault.Is(err, fault.StorageCorrupt):
		e.log.Error("expired approvals could not be denied; they are as soon as the store can write", "run", runID, "error", err)
		e.mu.Lock()
		e.remindLocked(runID, time.Now().Add(storeWait))
		e.mu.Unlock()
	default:
		e.log.Error("expired approvals could not be denied; they are at the next start", "run", runID, "error", err)
	}
}
