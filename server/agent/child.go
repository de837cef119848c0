package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"agentd/server/fault"
	"agentd/server/id"
	"agentd/server/message"
	"agentd/server/tool"
	"agentd/store"
)

// A tool call can be a run of another agent. Such a child is a row of its own with its own journal, but it moves only
// as a part of its parent: the parent's call is claimed with the child's id, dispatching it makes the child or goes on
// with it, and it is settled when the child has ended. So a child is never of unknown outcome: whoever dispatches the
// call again finds out from the child's own rows.
//
//	call:   dispatching ----------------------------------> done (outcome, usage folded in)
//	           |     ^
//	 child:  waits   | a person decided on one of its calls
//	           v     |
//	        awaiting (the child's approvals are mirrored; their path is the ids of the calls that lead to them)

// maxDepth is how deep agents may call agents.
const maxDepth = 8

const (
	handoffPrefix  = "transfer_to_"
	subAgentPrefix = "subagent_"
)

// agentTool offers another agent as a tool. The engine makes its calls itself.
type agentTool struct {
	agent   string
	handoff bool
	spec    tool.Spec
	former  bool // the agent that made the call has no such tool any more
}

// HandoffTool is the tool `transfer_to_<agentID>`: the agent is given the conversation, and its final answer is the
// result of the call. The agent that made the call then goes on: it has the conversation back.
func HandoffTool(agentID, description string) tool.Tool {
	return agentTool{agent: agentID, handoff: true, spec: tool.Spec{Name: handoffPrefix + agentID, Truncation: tool.Spill,
		Description: sentence("Hand this conversation over to the agent "+agentID, description),
		Input:       json.RawMessage(`{"type":"object","properties":{},"additionalProperties":false}`)}}
}

// TransferTool is [HandoffTool] with an agent that keeps the conversation: its final answer is the run's answer, and what
// is said to the session next goes to it. It is given back by such a tool for the agent that it came from. A child that does
// not complete is given nothing: its end is the result of the call.
func TransferTool(agentID, description string) tool.Tool {
	t := HandoffTool(agentID, "").(agentTool)
	t.spec.Final = true
	t.spec.Description = sentence("Give this conversation to the agent "+agentID+", which answers from now on", description)
	return t
}

// SubAgentTool is the tool `subagent_<agentID>`: the agent answers a question of its own.
func SubAgentTool(agentID, description string) tool.Tool {
	return agentTool{agent: agentID, spec: tool.Spec{Name: subAgentPrefix + agentID, Truncation: tool.Spill,
		Description: sentence("Ask the agent "+agentID+", which sees nothing of this conversation but the input", description),
		Input: json.RawMessage(`{"type":"object","properties":{"input":{"type":"string","description":"What the agent shall do, with all it needs to know."}},` +
			`"required":["input"],"additionalProperties":false}`)}}
}

func sentence(what, description string) string {
	if description == "" {
		return what + "."
	}
	return what + ": " + description
}

func (t agentTool) Spec() tool.Spec { return t.spec }

func (t agentTool) Execute(context.Context, tool.Call) (tool.Result, error) {
	return tool.Result{}, errors.New("an agent runs only as a part of a run")
}

// label names the child in messages.
func (t agentTool) label() string {
	if t.handoff {
		return fmt.Sprintf("handoff to %q", t.agent)
	}
	return fmt.Sprintf("sub-agent %q", t.agent)
}

// agentTool finds the agent behind a tool's name.
func (a *LLM) agentTool(name string) (t agentTool, ok bool) {
	found, ok := a.Tools.Get(name)
	if ok {
		t, ok = found.(agentTool)
	}
	return t, ok
}

// callee finds the agent behind a call, also one that a restart has taken out of this agent's tools.
func (a *LLM) callee(c *store.Call) (t agentTool, ok bool) {
	if t, ok = a.agentTool(c.Name); ok || c.Child == "" {
		return t, ok
	}
	t = agentTool{former: true}
	if t.agent, t.handoff = strings.CutPrefix(c.Name, handoffPrefix); !t.handoff {
		t.agent = strings.TrimPrefix(c.Name, subAgentPrefix)
	}
	return t, true
}

// childJob is a call that is a run, ready to be dispatched.
type childJob struct {
	tool   agentTool
	parent store.Run // its row when the call was dispatched
	form   string    // of the input, for a child that is yet to be made
	input  json.RawMessage
	kid    *run // nil: look it up or make it

	holders []string // to whom the child's agent has given the conversation

	altered error // why it must not be made
}

