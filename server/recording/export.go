package recording

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"slices"
	"strconv"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/store"
)

// Export writes a recorded run that has ended as a file; see [Format]. The file holds everything that was said. Errors:
// run-not-found, run-not-ended, run-not-recorded, storage-failed, all before the first byte; and those of w.
func Export(ctx context.Context, e *agent.Engine, runID string, w io.Writer) error {
	row, rec, err := e.Read(ctx, runID)
	if err != nil {
		return err
	}
	if !row.Status.Terminal() {
		return fault.New(fault.RunNotEnded, "The run is %s.", row.Status).With("runId", runID).With("status", row.Status)
	}
	d := &dubbing{row: row, rec: rec}
	if err := e.Runs().View(ctx, func(tx *store.Tx) error { return d.load(tx, e.Runs()) }); err != nil {
		return err
	}
	if !d.complete() {
		return fault.New(fault.RunNotRecorded, "The run was not recorded from its beginning to its end.").With("runId", runID).
			Advise("Set `record` to true for the agent " + row.Owner + ", and run it again.")
	}
	return d.recording().Write(w)
}

// eventPage is how many stored events are read at a time.
const eventPage = 500

// A dubbing joins what a run consists of into a recording.
type dubbing struct {
	row       *store.Run
	rec       *journal.Record
	exchanges []exchange
	events    []happening // those with what neither the transcript nor the exchanges hold
	history   []Past
}

// A happening is an event of the run with what its payload can hold.
type happening struct {
	store.Event                                                `json:"-"`
	ToolCallID, SubRunToolCallID, ToolName, ArgsPrefix, Reason string
	FinalArgs                                                  json.RawMessage
}

// load reads what the record has not.
func (d *dubbing) load(tx *store.Tx, runs *store.Runs) (err error) {
	stored, err := runs.Exchanges(tx, d.row.N)
	if err != nil {
		return err
	}
	for _, s := range stored {
		x := exchange{Step: s.Step}
		if err := json.Unmarshal(s.Body, &x); err != nil {
			return err
		}
		d.exchanges = append(d.exchanges, x)
	}
	for after := 0; after < d.row.Events; after += eventPage {
		page, err := runs.Events(tx, d.row.N, after, eventPage)
		if err != nil {
			return err
		}
		for _, ev := range page {
			switch ev.Type {
			case event.AgentStart, event.AgentCancelling, event.ToolCallStart, event.ToolCallEnd, event.ToolCallIncomplete,
				event.ApprovalRequested, event.ApprovalGranted, event.ApprovalDenied:
				h := happening{Event: ev}
				json.Unmarshal(ev.Payload, &h) //nolint:errcheck // ours
				d.events = append(d.events, h)
			}
		}
	}
	if err := d.rec.Past.In(tx); err != nil {
		return err
	}
	history, err := runs.History(tx, d.row.Session, d.row.HistoryAfter, d.row.HistoryTo)
	if err != nil {
		return err
	}
	for _, m := range history {
		e, err := journal.DecodeEntry(m)
		if err != nil {
			return err
		}
		d.history = append(d.history, Past{Tokens: m.Tokens, Message: e.Message})
	}
	return nil
}

// complete reports whether every model call that was answered is recorded.
func (d *dubbing) complete() bool {
	if d.rec.Holds(store.ImportedSlot) { // its beginning was elsewhere
		return false
	}
	recorded := map[int]bool{}
	for _, x := range d.exchanges {
		recorded[x.Step] = true
	}
	for _, s := range d.rec.Steps {
		if s.Model != "" && !recorded[s.Number] {
			return false
		}
	}
	return len(d.exchanges) > 0 && d.exchanges[0].Step == 1 // else the run began with what no model asked for
}

func (d *dubbing) recording() *Recording {
	return &Recording{
		Meta:  Meta{Writer: "agentd", CreatedAt: message.Millis(d.row.Created), RunID: d.row.ID, SessionID: d.row.Session, AgentID: d.row.Owner},
		Input: d.input(), ModelCalls: d.modelCalls(), ToolCalls: d.toolCalls(), Approvals: d.approvals(), Result: d.result()}
}

