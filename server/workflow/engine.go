package workflow

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"agentd/metrics"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/graph"
	"agentd/server/id"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/run"
	"agentd/server/tool"
	"agentd/store"
)

// Tools are what the nodes of workflows call.
type Tools interface {
	Spec(name string) (tool.Spec, bool)
	// Judge checks arguments and returns them in canonical form, whether people must allow the call, or why it is refused.
	Judge(callID, name string, args json.RawMessage) (canonical json.RawMessage, gated bool, refusal *message.Outcome)
	// Terms completes an approval with what it takes to grant it.
	Terms(a journal.Approval, startedBy string, at int64) journal.Approval
	// Edit checks arguments that a person gives a call instead of its own.
	Edit(callID, name string, args json.RawMessage) (json.RawMessage, error)
	// Doubt says what becomes of a call whose outcome is unknown.
	Doubt(name string) run.Doubt
	// Admit waits for the limits of a tool; release gives the place back.
	Admit(ctx context.Context, name string, call tool.Call, wait func() error) (release func(), refusal *message.Outcome)
	Execute(ctx context.Context, name string, call tool.Call) tool.Settled
}

// Options are what workflows work with.
type Options struct {
	Kernel  *run.Engine // moves their runs; it has their Owner and Form
	Threads *store.Threads
	Runs    *store.Runs
	Tools   Tools
	Metrics *metrics.Inventory // nil: nothing is counted
	// AuditStarts says that the record of a call's start is kept before it is made, also where the call has no effect.
	AuditStarts bool
	Logger      *slog.Logger
}

// Workflows is the registry of workflows, and what can be done with their threads. It is safe for concurrent use.
type Workflows struct {
	opts    Options
	kernel  *run.Engine
	threads *store.Threads
	runs    *store.Runs
	tools   Tools
	past    definitions

	mu    sync.Mutex // guards the fields below
	known map[string]*registration
	order []string

	defining sync.Mutex // guards the field below, and is held while it becomes true
	defined  bool       // the definitions of all that is registered are stored
}

type registration struct {
	id      string
	graph   *graph.Graph
	program *program // nil: the configuration declares it
	info    Info
}

// New makes an empty registry. Its workflows can run after [Workflows.Attach].
func New() *Workflows { return &Workflows{known: map[string]*registration{}} }

// Attach gives the workflows what they work with. It is called once, before the kernel recovers or starts a run.
func (w *Workflows) Attach(o Options) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	w.opts, w.kernel, w.threads, w.runs, w.tools = o, o.Kernel, o.Threads, o.Runs, o.Tools
}

// Declare adds a workflow of the configuration. An id that is taken is refused with duplicate-id.
func (w *Workflows) Declare(id string, g *graph.Graph) error {
	return w.add(&registration{id: id, graph: g, info: Info{ID: id, Description: g.Form.Description, Version: g.Form.Version, Declared: true,
		Input: json.RawMessage(g.Form.Input), Graph: g.Drawing()}})
}

func (w *Workflows) add(reg *registration) error {
	if !event.ValidID(reg.id) {
		return fault.Invalid("A workflow id has 1 to 128 characters of A-Z a-z 0-9 _ -.", fault.At("is not a valid id", "id"))
	}
	w.defining.Lock()
	defer w.defining.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.defined = false
	if w.known[reg.id] != nil {
		return fault.New(fault.DuplicateID, "The workflow %q is already registered.", reg.id)
	}
	w.known[reg.id] = reg
	w.order = append(w.order, reg.id)
	return nil
}

func (w *Workflows) registration(id string) *registration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.known[id]
}

// List returns the workflows in the order in which they were registered, without their graphs and schemas.
func (w *Workflows) List() []Info {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := make([]Info, 0, len(w.order))
	for _, id := range w.order {
		info := w.known[id].info
		info.Graph, info.Input = nil, nil
		list = append(list, info)
	}
	return list
}

// Get returns one workflow; false when there is none.
func (w *Workflows) Get(id string) (Info, bool) {
	reg := w.registration(id)
	if reg == nil {
		return Info{}, false
	}
	return reg.info, true
}

func (w *Workflows) find(id string) (*registration, error) {
	if reg := w.registration(id); reg != nil {
		return reg, nil
	}
	return nil, fault.New(fault.RouteHandlerMissing, "No workflow %q is registered.", journal.Clip(id, 128))
}

// noThread is the error for a thread that there is not. Threads of a workflow that is not registered any more are there.
func (w *Workflows) noThread(workflow, threadID string) error {
	if _, err := w.find(workflow); err != nil {
		return err
	}
	return fault.New(fault.ThreadNotFound, "The workflow %q has no thread %q.", workflow, journal.Clip(threadID, 128))
}

// define makes sure that threads can run under the definitions of all workflows.
func (w *Workflows) define(ctx context.Context) error {
	w.defining.Lock()
	defer w.defining.Unlock()
	if w.defined {
		return nil
	}
	var all []store.Definition
	w.mu.Lock()
	for _, reg := range w.known {
		all = append(all, store.Definition{Digest: reg.graph.Digest, Body: reg.graph.Source})
	}
	w.mu.Unlock()
	err := w.runs.Update(ctx, func(tx *store.Tx) error { return w.threads.Define(tx, all) })
	w.defined = err == nil
	return err
}

// Owner returns what the kernel runs as a workflow; nil for other kinds. A thread finishes under the definition that it began with, also where
// its workflow is not registered any more.
func (w *Workflows) Owner(kind, id string) *run.Owner {
	if kind != store.Workflow {
		return nil
	}
	return &run.Owner{ID: id, Driver: driver{w}}
}

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
		MayJoin: req.MayJoin || req.SessionID == "", Detached: req.Detached, Host: req.host, Origin: req.origin}, req.Also)
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

// definitions keeps the graphs of threads that run under an older definition.
type definitions struct {
	mu  sync.Mutex // guards the field below
	all map[string]*graph.Graph
}

const maxDefinitions = 256

func (d *definitions) get(digest []byte) *graph.Graph {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.all[string(digest)]
}

func (d *definitions) put(g *graph.Graph) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all == nil || len(d.all) >= maxDefinitions {
		d.all = map[string]*graph.Graph{}
	}
	d.all[string(g.Digest)] = g
}

// accept checks an input.
func (reg *registration) accept(input json.RawMessage) error {
	if reg.graph.Input != nil {
		var issues []fault.Issue
		for _, p := range reg.graph.Input.Validate(input) {
			issues = append(issues, fault.At(p.String(), "input"))
		}
		if len(issues) > 0 {
			return fault.Invalid("The input does not fit the workflow.", issues...)
		}
	}
	if reg.program != nil {
		return reg.program.accept(input)
	}
	return nil
}
