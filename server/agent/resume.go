package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"agentd/server/fault"
	"agentd/store"
)

// Decision is a person's word on a tool call that waits. SubRunToolCallID is that of the pending approval, for calls of
// child runs.
type Decision struct {
	ToolCallID       string
	Granted          bool
	Reason           string // told to the model when the call is denied
	SubRunToolCallID string
	Again            bool // a grant makes the call once more, although it may have happened already
	// Args, where there are any, are the arguments that the call is to have instead; only of a grant of one approver, and
	// only where the gate of the tool says Edit.
	Args json.RawMessage
}

// Resume applies decisions to a run that waits for them, and sets it going: granted calls run, denied ones are told to
// the model. Approvals that are not decided keep waiting; then the run waits again once the others are through. An
// agent that has asked for its approvals itself is told the decisions once there is one on each. h is
// nil when no call was decided for good, because a further approver is needed. unmatched lists the decisions for calls
// that do not wait, where another one is for a call that does. A run that was aborted while its approvals were held goes
// on only when all are decided. Errors: run-not-found, run-not-suspended, run-is-child, approval-not-waiting when no
// decision is for a call that waits, edit-refused when a decision may not change the arguments of a call,
// outcome-unknown when a call is granted without Again that may have happened,
// call-altered when what is stored of a granted call is not what was asked for, approver-refused, agent-not-found and agent-changed
// where the agent of the run or of a child that decisions are for cannot go on with it, session-busy, run-conflict,
// server-draining, storage-failed. After an error the run waits as before. Of several callers at once, one wins.
func (e *Engine) Resume(ctx context.Context, runID string, decisions []Decision, by string) (h *Handle, unmatched []Decision, err error) {
	return e.ResumeAlso(ctx, runID, decisions, by, nil)
}

// A Verdict is a decision that counts: for good, and not as the word of one approver of several.
type Verdict struct {
	RunID      string // that the call belongs to: the run that was resumed, or a child
	ToolCallID string
	ToolName   string
	ArgsDigest string
	Granted    bool
	Reason     string
}

// ResumeAlso is Resume with something that is written in the transaction that makes the decisions count; its error keeps
// them from being made. It is told which of them do.
func (e *Engine) ResumeAlso(ctx context.Context, runID string, decisions []Decision, by string,
	also func(tx *store.Tx, decided []Verdict, unmatched []Decision) error) (h *Handle, unmatched []Decision, err error) {
	row, err := e.Suspended(ctx, runID)
	if err != nil {
		return nil, nil, err
	}
	r, err := e.takeUp(ctx, row, false)
	if err != nil {
		return nil, nil, err
	}
	going := false
	defer func() {
		if !going {
			r.cancel(nil)
			e.release(r)
		}
	}()
	if r.row.Version != row.Version {
		return nil, nil, conflict(runID)
	}
	if err := r.unfit(); err != nil {
		return nil, nil, err
	}
	if err := r.fits(decisions); err != nil {
		return nil, nil, err
	}
	who, err := e.decider(ctx, cmp.Or(by, anonymous), r.rec.pending)
	if err != nil {
		return nil, nil, err
	}
	d := r.decide(decisions, who)
	switch {
	case d.refused != nil:
		return nil, nil, d.refused
	case row.Status == store.Aborted && len(d.pending) > 0:
		f := notSuspended(row)
		f.Message = "The run is aborted and its approvals are held: one resumption decides on all of them."
		return nil, nil, f.Advise("Decide on all of them at once.")
	}
	if !d.moves {
		d.keep(r)
	}
	told := d.happenings()
	if err := e.foretell(ctx, told); err != nil {
		return nil, nil, err
	}
	err = e.opts.Runs.Update(ctx, func(tx *store.Tx) error {
		if row.Status == store.Aborted && row.Session != "" {
			newest, err := e.opts.Runs.List(tx, store.RunFilter{Session: row.Session, Limit: 1})
			if err != nil {
				return err
			}
			if len(newest) > 0 && newest[0].N != row.N {
				return fault.New(fault.RunConflict, "The session has gone on: run %s came after this one.", newest[0].ID).
					Advise("Start another run in the session; what this run would say belongs before messages that are there already.")
			}
		}
		if also != nil {
			if err := also(tx, d.decided, d.unmatched); err != nil {
				return err
			}
		}
		return d.apply(tx, e.opts.Runs)
	})
	if err != nil {
		e.void(ctx, told)
		if errors.Is(err, store.ErrConflict) {
			err = conflict(runID)
		}
		return nil, nil, err
	}
	d.committed(r)
	if !d.moves {
		e.watch(runID, d.pending)
		return nil, d.unmatched, nil
	}
	going = true
	e.watch(runID, nil) // until it waits again
	h = &Handle{ID: runID, number: r.row.N, status: store.Running, run: r}
	e.launch(r, r.drive)
	return h, d.unmatched, nil
}

// unfit is why the agent of a run that waits, as it is registered now, cannot go on with it; nil when it can.
func (r *run) unfit() error {
	owner := r.row.Owner
	if r.rec.ending != "" {
		return nil // it needs no agent any more
	}
	if _, absent := r.reg.Agent.(gone); absent {
		return fault.New(fault.AgentNotFound, "The agent %q is not registered any more.", owner).With("runId", r.row.ID)
	}
	if !r.reg.driver().resumable(r) {
		return fault.New(fault.AgentChanged, "The agent %q is of another kind now and cannot go on with what the run has left.", owner).With("runId", r.row.ID)
	}
	return nil
}

