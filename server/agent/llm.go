package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/provider"
	"agentd/server/schema"
	"agentd/server/tool"
	"agentd/server/trace"
	"agentd/store"
)

// LLM is an agent that a model drives: it is asked, it may call tools, it is asked again with their outcomes, until
// it answers with text alone.
type LLM struct {
	Instructions  string
	Models        []Model // tried in order; the ones after the first are fallbacks
	Temperature   *float64
	MaxTokens     int // of one answer; 0: the model's own limit
	ToolChoice    provider.ToolChoice
	Tools         *tool.Set // nil: none
	Policy        Policy    // which calls it may make, and which a person must allow
	MaxSteps      int       // 50 when 0. Reaching it without an answer is a failure.
	MaxParallel   int       // tool calls at once; 8 when 0
	HistoryTokens int       // of the session's transcript; 0: none
	Output        *Output   // nil: text
	Budget        Budget
	Forward       string        // events of children that it forwards: none, all, or lifecycle (the zero value)
	Filter        HandoffFilter // of what a hand-off passes on
	Record        bool          // keep what [Engine.Cassette] needs beside the transcript

	// CallerInstructions says that an input may have system messages, which stand after Instructions and are marked as the
	// caller's.
	CallerInstructions bool
}

// Model is a model and who serves it.
type Model struct {
	Provider provider.Provider
	Model    string
}

// Output is the form that the answer must have: JSON that fits a schema.
type Output struct {
	Spec   provider.OutputSpec
	Schema *schema.Schema
}

// Budget bounds what one run may use; zero means no bound. A bound is checked before a model call and before tool
// calls, so that one call can pass it.
type Budget struct {
	Tokens    int64
	CostUSD   float64
	ToolCalls int
	Wall      time.Duration // from the start of the run
}

const (
	defaultSteps    = 50
	defaultParallel = 8
	// maxItems is how many messages and parts of messages an input may have: each becomes rows and takes a multiple of its
	// length in memory.
	maxItems = 10_000
)

func (a *LLM) accept(input json.RawMessage) (string, error) {
	var text string
	if json.Unmarshal(input, &text) == nil {
		return "text", nil
	}
	var list []message.Message
	if json.Unmarshal(input, &list) != nil {
		var one message.Message
		if json.Unmarshal(input, &one) != nil {
			return "", fault.Invalid("The input is neither text nor messages.", fault.At("is a string, a message or a list of messages", "input"))
		}
		list = []message.Message{one}
	}
	if len(list) == 0 {
		return "", fault.Invalid("The input has no message.", fault.At("has at least one message", "input"))
	}
	items := len(list)
	for _, m := range list {
		items += len(m.Content.Parts)
	}
	if items > maxItems {
		return "", fault.Invalid("The input has too many messages.", fault.At(fmt.Sprintf("has at most %d messages and parts of messages", maxItems), "input"))
	}
	var issues []fault.Issue
	for i, m := range list {
		switch m.Role {
		case message.User, message.Assistant, message.Tool:
		case message.System, message.Developer:
			if !a.CallerInstructions {
				issues = append(issues, fault.At(`is user, assistant or tool; only an agent with "callerInstructions": "append" takes instructions of its callers`, "input", i, "role"))
			}
		default:
			issues = append(issues, fault.At("is user, assistant or tool", "input", i, "role"))
		}
		for j, p := range m.Content.Parts {
			b, ok := p.Media()
			if !ok && p.Type != "text" && p.Type != "reasoning" {
				issues = append(issues, fault.At("is text, image, audio, file or reasoning", "input", i, "content", j, "type"))
			}
			if ok && (b == nil || b.Enc != "base64" && (b.Enc != "url" || b.Href == "")) {
				issues = append(issues, fault.At(`is {"enc": "base64", "data": ...} or {"enc": "url", "href": ...}`, "input", i, "content", j, p.Type))
			}
		}
	}
	if issues != nil {
		return "", fault.Invalid("The input's messages are not valid.", issues...)
	}
	if len(list) > 1 && list[len(list)-1].Role == message.Assistant && len(list[len(list)-1].ToolCalls) > 0 {
		return "", fault.Invalid("The input ends with tool calls.", fault.At("ends with what the model shall answer", "input"))
	}
	return "messages", nil
}

func (a *LLM) open(r *run, m *move) {
	if a.Instructions != "" {
		m.message(message.Message{Role: message.System, Content: message.Text(a.Instructions)})
	}
	m.beginStep(r, 1)
}

