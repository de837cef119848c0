package run

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"

	"agentd/server/fault"
	"agentd/store"
)

// A call of a tool can start a run that is reached by itself, of a workflow, and wait for its end however long that takes. When
// all calls of a run that are open wait like that, the run is dormant: its row stays running, but it has no goroutine, no place
// among the runs that move, and no memory.
//
//	Dispatch: every open call waits --> sleep: one commit --> dormant
//	   ^                                                        |  the end or the erasure of a run that a call waits for
//	   +------ Drive <-- rouse: one commit <-- timer is due <---+  makes it due in its own transaction; so does its deadline
//
// A child becomes dormant like its root, and is roused by it when its call is dispatched again. A start of the server takes no
// dormant run up: nothing of it was interrupted.

// errDormant ends the goroutine of a run that has become dormant.
var errDormant = errors.New("the run is dormant")

// dormancy is what a dormant run keeps.
type dormancy struct {
	Waits     map[int]string `json:"waits"`               // the ids of the runs that its calls wait for, by the index of the call
	Sub       int            `json:"sub,omitempty"`       // transient events since the latest durable one
	Uncounted int            `json:"uncounted,omitempty"` // see [Run]
}

// Waited returns the run that a call has waited for when the run became dormant; empty: it did not wait.
func (r *Run) Waited(call int) string { return r.waits[call] }

// Deadline says when the run has to end, in milliseconds since 1970: a dormant one is roused then.
func (r *Run) Deadline(at int64) { r.until = at }

// awaits notes that a call waits for another run.
func (r *Run) awaits(w *work) error {
	if r.waits == nil {
		r.waits = map[int]string{}
	}
	r.waits[w.call.Index] = w.res.Waits
	if w.kid == nil {
		return nil
	}
	if until := w.kid.until; until != 0 && (r.until == 0 || until < r.until) {
		r.until = until
	}
	m := r.Move()
	r.gather(m)
	m.Run.Current = r.Row.Owner
	return r.Commit(m)
}

// sleep makes a run dormant. Where a call need not wait any more, the root is due at once.
func (r *Run) sleep() error {
	if err := r.Stopping(); err != nil {
		return err
	}
	m, waits := r.Move(), true
	m.Progress()
	r.order.Lock()
	m.keep(store.DormantSlot, dormancy{r.waits, r.sub, r.uncounted})
	r.order.Unlock()
	if r.parent == nil {
		m.Due = new(r.until)
		m.Also(func(tx *store.Tx) (err error) {
			if waits, err = r.e.waits(tx, r.Row.N, r.waits); waits || err != nil {
				return err
			}
			return r.e.opts.Runs.Hasten(tx, r.Row.N, now())
		})
	}
	if err := r.Commit(m); err != nil {
		return err
	}
	if !waits {
		r.e.timers.arm(r.e, now())
	}
	return errDormant
}

// waits reports whether none of the runs that a run waits for has ended, or moves as a child of it.
func (e *Engine) waits(tx *store.Tx, n int64, ids map[int]string) (bool, error) {
	for _, id := range ids {
		row, err := e.opts.Runs.Find(tx, id)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return false, nil
		case err != nil || row.Status.Terminal() || row.Parent == n && !row.Dormant():
			return false, err
		case row.Parent != n:
			continue
		}
		var below dormancy
		kept, err := e.opts.Runs.Slot(tx, row.N, store.DormantSlot)
		if err == nil {
			err = json.Unmarshal(kept, &below)
		}
		if err != nil {
			return false, err
		}
		if waits, err := e.waits(tx, row.N, below.Waits); !waits || err != nil {
			return false, err
		}
	}
	return true, nil
}

// rouse has a dormant run that is due move again.
func (e *Engine) rouse(row *store.Run, at int64) error {
	if last := e.moved(row.ID); last != nil {
		last.wait(e.ctx, Grace)
	}
	r, err := e.takeUp(e.ctx, row, false)
	if err != nil {
		return err
	}
	if !r.Row.Dormant() {
		e.letGo(r)
		return nil
	}
	if err := r.awake(&at); err != nil {
		e.letGo(r)
		return err
	}
	e.launch(r, r.driveAwake)
	return nil
}

// driveAwake moves a run that was dormant.
func (r *Run) driveAwake() error {
	if err := r.unfit(); err != nil {
		return err
	}
	return r.drive()
}

// awake commits that a dormant run moves again; due is the timer that this handles, nil for a child. Its calls are made again as
// if they had not begun: each finds the run that it waits for.
func (r *Run) awake(due *int64) error {
	var kept dormancy
	if err := json.Unmarshal(r.Record.Slots[store.DormantSlot], &kept); err != nil {
		return store.Damaged(err)
	}
	for call := range kept.Waits {
		r.fresh(call)
	}
	r.waits, r.sub, r.uncounted = kept.Waits, kept.Sub, kept.Uncounted
	m := r.Move()
	m.Progress()
	m.keep(store.DormantSlot, nil)
	m.Run.Slots &^= 1 << store.DormantSlot
	if due != nil {
		m.Due, m.DueWas = new(int64), due
	}
	return r.Commit(m)
}

// Key is the idempotency key of a call of a tool.
func (r *Run) Key(c *store.Call) string { return r.id + ":" + strconv.Itoa(c.Origin) + ":" + c.ID }

// dismiss aborts the run that a call of a tool has started, for a run that ends, or no longer makes the call.
func (r *Run) dismiss(c *store.Call) {
	ctx := context.WithoutCancel(r.ctx)
	var row *store.Run
	err := r.e.opts.Runs.View(ctx, func(tx *store.Tx) (err error) {
		row, err = r.e.opts.Runs.ByOrigin(tx, store.CalledOrigin(r.Key(c)))
		return err
	})
	if err == nil && !row.Status.Terminal() {
		_, err = r.e.abort(ctx, row.ID, AbortOptions{Reason: "the run that called it no longer waits"})
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) && !fault.Is(err, fault.RunNotFound) {
		r.Log().Warn("a run that a call of a tool started could not be aborted", "run", r.id, "call", c.ID, "error", err)
	}
}

// tooDeep returns call-too-deep for a run that has more than MaxDepth runs above it: those that call or host it.
func (e *Engine) tooDeep(tx *store.Tx, row *store.Run) error {
	for range MaxDepth + 1 {
		above, err := e.opts.Runs.Above(tx, row)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		row = above
	}
	return fault.New(fault.CallTooDeep, "Agents and workflows can call each other at most %d levels deep.", MaxDepth)
}
