package agent

import (
	"cmp"
	"slices"
	"time"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/id"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/provider"
	"agentd/server/run"
	"agentd/server/span"
	"agentd/store"
)

// A loop moves one run: the model is asked, it may call tools, it is asked again with their outcomes.
type loop struct {
	*LLM
	*run.Run
	tape       Tape       // nil: none yet
	held       *run.Move  // begins the commit of a model's answer
	span       *span.Span // of the latest model call
	modelCalls int        // number of the span of the latest model call, see [span.OfRun]

	shown []message.Message // what the model was shown last
	until int               // index of the message of the run with which that ended
	spilt bool              // one of them names a result that is kept beside the transcript
}

// Open is a part of [run.Driver].
func (a llm) Open(r *run.Run, m *run.Move) {
	steps := r.Record.Steps
	switch n := len(steps); {
	case m.Run.Messages > 0 && n > 0:
		if last := steps[n-1]; last.Ended == 0 && !last.Resumed && r.Record.OpenCalls(last.Number) == 0 {
			m.Say(event.StepStart, run.StepFields{StepNumber: last.Number}) // its model call is made again
		}
	case m.Run.Messages == 0:
		if path := m.Holders(); len(path) > 0 {
			setHolders(m, path)
		}
		if a.Instructions != "" {
			m.Message(message.Message{Role: message.System, Content: message.Text(a.Instructions)})
		}
		m.BeginStep(1)
	}
}

// Resumable is a part of [run.Driver]. A model continues from its transcript, and not from what another kind of agent has
// left. That has no steps but those it reports, while a model's first step begins with the run, unless it began elsewhere.
func (a llm) Resumable(r *run.Run) bool {
	rec := r.Record
	if rec.Holds(store.CheckpointSlot) || slices.ContainsFunc(rec.Calls, journal.Requested) {
		return false
	}
	return rec.Holds(store.ImportedSlot) || len(rec.Steps) > 0 && rec.Steps[0].Started == r.Row.Started
}

