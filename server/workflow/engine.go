package workflow

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/graph"
	"agentd/server/id"
	"agentd/server/run"
	"agentd/store"
)

// Execute begins a run of a workflow: of a new thread, or anew of one whose latest run has ended. Errors:
// route-handler-missing; config-invalid for an input that does not fit, before anything exists; checkpoint-version-conflict
// for a thread whose run has not ended; and those of [run.Engine.Start].
func (w *Workflows) Execute(ctx context.Context, req ExecuteRequest) (*Handle, error) {
	reg, err := w.find(req.WorkflowID)
	if err == nil {
		err = w.define(ctx)
	}
	if err != nil {
		return nil, err
	}
	if req.ThreadID != "" && !event.ValidID(req.ThreadID) {
		return nil, fault.Invalid("The thread id is not valid.", fault.At("has 1 to 128 characters of A-Z a-z 0-9 _ -", "threadId"))
	}
	if len(req.Input) == 0 || string(req.Input) == "null" {
		req.Input = json.RawMessage("{}")
	}
	if err := reg.accept(req.Input); err != nil {
		return nil, err
	}
	var row store.Thread
	if req.ThreadID == "" {
		req.ThreadID = id.New()
	} else {
		var open *store.Run
		if row, open, err = w.standing(ctx, req.WorkflowID, req.ThreadID); err != nil {
			return nil, err
		}
		if open != nil {
			return nil, conflict(req.ThreadID, open)
		}
		if err := w.reachable(ctx, &row); err != nil {
			return nil, err
		}
	}
	at := time.Now().UnixMilli()
	row.Workflow, row.ID, row.Input, row.Handled, row.Blocked, row.Base = req.WorkflowID, req.ThreadID, req.Input, false, "", row.Step
	row.Digest, row.Pin = reg.graph.Digest, reg.graph.Form.Version
	row.User, row.StartedBy, row.Host = req.UserID, cmp.Or(req.By, run.Anonymous), req.host
	if row.Version == 0 {
		row.Created = at
	}
	if req.SessionID != "" {
		row.Session = req.SessionID
	}
	t := w.newThread(reg.graph, row)
	t.begin()
	t.stored = row.Tasks
	t.fresh = row.Version != 0
	return w.start(ctx, t, run.StartRequest{Owner: req.WorkflowID, Input: req.Input, SessionID: row.Session, UserID: req.UserID, By: req.By, Lineage: req.Lineage,
		MayJoin: req.MayJoin || req.SessionID == "", Detached: req.Detached, Host: req.host, Origin: req.Origin}, req.Also)
}

// standing returns a thread and the run of it that has not ended; a zero row where there is none.
func (w *Workflows) standing(ctx context.Context, workflow, thread string) (row store.Thread, open *store.Run, err error) {
	err = w.runs.Snapshot(ctx, func(tx *store.Tx) error {
		found, err := w.threads.Find(tx, workflow, thread)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		row = found
		last, err := w.runs.Number(tx, row.Run)
		if err == nil && !last.Status.Terminal() {
			open = last
		}
		return err
	})
	return row, open, err
}

// reachable returns run-is-child for a thread that a task of another thread began: only that one begins it again and erases it.
func (w *Workflows) reachable(ctx context.Context, row *store.Thread) error {
	if row.Host == 0 {
		return nil
	}
	var last *store.Run
	err := w.runs.View(ctx, func(tx *store.Tx) (err error) {
		if _, err = w.threads.Number(tx, row.Host); err == nil {
			last, err = w.runs.Number(tx, row.Run)
		}
		return err
	})
	switch {
	case errors.Is(err, store.ErrNotFound): // the run of an agent called it
		return nil
	case err != nil:
		return err
	}
	return w.kernel.IsChild(ctx, last)
}

// conflict is the error for a thread that has a run already.
func conflict(thread string, open *store.Run) error {
	f := fault.New(fault.ThreadOpen, "The thread %q has a run that has not ended.", thread).With("threadId", thread)
	if open != nil {
		f.With("runId", open.ID).With("status", open.Status)
	}
	return f.Because(&CheckpointConflictError{Thread: thread})
}

// CheckpointConflictError says that a checkpoint of a thread was written by somebody else in the meantime.
type CheckpointConflictError struct{ Thread string }

func (e *CheckpointConflictError) Error() string {
	return "another writer has changed the thread " + e.Thread
}

