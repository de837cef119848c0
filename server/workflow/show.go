package workflow

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"

	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/store"
)

// pauses are the waits of the thread, in the order in which their tasks were made.
func (t *thread) pauses() (list []Pause) {
	for _, k := range t.waiting() {
		p := Pause{Node: t.label(k), Name: t.waitName(k), Since: message.Millis(k.Began)}
		wake := k.Deadline
		switch k.Phase {
		case sleeping:
			p.Kind, wake = "timer", k.Due
		case retrying:
			p.Kind, wake = "retry", k.Due
		case awaiting:
			p.Kind = "awakeable"
			if k.Ask != nil {
				p.Kind, p.Value = k.Ask.Kind, k.Ask.Value
			} else if form := t.g.Form.Nodes[k.Node]; t.node(k) == t.g.Nodes[k.Node] {
				p.Value = form.Schema
			} else {
				p.Value = form.Do.Schema
			}
		case asking:
			p.Kind, p.Value = "approval", k.Approval.Args
			if k.doubtful() {
				p.Kind = "outcome-unknown"
			}
			if at := journal.Millis(k.Approval.ExpiresAt); at != 0 {
				wake = at
			}
		case hosting:
			if !parkedStatus(k.Status) {
				continue
			}
			p.Kind, p.ChildRun = "child", k.Child
		default:
			continue
		}
		if wake != 0 {
			p.WakeAt = message.Millis(wake)
		}
		list = append(list, p)
	}
	return list
}

// active are the nodes at which something happens or is about to.
func (t *thread) active() []string {
	list := []string{}
	for _, id := range t.ids() {
		if k := t.tasks[id]; k.busy() {
			list = append(list, t.label(k))
		}
	}
	return list
}

// Outcome is how a run of a workflow stands, or stood at its end. Error: run-not-found.
func (w *Workflows) Outcome(ctx context.Context, runID string) (Outcome, error) {
	_, out, err := w.outcome(ctx, runID, false)
	return out, err
}

