package agent

import (
	"encoding/json"
	"fmt"

	"agentd/server/event"
	"agentd/server/message"
	"agentd/server/trace"
	"agentd/server/transcript"
	"agentd/store"
)

// move collects what one commit makes durable. Its row is a copy of the run's, to be changed at will.
type move struct {
	row      store.Run
	at       int64
	events   []published
	stored   []store.Event
	messages []store.Message
	entries  []entry
	steps    []store.Step
	calls    []store.Call
	slots    map[store.Slot]json.RawMessage
	spills   []store.Spill
	handoffs []store.Handoff
	spans    []trace.Span
	recorded []store.Exchange
	seed     []message.Message // history, when the move loads it
	pending  []Approval        // when a checkpoint makes requests durable
	granted  []Approval        // what its slot holds, when the move sets that
	gives    bool              // the session of a root takes over the holders that the move sets

	counted, uncounted int  // transient events that no durable event counts, before the move and after it; see count
	further            bool // it brings the run further than it was, so that no restart begins here again
}

// published is an event as subscribers see it.
type published struct {
	seq       int // 0: it is transient
	ev        event.Event
	lifecycle string
}

func (r *run) move() *move {
	m := &move{row: r.row, at: r.stamp()}
	m.row.Was = r.row.Status
	return m
}

// count notes on each durable event how many transient events come before it. The first of them are those that the run has
// published and no durable event counts.
func (m *move) count(uncounted int) {
	m.counted, m.uncounted = uncounted, uncounted
	at := 0
	for _, p := range m.events {
		if p.seq == 0 {
			m.uncounted++
			continue
		}
		m.stored[at].Transient, m.uncounted = m.uncounted, 0
		at++
	}
}

// progress notes that the run gets further with the move: the crashes so far do not count any more.
func (m *move) progress() { m.further, m.row.Attempt = true, 1 }

func (m *move) change() *store.Change {
	return &store.Change{Run: m.row, Events: m.stored, Messages: m.messages, Steps: m.steps, Calls: m.calls, Slots: m.slots, Spills: m.spills,
		Handoffs: m.handoffs, Spans: m.batch(), Exchanges: m.recorded}
}

// emit adds a durable event. What message index holds is left out of the stored form, which then is kept; -1 and
// nil keep all.
func (m *move) emit(ev event.Event, index int, kept any) {
	m.row.Events++
	payload := ev.Payload
	if kept != nil {
		payload = event.New(ev.Type, kept).Payload
	}
	m.stored = append(m.stored, store.Event{Seq: m.row.Events, Type: ev.Type, At: m.at, Message: index, Payload: payload})
	m.events = append(m.events, published{seq: m.row.Events, ev: ev})
}

// say adds an event that is stored whole.
func (m *move) say(typ string, fields any) { m.emit(event.New(typ, fields), -1, nil) }

// message adds a message at the next index and returns that index.
func (m *move) message(msg message.Message) int {
	i := m.row.Messages
	m.row.Messages++
	if msg.Role == message.Tool {
		m.told(i, msg, transcript.Outcome(msg, ""))
	} else {
		m.messageAt(i, msg, nil)
	}
	return i
}

// messageAt adds a message at an index that was reserved; an outcome is stored in place of its tool message.
func (m *move) messageAt(index int, msg message.Message, o *message.Outcome) {
	var body []byte
	var err error
	if o != nil {
		body, err = message.Encode(o)
	} else {
		body, err = message.Encode(msg)
	}
	m.put(index, msg, o, body, err)
}

// told adds a tool message that somebody else worded, with the outcome that it tells.
func (m *move) told(index int, msg message.Message, o *message.Outcome) {
	body, err := transcript.Body(msg, o)
	m.put(index, msg, o, body, err)
}

func (m *move) put(index int, msg message.Message, o *message.Outcome, body []byte, err error) {
	if err != nil {
		panic(fmt.Sprintf("agent: message does not encode: %v", err))
	}
	m.messages = append(m.messages, store.Message{Index: index, Role: string(msg.Role), Tokens: transcript.Tokens(msg), At: m.at, Body: body,
		Private: msg.Role == message.System})
	m.entries = append(m.entries, entry{index: index, at: m.at, msg: msg, outcome: o})
}

// conclude adds agent.end, which tells what the run looks like after the move, as its record then is.
func (m *move) conclude(after *record) error {
	at := ending(&m.row, after, m.at)
	ev, err := endEvent(&m.row, after, at)
	if err != nil {
		return err
	}
	stored, err := message.Encode(at)
	if err != nil {
		return err
	}
	m.row.Events++
	m.stored = append(m.stored, store.Event{Seq: m.row.Events, Type: ev.Type, At: m.at, Message: -1, Payload: stored})
	m.events = append(m.events, published{seq: m.row.Events, ev: ev, lifecycle: lifecycleOf(m.row.Status)})
	return nil
}

func (m *move) slot(s store.Slot, v json.RawMessage) {
	if m.slots == nil {
		m.slots = map[store.Slot]json.RawMessage{}
	}
	m.slots[s] = v
	m.row.Slots |= 1 << s
}
