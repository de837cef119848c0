package agent

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/runstate"
	"agentd/server/transcript"
	"agentd/store"
)

// What runs look like from outside.
type (
	State         = runstate.State
	StepState     = runstate.Step
	SubRun        = runstate.SubRun
	CompletedCall = runstate.CompletedCall
	Approval      = runstate.Approval
	Previous      = runstate.Previous
	RunError      = runstate.Error // its code is one of the fault table
)

// OutcomeUnknown is the reason of an approval whose call may have happened already.
const OutcomeUnknown = runstate.OutcomeUnknown

// runError is an error as a run tells it.
func (e *Engine) runError(err error) *RunError {
	f := fault.Of(err)
	if f.Kind == fault.Internal { // nobody classified it, but it is the agent's own and not a secret of the server
		return &RunError{Message: clip(e.opts.Redact(err.Error()), 2000), Code: fault.Unknown.Code, Hint: fault.Unknown.Hint}
	}
	return &RunError{Message: e.opts.Redact(f.Message), Code: f.Kind.Code, Hint: f.NextStep()}
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n] + "…"
}

// RunResult is what agent.end and the run route tell about a run: with its state or, to one who may not read that, with the
// calls that wait.
type RunResult struct {
	Output json.RawMessage `json:"output,omitempty"`
	Usage  message.Usage   `json:"usage"`
	Status store.Status    `json:"status" enum:"running|awaiting_approval|completed|failed|aborted"`
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

// record is what a run consists of beside its row.
type record struct {
	history    []message.Message // of the session, before the run
	messages   []entry           // the run's own, by index
	steps      []store.Step
	calls      []store.Call
	output     json.RawMessage // nil: the last text of the assistant
	checkpoint json.RawMessage // of an opaque agent
	pending    []Approval
	granted    []Approval // to an opaque agent that has not acted upon them
	handoffs   []store.Handoff
	parked     map[int]*child    // children that wait, by the index of their call
	children   map[string]*child // others that an agent.end tells of, by their ids; filled in where that is read
	imported   *imported         // of a run that was begun elsewhere
	ending     store.Status      // how the run ends once unknown outcomes are decided; empty: it does not
	holders    []string          // see store.HoldersSlot
}

// child is a run that waits as a part of another.
type child struct {
	row *store.Run
	rec *record
}

// entry is a message with its index in the run. Indices that are reserved for outcomes to come are absent.
type entry struct {
	index   int
	at      int64
	msg     message.Message
	outcome *message.Outcome // of tool messages
}

// says reports whether it is an agent's own word.
func (e *entry) says(agentID string) bool {
	return e.msg.Role == message.Assistant && e.msg.AgentID == agentID
}

func decodeMessage(m store.Message) (entry, error) {
	msg, outcome, err := transcript.Decode(m)
	return entry{index: m.Index, at: m.At, msg: msg, outcome: outcome}, err
}

// load reads a run's record.
func load(tx *store.Tx, runs *store.Runs, row *store.Run) (*record, error) {
	rec := &record{}
	history, err := runs.History(tx, row.Session, row.HistoryAfter, row.HistoryTo)
	if err != nil {
		return nil, err
	}
	for _, m := range history {
		e, err := decodeMessage(m)
		if err != nil {
			return nil, fmt.Errorf("message %d of run %d: %w", m.Index, m.Run, err)
		}
		rec.history = append(rec.history, e.msg)
	}
	if row.Messages > 0 {
		own, err := runs.Messages(tx, row.N)
		if err != nil {
			return nil, err
		}
		for _, m := range own {
			e, err := decodeMessage(m)
			if err != nil {
				return nil, fmt.Errorf("message %d of run %s: %w", m.Index, row.ID, err)
			}
			rec.messages = append(rec.messages, e)
		}
	}
	if row.Step > 0 {
		if rec.steps, err = runs.Steps(tx, row.N); err != nil {
			return nil, err
		}
	}
	if row.Calls > 0 {
		if rec.calls, err = runs.Calls(tx, row.N); err != nil {
			return nil, err
		}
	}
	if row.Slots&(1<<store.ImportedSlot) != 0 || slices.ContainsFunc(rec.calls, func(c store.Call) bool { return c.Child != "" }) {
		if err := rec.loadChildren(tx, runs, row); err != nil {
			return nil, err
		}
	}
	if row.Slots == 0 {
		return rec, nil
	}
	slots, err := runs.Slots(tx, row.N)
	if err != nil {
		return nil, err
	}
	rec.output, rec.checkpoint = slots[store.OutputSlot], slots[store.CheckpointSlot]
	if pending := slots[store.PendingSlot]; pending != nil {
		rec.pending, err = readPending(pending)
	}
	if granted := slots[store.GrantedSlot]; granted != nil && err == nil {
		err = json.Unmarshal(granted, &rec.granted)
	}
	if kept := slots[store.EndingSlot]; kept != nil && err == nil {
		err = json.Unmarshal(kept, &rec.ending)
	}
	if kept := slots[store.ImportedSlot]; kept != nil && err == nil {
		err = json.Unmarshal(kept, &rec.imported)
	}
	if kept := slots[store.HoldersSlot]; kept != nil && err == nil {
		err = json.Unmarshal(kept, &rec.holders)
	}
	return rec, err
}

// loadChildren reads the hand-offs and the children that wait.
func (rec *record) loadChildren(tx *store.Tx, runs *store.Runs, row *store.Run) (err error) {
	if rec.handoffs, err = runs.Handoffs(tx, row.N); err != nil {
		return err
	}
	slices.SortStableFunc(rec.handoffs, func(a, b store.Handoff) int { return cmp.Compare(a.At, b.At) })
	for _, c := range rec.calls {
		if c.Child == "" || c.Phase != store.CallAwaiting {
			continue
		}
		kid, err := runs.Find(tx, c.Child)
		if errors.Is(err, store.ErrNotFound) {
			continue // the call itself waits
		}
		if err != nil {
			return err
		}
		k := &child{row: kid}
		if k.rec, err = load(tx, runs, kid); err != nil {
			return err
		}
		if rec.parked == nil {
			rec.parked = map[int]*child{}
		}
		rec.parked[c.Index] = k
	}
	return nil
}

// put adds an entry at its place.
func (rec *record) put(e entry) {
	at, found := slices.BinarySearchFunc(rec.messages, e.index, func(m entry, i int) int { return m.index - i })
	if found {
		rec.messages[at] = e
		return
	}
	rec.messages = slices.Insert(rec.messages, at, e)
}

func (rec *record) at(index int) *entry {
	i, found := slices.BinarySearchFunc(rec.messages, index, func(m entry, i int) int { return m.index - i })
	if !found {
		return nil
	}
	return &rec.messages[i]
}

// call is what a journal row stands for; without arguments where nothing is stored of it.
func (rec *record) call(c *store.Call) message.ToolCall {
	if call, ok := rec.stored(c); ok {
		return call
	}
	return message.ToolCall{ID: c.ID, Name: c.Name, Args: json.RawMessage("{}")}
}

// lastText is the last text that the agent said in this run, "" when it said none.
func (rec *record) lastText(agentID string) string {
	for _, e := range slices.Backward(rec.messages) {
		if e.says(agentID) {
			if s := e.msg.Content.String(); s != "" {
				return s
			}
		}
	}
	return ""
}

// end is what a run looked like when an agent.end was written: the stored form of that event. The rest of the event
// is built from the run's rows, which only grow.
type end struct {
	Type     string          `json:"type"`
	RunID    string          `json:"runId"`
	Status   store.Status    `json:"status"`
	At       int64           `json:"at"`
	Messages int             `json:"messages"`
	Steps    int             `json:"steps"`
	Agent    string          `json:"agent"`
	Usage    json.RawMessage `json:"usage"`
	Models   json.RawMessage `json:"models"`
	Error    json.RawMessage `json:"error,omitempty"`
	Pending  []Approval      `json:"pending,omitempty"`
	Finished int64           `json:"finished,omitempty"`
	Parked   []parkedEnd     `json:"parked,omitempty"`
}

// parkedEnd is what a child looked like that waited then.
type parkedEnd struct {
	Call int    `json:"call"` // its index
	Run  string `json:"run"`
	End  end    `json:"end"`
}

// latest is the time of the latest thing that a run's rows tell of. The clock may have been set back since.
func (rec *record) latest(row *store.Run) int64 {
	at := max(row.Created, row.Started, row.Finished)
	for _, s := range rec.steps {
		at = max(at, s.Started, s.Ended)
	}
	for _, c := range rec.calls {
		at = max(at, c.Claimed, c.Settled)
	}
	for _, a := range rec.pending {
		at = max(at, millis(a.RequestedAt))
	}
	for _, m := range rec.messages {
		at = max(at, m.at)
	}
	for _, h := range rec.handoffs {
		at = max(at, h.At)
	}
	return at
}

// ending describes the run as it is now: at a time, or at the time of the latest that is known of it if that is later.
func ending(row *store.Run, rec *record, at int64) end {
	at = max(at, rec.latest(row))
	e := end{Type: event.AgentEnd, RunID: row.ID, Status: row.Status, At: at, Messages: row.Messages, Steps: len(rec.steps),
		Agent: row.Current, Usage: row.Usage, Models: row.Models, Error: row.Error, Pending: rec.pending, Finished: row.Finished}
	for _, i := range slices.Sorted(maps.Keys(rec.parked)) {
		k := rec.parked[i]
		e.Parked = append(e.Parked, parkedEnd{i, k.row.ID, ending(k.row, k.rec, at)})
	}
	return e
}

// result builds what the run looked like at the given end.
func result(row *store.Run, rec *record, at end) (RunResult, error) {
	st := State{
		Version: runstate.Version, ID: row.ID, AgentID: row.Owner, CurrentAgentID: at.Agent, SessionID: row.Session, UserID: row.User,
		Status: string(at.Status), Steps: []StepState{}, Messages: slices.Clone(rec.history), PendingApprovals: at.Pending,
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
	for _, h := range rec.handoffs {
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
		k := rec.parked[p.Call]
		if k == nil || k.row.ID != p.Run {
			k = rec.children[p.Run]
		}
		if k == nil || p.Call >= len(rec.calls) {
			continue // erased or pruned
		}
		res, err := result(k.row, k.rec, p.End)
		if err != nil {
			return RunResult{}, err
		}
		c := &rec.calls[p.Call]
		st.PendingSubRuns = append(st.PendingSubRuns, SubRun{ToolCallID: c.ID, ToolName: c.Name, TargetAgentName: k.row.Owner, State: res.State})
	}
	then := record{steps: rec.steps, calls: rec.calls}
	for _, e := range rec.messages {
		if e.index < at.Messages && e.at <= at.At {
			then.messages = append(then.messages, e)
		}
	}
	if st.Messages == nil {
		st.Messages = []message.Message{}
	}
	// A system prompt comes before the history.
	for i, e := range then.messages {
		if i == 0 && e.msg.Role == message.System {
			st.Messages = append([]message.Message{e.msg}, st.Messages...)
			continue
		}
		st.Messages = append(st.Messages, e.msg)
	}
	for _, s := range rec.steps[:min(at.Steps, len(rec.steps))] {
		st.Steps = append(st.Steps, then.step(s, at.At))
	}
	if rec.imported != nil {
		rec.imported.show(&st, then.messages)
	}
	res := RunResult{Usage: st.Usage, Status: at.Status, Error: st.Error, Output: rec.output, State: st}
	if res.Output == nil && at.Status != store.Running {
		if text := then.lastText(row.Owner); text != "" {
			res.Output, _ = message.Encode(text)
		}
	}
	return res, nil
}

func (rec *record) step(s store.Step, until int64) StepState {
	st := StepState{StepNumber: s.Number, StartedAt: message.Millis(s.Started), AgentID: s.Agent, ToolCalls: []CompletedCall{}}
	if s.Ended != 0 && s.Ended <= until {
		st.EndedAt = message.Millis(s.Ended)
	}
	if s.Usage != nil {
		json.Unmarshal(s.Usage, &st.Usage) //nolint:errcheck // ours; a step without usage is still true
	}
	for i := range rec.calls {
		c := &rec.calls[i]
		if c.Step != s.Number || c.Answered < 0 {
			continue
		}
		if m := rec.at(c.Answered); m != nil && m.outcome != nil {
			st.ToolCalls = append(st.ToolCalls, CompletedCall{Call: rec.call(c), Outcome: *m.outcome, StepNumber: s.Number})
		}
	}
	return st
}

// endEvent is the agent.end event in full, but for the operator's words: whoever may see those reads the state.
func endEvent(row *store.Run, rec *record, at end) (event.Event, error) {
	res, err := result(row, rec, at)
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