// outcome also returns the thread, where the run is its latest and has not ended, or where all is wanted.
func (w *Workflows) outcome(ctx context.Context, runID string, all bool) (t *thread, out Outcome, err error) {
	row, rec, err := w.kernel.Read(ctx, runID)
	if err != nil {
		return nil, out, err
	}
	if row.Kind != store.Workflow {
		return nil, out, fault.New(fault.RunNotFound, "There is no run %q of a workflow.", journal.Clip(runID, 128))
	}
	if out, err = outcomeOf(row, rec); err != nil {
		return nil, out, err
	}
	err = w.runs.Snapshot(ctx, func(tx *store.Tx) error {
		thread, err := w.threads.Number(tx, row.Thread)
		if err != nil {
			return err
		}
		if out.ThreadID = thread.ID; thread.Run == row.N && (all || !row.Status.Terminal()) {
			if t, err = w.load(tx, thread); err == nil && !row.Status.Terminal() {
				out.PendingPauses = t.pauses()
			}
		}
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		err = fault.New(fault.RunNotFound, "There is no run %q.", journal.Clip(runID, 128))
	}
	return t, out, err
}

// outcomeOf is what the rows of a run say of it.
func outcomeOf(row *store.Run, rec *journal.Record) (out Outcome, err error) {
	out = Outcome{RunID: row.ID, WorkflowID: row.Owner, Status: row.Status, StepNumber: row.Step, PendingApprovals: rec.Pending}
	if row.Status == store.Completed {
		out.Output = rec.Slots[store.OutputSlot]
	}
	if row.Error != nil {
		if err := json.Unmarshal(row.Error, &out.Error); err != nil {
			return out, store.Damaged(err)
		}
	}
	return out, nil
}

// Wait blocks until a run has ended or is parked, and returns how it stands. Errors: run-not-found, server-draining.
func (w *Workflows) Wait(ctx context.Context, runID string) (Outcome, error) {
	if _, _, _, err := w.kernel.Wait(ctx, runID); err != nil {
		return Outcome{}, err
	}
	return w.Outcome(ctx, runID)
}

// State returns a thread with its state. Errors: route-handler-missing, thread-not-found.
func (w *Workflows) State(ctx context.Context, workflow, threadID string) (*ThreadState, error) {
	row, err := w.thread(ctx, workflow, threadID)
	if err != nil {
		return nil, err
	}
	var last *store.Run
	err = w.runs.View(ctx, func(tx *store.Tx) (err error) {
		last, err = w.runs.Number(tx, row.Run)
		return err
	})
	if err != nil {
		return nil, err
	}
	t, out, err := w.outcome(ctx, last.ID, true)
	if err != nil {
		return nil, err
	}
	st := &ThreadState{Outcome: out, State: map[string]json.RawMessage{}, Version: row.Pin, Blocked: row.Blocked, SessionID: row.Session,
		CreatedAt: message.Millis(row.Created), UpdatedAt: message.Millis(row.Updated), Active: []string{}}
	if t != nil {
		st.StepNumber, st.Active = t.row.Step, t.active()
		for key, v := range t.values {
			st.State[key] = v.raw
		}
		if t.row.Step > 0 {
			st.CheckpointID = checkpointID(row.ID, t.row.Step)
		}
	}
	return st, nil
}

// thread finds a thread of a registered workflow.
func (w *Workflows) thread(ctx context.Context, workflow, threadID string) (row store.Thread, err error) {
	err = w.runs.View(ctx, func(tx *store.Tx) (err error) {
		row, err = w.threads.Find(tx, workflow, threadID)
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		err = w.noThread(workflow, threadID)
	}
	return row, err
}

// Checkpoints lists the steps of a thread, the newest first: at most limit of those before a step; 0: from the newest. next is the
// before of the next page; 0: there is none. Steps that were folded away are not listed.
func (w *Workflows) Checkpoints(ctx context.Context, workflow, threadID string, limit, before int) (list []Checkpoint, next int, err error) {
	row, err := w.thread(ctx, workflow, threadID)
	if err != nil {
		return nil, 0, err
	}
	limit = max(1, min(limit, 1000))
	list = []Checkpoint{}
	err = w.runs.View(ctx, func(tx *store.Tx) error {
		steps, err := w.threads.Steps(tx, row.N, before, limit+1)
		if err != nil {
			return err
		}
		if len(steps) > limit {
			steps = steps[:limit]
			next = steps[limit-1].Step
		}
		ids := map[int64]string{}
		size := 0
		for i, s := range steps {
			if ids[s.Run] == "" {
				r, err := w.runs.Number(tx, s.Run)
				if err != nil {
					return err
				}
				ids[s.Run] = r.ID
			}
			var body stepBody
			if err := json.Unmarshal(s.Body, &body); err != nil {
				return store.Damaged(err)
			}
			c := Checkpoint{ID: checkpointID(row.ID, s.Step), ThreadID: row.ID, RunID: ids[s.Run], StepNumber: s.Step, Node: s.Node, Status: s.Status,
				CreatedAt: message.Millis(s.At)}
			if len(body.Writes) > 0 {
				if c.Writes, err = json.Marshal(body.Writes); err != nil {
					return err
				}
			}
			if body.Error != nil {
				c.Error = body.Error.shown()
			}
			list = append(list, c)
			if size += len(s.Body); size > maxPage && i < len(steps)-1 {
				next = s.Step
				break
			}
		}
		return nil
	})
	return list, next, err
}

// maxPage is about how many bytes of steps a page of checkpoints holds.
const maxPage = 4 << 20

// Threads lists threads, the newest first. next is the Before of the next page; 0: there is none.
func (w *Workflows) Threads(ctx context.Context, f ThreadFilter) (list []ThreadSummary, next int64, err error) {
	limit := min(cmp.Or(max(0, f.Limit), 100), 1000)
	list = []ThreadSummary{}
	err = w.runs.View(ctx, func(tx *store.Tx) error {
		rows, err := w.threads.List(tx, store.ThreadFilter{Workflow: f.Workflow, Status: f.Status, Session: f.SessionID, Blocked: f.Blocked, Before: f.Before, Limit: limit + 1})
		if err != nil {
			return err
		}
		if len(rows) > limit {
			rows = rows[:limit]
			next = rows[limit-1].N
		}
		for _, row := range rows {
			s := ThreadSummary{ThreadID: row.ID, WorkflowID: row.Workflow, RunID: row.RunID, Status: row.Status, StepNumber: row.Step, SessionID: row.Session, Blocked: row.Blocked,
				CreatedAt: message.Millis(row.Created), UpdatedAt: message.Millis(row.Updated)}
			if row.Error != nil {
				if err := json.Unmarshal(row.Error, &s.Error); err != nil {
					return store.Damaged(err)
				}
			}
			list = append(list, s)
		}
		return nil
	})
	return list, next, err
}
