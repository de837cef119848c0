package run

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"agentd/server/event"
	"agentd/server/hub"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/span"
	"agentd/server/transcript"
	"agentd/store"
)

// A Move collects what one commit makes durable: a change of the store, whose Run is a copy of the run's row to be
// changed at will, and what subscribers see of it. It belongs to the goroutine of the run.
type Move struct {
	store.Change
	At   int64      // milliseconds since 1970
	Done span.Batch // the work that ends with the move

	entries  []journal.Entry // the messages of the change, decoded
	events   []published     // the events of the change, and transient ones among them
	after    *journal.Record // of a move after which nothing moves the run: its record then
	in       store.Session   // as it was before, when the move begins a run of it
	used     *usage
	also     func(*store.Tx) error
	shown    json.RawMessage // see Show
	happened []Happening     // see Happened
	held     bool            // it was held back, see keep
	progress bool            // the run is further than it was, so that no restart begins here again

	counted, uncounted int // transient events that no durable event counts, before the move and after it; see count
}

// published is an event as subscribers see it.
type published struct {
	seq       int // 0: it is transient
	ev        event.Event
	late      *hub.Late // the payload, instead of the event's
	lifecycle string
}

// usage is what a run has used, decoded.
type usage struct {
	total  message.Usage
	models map[string]message.ModelUsage
}

func decodeUsage(row *store.Run) (*usage, error) {
	u := &usage{models: map[string]message.ModelUsage{}}
	if bytes.Equal(row.Usage, zeroUsage) && bytes.Equal(row.Models, noModels) {
		return u, nil
	}
	if err := json.Unmarshal(row.Usage, &u.total); err != nil {
		return nil, store.Damaged(err)
	}
	if err := json.Unmarshal(row.Models, &u.models); err != nil {
		return nil, store.Damaged(err)
	}
	return u, nil
}

// Now is the time of a move that begins now. Within a run time does not go back, whatever the clock does.
func (r *Run) Now() int64 {
	r.latest = max(r.latest, now())
	return r.latest
}

// Postpone gives a move that was held back a later time.
func (m *Move) Postpone(at int64) {
	m.At = at
	m.Done.Now(at)
}

// Move begins a move of the run as it is after its last commit, or continues one that is held back.
func (r *Run) Move() *Move {
	if m := r.kept; m != nil {
		m.Postpone(r.Now())
		return m
	}
	m := &Move{At: r.Now()}
	m.Run = r.Row
	m.Run.Was = r.Row.Status
	m.Done = span.In(&m.Run, m.At)
	return m
}

// Progress notes that the run gets further with the move: the crashes so far do not count any more.
func (m *Move) Progress() { m.progress, m.Run.Attempt = true, 1 }

// Also has fn write in the transaction of the move.
func (m *Move) Also(fn func(*store.Tx) error) { m.also = fn }

// Emit adds a durable event. When a message of the run at index holds a part of it, kept is stored in the place of its
// fields, and the [journal.Form] of the run rebuilds it; -1 and nil store all of it.
func (m *Move) Emit(ev event.Event, index int, kept any) {
	payload := ev.Payload
	if kept != nil {
		payload = event.New(ev.Type, kept).Payload
	}
	m.add(published{ev: ev}, index, payload)
}

func (m *Move) add(p published, index int, payload json.RawMessage) {
	m.Run.Events++
	m.Events = append(m.Events, store.Event{Seq: m.Run.Events, Type: p.ev.Type, At: m.At, Message: index, Payload: payload})
	p.seq = m.Run.Events
	m.events = append(m.events, p)
}

// Say adds a durable event that is stored whole.
func (m *Move) Say(typ string, fields any) { m.Emit(event.New(typ, fields), -1, nil) }

// Transient adds an event that is published in its place among the others and is not stored.
func (m *Move) Transient(ev event.Event) { m.events = append(m.events, published{ev: ev}) }

