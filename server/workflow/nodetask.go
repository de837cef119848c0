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
		k.Attempt = max(k.Attempt, k.Past+1)
		t.began(k)
		t.enter(k, running)
		t.nodes = append(t.nodes, k.ID)
	}
}

// launchNodes calls the nodes of tasks, as many at once as the workflow allows.
func (t *thread) launchNodes() {
	if len(t.nodes) == 0 {
		return
	}
	free := t.p.MaxConcurrentTasks
	for id := range t.inFlight {
		if k := t.tasks[id]; k != nil && k.Go != nil {
			free--
		}
	}
	state := State{t.held()}
	for ; len(t.nodes) > 0 && free > 0; free-- {
		t.launchNode(t.tasks[t.nodes[0]], state)
		t.nodes = t.nodes[1:]
	}
}

func (t *thread) launchNode(k *task, state State) {
	c := &Context{Context: t.depart(k, t.p.Nodes[k.Node].Timeout), thread: t.row.ID, step: t.row.Step + 1, id: k.ID, node: k.Node, args: k.Go.Args,
		host: nodeHost{t.r, t.results, k.ID, k.Attempt}, journal: slices.Clip(k.Go.Journal)}
	p, r, results, attempt := t.p, t.r, t.results, k.Attempt
	r.Go(func() {
		res := result{task: c.id, attempt: attempt, ended: p.await(c, state)}
		res.left = r.Context().Err() != nil && !fault.Is(context.Cause(r.Context()), fault.RunAborted)
		results <- res
	})
}

// held is the state as nodes see it.
func (t *thread) held() map[string]json.RawMessage {
	all := make(map[string]json.RawMessage, len(t.values))
	for key, v := range t.values {
		all[key] = v.raw
	}
	return all
}

// nodeHost is the thread as one attempt of a task sees it.
type nodeHost struct {
	r       *run.Run
	results chan<- result
	task    int
	attempt int
}

// A keeping asks the thread to make durable what the calls of a task have given.
type keeping struct {
	task    int
	attempt int
	journal []entry
	done    chan error
}

func (h nodeHost) keep(ctx context.Context, journal []entry) error {
	k := &keeping{h.task, h.attempt, journal, make(chan error, 1)}
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

func (h nodeHost) emit(name string, payload json.RawMessage) {
	h.r.Transient(event.New(event.WorkflowCustom, map[string]any{"taskId": "t" + strconv.Itoa(h.task), "name": name, "payload": payload}))
}

var errAttemptOver = errors.New("the attempt of the task is over")

// keep notes what the calls of a task have given; the next commit answers. An attempt that is over is not heard.
func (t *thread) keep(kept *keeping) {
	k := t.tasks[kept.task]
	if k == nil || k.Phase != running || k.Attempt != kept.attempt {
		kept.done <- errAttemptOver
		return
	}
	t.recall(k, kept.journal)
	t.replies = append(t.replies, kept.done)
}

// loaded takes over a task of a Go graph that is done, as it was stored. It reports whether that is all there is to do.
func (t *thread) loaded(k *task) bool {
	switch {
	case k.Ask != nil: // its task comes before it
		asker := t.tasks[k.Scope].Go
		asker.Journal = append(asker.Journal, entry{k.ID, k.Ask.Kind, k.Ask.Name, k.Value, k.Error})
		return true
	case k.Go != nil:
		t.unmerged += k.Go.size()
		return true
	}
	return false
}

// recall adds to the journal of a task what its calls have given since. Each entry has a row of its own, which is written
// once: that of a task that is done.
func (t *thread) recall(k *task, journal []entry) {
	for _, e := range journal[min(len(journal), len(k.Go.Journal)):] {
		held := t.add(k.Node, k.ID, 0, done)
		held.Ask, held.Value, held.Error = &wish{Kind: e.Kind, Name: e.Name}, e.Value, e.Error
		e.id = held.ID
		k.Go.Journal = append(k.Go.Journal, e)
	}
}

// unlearn drops the entries of a journal from one on.
func (t *thread) unlearn(k *task, from int) {
	for _, e := range k.Go.Journal[from:] {
		t.drop(t.tasks[e.id])
	}
	k.Go.Journal = append([]entry(nil), k.Go.Journal[:from]...) // what is dropped takes no memory
}

// returned notes how a node ended.
func (t *thread) returned(k *task, e *ending) {
	if k.Phase != running {
		return
	}
	t.recall(k, e.journal)
	if e.panicked != "" {
		t.r.Log().Error("a node of a workflow panicked", "run", t.r.ID(), "workflow", t.row.Workflow, "node", k.Node, "panic", e.panicked)
	}
	switch {
	case e.asked != nil:
		t.enter(k, open)
		t.spawn(k.Node, k.ID, 0).Ask = e.asked
	case e.cancelled:
		t.takeBack(k)
	case e.err != nil:
		t.broke(k, problemOf(e.err).at(k.Node))
	default:
		k.Go.Writes, k.Go.Dispatch = e.writes, e.dispatch
		size := k.Go.size()
		if t.unmerged+size > t.p.MaxStateBytes {
			k.Go.Writes, k.Go.Dispatch = nil, nil
			t.broke(k, trouble(fault.StateTooLarge, "The nodes of a superstep write and dispatch more than the %d bytes that the state may have.", t.p.MaxStateBytes).at(k.Node))
			return
		}
		t.unmerged += size
		t.unlearn(k, 0) // it does not run again
		t.enter(k, done)
		t.said(k, "completed")
	}
}

// presentable is the text of a program's error without known secrets, and not longer than an error may be.
func (t *thread) presentable(text string) string { return journal.Clip(t.r.Redact(text), 2000) }

// broke handles the failure of a node: by another attempt, or the superstep fails when its other tasks have ended.
func (t *thread) broke(k *task, p *problem) {
	p.Message = t.presentable(p.Message)
	t.unlearn(k, k.Go.settled())
	n := t.node(k)
	if t.r.Context().Err() == nil && t.retries(n, k, p) {
		k.Due = t.now() + backoff(n.Retry, k.Attempt-k.Past)
		k.Attempt++
		t.enter(k, retrying)
		t.step(k, "retrying")
		return
	}
	k.Error = p
	t.enter(k, failed)
	t.said(k, "failed")
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
	switch k.Ask.Kind {
	case pausePlain, pauseBefore, pauseAfter: // is resumed by the name of its node or, where that is taken, its own
		if k.Ask.Name = k.Node; t.taken(k, k.Node) {
			k.Ask.Name += "#" + k.callID()
		}
	}
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
		terms := journal.Terms{Expires: time.Duration(k.Ask.ExpiresMs) * time.Millisecond, Approvers: k.Ask.Approvers, Different: k.Ask.Different}
		t.wait(k, terms.Complete(t.request(k, n.Wait, args, ""), t.now(), t.row.StartedBy))
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
