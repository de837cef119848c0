package run

import (
	"context"
	"errors"

	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/store"
)

// A hosted run is started by a task of another, its host, and moves by itself: it is admitted, recovered and resumed like a
// root, in a goroutine of its own, and takes turns in its session. People reach it through its host only. Whenever it stands
// differently, the same transaction makes its host due, so that the host learns of it also after a crash.

// wakeHost makes the host of a run due, or the dormant run that called it, in the transaction of a move of the run; was is its
// status before.
func (e *Engine) wakeHost(tx *store.Tx, m *Move, was store.Status) error {
	if !m.wakes(was) {
		return nil
	}
	if m.Run.Host == 0 {
		return e.opts.Runs.Rouse(tx, &m.Run)
	}
	host, err := e.opts.Runs.HostRun(tx, m.Run.Host)
	if errors.Is(err, store.ErrNotFound) || err == nil && host.Status.Terminal() {
		return nil
	}
	if err == nil {
		err = e.opts.Runs.Hasten(tx, host.N, now())
	}
	return err
}

// wakes reports whether the host of the run looks at it after the move: its status changes, or what it waits for. A caller looks
// at the end only.
func (m *Move) wakes(was store.Status) bool {
	if m.Run.Host == 0 {
		return m.Run.Status.Terminal() && m.Run.Caller() != ""
	}
	return (m.Run.Status != was || m.Slots[store.PendingSlot] != nil)
}

// ResumeHosted is [Engine.Resume] for the driver of the host of a run.
func (e *Engine) ResumeHosted(ctx context.Context, runID string, decisions []Decision, by string,
	also func(tx *store.Tx, decided []Verdict, unmatched []Decision) error) (h *Handle, unmatched []Decision, err error) {
	row, err := e.Find(ctx, runID)
	if err != nil {
		return nil, nil, err
	}
	return e.resume(ctx, row, decisions, by, also)
}

// AbortHosted is [Engine.Abort] for the driver of the host of a run.
func (e *Engine) AbortHosted(ctx context.Context, runID string, opts AbortOptions) (store.Status, error) {
	return e.abort(ctx, runID, opts)
}

// hosts returns what a run has to have as host that a run hosts: the number of its thread or, where it has none, its own.
func hosts(row *store.Run) int64 {
	if row.Thread != 0 {
		return row.Thread
	}
	return row.N
}

// reachable returns run-is-child for a run that people reach through another one only.
func (e *Engine) reachable(ctx context.Context, row *store.Run) error {
	if !journal.IsRoot(row) {
		return e.IsChild(ctx, row)
	}
	return nil
}

// noResults refuses decisions that give a call its result, which only workflows take.
func noResults(decisions []Decision) error {
	for _, d := range decisions {
		if d.Result != nil {
			return fault.New(fault.EditRefused, "The call %s cannot be given a result: it is no call of a workflow.", d.ToolCallID).With("toolCallId", d.ToolCallID)
		}
	}
	return nil
}
