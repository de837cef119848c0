package workflow

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"

	"agentd/server/fault"
	"agentd/server/graph"
	"agentd/server/journal"
	"agentd/server/run"
	"agentd/server/span"
	"agentd/store"
)

// A task can be a run of an agent or a workflow. Such a hosted run moves by itself. It is started after the commit that holds
// its task, with an origin, so that it starts once; each change of its status makes the timer of this run due.

// hosted is how a hosted run stands.
type hosted struct {
	run     string
	status  store.Status
	output  json.RawMessage
	problem *problem
	pending []journal.Approval
}

// host has a run of an agent or a workflow started.
func (t *thread) host(k *task, n *graph.Node) error {
	k.Attempt++
	k.Status, k.Mirror, k.Error = "", nil, nil
	if n.Kind == graph.KindAgent {
		k.Child = ""
	}
	if k.Args == nil {
		if k.Args = json.RawMessage("{}"); n.Kind == graph.KindAgent {
			k.Args = json.RawMessage(`""`)
		}
		if n.Input != nil {
			var err error
			if k.Args, err = t.eval(k, n.Input); err != nil {
				k.Attempt--
				return err
			}
		}
		if n.Session.ID != nil {
			session, err := t.text(k, n.Session.ID)
			if err != nil {
				k.Attempt--
				return err
			}
			k.Session = session
		}
	}
	t.enter(k, hosting)
	t.hosts = append(t.hosts, k)
	t.began(k)
	return nil
}

// launchHosts starts the runs of tasks, and aborts those that are not wanted any more.
func (t *thread) launchHosts() {
	ctx := t.r.Within(span.OfRun, 0)
	for _, k := range t.hosts {
		n, start := t.node(k), *k
		if n == nil || k.Phase != hosting {
			continue
		}
		by, lineage := t.row.StartedBy, ""
		if by != "" && by != run.Anonymous {
			lineage = t.r.Payer()
		}
		origin := journal.HostedOrigin(t.r.ID(), k.callID())
		thread := t.row
		t.inFlight[k.ID] = func(error) {}
		t.r.Go(func() {
			h, err := t.w.startHosted(ctx, &thread, n, &start, origin, by, lineage)
			if err != nil {
				h = &hosted{problem: problemOf(err), status: store.Failed}
				if ctx.Err() != nil {
					h.status = ""
				}
			}
			t.results <- result{task: start.ID, attempt: start.Attempt, host: h}
		})
	}
	t.hosts = nil
	for _, id := range t.aborts {
		if k := t.tasks[id]; k != nil && k.Phase == hosting && k.Child != "" {
			child := k.Child
			t.r.Go(func() {
				_, err := t.w.kernel.AbortHosted(context.WithoutCancel(ctx), child, run.AbortOptions{Reason: "its workflow no longer needs it", NoWait: true})
				if err != nil {
					t.r.Log().Warn("a hosted run could not be aborted", "run", child, "error", err)
				}
			})
		}
	}
	t.aborts = nil
}

// startHosted starts the run of a task, or finds the one that was started before.
func (w *Workflows) startHosted(ctx context.Context, thread *store.Thread, n *graph.Node, k *task, origin, by, lineage string) (*hosted, error) {
	var before, last *store.Run // of this attempt, and of the attempt before
	err := w.runs.View(ctx, func(tx *store.Tx) error {
		row, err := w.runs.ByOrigin(tx, origin)
		if err == nil {
			before = row
			return nil
		}
		if !errors.Is(err, store.ErrNotFound) || k.Child == "" {
			return err
		}
		if row, err = w.runs.Find(tx, k.Child); err == nil {
			last = row
		}
		return err
	})
	switch {
	case err == nil && before != nil:
		return w.lookAt(ctx, before.ID)
	case err == nil && last != nil && last.Status == store.Completed:
		return w.lookAt(ctx, last.ID)
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return nil, err
	}
	if n.Kind == graph.KindAgent {
		session, own, mayJoin := k.Session, int64(0), false
		switch {
		case session != "" && w.opts.MayJoin != nil:
			if mayJoin, err = w.opts.MayJoin(ctx, thread.StartedBy, session); err != nil {
				return nil, err
			}
		case n.Session.Mode == "thread":
			own = thread.N
			err := w.runs.View(ctx, func(tx *store.Tx) error {
				first, err := w.runs.Number(tx, thread.N)
				if err == nil {
					session = "thread-" + first.ID
				}
				return err
			})
			if err != nil {
				return nil, err
			}
		}
		h, err := w.kernel.Start(ctx, run.StartRequest{Kind: "agent", Owner: n.Agent, Input: k.Args, SessionID: session, UserID: thread.User, By: by, Lineage: lineage,
			MayJoin: mayJoin, Detached: true, Queue: true, Origin: origin, Host: thread.N, Own: own})
		if err != nil {
			return nil, err
		}
		return w.lookAt(ctx, h.ID)
	}
	var h *Handle
	if last == nil {
		h, err = w.Execute(ctx, ExecuteRequest{WorkflowID: n.Workflow, Input: k.Args, UserID: thread.User, By: by, Lineage: lineage, Detached: true, host: thread.N, Origin: origin})
	} else { // the attempt before has a thread already: retry that
		var child store.Thread
		err = w.runs.View(ctx, func(tx *store.Tx) (err error) {
			child, err = w.threads.Number(tx, last.Thread)
			return err
		})
		if err == nil {
			h, err = w.Retry(ctx, RetryRequest{WorkflowID: child.Workflow, ThreadID: child.ID, By: by, Lineage: lineage, host: thread.N, origin: origin})
		}
	}
	if err != nil {
		return nil, err
	}
	return w.lookAt(ctx, h.RunID)
}