// start begins a run of a thread. The steps that need nothing but themselves are in its transaction.
func (w *Workflows) start(ctx context.Context, t *thread, req run.StartRequest, also func(*store.Tx, Started) error) (*Handle, error) {
	started := Started{WorkflowID: t.row.Workflow, ThreadID: t.row.ID}
	req.Kind, req.Thread, req.Carry = store.Workflow, t.row.N, t
	req.Also = func(tx *store.Tx, runID string, status store.Status) error {
		if also == nil {
			return nil
		}
		s := started
		s.RunID, s.Status = runID, status
		return also(tx, s)
	}
	req.Then = func(tx *store.Tx, n int64) error { return t.then(tx, n) }
	h, err := w.kernel.Start(ctx, req)
	if errors.Is(err, store.ErrConflict) {
		_, open, _ := w.standing(ctx, t.row.Workflow, t.row.ID)
		return nil, conflict(t.row.ID, open)
	}
	if err != nil {
		return nil, err
	}
	started.RunID, started.Status = h.ID, h.Status
	return &Handle{Started: started, w: w, handle: h}, nil
}

// Handle follows a run that was set going.
type Handle struct {
	Started
	w      *Workflows
	handle *run.Handle // nil: an earlier one
}

// Wait blocks until the run has ended or is parked, and returns how it stands then. When ctx ends first, the run continues and
// the error is ctx's cause.
func (h *Handle) Wait(ctx context.Context) (Outcome, error) {
	if h.handle != nil {
		row, rec, _, err := h.handle.Wait(ctx)
		if err != nil {
			return Outcome{}, err
		}
		if row.Status.Terminal() {
			out, err := outcomeOf(row, rec)
			out.ThreadID = h.ThreadID
			return out, err
		}
		return h.w.Outcome(ctx, h.RunID)
	}
	return h.w.Wait(ctx, h.RunID)
}

// Retry begins another run of a thread that failed or was aborted, at what failed or was withdrawn. Errors:
// route-handler-missing, thread-not-found, checkpoint-version-conflict while a run has not ended, not-retryable for a thread
// that completed or ended at a fail node, workflow-version-mismatch, workflow-divergence, and those of [run.Engine.Start].
func (w *Workflows) Retry(ctx context.Context, req RetryRequest) (*Handle, error) {
	if err := w.define(ctx); err != nil {
		return nil, err
	}
	t, open, err := w.restore(ctx, req.WorkflowID, req.ThreadID)
	switch {
	case err != nil:
		return nil, err
	case !open.Status.Terminal():
		return nil, conflict(req.ThreadID, open)
	}
	final := false
	for _, k := range t.tasks {
		final = final || k.Error != nil && k.Error.Final && k.Scope == 0
	}
	if final || len(t.tasks) == 0 {
		return nil, fault.New(fault.NotRetryable, "The latest run of the thread %q has nothing to retry: it is %s.", req.ThreadID, open.Status).
			With("threadId", req.ThreadID).With("status", open.Status)
	}
	if err := t.pinned(false); err != nil {
		if !req.AllowVersionMismatch {
			return nil, err
		}
	}
	if req.AllowVersionMismatch {
		if err := t.pinned(true); err != nil {
			return nil, err
		}
	}
	if req.host == 0 {
		if err := w.reachable(ctx, &t.row); err != nil {
			return nil, err
		}
	}
	t.restart()
	if req.host != 0 {
		t.row.Host = req.host
	}
	h, err := w.start(ctx, t, run.StartRequest{Owner: req.WorkflowID, SessionID: t.row.Session, UserID: t.row.User, By: cmp.Or(req.By, t.row.StartedBy), Lineage: req.Lineage,
		MayJoin: true, Host: t.row.Host, Origin: req.origin}, req.Also)
	return h, err
}

// restore reads a thread and its latest run.
func (w *Workflows) restore(ctx context.Context, workflow, threadID string) (t *thread, last *store.Run, err error) {
	err = w.runs.Snapshot(ctx, func(tx *store.Tx) error {
		row, err := w.threads.Find(tx, workflow, threadID)
		if errors.Is(err, store.ErrNotFound) {
			return w.noThread(workflow, threadID)
		}
		if err != nil {
			return err
		}
		if last, err = w.runs.Number(tx, row.Run); err == nil {
			t, err = w.load(tx, row)
		}
		return err
	})
	return t, last, err
}