func conflict(runID string) error {
	return fault.New(fault.RunConflict, "Somebody else has resumed or aborted the run.").With("runId", runID)
}

func notSuspended(row *store.Run) *fault.Error {
	return fault.New(fault.RunNotSuspended, "The run is %s.", row.Status).With("runId", row.ID).With("status", row.Status)
}

// Suspended returns the row of a run that waits for an approval, or was aborted while its approvals were held.
func (e *Engine) Suspended(ctx context.Context, runID string) (*store.Run, error) {
	row, err := e.Find(ctx, runID)
	if err != nil {
		return nil, err
	}
	if row.Parent != 0 {
		return nil, e.childOf(ctx, row)
	}
	switch row.Status {
	case store.Awaiting:
		return row, nil
	case store.Aborted:
		var held []Approval
		err := e.opts.Runs.View(ctx, func(tx *store.Tx) (err error) {
			held, err = pendingOf(tx, e.opts.Runs, row)
			return err
		})
		if err != nil || len(held) > 0 {
			return row, err
		}
	}
	return nil, notSuspended(row)
}

// childOf refuses what can be asked of a root run only.
func (e *Engine) childOf(ctx context.Context, row *store.Run) error {
	f := fault.New(fault.RunIsChild, "The run is a part of another.").With("runId", row.ID)
	err := e.opts.Runs.View(ctx, func(tx *store.Tx) error {
		root := row
		for err := error(nil); root.Parent != 0; {
			if root, err = e.opts.Runs.Number(tx, root.Parent); err != nil {
				return err
			}
		}
		f.With("rootRunId", root.ID)
		return nil
	})
	if err != nil {
		return err
	}
	return f
}

// Askers returns the agents of the child runs that decisions on a run's approvals are for, without repetition. Paths that lead
// nowhere have none.
func (e *Engine) Askers(ctx context.Context, runID string, decisions []Decision) ([]string, error) {
	_, rec, err := e.read(ctx, runID)
	if err != nil {
		return nil, err
	}
	var owners []string
	for _, d := range decisions {
		if d.SubRunToolCallID != "" {
			owners = append(owners, rec.askers(d.SubRunToolCallID)...)
		}
	}
	slices.Sort(owners)
	return slices.Compact(owners), nil
}

// askers are the agents of the children that a path of calls leads to; several, where ids of calls repeat.
func (rec *record) askers(path string) (owners []string) {
	head, rest, deeper := strings.Cut(path, "/")
	for i, k := range rec.parked {
		switch {
		case rec.calls[i].ID != head:
		case deeper:
			owners = append(owners, k.rec.askers(rest)...)
		default:
			owners = append(owners, k.row.Owner)
		}
	}
	return owners
}

// pendingOf reads what a run waits for.
func pendingOf(tx *store.Tx, runs *store.Runs, row *store.Run) (pending []Approval, err error) {
	kept, err := runs.Slot(tx, row.N, store.PendingSlot)
	if err == nil && kept != nil {
		pending, err = readPending(kept)
	}
	return pending, err
}

// readPending reads approvals. The digest is that of the arguments that they show.
func readPending(kept json.RawMessage) (pending []Approval, err error) {
	err = json.Unmarshal(kept, &pending)
	for i := range pending {
		pending[i].ArgsDigest = ArgsDigest(pending[i].Args)
	}
	return pending, err
}

// callByID finds a call; one that waits, where the run was begun by a program that uses ids again.
func (rec *record) callByID(callID string) (found *store.Call) {
	for i := range rec.calls {
		if c := &rec.calls[i]; c.ID == callID && (found == nil || c.Phase == store.CallAwaiting) {
			found = c
		}
	}
	return found
}

// Waiting is an approval that waits, with the run that waits for it.
type Waiting struct {
	RunID     string `json:"runId"`
	AgentID   string `json:"agentId"`
	SessionID string `json:"sessionId,omitempty"`
	UserID    string `json:"userId,omitempty"`
	Approval
	Mismatch string `json:"mismatch,omitempty" doc:"Why the call cannot be granted: what is stored of it is not what was asked for."`
}

// Approvals lists what waits for a decision, oldest run first, of at most 1000 runs; with owners, of those agents only.
func (e *Engine) Approvals(ctx context.Context, owners []string) ([]Waiting, error) {
	list := []Waiting{}
	err := e.opts.Runs.Snapshot(ctx, func(tx *store.Tx) error {
		rows, err := e.opts.Runs.Awaiting(tx, owners)
		if err != nil {
			return err
		}
		for _, row := range rows {
			rec, err := loadWaiting(tx, e.opts.Runs, row)
			if err != nil {
				return err
			}
			for _, a := range rec.pending {
				w := Waiting{RunID: row.ID, AgentID: row.Owner, SessionID: row.Session, UserID: row.User, Approval: a}
				if _, err := rec.shown(a); err != nil {
					w.Mismatch = fault.Of(err).Message
				}
				list = append(list, w)
			}
		}
		return nil
	})
	return list, err
}
