package run

import (
	"cmp"
	"encoding/json"
	"time"

	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/trace"
	"agentd/store"
)

// The spans of a run are written in the commits that end them, as one batch each. Those of a child belong to the trace
// of its root, below the call that the child is.

// Span adds a span that has ended to a move.
func (m *Move) Span(parent string, s trace.Span) {
	s.ID = cmp.Or(s.ID, trace.ID(m.Run.N, trace.Other, m.Run.Spans))
	s.ParentID = parent
	m.spans = append(m.spans, s)
	m.Run.Spans++
}

func nanos(ms int64) int64 { return ms * int64(time.Millisecond) }

// spanEnd adds the span of the run, which ends with the move, and of its last step if that ends with it.
func (m *Move) spanEnd(r *Run, steps []store.Step) {
	status := trace.OK
	switch m.Run.Status {
	case store.Failed:
		status = trace.Error
	case store.Aborted:
		status = trace.Cancelled
	}
	if n := len(steps); n > 0 && steps[n-1].Ended == 0 {
		m.spanStep(steps[n-1], status)
	}
	s := trace.Span{Type: trace.Run, ID: trace.ID(m.Run.N, trace.OfRun, 0), Name: m.Run.Owner, Status: status,
		Start: nanos(m.Run.Created), End: nanos(m.At)}
	s.Public("run.id", m.Run.ID)
	s.Public("run.status", string(m.Run.Status))
	s.Public("run.attempts", m.Run.Attempt)
	s.Public("run.steps", m.Run.Step)
	s.Public("agent.id", m.Run.Owner)
	s.Internal("session.id", m.Run.Session)
	s.Internal("user.id", m.Run.User)
	if e := new(journal.Error); m.Run.Error != nil && json.Unmarshal(m.Run.Error, e) == nil {
		s.Public("error.code", e.Code)
		s.StatusMessage = e.Message
	}
	SpanUsage(&s, cmp.Or(m.used, r.used).total)
	parent := ""
	if m.Run.Parent != 0 {
		parent = trace.ID(m.Run.Parent, trace.OfCall, m.Run.ParentCall)
	}
	m.Span(parent, s)
}

// SpanUsage adds to a span what was used in it.
func SpanUsage(s *trace.Span, u message.Usage) {
	s.Public("usage.promptTokens", u.PromptTokens)
	s.Public("usage.completionTokens", u.CompletionTokens)
	if u.Cost != nil {
		s.Public("usage.cost", u.Cost.Amount)
	}
}

// spanStep adds the span of a step that ends with the move.
func (m *Move) spanStep(step store.Step, status string) {
	s := trace.Span{Type: trace.Step, ID: trace.ID(m.Run.N, trace.OfStep, step.Number), Name: "step", Status: status,
		Start: nanos(step.Started), End: nanos(m.At)}
	s.Public("step.number", step.Number)
	s.Public("step.resumed", step.Resumed)
	m.Span(trace.ID(m.Run.N, trace.OfRun, 0), s)
}

// spanCall adds the span of a call that the move settles.
func (m *Move) spanCall(w *work, c *store.Call) {
	o := &w.res.Outcome
	s := trace.Span{Type: cmp.Or(w.Span, trace.Tool), ID: trace.ID(m.Run.N, trace.OfCall, c.Index), Name: c.Name, Status: trace.OK,
		Start: w.began.UnixNano(), End: w.began.Add(w.took).UnixNano(), Message: new(c.Answered)}
	if o.Failed() {
		s.Status = trace.Error
		if o.Kind == message.AbortedCall {
			s.Status = trace.Cancelled
		}
		s.Public("tool.errorKind", string(o.Kind))
	}
	s.Public("tool.name", c.Name)
	s.Public("tool.callId", c.ID)
	s.Public("tool.attempts", c.Attempts)
	s.Public("child.runId", c.Child)
	if w.Child != nil {
		s.Public("child.agentId", w.Child.Owner)
	}
	m.Span(trace.ID(m.Run.N, trace.OfStep, c.Step), s)
}

// spanApproval adds the span of an approval that was given or refused; step is 0 where a program asked for it.
func (m *Move) spanApproval(a journal.Approval, step int, d journal.Decided) {
	s := trace.Span{Type: trace.Approval, Name: a.ToolName, Status: trace.OK, Start: nanos(journal.Millis(a.RequestedAt)), End: nanos(m.At)}
	s.Public("tool.name", a.ToolName)
	s.Public("tool.callId", a.ToolCallID)
	s.Public("approval.granted", d.Granted)
	s.Public("approval.denied", !d.Granted)
	s.Internal("approval.by", d.By)
	s.Internal("approval.reason", d.Reason)
	parent := trace.ID(m.Run.N, trace.OfStep, step)
	if step == 0 {
		parent = trace.ID(m.Run.N, trace.OfRun, 0)
	}
	m.Span(parent, s)
}

// spanResumed adds the spans of a pause that ends and of the moment in which it does.
func (m *Move) spanResumed(r *Run, why string) {
	run := trace.ID(m.Run.N, trace.OfRun, 0)
	since := int64(0)
	for _, a := range r.Record.Pending {
		if at := journal.Millis(a.RequestedAt); at != 0 && (since == 0 || at < since) {
			since = at
		}
	}
	if since != 0 {
		s := trace.Span{Type: trace.Suspend, Name: "suspend", Status: trace.OK, Start: nanos(since), End: nanos(m.At)}
		s.Public("run.id", m.Run.ID)
		s.Public("approvals", len(r.Record.Pending))
		m.Span(run, s)
	}
	s := trace.Span{Type: trace.Resume, Name: "resume", Status: trace.OK, Start: nanos(m.At), End: nanos(m.At)}
	s.Public("resume.reason", why)
	m.Span(run, s)
}
