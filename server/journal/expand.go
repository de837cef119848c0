package journal

import (
	"encoding/json"
	"errors"
	"fmt"

	"agentd/server/event"
	"agentd/store"
)

// expander rebuilds stored events as they were published, from the rows that they refer to. It reads each run once.
type expander struct {
	r       *Reader
	tx      *store.Tx
	version int64 // of the run whose events are rebuilt
	byN     map[int64]*Child
}

// begin continues in another transaction. What was read before stays good while the run is as it was: no event has come
// since, and those that are there refer to nothing that came after them.
func (x *expander) begin(tx *store.Tx, row *store.Run) {
	if x.tx = tx; x.version != row.Version || x.byN == nil {
		x.version, x.byN = row.Version, map[int64]*Child{}
	}
}

// of returns a run with its record.
func (x *expander) of(row *store.Run) (*Child, error) {
	if k := x.byN[row.N]; k != nil {
		return k, nil
	}
	rec, err := Load(x.tx, x.r.runs, row)
	k := &Child{row, rec}
	if err == nil {
		x.byN[row.N] = k
	}
	return k, err
}

// expand rebuilds an event of a run.
func (x *expander) expand(row *store.Run, e store.Event) (event.Event, error) {
	plain := event.Event{Type: e.Type, Payload: e.Payload}
	if e.Type == event.SubagentEvent {
		return x.inner(e)
	}
	ends := x.r.Form(row).Ends(e.Type)
	if !ends && e.Message < 0 {
		return plain, nil
	}
	k, err := x.of(row)
	if err != nil {
		return plain, err
	}
	if !ends {
		return x.r.Form(row).Expand(row, k.Record, e)
	}
	var at End
	if err = json.Unmarshal(e.Payload, &at); err == nil {
		err = x.gather(k.Record, at)
	}
	if err == nil {
		err = k.Record.Past.In(x.tx)
	}
	if err != nil {
		return plain, err
	}
	return x.r.Form(row).End(row, k.Record, at)
}

// gather reads the children that an end reports and that do not wait any more.
func (x *expander) gather(rec *Record, at End) error {
	for _, p := range at.Parked {
		row, err := x.r.runs.Find(x.tx, p.Run)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		var k *Child
		if err == nil {
			k, err = x.of(row)
		}
		if err == nil {
			err = x.gather(k.Record, p.End)
		}
		if err != nil {
			return err
		}
		if rec.Children == nil {
			rec.Children = map[string]*Child{}
		}
		rec.Children[p.Run] = k
	}
	return nil
}

// inner rebuilds an event that a parent has passed on.
func (x *expander) inner(e store.Event) (event.Event, error) {
	plain := event.Event{Type: e.Type, Payload: e.Payload}
	var f Forwarded
	if err := json.Unmarshal(e.Payload, &f); err != nil || f.Run == 0 {
		return plain, err // number 0: a program reported a child of its own, and all of it is here
	}
	row := (*store.Run)(nil)
	if k := x.byN[f.Run]; k != nil {
		row = k.Row
	} else {
		var err error
		if row, err = x.r.runs.Number(x.tx, f.Run); err != nil {
			return plain, fmt.Errorf("run %d of event %d: %w", f.Run, e.Seq, err)
		}
	}
	stored, err := x.r.runs.Events(x.tx, f.Run, f.Seq-1, 1)
	if err != nil || len(stored) == 0 {
		return plain, errors.Join(err, fmt.Errorf("event %d of run %s is missing", f.Seq, row.ID))
	}
	ev, err := x.expand(row, stored[0])
	return SubagentEvent(f.ToolCallID, f.AgentName, ev.Payload), err
}

// Forwarded is how a forwarded event is stored: it names the event that it wraps.
type Forwarded struct {
	ToolCallID string `json:"toolCallId"`
	AgentName  string `json:"agentName"`
	Run        int64  `json:"run"`
	Seq        int    `json:"seq"`
}

// SubagentEvent is an event of a child as its parent shows it.
func SubagentEvent(callID, agent string, inner json.RawMessage) event.Event {
	return event.New(event.SubagentEvent, struct {
		ToolCallID string          `json:"toolCallId"`
		AgentName  string          `json:"agentName"`
		Event      json.RawMessage `json:"event"`
	}{callID, agent, inner})
}