// prepareChild gathers what a child needs from its parent's record.
func (a *LLM) prepareChild(r *run, t agentTool, c store.Call) (*childJob, error) {
	j := &childJob{tool: t, parent: r.row, kid: r.decided[c.Index]}
	delete(r.decided, c.Index)
	if t.former {
		return j, nil
	}
	if c.Index == 0 && len(r.rec.holders) > 0 { // see follow
		j.holders = r.rec.holders[1:]
	}
	call, err := r.rec.bound(&c)
	if err != nil {
		j.altered = err
		return j, nil
	}
	if t.handoff {
		j.form = "messages"
		j.input, err = message.Encode(a.Filter.apply(r.rec.transcript(), t.agent))
		return j, err
	}
	var args struct{ Input string }
	if err := json.Unmarshal(call, &args); err != nil {
		return nil, err
	}
	j.form = "text"
	j.input, err = message.Encode(args.Input)
	return j, err
}

// work is what became of a dispatched call.
type work struct {
	call store.Call
	res  tool.Settled
	kid  *run // of a call that is a run; nil when it could not be made
	left bool // the child is to be taken up by the next start

	began time.Time
	took  time.Duration
}

// parked reports whether the call waits for a decision on one of its child's calls.
func (w *work) parked() bool { return w.kid != nil && w.kid.row.Status == store.Awaiting }

// runChild moves the child of a call until it has ended or waits.
func (r *run) runChild(c store.Call, j *childJob) (w work) {
	w = work{call: c, began: time.Now()}
	defer func() { w.took = time.Since(w.began) }()
	kid, drive, err := r.openChild(c, j)
	if err != nil {
		w.left = errors.Is(err, errLeft)
		w.res.Outcome = *tool.Fail(c.ID, c.Name, message.ExecutionFailed, j.tool.label()+" failed: "+fault.Of(err).Message, "")
		return w
	}
	w.kid = kid
	if drive != nil {
		r.attach(kid)
		kid.advance(drive)
		r.detach(kid)
		r.e.release(kid)
	}
	switch status := kid.row.Status; {
	case status == store.Awaiting:
	case !status.Terminal():
		w.left = true
	default:
		w.res = r.childOutcome(kid, j.tool, c, j.parent.ID)
	}
	return w
}

// openChild finds the child of a call, or makes it. drive is nil when there is nothing to move: it has ended or waits.
func (r *run) openChild(c store.Call, j *childJob) (kid *run, drive func() error, err error) {
	reg := r.e.registration(j.tool.agent)
	if kid = j.kid; kid != nil { // decided on a moment ago
		r.e.admitChild(kid)
		return kid, func() error {
			if err := kid.catchUp(j.parent.N); err != nil {
				return err
			}
			return kid.drive()
		}, nil
	}
	var row *store.Run
	var rec *record
	var times int
	err = r.e.opts.Runs.Snapshot(context.WithoutCancel(r.ctx), func(tx *store.Tx) (err error) {
		if row, err = r.e.opts.Runs.Find(tx, c.Child); err == nil {
			rec, err = load(tx, r.e.opts.Runs, row)
		}
		if err == nil {
			times, _, err = interruptions(tx, r.e.opts.Runs, row)
		}
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return r.makeChild(c, j, reg)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errLeft, err)
	}
	kid = r.newChild(*row, rec, reg, c.ID)
	if row.Status != store.Running {
		return kid, nil, nil
	}
	r.e.admitChild(kid)
	return kid, func() error {
		if err := kid.catchUp(j.parent.N); err != nil {
			return err
		}
		if kid.rec.ending != "" {
			return kid.conclude()
		}
		if j.tool.former {
			return fault.New(fault.ServerRestarted, "The server restarted during the run, and the agent %q does not call the agent %q any more.", r.row.Owner, row.Owner)
		}
		if err := kid.verdict(times); err != nil {
			return err
		}
		return kid.reenter()
	}, nil
}