// Shows is Transient for an event whose fields are made when somebody first reads it, if anybody does; until then it keeps about
// so many bytes in memory.
func (m *Move) Shows(typ string, weight int, fields func() any) {
	late := &hub.Late{Weight: weight, Make: func() json.RawMessage { return event.New(typ, fields()).Payload }}
	m.events = append(m.events, published{ev: event.Event{Type: typ}, late: late})
}

// count notes on each durable event how many transient events come before it. The first of them are those that the run
// has published and no durable event counts.
func (m *Move) count(uncounted int) {
	m.counted, m.uncounted = uncounted, uncounted
	at := 0
	for _, p := range m.events {
		if p.seq == 0 {
			m.uncounted++
			continue
		}
		m.Events[at].Transient, m.uncounted = m.uncounted, 0
		at++
	}
}

// Message adds a message at the next index and returns that index.
func (m *Move) Message(msg message.Message) int {
	i := m.Run.Messages
	m.Run.Messages++
	m.MessageAt(i, msg, transcript.Outcome(msg, ""))
	return i
}

// MessageAt adds a message at an index that was reserved; o is the outcome that a tool message reports, else nil.
func (m *Move) MessageAt(index int, msg message.Message, o *message.Outcome) {
	body, err := transcript.Body(msg, o)
	m.put(index, msg, o, body, err)
}

func (m *Move) put(index int, msg message.Message, o *message.Outcome, body []byte, err error) {
	if err != nil {
		panic(fmt.Sprintf("run: message does not encode: %v", err))
	}
	m.Messages = append(m.Messages, store.Message{Index: index, Role: string(msg.Role), Tokens: transcript.Tokens(msg), At: m.At, Body: body})
	m.entries = append(m.entries, journal.Entry{Index: index, At: m.At, Message: msg, Outcome: o})
}

// DropCalls takes the calls that are never made out of the assistant message at an index of this move, so that the
// transcript does not promise them. Their toolcall.end events, which refer to it, are stored whole instead.
func (m *Move) DropCalls(index int) {
	for i := range m.entries {
		if e := &m.entries[i]; e.Index == index {
			e.Message.ToolCalls = nil
			m.Messages[i].Body, _ = message.Encode(e.Message)
		}
	}
	for _, p := range m.events {
		if p.ev.Type != event.ToolCallEnd || p.seq == 0 {
			continue
		}
		e := &m.Events[p.seq-m.Events[0].Seq]
		e.Payload, e.Message = p.ev.Payload, -1
	}
}

// Slot sets a slot of the run.
func (m *Move) Slot(s store.Slot, v json.RawMessage) {
	if m.Slots == nil {
		m.Slots = map[store.Slot]json.RawMessage{}
	}
	m.Slots[s] = v
	m.Run.Slots |= 1 << s
}

// keep sets a slot that the kernel decodes itself.
func (m *Move) keep(s store.Slot, v any) {
	kept, err := message.Encode(v)
	if err != nil {
		panic(fmt.Sprintf("run: slot %d does not encode: %v", s, err))
	}
	m.Slot(s, kept)
}

// BeginStep adds the start of a step.
func (m *Move) BeginStep(n int) {
	m.Run.Step = n
	m.Progress()
	m.Steps = append(m.Steps, store.Step{Number: n, Agent: m.Run.Owner, Started: m.At})
	m.Say(event.StepStart, StepFields{StepNumber: n})
}

// CloseStep adds the end of a step that no event reports, since the run waits from then on.
func (m *Move) CloseStep(s store.Step) {
	m.Done.Step(s, span.OK)
	s.Ended = m.At
	if n := len(m.Steps); n > 0 && m.Steps[n-1].Number == s.Number { // of a claim that was held back
		m.Steps = m.Steps[:n-1]
	}
	m.Steps = append(m.Steps, s)
}

// EndStep adds the end of a step. A step that a resumption began has no events.
func (m *Move) EndStep(s store.Step) {
	m.CloseStep(s)
	if s.Resumed {
		return
	}
	var used message.Usage
	json.Unmarshal(s.Usage, &used) //nolint:errcheck // absent after a resumption: then it is zero, which is true
	m.Say(event.StepEnd, StepFields{StepNumber: s.Number, Usage: &used})
}

