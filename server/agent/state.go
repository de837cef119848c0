package agent

import (
	"encoding/json"
	"fmt"
	"slices"

	"agentd/server/event"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/runstate"
	"agentd/store"
)

// What runs look like from outside.
type (
	State         = runstate.State
	StepState     = runstate.Step
	SubRun        = runstate.SubRun
	CompletedCall = runstate.CompletedCall
	Approval      = message.Approval
	RunError      = message.RunError // its code is one of the fault table
)

// RunResult is what agent.end and the run route tell about a run: with its state or, to one who may not read that, with the
// calls that wait.
type RunResult struct {
	Output json.RawMessage `json:"output,omitempty"`
	Usage  message.Usage   `json:"usage"`
	Status store.Status    `json:"status" enum:"running|suspended|awaiting_approval|completed|failed|aborted"`
	Error  *RunError       `json:"error,omitempty"`
	State  State           `json:"state,omitzero" doc:"Absent without agents:read for the agent."`

	PendingApprovals []event.PendingCall `json:"pendingApprovals,omitzero" doc:"Instead of the state."`
}

// Reduced is the result for one who may not read the run.
func (r RunResult) Reduced() RunResult {
	r.PendingApprovals = []event.PendingCall{}
	for _, a := range r.State.PendingApprovals {
		r.PendingApprovals = append(r.PendingApprovals, event.PendingCall{ToolCallID: a.ToolCallID, ToolName: a.ToolName})
	}
	r.State = State{}
	return r
}

// ResultAt is how the run looked at the given end.
func ResultAt(row *store.Run, rec *journal.Record, at journal.End) (RunResult, error) {
	history, err := rec.Past.Messages()
	if err != nil {
		return RunResult{}, err
	}
	st := State{
		Version: runstate.Version, ID: row.ID, AgentID: row.Owner, CurrentAgentID: at.Agent, SessionID: row.Session, UserID: row.User,
		Status: string(at.Status), Steps: []StepState{}, Messages: slices.Clone(history), PendingApprovals: at.Pending,
		Handoffs: []runstate.Handoff{}, StartedAt: message.Millis(max(row.Started, row.Created)), FinishedAt: isoOrNone(at.Finished),
	}
	if st.PendingApprovals == nil {
		st.PendingApprovals = []Approval{}
	}
	if err := json.Unmarshal(at.Usage, &st.Usage); err != nil {
		return RunResult{}, store.Damaged(err)
	}
	if err := json.Unmarshal(at.Models, &st.UsageByModel); err != nil {
		return RunResult{}, store.Damaged(err)
	}
	if len(st.UsageByModel) == 0 {
		st.UsageByModel = nil
	}
	if at.Error != nil {
		if err := json.Unmarshal(at.Error, &st.Error); err != nil {
			return RunResult{}, store.Damaged(err)
		}
	}
	for _, h := range rec.Handoffs {
		if h.At > at.At {
			continue
		}
		var shown runstate.Handoff
		if err := json.Unmarshal(h.Body, &shown); err != nil {
			return RunResult{}, err
		}
		st.Handoffs = append(st.Handoffs, shown)
	}
	for _, p := range at.Parked {
		k := rec.Parked[p.Call]
		if k == nil || k.Row.ID != p.Run {
			k = rec.Children[p.Run]
		}
		if k == nil || p.Call >= len(rec.Calls) {
			continue // erased or pruned
		}
		res, err := ResultAt(k.Row, k.Record, p.End)
		if err != nil {
			return RunResult{}, err
		}
		c := &rec.Calls[p.Call]
		st.PendingSubRuns = append(st.PendingSubRuns, SubRun{ToolCallID: c.ID, ToolName: c.Name, TargetAgentName: k.Row.Owner, State: res.State})
	}
	then := journal.Record{Steps: rec.Steps, Calls: rec.Calls, Pending: rec.Pending, Granted: rec.Granted}
	for _, e := range rec.Messages {
		if e.Index < at.Messages && e.At <= at.At {
			then.Messages = append(then.Messages, e)
		}
	}
	if st.Messages == nil {
		st.Messages = []message.Message{}
	}
	// A system prompt comes before the history.
	for i, e := range then.Messages {
		if i == 0 && e.Message.Role == message.System {
			st.Messages = append([]message.Message{e.Message}, st.Messages...)
			continue
		}
		st.Messages = append(st.Messages, e.Message)
	}
	calls := map[int][]*store.Call{}
	for i := range rec.Calls {
		c := &rec.Calls[i]
		calls[c.Step] = append(calls[c.Step], c)
	}
	for _, s := range rec.Steps[:min(at.Steps, len(rec.Steps))] {
		st.Steps = append(st.Steps, stepState(&then, s, calls[s.Number], at.At))
	}
	if kept := rec.Slots[store.ImportedSlot]; kept != nil {
		var im Imported
		if err := json.Unmarshal(kept, &im); err != nil {
			return RunResult{}, store.Damaged(err)
		}
		im.show(&st, then.Messages)
	}
	res := RunResult{Usage: st.Usage, Status: at.Status, Error: st.Error, Output: rec.Slots[store.OutputSlot], State: st}
	if res.Output == nil && at.Status != store.Running {
		if text := then.LastText(row.Owner); text != "" {
			res.Output, _ = message.Encode(text)
		}
	}
	return res, nil
}

