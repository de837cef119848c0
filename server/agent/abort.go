package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/store"
)

// AbortOptions say how a run is to be ended.
type AbortOptions struct {
	// Drain lets the current step finish; without it, the model call and the tools are cancelled at once.
	Drain bool
	// OnPending is what becomes of approvals that wait: deny (default) answers each as denied, hold keeps them, fail
	// makes the run failed. Without any, the run ends as aborted whatever this says. A call of unknown outcome waits for a
	// person in any case, and the run ends when that is decided; hold acts as deny on the others then.
	OnPending string
	// Reason goes into the log.
	Reason string
	// NoWait returns as soon as the abort is asked for.
	NoWait bool
}

var errAborted = fault.New(fault.RunAborted, "The run was aborted.")

// abortWait is how long Abort waits for a run to end.
const abortWait = 10 * time.Second

// Abort ends a run and returns its status: aborted, or what it had become before. Where the agent does not end in
// time, or has a step to drain, the status is still running; where nobody knows what became of a call, it is
// awaiting_approval until a person has decided. Errors: run-not-found, run-conflict, storage-failed.
func (e *Engine) Abort(ctx context.Context, runID string, opts AbortOptions) (store.Status, error) {
	opts.OnPending = cmp.Or(opts.OnPending, "deny")
	if r := e.moved(runID); r != nil {
		e.log.Info("abort", "run", runID, "drain", opts.Drain, "reason", opts.Reason)
		r.askAbort(opts)
		if opts.NoWait {
			return store.Running, nil
		}
		select {
		case <-r.done:
		case <-time.After(abortWait):
		case <-ctx.Done():
		}
	}
	row, err := e.opts.Runs.Get(ctx, runID)
	if errors.Is(err, store.ErrNotFound) {
		return "", fault.New(fault.RunNotFound, "No run %q.", runID)
	}
	if err != nil || row.Status.Terminal() || row.Status == store.Running {
		return statusOf(row), err
	}
	if row.Parent != 0 {
		return row.Status, e.childOf(ctx, row)
	}
	return e.abortParked(ctx, row, opts)
}

func statusOf(row *store.Run) store.Status {
	if row == nil {
		return ""
	}
	return row.Status
}

func (r *run) askAbort(opts AbortOptions) {
	r.mu.Lock()
	if r.abort == nil || r.abort.Drain && !opts.Drain {
		r.abort = &opts
	}
	kids := slices.Clone(r.kids)
	r.mu.Unlock()
	for _, kid := range kids {
		kid.askAbort(opts)
	}
	if !opts.Drain {
		r.cancel(errAborted)
	}
}

// aborting is what was asked of the run; nil when it is to go on.
func (r *run) aborting() *AbortOptions {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.abort
}

// abortParked ends a run that no goroutine moves.
func (e *Engine) abortParked(ctx context.Context, row *store.Run, opts AbortOptions) (store.Status, error) {
	r, err := e.takeUp(ctx, row, false)
	if err != nil {
		return row.Status, err
	}
	defer e.release(r)
	defer close(r.done)
	defer r.cancel(nil)
	if r.rec.ending != "" {
		return r.row.Status, nil // it ends as soon as a person has decided
	}
	r.abort = &opts
	if err := r.settleAbort(r.move(), &opts); err != nil {
		if errors.Is(err, store.ErrConflict) {
			return row.Status, fault.New(fault.RunConflict, "The run has moved on.")
		}
		return row.Status, err
	}
	if r.row.Status.Terminal() {
		r.count()
		if r.row.Started == 0 {
			e.hush(r)
		}
		e.next(r.row.Session)
	}
	return r.row.Status, nil
}

// settleAbort adds the end to a move that the run's abort asks for, and commits it.
func (r *run) settleAbort(m *move, opts *AbortOptions) error {
	if r.row.Started == 0 { // it waited for its session's turn
		if err := r.tellInput(m); err != nil {
			return err
		}
		m.say(event.AgentStart, startFields{r.row.ID, r.row.Owner})
	}
	m.say(event.AgentCancelling, cancelFields{r.row.ID, opts.Drain, opts.OnPending})
	pending := r.rec.pending
	switch {
	case len(pending) == 0, opts.OnPending == "deny", opts.OnPending == "hold" && r.doubts():
		return r.finish(m, store.Aborted, errAborted)
	case opts.OnPending == "fail":
		return r.finish(m, store.Failed, fault.New(fault.RunAborted, "The run was aborted while %d approval(s) were pending.", len(pending)))
	}
	for _, k := range r.rec.parked { // they are held with it
		kid := r.newChild(*k.row, k.rec, r.e.registration(k.row.Owner), "")
		if kid.row.Status.Terminal() {
			continue
		}
		if err := r.endChild(kid, store.Aborted, errAborted); err != nil {
			return err
		}
		k.row = &kid.row
	}
	m.row.Status, m.row.Finished = store.Aborted, m.at
	return r.commitEnd(m, pending)
}

// tellInput makes messages of the input of a run that never had its turn: its session's transcript shows them.
func (r *run) tellInput(m *move) error {
	var input json.RawMessage
	err := r.e.opts.Runs.View(context.WithoutCancel(r.ctx), func(tx *store.Tx) (err error) {
		input, err = r.e.opts.Runs.Slot(tx, r.row.N, store.InputSlot)
		return err
	})
	if err != nil {
		return err
	}
	m.slot(store.InputSlot, []byte("null"))
	return r.tell(m, input)
}

// doubts reports whether the outcome of a call is unknown, here or below.
func (r *run) doubts() bool {
	return slices.ContainsFunc(r.rec.pending, func(a Approval) bool { return a.Reason == OutcomeUnknown }) ||
		slices.ContainsFunc(r.rec.calls, func(c store.Call) bool { return c.Phase == store.CallAwaiting && c.Reason == OutcomeUnknown })
}

const deniedByAbort = "denied automatically, because the run was aborted"
