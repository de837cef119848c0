package agent

import (
	"encoding/json"
	"errors"
	"slices"
	"time"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/provider"
	"agentd/server/tool"
)

// answer asks the models of the chain in turn until one finishes.
func (a *LLM) answer(r *run, step int) (*provider.Response, error) {
	for i, model := range a.Models {
		began := time.Now()
		res, err := a.stream(r, model, step)
		r.noteModel(model, step, began, err)
		if err == nil {
			return res, nil
		}
		if r.ctx.Err() != nil || errors.Is(err, errLeft) {
			return nil, err
		}
		kind := fault.Of(err).Kind
		if i == len(a.Models)-1 || !slices.Contains(eligible, kind) {
			r.e.log.Warn("model call failed", "run", r.row.ID, "agent", r.row.Owner, "model", model.Model, "error", err)
			return nil, err
		}
		m := r.move()
		m.say(event.AgentFellback, fellback{r.row.ID, r.row.Session, r.row.Owner, model.Model, a.Models[i+1].Model, kind.Code, step, i + 1})
		if err := r.commit(m); err != nil {
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
func (a *LLM) stream(r *run, model Model, step int) (*provider.Response, error) {
	req := &provider.Request{
		Model: model.Model, Messages: r.rec.transcript(), Tools: a.specs(r), ToolChoice: a.ToolChoice,
		Temperature: a.Temperature, MaxTokens: a.MaxTokens,
		Meta: provider.Meta{RunID: r.row.ID, AgentID: r.row.Owner, SessionID: r.row.Session, UserID: r.row.User, StepNumber: step},
	}
	if a.Output != nil {
		req.Output = &a.Output.Spec
	}
	h := &holder{r: r}
	begun := time.Now()
	res, err := model.Provider.Stream(r.ctx, req, h.take)
	if a.Record {
		a.record(r, model, req, begun, res, err)
	}
	if h.failed != nil {
		return nil, h.failed
	}
	if err != nil {
		return nil, errors.Join(err, h.flush())
	}
	r.held = h.move
	return res, nil
}

// holdFor is how long the start of a tool call may wait for company.
const holdFor = 5 * time.Millisecond

// holder publishes a model's deltas. The start of a tool call is durable, so it costs a commit; it is held back, and
// what follows it, until the next delta after holdFor. A model that has finished by then has its starts committed
// together with its answer.
type holder struct {
	r      *run
	move   *move // nil: nothing is held
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
		h.pass(event.New(event.TextDelta, deltaFields{d.Text}))
	case provider.ReasoningDelta:
		h.pass(event.New(event.ReasoningDelta, deltaFields{d.Text}))
	case provider.CallStart:
		if h.move == nil {
			h.move, h.since = h.r.move(), time.Now()
		}
		h.move.say(event.ToolCallStart, callHead{d.CallID, d.ToolName})
	case provider.CallDelta:
		h.pass(event.New(event.ToolCallDelta, struct {
			ToolCallID string `json:"toolCallId"`
			ArgsDelta  string `json:"argsDelta"`
		}{d.CallID, d.Text}))
	}
}

func (h *holder) pass(ev event.Event) {
	if h.move != nil {
		h.move.events = append(h.move.events, published{ev: ev})
		return
	}
	h.r.transient(ev)
}

func (h *holder) flush() error {
	m := h.move
	h.move = nil
	if m == nil {
		return nil
	}
	return h.r.commit(m)
}

// specs are the tools that the model is offered. read_result is one of them once there is something to read.
func (a *LLM) specs(r *run) []provider.ToolSpec {
	spilled := false
	for _, e := range r.rec.messages {
		spilled = spilled || e.outcome != nil && e.outcome.ResultHandle != nil
	}
	var specs []provider.ToolSpec
	for _, s := range a.Tools.Specs() {
		if s.Name == tool.ReadResultName && !spilled || a.Policy.hides(s.Name) {
			continue
		}
		specs = append(specs, provider.ToolSpec{Name: s.Name, Description: s.Description, Input: s.Input})
	}
	return specs
}

// transcript is what a model is shown: the system prompt, the history, the run's own messages. Calls without an
// outcome and outcomes without a call, as aborted runs leave them, are taken out: servers refuse them.
func (rec *record) transcript() []message.Message {
	msgs := make([]message.Message, 0, len(rec.history)+len(rec.messages))
	own := rec.messages
	if len(own) > 0 && own[0].msg.Role == message.System {
		msgs = append(msgs, own[0].msg)
		own = own[1:]
	}
	msgs = append(msgs, rec.history...)
	for _, e := range own {
		msgs = append(msgs, e.msg)
	}
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

// paired drops tool calls without an answer and answers without a call.
func paired(msgs []message.Message) []message.Message {
	answered := map[string]bool{}
	for _, m := range msgs {
		if m.Role == message.Tool {
			answered[m.ToolCallID] = true
		}
	}
	asked := map[string]bool{}
	out := msgs[:0:0]
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

// chunkFields is the payload of tool.execute.partial.
type chunkFields struct {
	ToolName   string `json:"toolName"`
	ToolCallID string `json:"toolCallId"`
	Chunk      any    `json:"chunk"`
	ChunkIndex int    `json:"chunkIndex"`
	StepNumber int    `json:"stepNumber"`
	TS         int64  `json:"ts"`
}

// wire is a chunk as clients see it: with the members of its kind, all of them.
func wire(c tool.Chunk) any {
	switch c.Kind {
	case tool.Image:
		return struct {
			Kind      string        `json:"kind"`
			Data      message.Bytes `json:"data"`
			MediaType string        `json:"mediaType"`
		}{c.Kind, message.Bytes{Enc: "base64", Data: c.Data}, c.MediaType}
	case tool.JSONDelta:
		value := c.Value
		if !json.Valid(value) { // a result that is made of it will fail for that; the event must not
			value = json.RawMessage("null")
		}
		return struct {
			Kind  string          `json:"kind"`
			Path  string          `json:"path"`
			Value json.RawMessage `json:"value"`
		}{c.Kind, c.Path, value}
	}
	return struct {
		Kind string `json:"kind"`
		Text string `json:"text"`
	}{c.Kind, c.Text}
}
