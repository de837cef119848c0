package span

import (
	"cmp"
	"encoding/json"
	"time"

	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/tracecontext"
	"agentd/store"
)

// A Batch collects the spans that end with one commit of a run, at the time of the commit unless a method says otherwise.
// The spans of a child run belong to the trace of its root, below the call that started the child.
type Batch struct {
	run   *store.Run
	at    int64 // nanoseconds
	spans []Span
}

// In begins the batch of a commit that is made at a time in milliseconds since 1970. row is the run as the commit
// leaves it; the batch counts its spans there.
func In(row *store.Run, at int64) Batch { return Batch{run: row, at: nanos(at)} }

// Now moves the time of the commit on.
func (b *Batch) Now(at int64) { b.at = nanos(at) }

func nanos(ms int64) int64 { return ms * int64(time.Millisecond) }

// Add adds a span below another one of the run, and names it unless it has an id.
func (b *Batch) Add(parent string, s Span) {
	s.ID = cmp.Or(s.ID, ID(b.run.N, Other, b.run.Spans))
	s.ParentID = parent
	b.spans = append(b.spans, s)
	b.run.Spans++
}

// Below adds a span below that of the run.
func (b *Batch) Below(s Span) { b.Add(b.root(), s) }

// Encode returns the stored form of the batch, and empties it.
func (b *Batch) Encode() []store.SpanBatch {
	n := len(b.spans)
	if n == 0 {
		return nil
	}
	body, err := message.Encode(b.spans)
	b.spans = nil
	if err != nil { // a span that does not encode must not stop its run
		return nil
	}
	return []store.SpanBatch{{First: b.run.Spans - n, At: b.at / int64(time.Millisecond), Body: body}}
}

func (b *Batch) root() string { return ID(b.run.N, OfRun, 0) }

// End adds the span of the run, and that of its last step if the step ends with the run.
func (b *Batch) End(steps []store.Step, used message.Usage) {
	row, status := b.run, OK
	switch row.Status {
	case store.Failed:
		status = Error
	case store.Aborted:
		status = Cancelled
	}
	if n := len(steps); n > 0 && steps[n-1].Ended == 0 {
		b.Step(steps[n-1], status)
	}
	s := Span{Type: Run, ID: b.root(), Name: row.Owner, Status: status, Start: nanos(row.Created), End: b.at}
	s.Public("run.id", row.ID)
	s.Public("run.status", string(row.Status))
	s.Public("run.attempts", row.Attempt)
	s.Public("run.steps", row.Step)
	s.Public("agent.id", row.Owner)
	s.Internal("session.id", row.Session)
	s.Internal("user.id", row.User)
	if e := new(journal.Error); row.Error != nil && json.Unmarshal(row.Error, e) == nil {
		s.Public("error.code", e.Code)
		s.StatusMessage = e.Message
	}
	s.Used(used)
	parent := ""
	if row.Parent != 0 {
		parent = ID(row.Parent, OfCall, row.ParentCall)
	}
	b.Add(parent, s)
}

// Step adds the span of a step.
func (b *Batch) Step(step store.Step, status string) {
	s := Span{Type: Step, ID: ID(b.run.N, OfStep, step.Number), Name: "step", Status: status, Start: nanos(step.Started), End: b.at}
	s.Public("step.number", step.Number)
	s.Public("step.resumed", step.Resumed)
	b.Add(b.root(), s)
}

// Call adds the span of a settled call, of type Tool unless typ is set. It ended when it had taken so long; callee is the
// agent of the child run that made it.
func (b *Batch) Call(typ string, c *store.Call, o *message.Outcome, callee string, began time.Time, took time.Duration) {
	s := Span{Type: cmp.Or(typ, Tool), ID: ID(b.run.N, OfCall, c.Index), Name: c.Name, Status: OK,
		Start: began.UnixNano(), End: began.Add(took).UnixNano(), Message: new(c.Answered)}
	if o.Failed() {
		s.Status = Error
		if o.Kind == message.AbortedCall {
			s.Status = Cancelled
		}
		s.Public("tool.errorKind", string(o.Kind))
	}
	s.Public("tool.name", c.Name)
	s.Public("tool.callId", c.ID)
	s.Public("tool.attempts", c.Attempts)
	s.Public("child.runId", c.Child)
	s.Public("child.agentId", callee)
	b.Add(ID(b.run.N, OfStep, c.Step), s)
}

// Names of the public attributes that refer to a span of another trace.
const (
	LinkedTrace = "link.traceId"
	LinkedSpan  = "link.spanId"
)

// Decided adds the span of an approval; step is 0 when a program asked for it.
func (b *Batch) Decided(a journal.Approval, step int, d journal.Decided) {
	s := Span{Type: Approval, Name: a.ToolName, Status: OK, Start: nanos(journal.Millis(a.RequestedAt)), End: b.at}
	s.Public("tool.name", a.ToolName)
	s.Public("tool.callId", a.ToolCallID)
	s.Public("approval.granted", d.Granted)
	s.Public("approval.denied", !d.Granted)
	s.Internal("approval.by", d.By)
	s.Internal("approval.reason", d.Reason)
	parent := b.root()
	if step != 0 {
		parent = ID(b.run.N, OfStep, step)
	}
	b.Add(parent, s)
}

// Resumed adds the span of the pause in which the run waited for the approvals, if there are any, and that of its end.
// The latter refers to the span of the request that resumed the run, where by names one: the run stays in its own trace.
func (b *Batch) Resumed(pending []journal.Approval, why string, by tracecontext.Context) {
	since := int64(0)
	for _, a := range pending {
		if at := journal.Millis(a.RequestedAt); at != 0 && (since == 0 || at < since) {
			since = at
		}
	}
	if since != 0 {
		s := Span{Type: Suspend, Name: "suspend", Status: OK, Start: nanos(since), End: b.at}
		s.Public("run.id", b.run.ID)
		s.Public("approvals", len(pending))
		b.Add(b.root(), s)
	}
	s := Span{Type: Resume, Name: "resume", Status: OK, Start: b.at, End: b.at}
	s.Public("resume.reason", why)
	s.Public(LinkedTrace, by.TraceID)
	s.Public(LinkedSpan, by.SpanID)
	b.Add(b.root(), s)
}