// input is the inverse of inputMessages, with what came before.
func (d *dubbing) input() *Input {
	in := &Input{UserID: d.row.User, History: d.history}
	first := d.exchanges[0]
	msgs := []message.Message{}
	for _, e := range d.rec.Messages {
		if e.Index >= first.First && e.Index < first.Next {
			msgs = append(msgs, e.Message)
		}
	}
	if d.row.InputForm == "text" && len(msgs) == 1 {
		in.Input, _ = message.Encode(msgs[0].Content.Text)
	} else {
		in.Input, _ = message.Encode(msgs)
	}
	return in
}

func (d *dubbing) modelCalls() []ModelCall {
	steps := map[int]store.Step{}
	for _, s := range d.rec.Steps {
		steps[s.Number] = s
	}
	var calls []ModelCall
	var before []message.Message
	for _, x := range d.exchanges {
		c := ModelCall{StepNumber: x.Step, AgentID: cmp.Or(steps[x.Step].Agent, d.row.Owner), Provider: x.Provider, Model: x.Model, Failed: x.Failed,
			TimestampISO: message.Millis(x.At), DurationMS: x.DurationMS, RequestSHA256: x.SHA256, MessageCount: x.Messages, Terms: x.Terms, Cut: x.Cut}
		asked, _ := agent.Transcript(d.rec, x.Next) // what it reads is read already
		c.Kept, c.Messages = delta(before, asked)
		before = asked
		if x.Finish != "" {
			c.Answer = d.answer(x, steps[x.Step])
		}
		calls = append(calls, c)
	}
	return calls
}

// answer joins an exchange with the message that it brought. Calls that the run did not come to make were taken out of
// that message; their events have them.
func (d *dubbing) answer(x exchange, s store.Step) *Answer {
	a := &Answer{Model: s.Model, Reasoning: x.Reasoning, Finish: x.Finish}
	json.Unmarshal(s.Usage, &a.Usage) //nolint:errcheck // ours
	if e := d.rec.At(x.Next); e != nil {
		a.Text, a.ToolCalls = e.Message.Content.Text, e.Message.ToolCalls
	}
	if a.ToolCalls != nil || x.Step != d.exchanges[len(d.exchanges)-1].Step {
		return a
	}
	names := map[string]string{}
	for _, ev := range d.events {
		switch {
		case ev.Type == event.ToolCallStart:
			names[ev.ToolCallID] = ev.ToolName
		case ev.Type == event.ToolCallEnd && ev.Message < 0:
			a.ToolCalls = append(a.ToolCalls, message.ToolCall{ID: ev.ToolCallID, Name: names[ev.ToolCallID], Args: ev.FinalArgs})
		case ev.Type == event.ToolCallIncomplete:
			a.Incomplete = &Incomplete{ToolCallID: ev.ToolCallID, ToolName: ev.ToolName, ArgsPrefix: ev.ArgsPrefix}
		}
	}
	return a
}

func (d *dubbing) toolCalls() []ToolCall {
	effects := map[string]string{}
	for _, x := range d.exchanges {
		if x.Terms != nil {
			for _, t := range x.Terms.Tools {
				effects[t.Name] = t.SideEffect
			}
		}
	}
	var calls []ToolCall
	for i := range d.rec.Calls {
		j := &d.rec.Calls[i]
		c := ToolCall{StepNumber: j.Step, ToolCallID: j.ID, ToolName: j.Name, SideEffectClass: effects[j.Name], AgentID: d.row.Owner, ChildRunID: j.Child,
			IdempotencyKey: d.row.ID + ":" + strconv.Itoa(j.Origin) + ":" + j.ID, Args: d.rec.Call(j).Args, TimestampISO: message.Millis(cmp.Or(j.Settled, j.Claimed))}
		c.SHA256OfArgs = hashOf(c.Args)
		var o *message.Outcome
		if e := d.rec.At(j.Answered); e != nil {
			o = e.Outcome
		}
		c.settle(o)
		calls = append(calls, c)
	}
	slices.SortStableFunc(calls, func(a, b ToolCall) int { return a.StepNumber - b.StepNumber })
	return calls
}