func stepState(rec *journal.Record, s store.Step, calls []*store.Call, until int64) StepState {
	st := StepState{StepNumber: s.Number, StartedAt: message.Millis(s.Started), AgentID: s.Agent, ToolCalls: []CompletedCall{}}
	if s.Ended != 0 && s.Ended <= until {
		st.EndedAt = message.Millis(s.Ended)
	}
	if s.Usage != nil {
		json.Unmarshal(s.Usage, &st.Usage) //nolint:errcheck // ours; a step without usage is still true
	}
	for _, c := range calls {
		if c.Answered < 0 {
			continue
		}
		if m := rec.At(c.Answered); m != nil && m.Outcome != nil {
			st.ToolCalls = append(st.ToolCalls, CompletedCall{Call: rec.Call(c), Outcome: *m.Outcome, StepNumber: s.Number})
		}
	}
	return st
}

// End is the agent.end event in full, but for the operator's words: whoever may see those reads the state.
func (form) End(row *store.Run, rec *journal.Record, at journal.End) (event.Event, error) {
	res, err := ResultAt(row, rec, at)
	if err != nil {
		return event.Event{}, err
	}
	res.State.Withhold()
	type shown struct {
		RunResult
		State any `json:"state"` // hides the one of the result, and encodes faster
	}
	return event.New(event.AgentEnd, struct {
		RunID  string `json:"runId"`
		Result shown  `json:"result"`
	}{row.ID, shown{res, res.State.Plain()}}), nil
}

func isoOrNone(ms int64) string {
	if ms == 0 {
		return ""
	}
	return message.Millis(ms)
}

// form shows the runs of agents.
type form struct{}

func (form) EndType(store.Status) string { return event.AgentEnd }

func (form) Ends(typ string) bool { return typ == event.AgentEnd }

func (form) Failed(row *store.Run, _ *journal.Record) event.Event {
	return event.New(event.AgentError, struct {
		Error json.RawMessage `json:"error"`
	}{row.Error})
}

func (form) Cancelling(row *store.Run, _ *journal.Record, drain bool, onPending string) event.Event {
	return event.New(event.AgentCancelling, struct {
		RunID              string `json:"runId"`
		Drain              bool   `json:"drain"`
		OnPendingApprovals string `json:"onPendingApprovals"`
	}{row.ID, drain, onPending})
}

// Expand rebuilds an event whose text a message holds.
func (form) Expand(row *store.Run, rec *journal.Record, e store.Event) (event.Event, error) {
	plain := event.Event{Type: e.Type, Payload: e.Payload}
	m := rec.At(e.Message)
	if m == nil {
		return plain, fmt.Errorf("event %d of run %s refers to message %d, which is missing", e.Seq, row.ID, e.Message)
	}
	var head journal.CallHead
	if err := json.Unmarshal(e.Payload, &head); err != nil {
		return plain, err
	}
	switch e.Type {
	case event.TextComplete:
		return textComplete(m.Message.Content.String()), nil
	case event.ToolCallEnd:
		for _, tc := range m.Message.ToolCalls {
			if tc.ID == head.ToolCallID {
				return toolCallEnd(tc), nil
			}
		}
	case event.ToolEnd, event.ToolError:
		if m.Outcome != nil {
			return journal.ToolSettled(m.Outcome), nil
		}
	}
	return plain, fmt.Errorf("event %d of run %s does not fit message %d", e.Seq, row.ID, e.Message)
}
