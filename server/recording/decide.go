package recording

import (
	"bytes"
	"cmp"

	"agentd/server/agent"
	"agentd/server/journal"
	"agentd/server/run"
)

// decide compares what waits for a person with the recording, and gives the decisions that come next.
func (p *player) decide(pending []journal.Approval) (decisions []run.Decision, by string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stoppedLocked() || len(pending) == 0 {
		return nil, ""
	}
	for _, a := range pending {
		if p.asked[a.ToolCallID] {
			continue
		}
		order, known := p.calls[a.ToolCallID]
		recorded, step := "the call is not made: the run ends as "+p.ending(), p.rec.Result.StepNumber
		if known {
			c := &p.rec.ToolCalls[order]
			recorded, step = "the call is made without asking", c.StepNumber
			if o := c.outcome(); o != nil && o.Failed() {
				recorded = "the call fails without asking: " + o.Message
			}
		}
		p.divergeLocked(order, Divergence{"approval", step, place(a.ToolName, a.ToolCallID), recorded, "a person is asked about the call"})
	}
	if p.first != nil {
		return nil, ""
	}
	if len(p.due) == 0 {
		if a := pending[0]; !p.cutLocked() {
			p.divergeLocked(0, Divergence{"approval", p.rec.Result.StepNumber, place(a.ToolName, a.ToolCallID), "nobody decides; the run ends as " + p.ending(), "a person is asked about the call"})
		}
		return nil, ""
	}
	for _, a := range p.due[0] {
		by = cmp.Or(by, a.By)
		p.granted[a.ToolCallID] = *a.Granted
		decisions = append(decisions, run.Decision{ToolCallID: a.ToolCallID, Granted: *a.Granted, Reason: a.Reason})
	}
	p.due = p.due[1:]
	return decisions, cmp.Or(by, "replay")
}

// unasked notes that a recorded decision is about a call that does not wait.
func (p *player) unasked(callID string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	name, step := "a tool", p.rec.Result.StepNumber
	if i, known := p.calls[callID]; known {
		name, step = p.rec.ToolCalls[i].ToolName, p.rec.ToolCalls[i].StepNumber
	}
	p.divergeLocked(0, Divergence{"approval", step, place(name, callID), "a person is asked about the call", "nobody is asked"})
}

// end compares how the runs ended.
func (p *player) end(now agent.RunResult) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stoppedLocked() {
		return
	}
	status, code := string(now.Status), ""
	ending := status
	if now.Error != nil {
		code = now.Error.Code
		ending = describe(status, code, now.Error.Message)
	}
	if p.next < len(p.rec.ModelCalls) {
		switch c := &p.rec.ModelCalls[p.next]; {
		case p.attempt == 0:
			p.divergeLocked(0, Divergence{"model-call", c.StepNumber, "model call", "a model is asked", "the run ends as " + ending})
			return
		case c.Answer != nil, p.attempt < len(c.Failed):
			p.divergeLocked(0, Divergence{"fallback", c.StepNumber, "model call", "another model is asked", "the run ends as " + ending})
			return
		}
	}
	res := p.rec.Result
	recordedCode := ""
	if res.Error != nil {
		recordedCode = res.Error.Code
	}
	if res.Status != status || recordedCode != code {
		p.divergeLocked(0, Divergence{"end", res.StepNumber, "the end", "the run ends as " + p.ending(), "the run ends as " + ending})
		return
	}
	ids := []string{p.rec.Meta.RunID, now.State.ID}
	a, b := canonical(res.Output, ids...), canonical(now.Output, ids...)
	if !bytes.Equal(a, b) {
		recorded, present := excerpts(string(a), string(b))
		p.divergeLocked(0, Divergence{"end", res.StepNumber, "the output", recorded, present})
	}
}