// restart makes what failed or was withdrawn begin again with the next run.
func (t *thread) restart() {
	t.row.Handled, t.row.Blocked = false, ""
	t.leavings = nil
	for _, id := range t.ids() {
		k := t.tasks[id]
		switch k.Phase {
		case failed, withdrawn:
			if n := t.node(k); n != nil && (n.Kind == graph.KindMap && k.List != nil || n.Kind == graph.KindParallel && t.members[k.ID] > 0) {
				k.Phase, k.Error, k.Deadline = open, nil, 0
				t.change(k)
				t.feedLater = append(t.feedLater, k.ID)
				continue
			}
			if k.Phase == failed {
				k.Began = 0
			}
			k.Past = k.Attempt
			k.Error, k.Args, k.Approval, k.Decided, k.Due, k.Deadline, k.Steps, k.Withdraw, k.Said, k.Key = nil, nil, nil, nil, 0, 0, 0, false, false, ""
			t.enter(k, ready)
		case open, asking, calling:
			k.Error = nil
			t.change(k)
		}
	}
}

// Resume answers a wait of a thread. An answer to an await that the thread has not reached is kept. Errors:
// route-handler-missing, thread-not-found, resume-without-suspension, pause-not-found, pause-ambiguous, awakeable-payload-invalid,
// workflow-version-mismatch, workflow-divergence, and those of [run.Engine.Post].
func (w *Workflows) Resume(ctx context.Context, req ResumeRequest) (*Handle, error) {
	if err := w.define(ctx); err != nil {
		return nil, err
	}
	row, open, err := w.standing(ctx, req.WorkflowID, req.ThreadID)
	switch {
	case err != nil:
		return nil, err
	case row.Version == 0:
		return nil, w.noThread(req.WorkflowID, req.ThreadID)
	case open == nil:
		return nil, fault.New(fault.ResumeWithoutSuspension, "The latest run of the thread %q has ended.", req.ThreadID).With("threadId", req.ThreadID)
	}
	s := Started{WorkflowID: req.WorkflowID, ThreadID: req.ThreadID, RunID: open.ID, Status: store.Running}
	var also func(*store.Tx) error
	if req.Also != nil {
		also = func(tx *store.Tx) error { return req.Also(tx, s) }
	}
	err = w.send(ctx, open.ID, newLetter("decided", also, func(t *thread) error { return t.answer(ctx, &req, &s) }))
	if fault.Is(err, fault.RunNotSuspended) {
		err = fault.New(fault.ResumeWithoutSuspension, "The run of the thread %q has ended.", req.ThreadID).With("threadId", req.ThreadID)
	}
	if err != nil {
		return nil, err
	}
	return &Handle{Started: s, w: w}, nil
}

// Tick has a thread do what is due. It reports whether the thread moved, and when it moves by itself next, in milliseconds
// since 1970; 0: never.
func (w *Workflows) Tick(ctx context.Context, workflow, threadID string) (fired bool, next int64, err error) {
	row, open, err := w.standing(ctx, workflow, threadID)
	switch {
	case err != nil:
		return false, 0, err
	case row.Version == 0:
		return false, 0, w.noThread(workflow, threadID)
	case open == nil:
		return false, 0, nil
	}
	err = w.send(ctx, open.ID, newLetter("timer", nil, func(t *thread) error {
		if err := t.unblock(false); err != nil {
			return err
		}
		t.elapse()
		fired, next = t.dirty(), t.due()
		return nil
	}))
	if fault.Is(err, fault.RunNotSuspended) {
		err = nil
	}
	return fired, next, err
}

// Delete erases a thread with everything of it. Errors: thread-not-found, workflow-thread-running.
func (w *Workflows) Delete(ctx context.Context, workflow, threadID string, also func(*store.Tx) error) error {
	row, err := w.thread(ctx, workflow, threadID)
	if err == nil {
		err = w.reachable(ctx, &row)
	}
	if err != nil {
		return err
	}
	err = w.kernel.Erase(ctx, func(tx *store.Tx) ([]*store.Run, error) {
		erased, err := w.threads.Erase(tx, row.N)
		if err == nil && also != nil {
			err = also(tx)
		}
		return erased, err
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return w.noThread(workflow, threadID)
	case errors.Is(err, store.ErrConflict):
		return fault.New(fault.ThreadRunning, "A run of the thread %q, or one that it has started, is in progress.", threadID).With("threadId", threadID)
	}
	return err
}
