package workflow

import (
	"encoding/json"
	"fmt"
	"slices"

	"maps"

	"agentd/server/event"
	"agentd/server/journal"
	"agentd/server/run"
	"agentd/server/span"
	"agentd/store"
)

// maxShown is how many bytes of state an event carries.
const maxShown = 16 << 10

// shownState is the state in an event.
type shownState struct {
	State   json.RawMessage `json:"state,omitempty"`
	Omitted bool            `json:"stateOmitted,omitempty"`
}

func (t *thread) shown() shownState { return t.later()() }

// later is shown for the state as it is now, whenever it is called.
func (t *thread) later() func() shownState {
	if t.size > maxShown {
		return func() shownState { return shownState{Omitted: true} }
	}
	values := t.held()
	return func() shownState {
		if state := encoded(values); len(state) <= maxShown {
			return shownState{State: state}
		}
		return shownState{Omitted: true}
	}
}

// checkpointID names a step of a thread.
func checkpointID(thread string, step int) string { return fmt.Sprintf("cp-%s-%d", thread, step) }

type taskFields struct {
	Step    int            `json:"stepNumber"`
	Task    string         `json:"taskId"`
	Node    string         `json:"nodeName"`
	Status  string         `json:"status,omitempty"`
	Attempt int            `json:"attempt,omitempty"`
	Child   string         `json:"childRunId,omitempty"`
	Took    *int64         `json:"durationMs,omitempty"`
	Error   *journal.Error `json:"error,omitempty"`
}

// began notes that a task has begun. The next commit says so, or the event of its end, if that comes before.
func (t *thread) began(k *task) { k.begun = !k.Said }

// start is what the event says of a task that has begun.
func (t *thread) startOf(k *task) taskFields {
	attempt := 0
	if k.Attempt > 1 {
		attempt = k.Attempt
	}
	return taskFields{Step: t.row.Step + 1, Task: k.callID(), Node: t.label(k), Attempt: attempt, Child: k.Child}
}

// sayBegun has the commit that is made say which tasks have begun.
func (t *thread) sayBegun() {
	for _, k := range t.waiting() {
		if k.begun {
			t.move().Say(event.WorkflowTaskStart, t.startOf(k))
			k.Said, k.begun = true, false
			t.change(k)
		}
	}
}

// said reports that a task has ended or waits.
func (t *thread) said(k *task, status string) {
	if asker := t.tasks[k.Scope]; k.Ask != nil && status == "paused" && asker != nil && asker.Go != nil {
		k = asker // the node waits, and runs again from its top
		defer func() { k.Said = false }()
	}
	m := t.move()
	long := k.Said || k.begun // else it takes no time, and no span
	if !k.Said {
		started := t.startOf(k)
		m.Shows(event.WorkflowTaskStart, eventWeight, func() any { return started })
		k.Said, k.begun = true, false
	}
	took := max(0, m.At-k.Began)
	f := taskFields{Step: t.row.Step, Task: k.callID(), Node: t.label(k), Status: status, Took: &took}
	if status == "failed" && k.Error != nil {
		f.Error = k.Error.shown()
	}
	m.Say(event.WorkflowTaskEnd, f)
	if w := t.w.opts.Metrics; w != nil && status != "paused" {
		if n := t.node(k); n != nil {
			w.WorkflowTasks.With(n.Kind, status).Inc()
		}
		if long {
			w.WorkflowTaskDuration.Observe(float64(took) / 1000)
		}
	}
	if status == "paused" || !long {
		return
	}
	s := span.Span{Type: span.Step, Name: t.label(k), Status: span.OK, Start: k.Began * 1e6, End: m.At * 1e6}
	s.Public("workflow.task", k.callID())
	s.Public("workflow.step", t.row.Step)
	switch {
	case status == "withdrawn":
		s.Status = span.Cancelled
	case k.Error != nil:
		s.Status, s.StatusMessage = span.Error, k.Error.Message
		s.Public("error.code", k.Error.Code)
	}
	m.Done.Below(s)
}

// step notes a checkpoint: what a task wrote, or that it failed or waits.
func (t *thread) step(k *task, status string) {
	if status == "retrying" { // the attempt is over, and the node is not
		t.said(k, "failed")
		k.Said = false
		return
	}
	t.row.Step++
	element := t.node(k) != t.g.Nodes[k.Node]
	if !element {
		t.showStart(t.row.Step)
	}
	body := stepBody{Writes: t.deltas}
	if status == "failed" {
		body.Error = k.Error
		if k.Error == nil {
			body.Error = k.Caught
		}
	}
	t.note(k, t.label(k), status, body)
	t.said(k, status)
	for _, key := range slices.Sorted(maps.Keys(t.deltas)) {
		t.updated(key, t.row.Step, t.values[key].raw)
	}
	t.deltas = nil
	if !element {
		t.checkpoint()
	}
}

// eventWeight is about how many bytes of memory an event keeps besides the state.
const eventWeight = 128

// showStart shows that a step begins.
func (t *thread) showStart(step int) {
	t.move().Shows(event.WorkflowStepStart, eventWeight, func() any { return map[string]int{"stepNumber": step} })
}

// note has the next commit write what a step did.
func (t *thread) note(k *task, label, status string, body stepBody) {
	if w := t.w.opts.Metrics; w != nil {
		w.WorkflowSteps.Inc()
	}
	m := t.move()
	t.steps = append(t.steps, store.ThreadStep{Step: t.row.Step, Events: m.Run.Events, Spans: m.Run.Spans, Task: k.ID, Node: label, Status: status, At: m.At, Body: encoded(body)})
}

// updated shows what a step made of a key of the state.
func (t *thread) updated(key string, version int, value json.RawMessage) {
	step := t.row.Step
	if len(value) > maxShown {
		value = nil
	}
	t.move().Shows(event.WorkflowUpdate, eventWeight+len(value), func() any {
		update := map[string]any{"stepNumber": step, "channel": key, "version": version}
		if value != nil {
			update["value"] = value
		}
		return update
	})
}

// checkpoint reports the end of a step.
func (t *thread) checkpoint() {
	m, thread, step, state := t.move(), t.row.ID, t.row.Step, t.later()
	m.Shows(event.WorkflowCheckpoint, eventWeight, func() any {
		return map[string]any{"checkpointId": checkpointID(thread, step), "stepNumber": step}
	})
	m.Shows(event.WorkflowStepEnd, eventWeight+min(t.size, maxShown), func() any {
		return struct {
			Step int `json:"stepNumber"`
			shownState
		}{step, state()}
	})
}

// happening is what the audit chain records of a task.
type happening = run.Happening

// happened has the audit chain record something of a task.
func (t *thread) happened(k *task, typ string, add func(*happening)) {
	if !t.r.Audited() {
		return
	}
	h := run.Happening{Event: typ, RunID: t.r.ID(), SessionID: t.row.Session, AgentID: t.row.Workflow, ToolCallID: k.callID(), Step: t.row.Step}
	if n := t.node(k); n != nil {
		h.ToolName = n.Tool
	}
	if k.Approval != nil {
		h.ToolName, h.ArgsDigest = k.Approval.ToolName, k.Approval.ArgsDigest
	} else if k.Args != nil {
		h.ArgsDigest = journal.ArgsDigest(k.Args)
	}
	if add != nil {
		add(&h)
	}
	t.move().Happened(h)
}