// makeChild writes the first move of a child.
func (r *run) makeChild(c store.Call, j *childJob, reg *Registration) (*run, func() error, error) {
	if j.altered != nil {
		r.e.alarm(r.row.ID, j.altered)
		return nil, nil, j.altered
	}
	if r.depth+1 > maxDepth {
		return nil, nil, fault.New(fault.RunFailed, "Agents call each other at most %d deep.", maxDepth)
	}
	if j.tool.former {
		return nil, nil, fault.New(fault.AgentNotFound, "The agent %q is not to be called any more.", j.tool.agent)
	}
	if _, absent := reg.Agent.(gone); absent {
		return nil, nil, fault.New(fault.AgentNotFound, "No agent %q is registered.", j.tool.agent)
	}
	d := reg.driver()
	if _, err := d.accept(j.input); err != nil {
		return nil, nil, err
	}
	kid := r.newChild(store.Run{ID: c.Child, Kind: "agent", Owner: reg.ID, Current: reg.ID, Session: j.parent.Session, User: j.parent.User,
		InputForm: j.form, Usage: zeroUsage, Models: noModels, Created: now(), Parent: j.parent.N, ParentCall: c.Index, StartedBy: j.parent.StartedBy},
		&record{}, reg, c.ID)
	m, err := kid.firstMove(j.input)
	if err != nil {
		return nil, nil, err
	}
	if len(j.holders) > 0 {
		m.holders(j.holders)
	}
	r.e.admitChild(kid)
	return kid, func() error {
		if err := kid.commit(m); err != nil {
			return err
		}
		return d.drive(kid)
	}, nil
}

func (r *run) newChild(row store.Run, rec *record, reg *Registration, callID string) *run {
	kid := r.e.newRun(row, rec, reg)
	kid.cancel(nil)
	kid.ctx, kid.cancel = context.WithCancelCause(r.ctx)
	kid.depth, kid.parent, kid.callID = r.depth+1, r, callID
	return kid
}

// admitChild counts a child among the moving runs. Its parent is one of them, so it is never refused.
func (e *Engine) admitChild(kid *run) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.live[kid.row.ID] = kid
	e.moving.Add(1)
	e.opts.Metrics.InflightRuns.Set(float64(len(e.live)))
}

// attach lets a child's events through to its parent, and the parent's abort to the child.
func (r *run) attach(kid *run) {
	kid.mu.Lock()
	kid.up = r
	kid.mu.Unlock()
	r.mu.Lock()
	r.kids = append(r.kids, kid)
	abort := r.abort
	r.mu.Unlock()
	if abort != nil {
		kid.askAbort(*abort)
	}
}

func (r *run) detach(kid *run) {
	kid.mu.Lock()
	kid.up = nil
	kid.mu.Unlock()
	r.mu.Lock()
	r.kids = slices.DeleteFunc(r.kids, func(k *run) bool { return k == kid })
	r.mu.Unlock()
}

// childOutcome tells the parent's model how a child has ended.
func (r *run) childOutcome(kid *run, t agentTool, c store.Call, runID string) tool.Settled {
	var s tool.Settled
	switch kid.row.Status {
	case store.Completed:
		s = r.reg.LLM.Tools.Settle(c.Name, tool.Call{RunID: runID, ID: c.ID}, tool.Result{Output: kid.output()})
	case store.Aborted:
		s.Outcome = *tool.Fail(c.ID, c.Name, message.AbortedCall, t.label()+" was aborted.", "")
	default:
		why := "it failed"
		if e := new(RunError); kid.row.Error != nil && json.Unmarshal(kid.row.Error, e) == nil {
			why = e.Message
		}
		s.Outcome = *tool.Fail(c.ID, c.Name, message.ExecutionFailed, t.label()+" failed: "+why, "")
	}
	s.Outcome.ToolCallID, s.Outcome.ToolName = c.ID, c.Name
	s.Outcome.DurationMS = max(0, kid.row.Finished-kid.row.Created)
	return s
}

// output is what a completed child gives its parent: its final answer, and not what it said on the way there.
func (r *run) output() json.RawMessage {
	if r.rec.output != nil {
		return r.rec.output
	}
	text := r.rec.lastText(r.row.Owner)
	for _, e := range slices.Backward(r.rec.messages) {
		if r.reg.LLM != nil && e.says(r.row.Owner) { // a model's last message is its answer, also when it is empty
			text = e.msg.Content.String()
			break
		}
	}
	b, _ := message.Encode(text)
	return b
}

// fold adds what an ended child used.
func (m *move) fold(kid *store.Run) error {
	var used message.Usage
	var models map[string]message.ModelUsage
	if err := errors.Join(json.Unmarshal(kid.Usage, &used), json.Unmarshal(kid.Models, &models)); err != nil {
		return err
	}
	if len(models) == 0 && used != (message.Usage{}) {
		models = map[string]message.ModelUsage{"sub-agent:" + kid.Owner: {Usage: used}}
	}
	for model, mu := range models {
		if err := m.charge(model, mu.Usage); err != nil {
			return err
		}
	}
	return nil
}

// childID is the id of the run that a call will be; empty for a plain tool.
func (a *LLM) childID(name string) string {
	if _, ok := a.agentTool(name); ok {
		return id.New()
	}
	return ""
}
