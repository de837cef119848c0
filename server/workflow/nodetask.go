package workflow

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"time"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/graph"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/run"
)

// A thread of a Go graph has one task that holds the frontier, below it the tasks of the superstep, and below these the
// wishes of their nodes. A wish is executed like a declared node: a sleep, an await, an approval, a call, a hosted run.

// running is the phase of a task whose node runs, or is about to, in this process.
const running phase = "running"

// proceed begins a task of a Go graph whose turn has come.
func (t *thread) proceed(k *task) {
	switch {
	case k.Graph != nil:
		k.Error = nil
		t.enter(k, open)
	case k.Ask != nil:
		if err := t.fulfil(k); err != nil {
			t.fail(k, problemOf(err))
		}
	default:
		if err := t.pinned(false); err != nil { // the process was started with another graph
			t.failing = problemOf(err).at(k.Node)
			t.takeBack(k)
			return
		}
		k.Attempt = max(k.Attempt, 1)
		if !k.Said {
			t.began(k)
		}
		t.enter(k, running)
	}
}

// launchNodes calls the nodes of tasks, as many at once as the workflow allows.
func (t *thread) launchNodes() {
	if t.p == nil {
		return
	}
	calls, due := 0, []*task(nil)
	for _, id := range t.ids() {
		switch k := t.tasks[id]; {
		case k.Phase != running:
		case t.inFlight[id] != nil:
			calls++
		default:
			due = append(due, k)
		}
	}
	for _, k := range due[:min(len(due), max(0, t.p.MaxConcurrentTasks-calls))] {
		t.launchNode(k)
	}
}

func (t *thread) launchNode(k *task) {
	ctx, cancel := context.WithCancelCause(t.r.Context())
	t.inFlight[k.ID] = cancel
	if limit := t.p.Nodes[k.Node].Timeout; limit > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, limit, errNodeTime)
		context.AfterFunc(ctx, stop)
	}
	c := &Context{Context: ctx, thread: t.row.ID, step: t.row.Step + 1, id: k.ID, node: k.Node, args: k.Go.Args, host: nodeHost{t.r, t.results}, journal: slices.Clone(k.Go.Journal)}
	p, r, results, attempt, state := t.p, t.r, t.results, k.Attempt, State{t.held()}
	r.Go(func() {
		res := result{task: c.id, attempt: attempt, ended: p.await(c, state)}
		res.left = r.Context().Err() != nil && !fault.Is(context.Cause(r.Context()), fault.RunAborted)
		results <- res
	})
}

// await calls a node and returns how it ended. A node that does not return in time after its context has ended is left
// alone: what it does then has no effect on the thread.
func (p *program) await(c *Context, state State) *ending {
	ended := make(chan ending, 1)
	go p.run(c, state, func(e ending) { ended <- e })
	late := false
	var e ending
	select {
	case e = <-ended:
	case <-c.Done():
		select {
		case e = <-ended:
		case <-time.After(p.CancelGrace):
			late = true
		}
	}
	switch cause := context.Cause(c); {
	case e.asked != nil, e.err == nil && !late:
	case errors.Is(cause, errNodeTime):
		e.err = fault.New(fault.NodeTimeout, "The node %q did not end within %v.", c.node, p.Nodes[c.node].Timeout)
	case late:
		e.err = fault.New(fault.WorkflowCancelTimeout, "The node %q did not end within %v of the abort.", c.node, p.CancelGrace)
	case cause != nil && errors.Is(e.err, cause), errors.Is(e.err, context.Canceled) && cause != nil:
		e.cancelled = true
	}
	if late { // its goroutine may still use the journal
		e.journal = nil
	}
	return &e
}

// held is the state as nodes see it.
func (t *thread) held() map[string]json.RawMessage {
	all := make(map[string]json.RawMessage, len(t.values))
	for key, v := range t.values {
		all[key] = v.raw
	}
	return all
}

// nodeHost is the thread as its nodes see it.
type nodeHost struct {
	r       *run.Run
	results chan<- result
}

// A keeping asks the thread to make durable what the calls of a task have given.
type keeping struct {
	task    int
	journal []entry
	done    chan error
}

