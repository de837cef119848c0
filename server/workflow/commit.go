package workflow

import (
	"maps"
	"slices"
	"time"

	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/run"
	"agentd/store"
)

// dirty reports whether there is something to commit.
func (t *thread) dirty() bool {
	return len(t.touched) > 0 || len(t.dropped) > 0 || len(t.steps) > 0 || len(t.used) > 0 || len(t.kept) > 0 || len(t.also) > 0 ||
		t.m != nil && len(t.m.Events) > 0
}

const (
	// rebaseAfter bounds how many steps are read besides the bases of the state.
	rebaseAfter = 1024
	// rebaseLeast keeps small states from being written again and again.
	rebaseLeast = 16 << 10
	// foldEvery is how many steps more than keepSteps there may be before the oldest fold into the bases.
	foldEvery = 128
)

// seal completes the move: the rows of the thread are written in its transaction.
func (t *thread) seal() *run.Move {
	m := t.move()
	t.sayBegun()
	m.Run.Step = t.row.Step
	if len(t.steps) > 0 {
		m.Progress()
	}
	c := store.ThreadChange{Thread: t.row, Steps: t.steps, Used: t.used, Answers: t.kept, Ended: t.dropped, Fresh: t.fresh}
	c.Thread.Updated = m.At
	untouched := t.untouched()
	for _, id := range slices.Sorted(maps.Keys(t.touched)) {
		if k := t.tasks[id]; k != nil && !untouched {
			c.Tasks = append(c.Tasks, store.ThreadTask{ID: id, Body: encoded(k)})
		}
	}
	if pending := t.pending(); len(pending) > 0 || len(t.r.Record.Pending) > 0 {
		if shown, err := message.Encode(pending); err == nil && !slices.EqualFunc(pending, t.r.Record.Pending, sameApproval) {
			m.Slot(store.PendingSlot, shown)
		}
	}
	changed, size := 0, 0
	for _, v := range t.values {
		if v.since > 0 {
			changed, size = changed+v.since, size+len(v.raw)
		}
	}
	fold := 0
	if t.row.Step-t.row.Folded >= t.g.KeepSteps+foldEvery {
		fold = t.row.Step - t.g.KeepSteps
	}
	if changed > max(rebaseLeast, size) || t.row.Step-t.row.Base > rebaseAfter || fold > t.row.Base || t.moved {
		for _, key := range slices.Sorted(maps.Keys(t.values)) {
			if v := t.values[key]; v.since > 0 {
				c.Values = append(c.Values, store.ThreadValue{Key: key, Step: t.row.Step, Value: v.raw})
				v.since = 0
			}
		}
		t.row.Base, c.Thread.Base = t.row.Step, t.row.Step
	}
	if fold > 0 {
		t.row.Folded, c.Thread.Folded = fold, fold
	}
	var keep map[string]bool
	sweep := (fold > 0 || t.sweep) && !t.closes
	if sweep {
		keep = t.hosting()
	}
	also := t.also
	write := func(tx *store.Tx, n int64) error {
		c := c
		if c.Thread.N == 0 {
			c.Thread.N = n
		}
		c.Thread.Run, c.Status, c.Was = n, m.Run.Status, t.r.Row.Status
		for i := range c.Steps {
			c.Steps[i].Run = n
		}
		if err := t.w.threads.Apply(tx, &c); err != nil {
			return err
		}
		if fold > 0 {
			if err := t.w.threads.Fold(tx, c.Thread.N, fold); err != nil {
				return err
			}
		}
		if sweep {
			erased, more, err := t.w.threads.FoldHosted(tx, c.Thread.N, keep)
			if err == nil {
				t.forget, err = t.w.kernel.Erased(tx, erased)
			}
			if t.sweep = more; err != nil {
				return err
			}
		}
		for _, fn := range also {
			if err := fn(tx); err != nil {
				return err
			}
		}
		return nil
	}
	if t.first {
		t.then = write
	} else {
		n := t.r.Row.N
		m.Also(func(tx *store.Tx) error { return write(tx, n) })
	}
	return m
}

// hosting names the hosted runs that open tasks may look at again, each by its id or its origin.
func (t *thread) hosting() map[string]bool {
	runs := map[string]bool{}
	for _, k := range t.tasks {
		if k.Child != "" && k.Phase != done {
			runs[k.Child] = true
		}
		if k.Phase == hosting {
			runs[journal.HostedOrigin(t.r.ID(), k.callID())] = true
		}
	}
	return runs
}

// sameApproval reports whether two approvals are the same and have the same votes.
func sameApproval(a, b journal.Approval) bool {
	return a.Same(b) && slices.Equal(a.GrantedBy, b.GrantedBy)
}

// committed notes that the move is durable.
func (t *thread) committed(n int64) {
	for _, reply := range t.replies {
		reply <- nil
	}
	t.replies = nil
	if t.forget != nil {
		t.forget()
		t.forget = nil
	}
	if t.row.N == 0 {
		t.row.N = n
	}
	t.row.Run = n
	if t.stored = t.row.Tasks; t.untouched() {
		t.stored = 0
	}
	t.row.Version++
	clear(t.touched)
	t.heldAt, t.urgent = time.Time{}, false
	t.m, t.steps, t.used, t.kept, t.also, t.dropped, t.fresh, t.first, t.moved, t.unheard = nil, nil, nil, nil, nil, nil, false, false, false, false
}

// commit makes durable what has happened.
func (t *thread) commit() error {
	m := t.seal()
	if err := t.r.Commit(m); err != nil {
		return err
	}
	t.committed(t.r.Row.N)
	return nil
}
