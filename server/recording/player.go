package recording

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"agentd/server/agent"
	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/provider"
	"agentd/server/tool"
)

// A player answers in the place of models and tools as they did in the recording, and compares what it is asked.
type player struct {
	rec   *Recording
	calls map[string]int  // index of a tool call in the recording, by its id
	asked map[string]bool // calls about which a person was asked
	due   [][]Approval    // decisions that are yet to come: those of one moment lie together

	mu      sync.Mutex // guards the fields below: tools are called side by side
	next    int        // model call
	attempt int        // of it
	request Request    // recorded, of the latest model call
	granted map[string]bool
	notes   []string
	first   *Divergence
	order   int  // of first, among what happened side by side
	over    bool // the recording was cut here
}

// multipleHandoffs is the code of a run that failed because of an answer. The tools of a replay hand nothing over.
const multipleHandoffs = "multiple-handoffs-in-step"

func newPlayer(rec *Recording) *player {
	p := &player{rec: rec, calls: map[string]int{}, asked: map[string]bool{}, granted: map[string]bool{}}
	for i, c := range rec.ToolCalls {
		p.calls[c.ToolCallID] = i
	}
	step := -1
	for _, a := range rec.Approvals {
		if a.SubRunToolCallID != "" || a.Asked == journal.OutcomeUnknown {
			continue // nothing is of unknown outcome in a replay
		}
		p.asked[a.ToolCallID] = true
		if a.Granted == nil {
			continue
		}
		if a.StepNumber != step {
			step, p.due = a.StepNumber, append(p.due, nil)
		}
		p.due[len(p.due)-1] = append(p.due[len(p.due)-1], a)
	}
	return p
}

// cast is the agent with the player in the place of its models and of every tool, also of those that are other agents.
// Time plays no part: the player is faster than any model.
func (p *player) cast(reg agent.Registration) agent.Registration {
	a := *reg.LLM
	a.NewTape, a.Budget.Wall = nil, 0
	a.Models = slices.Clone(a.Models)
	for i, m := range a.Models {
		a.Models[i].Provider = actor{p, m.Provider.Name()}
	}
	if a.Tools != nil {
		a.Tools = a.Tools.Recorded(p.outcome)
	}
	reg.LLM = &a
	return reg
}

// An actor is a provider that the player plays.
type actor struct {
	*player
	name string
}

func (m actor) Name() string { return m.name }

func (m actor) Stream(_ context.Context, req *provider.Request, _ func(provider.Delta)) (*provider.Response, error) {
	return m.answer(m.name, req)
}

// errStopped ends a replay whose result is known.
var errStopped = errors.New("the replay has ended")

func (p *player) stopped() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stoppedLocked()
}

func (p *player) stoppedLocked() bool { return p.first != nil || p.over }

// divergeLocked notes a difference, unless there was one before. Of those at one moment, the one of the lowest order
// counts.
func (p *player) divergeLocked(order int, d Divergence) {
	if p.first == nil || order < p.order {
		p.first, p.order = &d, order
	}
}

// cutLocked ends the replay where the recording ends early; false: it does not.
func (p *player) cutLocked() bool {
	if p.rec.Result.Cut && !p.over {
		p.over = true
		p.notes = append(p.notes, fmt.Sprintf("the recorded run was ended from outside (%s); the replay ends there too", p.ending()))
	}
	return p.over
}

// ending is how the recorded run ended.
func (p *player) ending() string {
	res := p.rec.Result
	if res.Error == nil {
		return res.Status
	}
	return describe(res.Status, res.Error.Code, res.Error.Message)
}

func describe(status, code, text string) string {
	if code == "" {
		return status
	}
	return status + ", " + code + ": " + text
}