// Charge adds what a model, or a child, used to the run's usage.
func (m *Move) Charge(r *Run, model string, used message.Usage) {
	if m.used == nil {
		m.used = &usage{r.used.total, maps.Clone(r.used.models)}
	}
	m.used.total = m.used.total.Plus(used)
	mu := m.used.models[model]
	mu.Usage = mu.Usage.Plus(used)
	mu.AttemptCount++
	m.used.models[model] = mu
}

// SetUsage replaces the run's usage by what its program reports.
func (m *Move) SetUsage(total message.Usage, models map[string]message.ModelUsage) {
	m.used = &usage{total, models}
}

// encode completes the stored form of the move.
func (m *Move) encode() (err error) {
	if m.used != nil {
		if m.Run.Usage, err = message.Encode(m.used.total); err == nil {
			m.Run.Models, err = message.Encode(m.used.models)
		}
	}
	m.Spans = append(m.Spans, m.Done.Encode()...)
	return err
}

// call returns a call as the move leaves it; nil when the move does not touch it.
func (m *Move) call(is func(*store.Call) bool) *store.Call {
	for i := range slices.Backward(m.Calls) {
		if is(&m.Calls[i]) {
			return &m.Calls[i]
		}
	}
	return nil
}

// Call returns a call as it is after the move.
func (m *Move) Call(c store.Call) store.Call {
	if changed := m.call(func(o *store.Call) bool { return o.Index == c.Index }); changed != nil {
		return *changed
	}
	return c
}

// setCall puts a call into the move in place of an earlier form.
func (m *Move) setCall(c store.Call) {
	if changed := m.call(func(o *store.Call) bool { return o.Index == c.Index }); changed != nil {
		*changed = c
		return
	}
	m.Calls = append(m.Calls, c)
}

// Outcome returns the outcome of a call that the move settles, or that was settled before; nil when it is not settled.
func (m *Move) Outcome(r *Run, c *store.Call) *message.Outcome {
	for _, e := range m.entries {
		if e.Index == c.Answered {
			return e.Outcome
		}
	}
	if e := r.Record.At(c.Answered); e != nil {
		return e.Outcome
	}
	return nil
}

// conclude adds the event that reports how the run stands after the move; after is its record then, which nobody changes any
// more. The event shows all of the run. That of a run that has ended is made when somebody reads it; the children of one
// that waits may change before.
func (m *Move) conclude(e *Engine, after *journal.Record) error {
	if err := m.encode(); err != nil {
		return err
	}
	at := journal.EndOf(&m.Run, after, m.At)
	at.Type, at.Shown = e.Form(&m.Run).EndType(m.Run.Status), m.shown
	stored, err := message.Encode(at)
	if err != nil {
		return err
	}
	row := m.Run
	if row.Status.Terminal() {
		after.Past = after.Past.Anew() // so that the event does not hold what the run has read
	}
	late := &hub.Late{Weight: after.Weight(), Make: func() json.RawMessage {
		ev, err := e.Form(&row).End(&row, after, at)
		if err != nil {
			e.log.Error("the end of a run could not be shown", "run", row.ID, "error", err)
			ev = event.New(at.Type, map[string]string{"runId": row.ID})
		}
		return ev.Payload
	}}
	if !m.Run.Status.Terminal() {
		late.Payload()
	}
	m.add(published{ev: event.Event{Type: at.Type}, late: late, lifecycle: journal.Lifecycle(m.Run.Status)}, -1, stored)
	m.after = after
	return nil
}

// follow makes what a session holds the past of the run that the move begins.
func (m *Move) follow(r *Run, in store.Session) {
	if m.in = in; r.owner.HistoryTokens > 0 && in.Sequence > 0 {
		m.Run.HistoryAfter, m.Run.HistoryTo = store.Window(r.owner.HistoryTokens), in.Sequence
	}
}

// Holders are the agents to which the conversation of the run that the move begins was given before; nil: to none.
func (m *Move) Holders() []string { return m.in.Holders(m.Run.Owner) }