// beginStep adds the start of a step.
func (m *move) beginStep(r *run, n int) {
	m.row.Step = n
	m.progress()
	m.steps = append(m.steps, store.Step{Number: n, Agent: m.row.Owner, Started: m.at})
	m.say(event.StepStart, stepFields{StepNumber: n})
}

// closeStep adds the end of a step, of which no event tells when the run waits from then on.
func (m *move) closeStep(r *run, s store.Step) {
	m.spanStep(r, s, trace.OK)
	s.Ended = m.at
	m.steps = append(m.steps, s)
}

// endStep adds the end of a step that is told.
func (m *move) endStep(r *run, s store.Step) {
	m.closeStep(r, s)
	if s.Resumed {
		return // such a step has no events of its own
	}
	var usage message.Usage
	json.Unmarshal(s.Usage, &usage) //nolint:errcheck // absent after a resumption: then it is zero, which is true
	m.say(event.StepEnd, stepFields{StepNumber: s.Number, Usage: &usage})
}

// resumable: a model goes on from its transcript, and not from what an opaque agent has left. That has no steps but those
// it tells of, while a model's first step begins with the run, unless it began elsewhere.
func (a *LLM) resumable(r *run) bool {
	if r.rec.checkpoint != nil || slices.ContainsFunc(r.rec.calls, requested) {
		return false
	}
	steps := r.rec.steps
	return r.rec.imported != nil || len(steps) > 0 && steps[0].Started == r.row.Started
}

