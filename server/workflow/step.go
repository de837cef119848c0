package workflow

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"maps"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/message"
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

var stateOmitted = shownState{Omitted: true}

func (t *thread) shown() shownState {
	state := t.stateJSON(maxShown)
	return shownState{state, state == nil}
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

// began reports that a task has begun.
func (t *thread) began(k *task) {
	attempt := 0
	if k.Attempt > 1 {
		attempt = k.Attempt
	}
	t.move().Say(event.WorkflowTaskStart, taskFields{Step: t.row.Step + 1, Task: k.callID(), Node: t.label(k), Attempt: attempt, Child: k.Child})
	k.Said = true
}

// said reports that a task has ended or waits.
func (t *thread) said(k *task, status string) {
	if asker := t.tasks[k.Scope]; k.Ask != nil && status == "paused" && asker != nil && asker.Go != nil {
		k = asker // the node waits, and runs again from its top
		defer func() { k.Said = false }()
	}
	m := t.move()
	long := k.Said // else it takes no time, and no span
	if !long {
		t.began(k)
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
	m := t.move()
	if status == "retrying" { // the attempt is over, and the node is not
		t.said(k, "failed")
		k.Said = false
		return
	}
	t.row.Step++
	element := t.node(k) != t.g.Nodes[k.Node]
	if !element {
		m.Transient(event.New(event.WorkflowStepStart, map[string]int{"stepNumber": t.row.Step}))
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
	update := map[string]any{"stepNumber": t.row.Step, "channel": key, "version": version}
	if len(value) <= maxShown {
		update["value"] = value
	}
	t.move().Transient(event.New(event.WorkflowUpdate, update))
}

// checkpoint reports the end of a step.
func (t *thread) checkpoint() {
	m := t.move()
	m.Transient(event.New(event.WorkflowCheckpoint, map[string]any{"checkpointId": checkpointID(t.row.ID, t.row.Step), "stepNumber": t.row.Step}))
	type ended struct {
		Step int `json:"stepNumber"`
		shownState
	}
	m.Emit(event.New(event.WorkflowStepEnd, ended{t.row.Step, t.shown()}), -1, ended{t.row.Step, stateOmitted})
}

// happening is what the audit chain records of a task.
type happening = run.Happening

// happened has the audit chain record something of a task.
func (t *thread) happened(k *task, typ string, add func(*happening)) {
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

// shown is a problem as runs show it.
func (p *problem) shown() *journal.Error {
	f := p.fault()
	return &journal.Error{Message: f.Message, Code: f.Kind.Code, Hint: f.NextStep()}
}

// problemOfOutcome makes a problem of how a call ended.
func problemOfOutcome(o *message.Outcome) *problem {
	code := strings.ReplaceAll(string(o.Kind), "_", "-")
	switch o.Kind {
	case message.Timeout:
		code = fault.NodeTimeout.Code
	case message.ExecutionFailed:
		code = fault.NodeFailed.Code
	}
	return &problem{Code: code, Message: o.Message, Hint: o.Hint}
}
