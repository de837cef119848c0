package run

import (
	"cmp"
	"context"
	"errors"

	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/tracecontext"
	"agentd/store"
)

// Resume applies decisions to a run that waits for them, and sets it going: granted calls are made, denied ones are
// reported to the run. Approvals that are not decided keep waiting; then the run waits again once the others are through.
// A program that asked for its approvals itself learns the decisions once there is one on each. h is nil when no call was
// decided for good, because a further approver is needed. unmatched lists the decisions for calls that do not wait, where
// another one is for a call that does. A run that was aborted while its approvals were held continues only when all are
// decided. also, if not nil, is written in the transaction that makes the decisions count; its error prevents them.
//
// Errors: run-not-found, run-not-suspended, run-is-child, approval-not-waiting when no decision is for a call that waits,
// edit-refused when a decision may not change the arguments of a call, outcome-unknown when a call is granted without Again
// that may have happened, call-altered when what is stored of a granted call is not what was asked for, approver-refused,
// agent-not-found and agent-changed where the owner of the run or of a child that decisions are for cannot continue it,
// session-busy, run-conflict, server-draining, storage-failed. After an error the run waits as before. Of several callers
// at once, one wins.
func (e *Engine) Resume(ctx context.Context, runID string, decisions []Decision, by string,
	also func(tx *store.Tx, decided []Verdict, unmatched []Decision) error) (h *Handle, unmatched []Decision, err error) {
	row, err := e.Find(ctx, runID)
	if err == nil {
		err = e.reachable(ctx, row)
	}
	if err != nil {
		return nil, nil, err
	}
	return e.resume(ctx, row, decisions, by, also)
}

// resume is Resume for whoever may reach the run.
func (e *Engine) resume(ctx context.Context, row *store.Run, decisions []Decision, by string,
	also func(tx *store.Tx, decided []Verdict, unmatched []Decision) error) (h *Handle, unmatched []Decision, err error) {
	runID := row.ID
	if to, is := e.owner(row).Driver.(Recipient); is && !row.Status.Terminal() {
		if unmatched, err = to.Decide(ctx, e, row, decisions, cmp.Or(by, Anonymous), also); err != nil {
			return nil, unmatched, err
		}
		return &Handle{ID: runID, Number: row.N, Status: store.Running, run: &Run{e: e}, waiting: true}, unmatched, nil
	}
	if err := cmp.Or(e.Waits(ctx, row), noResults(decisions)); err != nil {
		return nil, nil, err
	}
	r, err := e.takeUp(ctx, row, false)
	if err != nil {
		return nil, nil, err
	}
	moving := false
	defer func() {
		if !moving {
			e.letGo(r)
		}
	}()
	r.by = tracecontext.From(ctx)
	if r.Row.Version != row.Version {
		return nil, nil, conflict(runID)
	}
	if err := cmp.Or(r.unfit(), r.fits(decisions)); err != nil {
		return nil, nil, err
	}
	who, err := e.Decider(ctx, by, r.Record.Pending)
	if err != nil {
		return nil, nil, err
	}
	d := r.decide(decisions, who)
	switch {
	case d.refused != nil:
		return nil, nil, d.refused
	case row.Status == store.Aborted && len(d.pending) > 0:
		f := journal.NotSuspended(row)
		f.Message = "The run is aborted and its approvals are held: one resumption decides on all of them."
		return nil, nil, f.Advise("Decide on all of them at once.")
	}
	if d.moves {
		d.move.expire(nil) // until it waits again
	} else {
		d.keepVotes()
		d.move.expire(d.pending)
	}
	record, err := e.record(d.happenings())
	if err != nil {
		return nil, nil, err
	}
	err = e.opts.Runs.Update(ctx, func(tx *store.Tx) error {
		if err := e.newest(tx, row); err != nil {
			return err
		}
		if also != nil {
			if err := also(tx, d.verdicts, d.unmatched); err != nil {
				return err
			}
		}
		if err := d.apply(tx, e.opts.Runs); err != nil {
			return err
		}
		return record(tx)
	})
	if err != nil {
		if errors.Is(err, store.ErrConflict) {
			err = conflict(runID)
		}
		return nil, nil, err
	}
	d.committed()
	if !d.moves {
		return nil, d.unmatched, nil
	}
	moving = true
	handle := &Handle{ID: runID, Number: r.Row.N, Status: store.Running, run: r} // from the launch on, only the run's goroutine reads its row
	e.launch(r, r.drive)
	return handle, d.unmatched, nil
}

// newest checks that a run that was aborted, and so gave its turn away, is the newest of its session still.
func (e *Engine) newest(tx *store.Tx, row *store.Run) error {
	if row.Status != store.Aborted || row.Session == "" {
		return nil
	}
	newest, err := e.opts.Runs.List(tx, store.RunFilter{Session: row.Session, Hosted: true, Workflows: []string{}, Limit: 1})
	if err == nil && len(newest) > 0 && newest[0].N != row.N {
		err = fault.New(fault.RunConflict, "The session has continued: run %s came after this one.", newest[0].ID).
			Advise("Start another run in the session: the messages of this run would belong before existing ones.")
	}
	return err
}

// unfit returns why the owner of a run that waits, as it is registered now, cannot continue it; nil when it can.
func (r *Run) unfit() error {
	switch {
	case r.Record.Ending != "":
		return nil // it needs no owner any more
	case r.owner.absent():
		return fault.New(fault.AgentNotFound, "The agent %q is no longer registered.", r.Row.Owner).With("runId", r.Row.ID)
	case !r.owner.Driver.Resumable(r):
		return fault.New(fault.AgentChanged, "The agent %q now has another kind and cannot continue the run.", r.Row.Owner).With("runId", r.Row.ID)
	}
	return nil
}

func conflict(runID string) error {
	return fault.New(fault.RunConflict, "Another request has resumed or aborted the run.").With("runId", runID)
}