// approvals lists every question to a person. An abort answers the open ones itself; those answers do not count.
func (d *dubbing) approvals() []Approval {
	type question struct{ call, child string }
	var list []Approval
	open := map[question]int{}
	var resumed []int // numbers of the steps that decisions began and no decision was found for yet
	for _, s := range d.rec.Steps {
		if s.Resumed {
			resumed = append(resumed, s.Number)
		}
	}
	step, cancelling := 0, false // the step that the decisions of this start began; 0: none yet
	for _, ev := range d.events {
		q := question{ev.ToolCallID, ev.SubRunToolCallID}
		switch ev.Type {
		case event.AgentStart:
			step, cancelling = 0, false
		case event.AgentCancelling:
			cancelling = true
		case event.ApprovalRequested:
			a := Approval{StepNumber: d.row.Step, ToolCallID: q.call, SubRunToolCallID: q.child, Asked: ev.Reason, TimestampISO: message.Millis(ev.At)}
			if c := d.rec.CallByID(q.call); c != nil {
				a.ToolName = c.Name
			}
			open[q] = len(list)
			list = append(list, a)
		case event.ApprovalGranted, event.ApprovalDenied:
			i, asked := open[q]
			if !asked || cancelling {
				continue
			}
			delete(open, q)
			if step == 0 && len(resumed) > 0 {
				step, resumed = resumed[0], resumed[1:]
			}
			d.decided(&list[i], step, ev)
		}
	}
	slices.SortStableFunc(list, func(a, b Approval) int { return a.StepNumber - b.StepNumber })
	return list
}

// decided adds a decision to its question. The journal knows who made the latest decision about a call.
func (d *dubbing) decided(a *Approval, step int, ev happening) {
	a.Granted, a.Reason, a.TimestampISO = new(ev.Type == event.ApprovalGranted), ev.Reason, message.Millis(ev.At)
	a.StepNumber = cmp.Or(step, a.StepNumber)
	c := d.rec.CallByID(a.ToolCallID)
	if c == nil || c.Decision == nil {
		return
	}
	if last := journal.ReadDecided(c); last.At == a.TimestampISO {
		a.By, a.Reason = last.By, last.Reason
	}
}

func (d *dubbing) result() *Result {
	res := &Result{StepNumber: d.row.Step, Status: string(d.row.Status), TimestampISO: message.Millis(d.row.Finished), Cut: d.cut()}
	if now, err := agent.ResultAt(d.row, d.rec, journal.EndOf(d.row, d.rec, d.row.Finished)); err == nil {
		res.Output, res.Usage = now.Output, now.Usage
		if now.Error != nil {
			res.Error = &Failure{Code: now.Error.Code, Message: now.Error.Message, Hint: now.Error.Hint}
		}
	}
	return res
}

// cut reports whether the run was ended from outside, at a moment of which the run itself knows nothing.
func (d *dubbing) cut() bool {
	if d.row.Status != store.Failed {
		return d.row.Status == store.Aborted
	}
	var failure journal.Error
	json.Unmarshal(d.row.Error, &failure) //nolint:errcheck // ours
	switch failure.Code {
	case fault.RunAborted.Code, fault.ServerRestarted.Code, fault.CrashLoop.Code, fault.ShutdownTimeout.Code, fault.Restored.Code:
		return true
	}
	last := d.exchanges[len(d.exchanges)-1]
	for i := range d.rec.Calls { // the clock, while tools were running
		c := &d.rec.Calls[i]
		if e := d.rec.At(c.Answered); c.Step >= last.Step && e != nil && e.Outcome != nil && e.Outcome.Kind == message.AbortedCall {
			return true
		}
	}
	return last.Cut
}
