package agent

import (
	"encoding/json"
	"errors"
	"slices"
	"time"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/provider"
	"agentd/server/run"
	"agentd/server/span"
)

// answer asks the models of the chain in turn until one finishes.
func (l *loop) answer(step int) (*provider.Response, error) {
	for i, model := range l.Models {
		began := time.Now()
		l.modelCalls = max(l.Row.Spans, l.modelCalls) + 1 // no span of the run has this number: each call ends one
		res, err := l.stream(model, step)
		l.noteModel(model, step, began, err)
		if err == nil {
			return res, nil
		}
		if l.Context().Err() != nil || errors.Is(err, run.ErrLeft) {
			return nil, err
		}
		kind := fault.Of(err).Kind
		if i == len(l.Models)-1 || !slices.Contains(eligible, kind) {
			l.Log().Warn("model call failed", "run", l.Row.ID, "agent", l.Row.Owner, "model", model.Model, "error", err)
			return nil, err
		}
		m := l.Move()
		m.Say(event.AgentFellback, fellback{l.Row.ID, l.Row.Session, l.Row.Owner, model.Model, l.Models[i+1].Model, kind.Code, step, i + 1})
		if err := l.Commit(m); err != nil {
			return nil, err
		}
	}
	return nil, fault.New(fault.NoProviderCompleted, "The agent has no model.")
}

type fellback struct {
	RunID      string `json:"runId"`
	SessionID  string `json:"sessionId"`
	AgentID    string `json:"agentId"`
	From       string `json:"from"`
	To         string `json:"to"`
	Reason     string `json:"reason"` // the code of a fault
	StepNumber int    `json:"stepNumber"`
	Attempt    int    `json:"attempt"`
}

// eligible are the failures after which another model may do better. A provider has retried what is transient; whoever
// declares a fallback wants it used then.
var eligible = []*fault.Kind{fault.RateLimit, fault.Capacity, fault.ContextLength, fault.Transient}

// stream makes one model call and publishes its deltas.
func (l *loop) stream(model Model, step int) (*provider.Response, error) {
	if err := l.show(); err != nil {
		return nil, err
	}
	req := &provider.Request{
		Model: model.Model, Messages: l.shown[:len(l.shown):len(l.shown)], Tools: l.specs(), ToolChoice: l.ToolChoice,
		Temperature: l.Temperature, MaxTokens: l.MaxTokens,
		Meta: provider.Meta{RunID: l.Row.ID, AgentID: l.Row.Owner, StepNumber: step},
	}
	if l.Output != nil {
		req.Output = &l.Output.Spec
	}
	h := &holder{r: l.Run}
	begun := time.Now()
	res, err := model.Provider.Stream(l.Within(span.OfRun, l.modelCalls), req, h.take)
	l.Metrics().ProviderLatency.With(model.Model).Observe(time.Since(begun).Seconds())
	if l.NewTape != nil {
		l.record(model, req, begun, res, err)
	}
	if h.failed != nil {
		return nil, h.failed
	}
	if err != nil {
		return nil, errors.Join(err, h.flush())
	}
	l.held = h.move
	return res, nil
}

// holdFor is how long the start of a tool call may wait for company.
const holdFor = 5 * time.Millisecond

// holder publishes a model's deltas. The start of a tool call is durable, so it costs a commit; it is held back, and
// what follows it, until the next delta after holdFor. A model that has finished by then has its starts committed
// together with its answer.
type holder struct {
	r      *run.Run
	move   *run.Move // nil: nothing is held
	since  time.Time
	failed error
}

func (h *holder) take(d provider.Delta) {
	if h.failed != nil {
		return
	}
	if h.move != nil && time.Since(h.since) > holdFor {
		h.failed = h.flush()
	}
	switch d.Kind {
	case provider.TextDelta:
		h.pass(event.Delta(event.TextDelta, "delta", d.Text))
	case provider.ReasoningDelta:
		h.pass(event.Delta(event.ReasoningDelta, "delta", d.Text))
	case provider.CallStart:
		if h.move == nil {
			h.move, h.since = h.r.Move(), time.Now()
		}
		h.move.Say(event.ToolCallStart, journal.Head(d.CallID, d.ToolName))
	case provider.CallDelta:
		h.pass(event.New(event.ToolCallDelta, struct {
			ToolCallID string `json:"toolCallId"`
			ArgsDelta  string `json:"argsDelta"`
		}{d.CallID, d.Text}))
	}
}

func (h *holder) pass(ev event.Event) {
	if h.move != nil {
		h.move.Transient(ev)
		return
	}
	h.r.Transient(ev)
}

func (h *holder) flush() error {
	m := h.move
	h.move = nil
	if m == nil {
		return nil
	}
	return h.r.Commit(m)
}