// answer plays one attempt of a model call.
func (p *player) answer(by string, req *provider.Request) (*provider.Response, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stoppedLocked() {
		return nil, errStopped
	}
	if p.next == len(p.rec.ModelCalls) {
		if !p.cutLocked() {
			p.divergeLocked(0, Divergence{"model-call", req.Meta.StepNumber, fmt.Sprintf("model call %d", p.next+1), "the run ends as " + p.ending(), "a model is asked"})
		}
		return nil, errStopped
	}
	c := &p.rec.ModelCalls[p.next]
	if p.attempt == 0 {
		now := requestOf(req, nil)
		p.request = c.Request(p.request)
		ids := []string{p.rec.Meta.RunID, req.Meta.RunID}
		if hash := now.Hash(ids...); hash != c.RequestSHA256 {
			d := difference(&p.request, &now, ids)
			if d == nil {
				d = &Divergence{Kind: "request", Where: "the request, in what the recording does not tell", Recorded: c.RequestSHA256, Now: hash}
			}
			d.Step = c.StepNumber
			p.divergeLocked(0, *d)
			return nil, errStopped
		}
	}
	asked := provided(by, req.Model)
	if p.attempt < len(c.Failed) {
		f := c.Failed[p.attempt]
		p.attempt++
		p.compareModelLocked(provided(f.Provider, f.Model), asked)
		return nil, fault.New(cmp.Or(fault.ByCode(f.Code), fault.Unknown), "%s", f.Message)
	}
	if c.Answer == nil {
		if !p.cutLocked() {
			p.divergeLocked(0, Divergence{"fallback", c.StepNumber, fmt.Sprintf("model call %d", p.next+1), "no model is left", asked + " is asked"})
		}
		return nil, errStopped
	}
	p.compareModelLocked(provided(c.Provider, c.Model), asked)
	p.next, p.attempt = p.next+1, 0
	return response(c.Answer), nil
}

func provided(by, model string) string { return by + "/" + model }

// compareModelLocked notes that another model is asked. What it would answer nobody knows, so it is no divergence.
func (p *player) compareModelLocked(recorded, now string) {
	note := fmt.Sprintf("the answers are those of %s; now %s would be asked", recorded, now)
	if recorded != now && !slices.Contains(p.notes, note) {
		p.notes = append(p.notes, note)
	}
}

func response(a *Answer) *provider.Response {
	res := &provider.Response{Text: a.Text, Reasoning: a.Reasoning, ToolCalls: a.ToolCalls, Finish: provider.FinishReason(a.Finish), Usage: a.Usage, Model: a.Model}
	if inc := a.Incomplete; inc != nil {
		res.Incomplete = &provider.Incomplete{CallID: inc.ToolCallID, ToolName: inc.ToolName, ArgsPrefix: inc.ArgsPrefix}
	}
	return res
}

// outcome plays one tool call.
func (p *player) outcome(name string, call tool.Call) message.Outcome {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o := p.outcomeLocked(name, call); o != nil {
		return *o
	}
	return message.Outcome{Kind: message.AbortedCall, Message: "The replay has ended."}
}

func (p *player) outcomeLocked(name string, call tool.Call) *message.Outcome {
	if p.over {
		return nil
	}
	order, known := p.calls[call.ID]
	if !known {
		if code := p.rec.Result.Error; code != nil && code.Code == multipleHandoffs {
			p.over = true
			return nil
		}
		p.divergeLocked(len(p.calls), Divergence{"tool-call", call.StepNumber, place(name, call.ID), "the call is not made: the run ends as " + p.ending(), "the call is made"})
		return nil
	}
	c := &p.rec.ToolCalls[order]
	diverge := func(kind, recorded, now string) *message.Outcome {
		p.divergeLocked(order, Divergence{kind, c.StepNumber, place(name, call.ID), recorded, now})
		return nil
	}
	o := c.outcome()
	switch hash := hashOf(call.Args); {
	case c.ToolName != name:
		return diverge("tool-call", c.ToolName, name)
	case cmp.Or(c.SHA256OfArgs, hash) != hash:
		recorded, now := excerpts(string(canonical(c.Args)), string(canonical(call.Args)))
		return diverge("tool-call", recorded, now)
	case p.asked[call.ID] && !p.granted[call.ID]:
		return diverge("approval", "a person is asked about the call", "the call is made without asking")
	case o == nil && p.cutLocked():
		return nil
	case o == nil:
		return diverge("tool-call", "the call is not made", "the call is made")
	case o.Kind == message.CapabilityBlocked || o.Kind == message.UnknownTool:
		return diverge("tool-call", "the call is refused: "+o.Message, "the call is made")
	}
	return o
}

func place(name, callID string) string { return fmt.Sprintf("call %s of %s", callID, name) }
