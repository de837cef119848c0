package agent

import (
	"context"
	"encoding/json"
	"fmt"

	"agentd/server/event"
	"agentd/store"
)

// What a child tells, its parent tells too, wrapped in subagent.event. The child puts its events into the parent's
// inbox; the parent's goroutine, which waits there for its calls to end, records and publishes them in order. On disk
// such an event names the child's event and does not repeat it. After a crash, or when a child was decided on while
// nobody moved the parent, the parent first catches up with what the child told meanwhile.

// forwarded is an event of a child on its way to the parent.
type forwarded struct {
	kid    int64 // number of the child
	callID string
	agent  string
	seq    int // of the child's event; 0: it is transient
	ev     event.Event
}

// forwardedFields is how a forwarded event is stored: it names the event that it wraps.
type forwardedFields struct {
	ToolCallID string `json:"toolCallId"`
	AgentName  string `json:"agentName"`
	Run        int64  `json:"run"`
	Seq        int    `json:"seq"`
}

func subagentEvent(callID, agent string, inner json.RawMessage) event.Event {
	return event.New(event.SubagentEvent, struct {
		ToolCallID string          `json:"toolCallId"`
		AgentName  string          `json:"agentName"`
		Event      json.RawMessage `json:"event"`
	}{callID, agent, inner})
}

// maxInbox is how many events of children may wait for the parent.
const maxInbox = 64

// forwards reports whether a run forwards its children's events of a type.
func (a *LLM) forwards(typ string) bool {
	switch a.Forward {
	case "none":
		return false
	case "all":
		return true
	}
	return event.ForChildren(typ)
}

// passUp offers an event to the parent. The child waits while the parent's inbox is full.
func (r *run) passUp(ev event.Event, seq int) {
	up := r.up
	if up == nil || up.reg.LLM == nil || !up.reg.LLM.forwards(ev.Type) {
		return
	}
	up.inbox <- forwarded{kid: r.row.N, callID: r.callID, agent: r.row.Owner, seq: seq, ev: ev}
}

// forward adds a child's event to a move.
func (m *move) forward(f forwarded) {
	ev := subagentEvent(f.callID, f.agent, f.ev.Payload)
	if f.seq == 0 {
		m.events = append(m.events, published{ev: ev})
		return
	}
	m.emit(ev, -1, forwardedFields{f.callID, f.agent, f.kid, f.seq})
}

// gather takes what waits in the inbox into a move, up to its capacity.
func (r *run) gather(m *move) {
	for range maxInbox {
		select {
		case f := <-r.inbox:
			m.forward(f)
		default:
			return
		}
	}
}

// relay records and publishes a child's event, and those that have come meanwhile.
func (r *run) relay(f forwarded) error {
	m := r.move()
	m.forward(f)
	r.gather(m)
	if len(m.stored) > 0 {
		return r.commit(m)
	}
	for _, p := range m.events {
		r.transient(p.ev)
	}
	return nil
}

// catchUp passes on the events that the run with the parent's number has not told of.
func (r *run) catchUp(parent int64) error {
	ctx := context.WithoutCancel(r.ctx)
	after := 0
	err := r.e.opts.Runs.View(ctx, func(tx *store.Tx) error {
		return r.e.opts.Runs.EachOfType(tx, parent, event.SubagentEvent, func(payload json.RawMessage) error {
			var f forwardedFields
			if err := json.Unmarshal(payload, &f); err != nil {
				return err
			}
			if f.Run == r.row.N {
				after = max(after, f.Seq)
			}
			return nil
		})
	})
	for err == nil {
		var page []event.Event
		var seqs []int
		err = r.e.opts.Runs.Snapshot(ctx, func(tx *store.Tx) error {
			stored, err := r.e.opts.Runs.Events(tx, r.row.N, after, replayPage)
			x := expander{tx: tx, runs: r.e.opts.Runs}
			for _, s := range stored {
				ev, err := x.expand(&r.row, s)
				if err != nil {
					return err
				}
				page, seqs = append(page, ev), append(seqs, s.Seq)
			}
			return err
		})
		for i, ev := range page {
			r.passUp(ev, seqs[i])
			after = seqs[i]
		}
		if len(page) < replayPage {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errLeft, err)
	}
	return nil
}