// specs are the tools that the model is offered. read_result is one of them once there is something to read.
func (l *loop) specs() []provider.ToolSpec {
	var specs []provider.ToolSpec
	for _, s := range l.Tools.Specs() {
		if s.Name == message.ReadResultName && !l.spilt || l.Policy.hides(s.Name) {
			continue
		}
		specs = append(specs, provider.ToolSpec{Name: s.Name, Description: s.Description, Input: s.Input})
	}
	return specs
}

// show brings what the model is shown up to the run's latest message. The calls that it was shown before have their outcomes,
// so the messages since are added.
func (l *loop) show() (err error) {
	own := l.Record.Before(l.Row.Messages)
	if l.shown == nil {
		l.shown, err = Transcript(l.Record, l.Row.Messages)
	} else {
		own = own[len(l.Record.Before(l.until)):]
		l.shown = append(l.shown, fit(said(nil, own))...)
	}
	for _, e := range own {
		l.spilt = l.spilt || e.Outcome != nil && e.Outcome.ResultHandle != nil
	}
	l.until = l.Row.Messages
	return err
}

// Transcript is what a model is shown before the message with an index: the system prompt, the history, the run's own messages. Calls without an
// outcome and outcomes without a call, as aborted runs leave them, are taken out: servers refuse them.
func Transcript(rec *journal.Record, before int) ([]message.Message, error) {
	history, err := rec.Past.Messages()
	if err != nil {
		return nil, err
	}
	own := rec.Before(before)
	msgs := make([]message.Message, 0, len(history)+len(own))
	if len(own) > 0 && own[0].Message.Role == message.System {
		msgs = append(msgs, own[0].Message)
		own = own[1:]
	}
	msgs = append(msgs, history...)
	return fit(said(msgs, own)), nil
}

func said(msgs []message.Message, own []journal.Entry) []message.Message {
	for _, e := range own {
		msgs = append(msgs, e.Message)
	}
	return msgs
}

// fit makes messages fit for a model. It reuses the slice.
func fit(msgs []message.Message) []message.Message {
	msgs = slices.DeleteFunc(msgs, func(m message.Message) bool { return m.Withheld })
	for i := range msgs {
		if m := &msgs[i]; m.Caller {
			m.Content = message.Text(callerMark + m.Content.String())
		}
	}
	return paired(msgs)
}

// callerMark precedes what callers add to the instructions of an agent.
const callerMark = "The caller of this run, who is not the operator of this agent, adds:\n"

// paired drops tool calls without an answer and answers without a call. It reuses the slice.
func paired(msgs []message.Message) []message.Message {
	answered := map[string]bool{}
	for _, m := range msgs {
		if m.Role == message.Tool {
			answered[m.ToolCallID] = true
		}
	}
	asked := map[string]bool{}
	out := msgs[:0]
	for _, m := range msgs {
		switch {
		case m.Role == message.Tool && !asked[m.ToolCallID]:
			continue
		case len(m.ToolCalls) > 0:
			var calls []message.ToolCall
			for _, c := range m.ToolCalls {
				if answered[c.ID] {
					calls = append(calls, c)
					asked[c.ID] = true
				}
			}
			if m.ToolCalls = calls; len(calls) == 0 && m.Content.Parts == nil && m.Content.Text == "" {
				continue
			}
		}
		out = append(out, m)
	}
	return out
}

func textComplete(text string) event.Event {
	return event.New(event.TextComplete, struct {
		Text string `json:"text"`
	}{text})
}

func toolCallEnd(c message.ToolCall) event.Event {
	return event.New(event.ToolCallEnd, struct {
		ToolCallID string          `json:"toolCallId"`
		FinalArgs  json.RawMessage `json:"finalArgs"`
	}{c.ID, c.Args})
}

// noteModel adds the span of a model call to the next commit.
func (l *loop) noteModel(model Model, step int, began time.Time, err error) {
	s := &span.Span{Type: span.Provider, ID: span.ID(l.Row.N, span.OfRun, l.modelCalls), Name: model.Model, Status: span.OK, Start: began.UnixNano(), End: began.Add(time.Since(began)).UnixNano()}
	if err != nil {
		failure := l.Describe(err)
		s.Status, s.StatusMessage = span.Error, failure.Message
		s.Public("error.code", failure.Code)
		if l.Context().Err() != nil {
			s.Status = span.Cancelled
		}
	}
	s.Public("step.number", step)
	s.Public("provider", model.Provider.Name())
	s.Public("model", model.Model)
	l.span = s
	l.Later(func(m *run.Move) { m.Done.Add(span.ID(m.Run.N, span.OfStep, step), *s) })
}

// answered completes the span of the model call that was answered with the message at an index.
func (l *loop) answered(index int, used message.Usage) {
	l.span.Message = &index
	l.span.Used(used)
}