func (a *LLM) drive(r *run) error {
	if a.Budget.Wall > 0 {
		left := time.Until(time.UnixMilli(r.row.Started).Add(a.Budget.Wall))
		stop := time.AfterFunc(min(left, a.Budget.Wall), func() { // not more than all of it, where the clock was set back
			r.cancel(fault.New(fault.BudgetExceeded, "The run took longer than its budget of %s.", a.Budget.Wall))
		})
		defer stop.Stop()
	}
	for !r.row.Status.Terminal() && r.row.Status != store.Awaiting {
		if err := r.stopping(); err != nil {
			return err
		}
		step := r.rec.steps[len(r.rec.steps)-1]
		var err error
		switch {
		case step.Ended != 0:
			err = fault.New(fault.StopCondition, "The run made %d steps without finishing (step >= %d).", step.Number, a.maxSteps())
		case len(r.rec.holders) > 0 && r.row.Calls == 0:
			err = a.follow(r, step)
		case r.rec.openCalls(step.Number) > 0:
			err = a.settleCalls(r, step)
		case step.Resumed: // everything was denied
			err = a.report(r, step)
		default:
			err = a.ask(r, step)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (a *LLM) maxSteps() int { return cmp.Or(a.MaxSteps, defaultSteps) }

// stopping is the reason to stop at a step's boundary, nil to go on.
func (r *run) stopping() error {
	if r.aborting() != nil {
		return errAborted
	}
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	return nil
}

// afford checks the budget before a model call.
func (a *LLM) afford(r *run) error {
	var used message.Usage
	if err := json.Unmarshal(r.row.Usage, &used); err != nil {
		return err
	}
	if a.Budget.Tokens > 0 && used.TotalTokens >= a.Budget.Tokens {
		return fault.New(fault.BudgetExceeded, "The run used %d of %d tokens.", used.TotalTokens, a.Budget.Tokens)
	}
	if a.Budget.CostUSD > 0 && len(r.rec.steps) > 1 {
		if used.Cost == nil {
			return fault.New(fault.BudgetUnpriced, "The run has a cost budget, but nothing tells what its model costs.")
		}
		if used.Cost.Amount >= a.Budget.CostUSD {
			return fault.New(fault.BudgetExceeded, "The run cost %.4f of %.4f %s.", used.Cost.Amount, a.Budget.CostUSD, used.Cost.Currency)
		}
	}
	return nil
}

// ask makes one model call and commits what follows from its answer.
func (a *LLM) ask(r *run, step store.Step) error {
	if err := a.afford(r); err != nil {
		return err
	}
	res, err := a.answer(r, step.Number)
	if err != nil {
		return err
	}
	m := r.move()
	if r.held != nil {
		m, r.held = r.held, nil
		m.at = r.stamp()
	}
	m.progress()
	if err := m.charge(res.Model, res.Usage); err != nil {
		return err
	}
	step.Model = res.Model
	step.Usage, _ = message.Encode(res.Usage)
	r.countUsage(res)

	calls := make([]wish, len(res.ToolCalls))
	for i, c := range res.ToolCalls {
		calls[i] = a.judge(c)
		res.ToolCalls[i] = calls[i].ToolCall
	}
	msg := message.Message{Role: message.Assistant, AgentID: r.row.Owner, Content: message.Text(res.Text), ToolCalls: res.ToolCalls}
	index := m.message(msg)
	r.tellModel(index, step.Usage)
	for _, c := range res.ToolCalls {
		m.emit(toolCallEnd(c), index, callHead{ToolCallID: c.ID})
	}
	if res.Text != "" {
		m.emit(textComplete(res.Text), index, struct{}{})
	}
	if inc := res.Incomplete; inc != nil {
		m.say(event.ToolCallIncomplete, struct {
			callHead
			FinishReason provider.FinishReason `json:"finishReason"`
			ArgsPrefix   string                `json:"argsPrefix"`
		}{callHead{inc.CallID, inc.ToolName}, res.Finish, clip(inc.ArgsPrefix, 1000)})
		// The calls that were complete never run, so the transcript must not promise them.
		m.withoutCalls(index)
		m.steps = append(m.steps, step)
		return r.finish(m, store.Failed, fault.New(fault.IncompleteToolCall, "The answer ended inside a call of %q.", inc.ToolName))
	}
	if n := a.handoffs(res.ToolCalls); n > 1 {
		m.withoutCalls(index)
		m.steps = append(m.steps, step)
		return r.finish(m, store.Failed, fault.New(fault.MultipleHandoffs, "The model handed the conversation over to %d agents at once.", n))
	}
	if len(res.ToolCalls) > 0 {
		return a.claim(r, m, step, index, calls)
	}
	m.endStep(r, step)
	if res.Finish == provider.FinishContentFilter {
		return r.finish(m, store.Failed, fault.New(fault.ContentFilter, "The provider's filter stopped the answer."))
	}
	if a.Output != nil {
		value, err := a.Output.parse(res.Text)
		if err != nil {
			return r.finish(m, store.Failed, err)
		}
		m.slot(store.OutputSlot, value)
	}
	return r.finish(m, store.Completed, nil)
}

// withoutCalls takes the tool calls out of the assistant message at an index of this move.
func (m *move) withoutCalls(index int) {
	for i := range m.entries {
		if e := &m.entries[i]; e.index == index {
			e.msg.ToolCalls = nil
			m.messages[i].Body, _ = message.Encode(e.msg)
		}
	}
	kept := m.stored[:0]
	for _, e := range m.stored {
		if e.Type == event.ToolCallEnd { // stored whole, since the message no longer tells
			for _, p := range m.events {
				if p.seq == e.Seq {
					e.Payload, e.Message = p.ev.Payload, -1
				}
			}
		}
		kept = append(kept, e)
	}
	m.stored = kept
}

// charge adds what a model used to the run's usage.
func (m *move) charge(model string, used message.Usage) error {
	var total message.Usage
	models := map[string]message.ModelUsage{}
	if err := json.Unmarshal(m.row.Usage, &total); err != nil {
		return err
	}
	if err := json.Unmarshal(m.row.Models, &models); err != nil {
		return err
	}
	mu := models[model]
	mu.Usage = mu.Usage.Plus(used)
	mu.AttemptCount++
	models[model] = mu
	var err error
	if m.row.Usage, err = message.Encode(total.Plus(used)); err != nil {
		return err
	}
	m.row.Models, err = message.Encode(models)
	return err
}

func (r *run) countUsage(res *provider.Response) {
	in := r.e.opts.Metrics
	in.ProviderTokens.With(res.Model, "input").Add(float64(res.Usage.PromptTokens))
	in.ProviderTokens.With(res.Model, "output").Add(float64(res.Usage.CompletionTokens + message.Value(res.Usage.ReasoningTokens)))
	if c := res.Usage.Cost; c != nil && c.Currency == "USD" {
		in.ProviderCost.With(res.Model).Add(c.Amount)
	}
}

// parse reads the answer as JSON, without one surrounding code fence, and checks it.
func (o *Output) parse(text string) (json.RawMessage, error) {
	text = strings.TrimSpace(text)
	if body, ok := strings.CutPrefix(text, "```"); ok {
		if _, rest, ok := strings.Cut(body, "\n"); ok {
			text = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "```"))
		}
	}
	if !json.Valid([]byte(text)) {
		return nil, fault.New(fault.OutputInvalid, "The answer is not JSON.")
	}
	if o.Schema != nil {
		if issues := o.Schema.Validate(json.RawMessage(text)); len(issues) > 0 {
			return nil, fault.New(fault.OutputInvalid, "The answer does not fit the output schema: %s.", fmt.Sprint(issues[0]))
		}
	}
	return json.RawMessage(text), nil
}