// lookAt reads how a hosted run stands.
func (w *Workflows) lookAt(ctx context.Context, runID string) (*hosted, error) {
	row, rec, err := w.kernel.Read(ctx, runID)
	if err != nil {
		return nil, err
	}
	h := &hosted{run: runID, status: row.Status, pending: rec.Pending}
	switch row.Status {
	case store.Completed:
		h.output = journal.Output(row, rec)
	case store.Failed, store.Aborted:
		h.problem = trouble(fault.NodeFailed, "The run failed.")
		if e := new(journal.Error); row.Error != nil && json.Unmarshal(row.Error, e) == nil {
			h.problem = &problem{Code: e.Code, Message: e.Message, Hint: e.Hint}
		}
	}
	return h, nil
}

// look finds out which hosted runs stand otherwise than before.
func (t *thread) look() {
	for _, k := range t.waiting() {
		t.lookFor(k)
	}
}

// lookFor finds out whether the hosted run of a task stands otherwise than before.
func (t *thread) lookFor(k *task) {
	if t.waits[k.ID] != k || k.Phase != hosting || k.Child == "" || t.inFlight[k.ID] != nil {
		return
	}
	ctx := context.WithoutCancel(t.r.Context())
	row, err := t.w.kernel.Find(ctx, k.Child)
	if err == nil && string(row.Status) == k.Status && row.Status != store.Awaiting { // of which approvals may change
		return
	}
	var h *hosted
	if err == nil {
		h, err = t.w.lookAt(ctx, k.Child)
	}
	if fault.Is(err, fault.RunNotFound) {
		h, err = &hosted{run: k.Child, status: store.Failed, problem: trouble(fault.RunNotFound, "The run was erased.")}, nil
	}
	if err != nil {
		t.r.Log().Error("a hosted run could not be read", "run", k.Child, "error", err)
		return
	}
	same := func(a, b journal.Approval) bool { return sameApproval(a.Under(k.callID()), b) }
	if string(h.status) != k.Status || h.status == store.Awaiting && !slices.EqualFunc(h.pending, k.Mirror, same) {
		t.hostChanged(k, h)
	}
}

// hostChanged notes how a hosted run stands.
func (t *thread) hostChanged(k *task, h *hosted) {
	if k.Phase != hosting || h.status == "" {
		return
	}
	k.Child, k.Status, k.Mirror = cmp.Or(h.run, k.Child), string(h.status), nil
	t.change(k)
	switch {
	case h.status == store.Awaiting:
		k.Steps = 0
		for _, a := range h.pending {
			k.Mirror = append(k.Mirror, a.Under(k.callID()))
		}
	case !h.status.Terminal():
	case k.Error != nil: // its time was over
		p := k.Error
		k.Error = nil
		t.fail(k, p)
		return
	case h.status == store.Completed:
		if t.leaving(k) {
			k.Withdraw = false
		}
		t.finish(k, h.output)
		return
	case k.Withdraw:
		t.takeBack(k)
		return
	default:
		t.fail(k, h.problem)
		return
	}
	if k.Withdraw || k.Error != nil { // it was left while its run was being started
		t.aborts = append(t.aborts, k.ID)
	}
}
