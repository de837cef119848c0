package agent

import (
	"encoding/json"
	"errors"
	"fmt"

	"agentd/server/event"
	"agentd/store"
)

// expander rebuilds stored events as they were published, from the rows that they refer to. It reads each run once.
type expander struct {
	tx      *store.Tx
	runs    *store.Runs
	version int64 // of the run whose events are rebuilt
	byID    map[string]*child
	byN     map[int64]*child
}

// begin goes on in another transaction. What was read before stays good while the run is as it was: no event has come
// since, and those that are there refer to nothing that came after them.
func (x *expander) begin(tx *store.Tx, row *store.Run) {
	if x.tx = tx; x.version != row.Version {
		x.version, x.byID, x.byN = row.Version, nil, nil
	}
}

// of returns a run with its record.
func (x *expander) of(row *store.Run) (*child, error) {
	if k := x.byID[row.ID]; k != nil {
		return k, nil
	}
	rec, err := load(x.tx, x.runs, row)
	if err != nil {
		return nil, err
	}
	if x.byID == nil {
		x.byID, x.byN = map[string]*child{}, map[int64]*child{}
	}
	k := &child{row, rec}
	x.byID[row.ID], x.byN[row.N] = k, k
	return k, nil
}

// expand rebuilds an event of a run.
func (x *expander) expand(row *store.Run, e store.Event) (event.Event, error) {
	plain := event.Event{Type: e.Type, Payload: e.Payload}
	switch {
	case e.Type == event.AgentEnd:
		var at end
		if err := json.Unmarshal(e.Payload, &at); err != nil {
			return plain, err
		}
		k, err := x.of(row)
		if err == nil {
			err = x.gather(k.rec, at)
		}
		if err != nil {
			return plain, err
		}
		return endEvent(row, k.rec, at)
	case e.Type == event.SubagentEvent:
		return x.inner(e)
	case e.Message < 0:
		return plain, nil
	}
	k, err := x.of(row)
	if err != nil {
		return plain, err
	}
	return expand(row, k.rec, e)
}

// gather reads the children that an agent.end tells of and that do not wait any more.
func (x *expander) gather(rec *record, at end) error {
	for _, p := range at.Parked {
		row, err := x.runs.Find(x.tx, p.Run)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		k, err := x.of(row)
		if err == nil {
			err = x.gather(k.rec, p.End)
		}
		if err != nil {
			return err
		}
		if rec.children == nil {
			rec.children = map[string]*child{}
		}
		rec.children[p.Run] = k
	}
	return nil
}

// inner rebuilds an event that a child told and its parent passed on.
func (x *expander) inner(e store.Event) (event.Event, error) {
	plain := event.Event{Type: e.Type, Payload: e.Payload}
	var f forwardedFields
	if err := json.Unmarshal(e.Payload, &f); err != nil {
		return plain, err
	}
	if f.Run == 0 {
		return plain, nil // an opaque agent told of a child of its own, and all of it is here
	}
	var row *store.Run
	if k := x.byN[f.Run]; k != nil {
		row = k.row
	} else {
		var err error
		if row, err = x.runs.Number(x.tx, f.Run); err != nil {
			return plain, fmt.Errorf("run %d of event %d: %w", f.Run, e.Seq, err)
		}
	}
	stored, err := x.runs.Events(x.tx, f.Run, f.Seq-1, 1)
	if err != nil || len(stored) == 0 {
		return plain, errors.Join(err, fmt.Errorf("event %d of run %s is missing", f.Seq, row.ID))
	}
	ev, err := x.expand(row, stored[0])
	if err != nil {
		return plain, err
	}
	return subagentEvent(f.ToolCallID, f.AgentName, ev.Payload), nil
}

// expand rebuilds an event whose text a message holds.
func expand(row *store.Run, rec *record, e store.Event) (event.Event, error) {
	plain := event.Event{Type: e.Type, Payload: e.Payload}
	m := rec.at(e.Message)
	if m == nil {
		return plain, fmt.Errorf("event %d of run %s refers to message %d, which is missing", e.Seq, row.ID, e.Message)
	}
	var head callHead
	if err := json.Unmarshal(e.Payload, &head); err != nil {
		return plain, err
	}
	switch e.Type {
	case event.TextComplete:
		return textComplete(m.msg.Content.String()), nil
	case event.ToolCallEnd:
		for _, tc := range m.msg.ToolCalls {
			if tc.ID == head.ToolCallID {
				return toolCallEnd(tc), nil
			}
		}
	case event.ToolEnd, event.ToolError:
		if m.outcome != nil {
			return toolSettled(m.outcome), nil
		}
	}
	return plain, fmt.Errorf("event %d of run %s does not fit message %d", e.Seq, row.ID, e.Message)
}