func (h nodeHost) keep(ctx context.Context, task int, journal []entry) error {
	k := &keeping{task, slices.Clone(journal), make(chan error, 1)}
	select {
	case h.results <- result{kept: k}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-k.done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (h nodeHost) emit(task int, name string, payload json.RawMessage) {
	h.r.Transient(event.New(event.WorkflowCustom, map[string]any{"taskId": "t" + strconv.Itoa(task), "name": name, "payload": payload}))
}

// keep notes what the calls of a task have given; the next commit answers.
func (t *thread) keep(kept *keeping) {
	k := t.tasks[kept.task]
	if k == nil || k.Phase != running {
		kept.done <- fault.New(fault.WorkflowAborted, "The task is over.")
		return
	}
	k.Go.Journal = kept.journal
	t.change(k)
	t.replies = append(t.replies, kept.done)
}

// returned notes how a node ended.
func (t *thread) returned(k *task, e *ending) {
	if k.Phase != running {
		return
	}
	if e.journal != nil {
		k.Go.Journal = e.journal
	}
	if e.panicked != "" {
		t.r.Log().Error("a node of a workflow panicked", "run", t.r.ID(), "workflow", t.row.Workflow, "node", k.Node, "panic", e.panicked)
	}
	switch {
	case e.asked != nil:
		t.enter(k, open)
		t.wish(k, e.asked)
	case e.cancelled:
		t.takeBack(k)
	case e.err != nil:
		t.broke(k, problemOf(e.err).at(k.Node))
	default:
		k.Go.Writes, k.Go.Dispatch = e.writes, e.dispatch
		t.enter(k, done)
		t.said(k, "completed")
	}
}

// broke handles the failure of a node: by another attempt, or the superstep fails when its other tasks have ended.
func (t *thread) broke(k *task, p *problem) {
	p.Message = journal.Clip(t.r.Redact(p.Message), 2000)
	k.Go.forget()
	n := t.node(k)
	if t.r.Context().Err() == nil && t.retries(n, k, p) {
		k.Due = t.now() + backoff(n.Retry, k.Attempt)
		k.Attempt++
		t.enter(k, retrying)
		t.step(k, "retrying")
		return
	}
	k.Error = p
	t.enter(k, failed)
	t.said(k, "failed")
}

// wish adds the task of what a node asks for.
func (t *thread) wish(k *task, w *wish) {
	if w.Kind == pausePlain || w.Kind == pauseBefore || w.Kind == pauseAfter {
		for w.Name = k.Node; t.taken(nil, w.Name); {
			w.Name = k.Node + "#" + k.callID()
		}
	}
	t.spawn(k.Node, k.ID, 0).Ask = w
}

// granting is the node of a wish.
func (w *wish) granting(name string) *graph.Node {
	n := &graph.Node{Name: name}
	switch w.Kind {
	case pauseTimer:
		n.Kind = graph.KindSleep
	case pauseApproval:
		n.Kind, n.Wait = graph.KindApproval, w.Name
	case askTool:
		n.Kind, n.Tool = graph.KindTool, w.Name
	case askAgent:
		n.Kind, n.Agent = graph.KindAgent, w.Name
	default:
		n.Kind, n.Wait = graph.KindAwait, w.Name
	}
	return n
}

// fulfil begins what a node asks for.
func (t *thread) fulfil(k *task) error {
	n := t.node(k)
	switch n.Kind {
	case graph.KindSleep:
		if k.Ask.WakeAt <= t.now() {
			t.finish(k, nil)
			return nil
		}
		k.Due = k.Ask.WakeAt
		t.park(k, sleeping)
	case graph.KindApproval:
		if t.taken(k, n.Wait) {
			t.fail(k, t.nameTaken(n.Wait))
			return nil
		}
		args, err := message.Arguments(k.Ask.Value)
		if err != nil {
			return err
		}
		t.wait(k, journal.Terms{}.Complete(t.request(k, n.Wait, args, ""), t.now(), t.row.StartedBy))
	case graph.KindTool:
		k.Args = k.Ask.Value
		return t.call(k, n)
	case graph.KindAgent:
		k.Args = k.Ask.Value
		return t.host(k, n)
	default:
		return t.await(k, n)
	}
	return nil
}
