package agent

import (
	"encoding/json"
	"time"

	"agentd/server/message"
	"agentd/server/trace"
	"agentd/store"
)

// The spans of a run are written in the commits that end them, as one batch each. Those of a child belong to the trace
// of its root, below the call that the child is.

// span adds a span that has ended to a move.
func (m *move) span(parent string, s trace.Span) {
	if s.ID == "" {
		s.ID = trace.ID(m.row.N, trace.Other, m.row.Spans)
	}
	s.ParentID = parent
	m.spans = append(m.spans, s)
	m.row.Spans++
}

// batch is the stored form of the move's spans.
func (m *move) batch() []store.SpanBatch {
	if len(m.spans) == 0 {
		return nil
	}
	body, err := trace.Encode(m.spans)
	if err != nil {
		return nil // what cannot be told of a run must not keep it from being run
	}
	return []store.SpanBatch{{First: m.row.Spans - len(m.spans), At: m.at, Body: body}}
}

func nanos(ms int64) int64 { return ms * int64(time.Millisecond) }

// millis is the time of a run state, in milliseconds since 1970; 0 if it is none.
func millis(text string) int64 {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return 0
	}
	return at.UnixMilli()
}

// spanEnd adds the span of the run, which ends with the move, and of its last step if that ends with it.
func (m *move) spanEnd(r *run, steps []store.Step) {
	status := trace.OK
	switch m.row.Status {
	case store.Failed:
		status = trace.Error
	case store.Aborted:
		status = trace.Cancelled
	}
	if n := len(steps); n > 0 && steps[n-1].Ended == 0 {
		m.spanStep(r, steps[n-1], status)
	}
	s := trace.Span{Type: trace.Run, ID: trace.ID(m.row.N, trace.OfRun, 0), Name: m.row.Owner, Status: status,
		Start: nanos(m.row.Created), End: nanos(m.at)}
	s.Public("run.id", m.row.ID)
	s.Public("run.status", string(m.row.Status))
	s.Public("run.attempts", m.row.Attempt)
	s.Public("run.steps", m.row.Step)
	s.Public("agent.id", m.row.Owner)
	s.Internal("session.id", m.row.Session)
	s.Internal("user.id", m.row.User)
	if e := new(RunError); m.row.Error != nil && json.Unmarshal(m.row.Error, e) == nil {
		s.Public("error.code", e.Code)
		s.StatusMessage = e.Message
	}
	used(&s, m.row.Usage)
	parent := ""
	if m.row.Parent != 0 {
		parent = trace.ID(m.row.Parent, trace.OfCall, m.row.ParentCall)
	}
	m.span(parent, s)
}

func used(s *trace.Span, usage json.RawMessage) {
	var u message.Usage
	if usage == nil || json.Unmarshal(usage, &u) != nil {
		return
	}
	s.Public("usage.promptTokens", u.PromptTokens)
	s.Public("usage.completionTokens", u.CompletionTokens)
	if u.Cost != nil {
		s.Public("usage.cost", u.Cost.Amount)
	}
}

// spanStep adds the span of a step that ends with the move.
func (m *move) spanStep(r *run, step store.Step, status string) {
	s := trace.Span{Type: trace.Step, ID: trace.ID(m.row.N, trace.OfStep, step.Number), Name: "step", Status: status,
		Start: nanos(step.Started), End: nanos(m.at)}
	s.Public("step.number", step.Number)
	s.Public("step.resumed", step.Resumed)
	m.span(trace.ID(m.row.N, trace.OfRun, 0), s)
}

// noteModel remembers the span of a model call, which the next commit writes.
func (r *run) noteModel(model Model, step int, began time.Time, err error) {
	s := trace.Span{Type: trace.Provider, Name: model.Model, Status: trace.OK, Start: began.UnixNano(), End: began.Add(time.Since(began)).UnixNano()}
	if err != nil {
		told := r.e.runError(err)
		s.Status, s.StatusMessage = trace.Error, told.Message
		s.Public("error.code", told.Code)
		if r.ctx.Err() != nil {
			s.Status = trace.Cancelled
		}
	}
	s.Public("step.number", step)
	s.Public("provider", model.Provider.Name())
	s.Public("model", model.Model)
	s.ParentID = trace.ID(r.row.N, trace.OfStep, step)
	r.ended = append(r.ended, s)
}

// tellModel completes the span of the model call that was answered with the message at an index.
func (r *run) tellModel(index int, usage json.RawMessage) {
	if n := len(r.ended); n > 0 {
		r.ended[n-1].Message = &index
		used(&r.ended[n-1], usage)
	}
}

// adopt takes over the spans that were remembered.
func (m *move) adopt(r *run) {
	for _, s := range r.ended {
		m.span(s.ParentID, s)
	}
	r.ended = nil
}

// spanCall adds the span of a call that is settled by the move. A hand-off has one of its own type.
func (m *move) spanCall(r *run, w *work, c *store.Call, t agentTool) {
	o := &w.res.Outcome
	s := trace.Span{Type: trace.Tool, ID: trace.ID(m.row.N, trace.OfCall, c.Index), Name: c.Name, Status: trace.OK,
		Start: w.began.UnixNano(), End: w.began.Add(w.took).UnixNano(), Message: new(c.Answered)}
	if t.handoff {
		s.Type = trace.Handoff
	}
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
	s.Public("child.agentId", t.agent)
	m.span(trace.ID(m.row.N, trace.OfStep, c.Step), s)
}

// spanApproval adds the span of an approval that was given or refused.
func (m *move) spanApproval(r *run, a Approval, step int, d Decided) {
	s := trace.Span{Type: trace.Approval, Name: a.ToolName, Status: trace.OK, Start: nanos(millis(a.RequestedAt)), End: nanos(m.at)}
	s.Public("tool.name", a.ToolName)
	s.Public("tool.callId", a.ToolCallID)
	s.Public("approval.granted", d.Granted)
	s.Public("approval.denied", !d.Granted)
	s.Internal("approval.by", d.By)
	s.Internal("approval.reason", d.Reason)
	parent := trace.ID(m.row.N, trace.OfStep, step)
	if step == 0 { // an opaque agent's
		parent = trace.ID(m.row.N, trace.OfRun, 0)
	}
	m.span(parent, s)
}

// spanResumed adds the spans of a pause that ends and of the moment in which it does.
func (m *move) spanResumed(r *run, why string) {
	run := trace.ID(m.row.N, trace.OfRun, 0)
	since := int64(0)
	for _, a := range r.rec.pending {
		if at := millis(a.RequestedAt); at != 0 && (since == 0 || at < since) {
			since = at
		}
	}
	if since != 0 {
		s := trace.Span{Type: trace.Suspend, Name: "suspend", Status: trace.OK, Start: nanos(since), End: nanos(m.at)}
		s.Public("run.id", m.row.ID)
		s.Public("approvals", len(r.rec.pending))
		m.span(run, s)
	}
	s := trace.Span{Type: trace.Resume, Name: "resume", Status: trace.OK, Start: nanos(m.at), End: nanos(m.at)}
	s.Public("resume.reason", why)
	m.span(run, s)
}

// timed executes a plain tool and measures it.
func (a *LLM) timed(r *run, j job) work {
	w := work{call: j.call, began: time.Now()}
	if j.altered {
		w.res = alteredOutcome(&j.call)
	} else {
		w.res = a.Tools.Execute(r.ctx, j.call.Name, j.make)
	}
	w.took = time.Since(w.began)
	return w
}