// Drive is a part of [run.Driver].
func (a llm) Drive(r *run.Run) error {
	if a.Budget.Wall > 0 {
		end := time.UnixMilli(r.Row.Started).Add(a.Budget.Wall)
		r.Deadline(end.UnixMilli())
		left := time.Until(end)
		stop := time.AfterFunc(min(left, a.Budget.Wall), func() { // not more than all of it, where the clock was set back
			r.Cancel(fault.New(fault.BudgetExceeded, "The run took longer than its budget of %s.", a.Budget.Wall))
		})
		defer stop.Stop()
	}
	l := &loop{LLM: a.LLM, Run: r}
	for !r.Row.Status.Terminal() && !r.Row.Status.Parked() {
		if err := r.Stopping(); err != nil {
			return err
		}
		step := r.Record.Steps[len(r.Record.Steps)-1]
		var err error
		switch {
		case step.Ended != 0:
			err = fault.New(fault.StopCondition, "The run made %d steps without finishing (step >= %d).", step.Number, a.maxSteps())
		case len(holders(r.Record)) > 0 && r.Row.Calls == 0:
			err = l.follow(step)
		case r.Record.OpenCalls(step.Number) > 0:
			err = l.settleCalls(step)
		case step.Resumed: // everything was denied
			err = l.report(step)
		default:
			err = l.ask(step)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (a *LLM) maxSteps() int { return cmp.Or(a.MaxSteps, defaultSteps) }

// settleCalls makes the open calls of a step, settles each as it ends, and reports all when the last has.
func (l *loop) settleCalls(step store.Step) error {
	open, err := l.Open(step)
	if err == nil {
		err = l.handOver(open)
	}
	if err == nil {
		err = l.Dispatch(open, l.MaxParallel)
	}
	if err != nil {
		return err
	}
	return l.report(step)
}

// report reports the outcomes of a step's calls, and begins the next step.
func (l *loop) report(step store.Step) error {
	rep, parked, err := l.Report(step)
	if parked || err != nil {
		return err
	}
	var given *gift
	if rep.Ending == nil {
		if given, err = l.given(rep.Move); err != nil {
			return err
		}
	}
	if given != nil {
		given.say(rep.Move)
	}
	if ended, err := l.EndReport(rep, step); ended || err != nil {
		return err
	}
	if given != nil {
		return l.give(rep.Move, given)
	}
	if step.Number < l.maxSteps() {
		rep.BeginStep(step.Number + 1)
	}
	return l.Commit(rep.Move)
}

// claim commits the model's answer together with the journal rows of its calls.
func (l *loop) claim(m *run.Move, step store.Step, asked int, calls []run.Wish) error {
	if max := l.Budget.ToolCalls; max > 0 && m.Run.Calls+len(calls) > max {
		m.DropCalls(asked)
		m.Steps = append(m.Steps, step)
		return l.End(m, store.Failed, fault.New(fault.BudgetExceeded, "The run asked for more than its budget of %d tool calls.", max))
	}
	return l.Claim(m, step, asked, calls)
}

// Judge is [Calls.Judge] for a call that a model asks for.
func (a *LLM) Judge(c message.ToolCall) run.Wish {
	w := run.Wish{ToolCall: c}
	w.Args, w.Gated, w.Refusal = a.calls().Judge(c.ID, c.Name, c.Args)
	if t, ok := a.Tools.Get(c.Name); ok {
		w.Free = t.Spec().Free()
	}
	if _, ok := a.agentTool(c.Name); ok && w.Refusal == nil {
		w.Child = id.New()
	}
	return w
}

func (a *LLM) calls() Calls { return Calls{a.Tools, a.Policy} }

// afford checks the budget before a model call.
func (l *loop) afford() error {
	used := l.Used()
	if l.Budget.Tokens > 0 && used.TotalTokens >= l.Budget.Tokens {
		return fault.New(fault.BudgetExceeded, "The run used %d of %d tokens.", used.TotalTokens, l.Budget.Tokens)
	}
	if l.Budget.CostUSD > 0 && len(l.Record.Steps) > 1 {
		if used.Cost == nil {
			return fault.New(fault.BudgetUnpriced, "The run has a cost budget, but its model has no price.")
		}
		if used.Cost.Amount >= l.Budget.CostUSD {
			return fault.New(fault.BudgetExceeded, "The run cost %.4f of %.4f %s.", used.Cost.Amount, l.Budget.CostUSD, used.Cost.Currency)
		}
	}
	return nil
}

// ask makes one model call and commits what follows from its answer.
func (l *loop) ask(step store.Step) error {
	if err := l.afford(); err != nil {
		return err
	}
	res, err := l.answer(step.Number)
	if err != nil {
		return err
	}
	m := l.Move()
	if l.held != nil {
		l.held.At, m, l.held = m.At, l.held, nil
	}
	m.Progress()
	m.Charge(l.Run, res.Model, res.Usage)
	step.Model = res.Model
	step.Usage, _ = message.Encode(res.Usage)
	l.countUsage(res)

	calls := make([]run.Wish, len(res.ToolCalls))
	for i, c := range res.ToolCalls {
		calls[i] = l.Judge(c)
		res.ToolCalls[i] = calls[i].ToolCall
	}
	msg := message.Message{Role: message.Assistant, AgentID: l.Row.Owner, Content: message.Text(res.Text), ToolCalls: res.ToolCalls}
	index := m.Message(msg)
	l.answered(index, res.Usage)
	for _, c := range res.ToolCalls {
		m.Emit(toolCallEnd(c), index, journal.Head(c.ID, ""))
	}
	if res.Text != "" {
		m.Emit(textComplete(res.Text), index, struct{}{})
	}
	if inc := res.Incomplete; inc != nil {
		m.Say(event.ToolCallIncomplete, struct {
			journal.CallHead
			FinishReason provider.FinishReason `json:"finishReason"`
			ArgsPrefix   string                `json:"argsPrefix"`
		}{journal.Head(inc.CallID, inc.ToolName), res.Finish, journal.Clip(inc.ArgsPrefix, 1000)})
		// The calls that were complete never run, so the transcript must not promise them.
		m.DropCalls(index)
		m.Steps = append(m.Steps, step)
		return l.End(m, store.Failed, fault.New(fault.IncompleteToolCall, "The answer ended inside a call of %q.", inc.ToolName))
	}
	if n := l.handoffs(res.ToolCalls); n > 1 {
		m.DropCalls(index)
		m.Steps = append(m.Steps, step)
		return l.End(m, store.Failed, fault.New(fault.MultipleHandoffs, "The model handed the conversation to %d agents at once.", n))
	}
	if len(res.ToolCalls) > 0 {
		return l.claim(m, step, index, calls)
	}
	m.EndStep(step)
	if res.Finish == provider.FinishContentFilter {
		return l.End(m, store.Failed, fault.New(fault.ContentFilter, "The provider's filter stopped the answer."))
	}
	if l.Output != nil {
		value, err := l.Output.parse(res.Text)
		if err != nil {
			return l.End(m, store.Failed, err)
		}
		m.Slot(store.OutputSlot, value)
	}
	return l.End(m, store.Completed, nil)
}

func (l *loop) countUsage(res *provider.Response) {
	in := l.Metrics()
	in.ProviderTokens.With(res.Model, "input").Add(float64(res.Usage.PromptTokens))
	in.ProviderTokens.With(res.Model, "output").Add(float64(res.Usage.CompletionTokens + message.Value(res.Usage.ReasoningTokens)))
	if c := res.Usage.Cost; c != nil && c.Currency == "USD" {
		in.ProviderCost.With(res.Model).Add(c.Amount)
	}
}
