package journal

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"

	"agentd/server/fault"
	"agentd/store"
)

// NotSuspended is the error for a run that does not wait for a decision.
func NotSuspended(row *store.Run) *fault.Error {
	return fault.New(fault.RunNotSuspended, "The run is %s.", row.Status).With("runId", row.ID).With("status", row.Status)
}

// Suspended returns the row of a run that people reach and that waits for an approval, or was aborted while its approvals were
// held.
func (r *Reader) Suspended(ctx context.Context, runID string) (*store.Run, error) {
	row, err := r.Find(ctx, runID)
	switch {
	case err != nil:
		return nil, err
	case !IsRoot(row):
		return nil, r.IsChild(ctx, row)
	case row.Kind == store.Workflow && row.Status == store.Running && row.Slots&(1<<store.PendingSlot) != 0:
		return row, nil // one branch waits while another runs
	}
	return row, r.Waits(ctx, row)
}

// Waits returns the error for a run that does not wait for an approval, and was not aborted while its approvals were held; nil
// for one that does.
func (r *Reader) Waits(ctx context.Context, row *store.Run) error {
	switch row.Status {
	case store.Awaiting:
		return nil
	case store.Aborted:
		var held []Approval
		err := r.runs.View(ctx, func(tx *store.Tx) (err error) {
			held, err = PendingOf(tx, r.runs, row)
			return err
		})
		if err != nil || len(held) > 0 {
			return err
		}
	}
	return NotSuspended(row)
}

// PendingArguments returns the arguments of a call of a run that waits for a decision; nil if it does not wait, or the run is gone.
func (r *Reader) PendingArguments(ctx context.Context, runID, callID string) (args json.RawMessage, err error) {
	err = r.runs.Snapshot(ctx, func(tx *store.Tx) error {
		row, err := r.runs.Find(tx, runID)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		rec, err := LoadWaiting(tx, r.runs, row)
		if err != nil {
			return err
		}
		for _, a := range rec.Pending {
			if a.ToolCallID == callID {
				args = a.Args
			}
		}
		return nil
	})
	return args, err
}

// IsRoot reports whether people reach a run by itself: it is nobody's child, and not hosted.
func IsRoot(row *store.Run) bool { return row.Parent == 0 && row.Host == 0 }

// IsChild is the error for what can be asked of a root run only.
func (r *Reader) IsChild(ctx context.Context, row *store.Run) error {
	root := row
	err := r.runs.View(ctx, func(tx *store.Tx) (err error) {
		for err == nil && !IsRoot(root) {
			if root.Host != 0 {
				root, err = r.runs.HostRun(tx, root.Host)
			} else {
				root, err = r.runs.Number(tx, root.Parent)
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	return fault.New(fault.RunIsChild, "The run is a child run of another run.").With("runId", row.ID).With("rootRunId", root.ID)
}

// Askers returns the owners of the child runs and hosted runs that paths of calls in a run lead to, without repetition. Paths
// that lead nowhere have none; nor has the empty one.
func (r *Reader) Askers(ctx context.Context, runID string, paths []string) ([]Asker, error) {
	_, rec, err := r.Read(ctx, runID)
	if err != nil {
		return nil, err
	}
	var owners []Asker
	for _, path := range paths {
		owners = append(owners, rec.Askers(path)...)
	}
	slices.SortFunc(owners, func(a, b Asker) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Owner, b.Owner)) })
	return slices.Compact(owners), nil
}

// Waiting is an approval that waits, with the run that waits for it.
type Waiting struct {
	RunID      string `json:"runId"`
	AgentID    string `json:"agentId,omitempty"`
	WorkflowID string `json:"workflowId,omitempty" doc:"Instead of agentId, for a run of a workflow."`
	SessionID  string `json:"sessionId,omitempty"`
	UserID     string `json:"userId,omitempty"`
	Approval
	Mismatch string `json:"mismatch,omitempty" doc:"Why the call cannot be granted: the stored arguments differ from the requested ones."`
}

// Approvals lists what waits for a decision, oldest run first, of at most 1000 runs: those of these agents and workflows; nil
// are all of the kind.
func (r *Reader) Approvals(ctx context.Context, agents, workflows []string) ([]Waiting, error) {
	list := []Waiting{}
	err := r.runs.Snapshot(ctx, func(tx *store.Tx) error {
		rows, err := r.runs.Awaiting(tx, agents, workflows)
		for _, row := range rows {
			rec, err := LoadWaiting(tx, r.runs, row)
			if err != nil {
				return err
			}
			for _, a := range rec.Pending {
				w := Waiting{RunID: row.ID, AgentID: row.Owner, SessionID: row.Session, UserID: row.User, Approval: a}
				if row.Kind == store.Workflow {
					w.AgentID, w.WorkflowID = "", row.Owner
				}
				if _, err := rec.Shown(a); err != nil {
					w.Mismatch = fault.Of(err).Message
				}
				list = append(list, w)
			}
		}
		return err
	})
	return list, err
}
