package workflow

import (
	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/message"
)

// due is when something of the thread is to happen by itself; 0: never.
func (t *thread) due() (first int64) {
	if t.row.Blocked != "" {
		return 0
	}
	soonest := func(at int64) {
		if at != 0 && (first == 0 || at < first) {
			first = at
		}
	}
	for _, k := range t.waits {
		if k.Phase == failed || k.Phase == withdrawn || k.Error != nil {
			continue
		}
		soonest(k.Due)
		soonest(k.Deadline)
		if k.Approval != nil {
			soonest(journal.Millis(k.Approval.ExpiresAt))
		}
	}
	soonest(t.deadline())
	return first
}

// deadline is when the time of the run is over; 0: never.
func (t *thread) deadline() int64 {
	if t.g.Timeout == 0 || t.r.Row.Started == 0 || t.late {
		return 0
	}
	return t.r.Row.Started + t.g.Timeout.Milliseconds()
}

// elapse does what is due.
func (t *thread) elapse() {
	now := t.now()
	if at := t.deadline(); at != 0 && at <= now {
		t.late = true
		t.expire()
	}
	for _, k := range t.waiting() {
		if t.waits[k.ID] != k || k.Phase == failed || k.Phase == withdrawn || k.Error != nil { // one before may have ended it
			continue
		}
		if w := t.w.opts.Metrics; w != nil && k.Due != 0 && k.Due <= now {
			w.WorkflowLateness.Observe(float64(now-k.Due) / 1000)
		}
		switch {
		case k.Phase == sleeping && k.Due <= now:
			k.Due = 0
			t.finish(k, nil)
		case k.Phase == retrying && k.Due <= now:
			k.Due = 0
			t.again(k)
		case k.Approval != nil && !k.doubtful() && expired(k.Approval, now):
			t.deny(k, journal.Decided{By: "expiry", At: message.Millis(now), Reason: "nobody decided before " + k.Approval.ExpiresAt})
		case k.Deadline != 0 && k.Deadline <= now && !k.doubtful():
			t.timeUp(k)
		}
	}
}

func expired(a *journal.Approval, now int64) bool {
	at := journal.Millis(a.ExpiresAt)
	return at != 0 && at <= now
}

// again begins a task once more, from where its node says.
func (t *thread) again(k *task) {
	k.Decided = nil
	if err := t.execute(k, t.node(k)); err != nil {
		t.fail(k, problemOf(err))
	}
}

// timeUp handles a node whose time is over.
func (t *thread) timeUp(k *task) {
	n := t.node(k)
	p := trouble(fault.NodeTimeout, "The node %q did not end within %v.", t.label(k), n.Timeout).at(t.label(k))
	t.change(k)
	switch k.Phase {
	case open:
		t.leave(k, p)
	case hosting:
		k.Error = p
		t.aborts = append(t.aborts, k.ID)
	case awaiting:
		if n.Late != "" {
			t.step(k, "completed")
			t.follow(k, n.Late)
			return
		}
		t.fail(k, p)
	default:
		t.fail(k, p)
	}
}

// expire fails the run because its time is over.
func (t *thread) expire() {
	p := trouble(fault.WorkflowTimeout, "The run did not end within %v.", t.g.Timeout)
	for _, id := range t.ids() {
		k := t.tasks[id]
		if k == nil || k.Scope != 0 || k.Phase == failed {
			continue
		}
		p.Node = t.label(k)
		t.over = p
		switch k.Phase {
		case open:
			t.leave(k, p)
		case calling: // start ends the run where it does not fail by this
			if cancel := t.inFlight[id]; cancel != nil {
				cancel(errNodeTime)
			}
		case hosting:
			k.Error = p
			t.change(k)
			t.aborts = append(t.aborts, k.ID)
		case asking:
			if k.doubtful() { // it fails when a person has said what became of the call
				k.Error = p
				t.change(k)
				continue
			}
			fallthrough
		default:
			k.Approval, k.Error = nil, p
			t.enter(k, failed)
			t.step(k, "failed")
			t.failing = p
		}
	}
}
