package workflow

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"agentd/server/fault"
	"agentd/server/run"
	"agentd/store"
)

// A letter asks a thread for something. Its sender gets one reply: after the commit that makes it count, or when it is
// refused.
type letter struct {
	do    func(t *thread) error // changes the thread, or returns why it does not
	why   string                // the span of the resumption says
	also  func(*store.Tx) error
	reply chan error
}

// Refuse is a part of [run.Letter].
func (l *letter) Refuse(err error) { l.reply <- err }

func newLetter(why string, also func(*store.Tx) error, do func(t *thread) error) *letter {
	return &letter{do: do, why: why, also: also, reply: make(chan error, 1)}
}

// send gives a letter to a run and waits for the reply.
func (w *Workflows) send(ctx context.Context, runID string, l *letter) error {
	if err := w.kernel.Post(ctx, runID, l); err != nil {
		return err
	}
	select {
	case err := <-l.reply:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// open acts upon the letters that wait. Each that counts has a commit of its own, together with what had happened before.
func (t *thread) open() error {
	for _, l := range t.r.Letters() {
		switch l := l.(type) {
		case *run.Due:
			t.unheard = true
			t.tick()
		case *letter:
			if err := t.heed(l); err != nil {
				return err
			}
		default:
			l.Refuse(fault.New(fault.RunNotSuspended, "The run does not know the letter."))
		}
	}
	return nil
}

// tick does what is due. A thread whose pinned version has changed is blocked instead.
func (t *thread) tick() {
	if t.row.Blocked == notRegistered { // an earlier process lacked the workflow
		t.row.Blocked = ""
		t.touch()
	}
	if due := t.due(); due != 0 && due <= t.now() {
		if err := t.pinned(false); err != nil {
			if t.row.Blocked = fault.Of(err).Kind.Code; t.m == nil {
				t.m = t.r.Move() // a run that is parked stays so
			}
			t.also = append(t.also, func(*store.Tx) error { return nil })
			return
		}
	}
	t.look()
	t.elapse()
}

// heed acts upon one letter. An error ends the drive.
func (t *thread) heed(l *letter) error {
	if t.dirty() {
		if err := t.commit(); err != nil {
			l.reply <- err
			return err
		}
	}
	t.why = l.why
	err := l.do(t)
	if err == nil && l.also != nil {
		t.also = append(t.also, l.also)
	}
	if err == nil && t.dirty() {
		if err = t.commit(); errors.Is(err, run.ErrLeft) {
			if f, ok := errors.AsType[*fault.Error](err); !ok || f.Kind == fault.StorageFailed || f.Kind == fault.StorageCorrupt {
				l.reply <- err
				return err
			}
		}
	}
	t.why = ""
	l.reply <- err
	if err != nil {
		return t.reload()
	}
	return nil
}

// reload forgets what has not been committed.
func (t *thread) reload() error {
	if !t.dirty() && t.m == nil {
		return nil
	}
	var again *thread
	err := t.w.runs.View(context.WithoutCancel(t.r.Context()), func(tx *store.Tx) error {
		row, err := t.w.threads.Number(tx, t.row.N)
		if err == nil {
			again, err = t.w.load(tx, row)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%w: %w", run.ErrLeft, err)
	}
	again.r, again.inFlight, again.results, again.late, again.over, again.unheard, again.nodes = t.r, t.inFlight, t.results, t.late, t.over, t.unheard, t.nodes
	*t = *again
	return nil
}

// pinned returns why the thread may not continue under the workflow as it is now; nil where it may. With move, it moves to
// that.
func (t *thread) pinned(move bool) error {
	reg := t.w.registration(t.row.Workflow)
	if reg == nil || reg.graph == nil {
		return nil
	}
	now := reg.graph
	if !move {
		switch {
		case t.row.Pin != "" && now.Form.Version != "" && now.Form.Version != t.row.Pin:
			return fault.New(fault.WorkflowVersionMismatch, "The thread began with version %q of the workflow; now it is %q.", t.row.Pin, now.Form.Version).
				With("threadId", t.row.ID).With("recorded", t.row.Pin).With("current", now.Form.Version)
		case t.p != nil && !bytes.Equal(now.Digest, t.row.Digest):
			return fault.New(fault.WorkflowVersionMismatch, "The nodes, edges or channels of the workflow %q have changed since the thread began.", t.row.Workflow).With("threadId", t.row.ID)
		}
		return nil
	}
	if bytes.Equal(now.Digest, t.row.Digest) && t.row.Pin == now.Form.Version {
		return nil
	}
	if node := t.gone(); node != "" {
		return fault.New(fault.WorkflowDivergence, "The thread stands at the node %q, which the workflow no longer has.", node).With("threadId", t.row.ID).With("nodeName", node)
	}
	for _, id := range t.ids() {
		k := t.tasks[id]
		if k.Node == "end" || t.p != nil {
			continue
		}
		n, before := now.Nodes[k.Node], t.g.Nodes[k.Node]
		if n == nil || before != nil && (n.Kind != before.Kind || n.Parallel != before.Parallel || n.Branch != before.Branch || n.Kind == "map" && n.Do.Kind != before.Do.Kind) {
			return fault.New(fault.WorkflowDivergence, "The thread stands at the node %q, which the workflow no longer has in this form.", k.Node).
				With("threadId", t.row.ID).With("nodeName", k.Node)
		}
	}
	for key, v := range t.values {
		if now.Keys[key] == nil && string(v.raw) == "null" {
			delete(t.values, key)
		}
	}
	for key, k := range now.Keys {
		if t.values[key] == nil {
			t.values[key] = &value{raw: k.Initial}
			t.size += len(k.Initial)
		}
	}
	for _, v := range t.values {
		v.since = max(v.since, 1) // all bases are written anew: merges may be others
	}
	t.g, t.moved = now, true
	t.row.Digest, t.row.Pin = now.Digest, now.Form.Version
	return nil
}

// unblock checks the version for somebody who resumes the thread.
func (t *thread) unblock(move bool) error {
	if err := t.pinned(move); err != nil {
		return err
	}
	if t.row.Blocked != "" {
		t.row.Blocked = ""
		t.touch()
		t.elapse()
	}
	return nil
}

// touch has the next commit write the thread, also where no task changes.
func (t *thread) touch() {
	t.move()
	t.also = append(t.also, func(*store.Tx) error { return nil })
}
