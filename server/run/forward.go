package run

import (
	"context"
	"encoding/json"
	"fmt"

	"agentd/server/event"
	"agentd/server/hub"
	"agentd/server/journal"
	"agentd/store"
)

// A parent shows its children's events too, wrapped in subagent.event. The child puts its events into the parent's inbox;
// the parent's goroutine, which waits there for its calls to end, records and publishes them in order. On disk such an
// event names the child's event and does not repeat it. After a crash, or when a child was decided on while nobody moved
// the parent, the parent first catches up with what the child has published meanwhile.

// forwarded is an event of a child on its way to the parent.
type forwarded struct {
	kid    int64 // number of the child
	callID string
	agent  string
	seq    int // of the child's event; 0: it is transient
	ev     event.Event
}

// maxInbox is how many events of children may wait for the parent.
const maxInbox = 64

// passUp offers an event to the parent. The child waits while the parent's inbox is full.
func (r *Run) passUp(p published, pos hub.Position) {
	up, ev := r.up, p.ev
	if up == nil || !up.caller().Forwards(ev.Type) {
		return
	}
	if p.late != nil {
		ev.Payload = p.late.Payload()
	}
	seq := pos.Seq
	if pos.Sub > 0 {
		seq = 0
	}
	up.inbox <- forwarded{kid: r.Row.N, callID: r.callID, agent: r.Row.Owner, seq: seq, ev: ev}
}

// forward adds a child's event to a move.
func (m *Move) forward(f forwarded) {
	ev := journal.SubagentEvent(f.callID, f.agent, f.ev.Payload)
	if f.seq == 0 {
		m.Transient(ev)
		return
	}
	m.Emit(ev, -1, journal.Forwarded{ToolCallID: f.callID, AgentName: f.agent, Run: f.kid, Seq: f.seq})
}

// gather takes what waits in the inbox into a move, up to its capacity.
func (r *Run) gather(m *Move) {
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
func (r *Run) relay(f forwarded) error {
	m := r.Move()
	m.forward(f)
	r.gather(m)
	if len(m.Events) > 0 {
		return r.Commit(m)
	}
	for _, p := range m.events {
		r.Transient(p.ev)
	}
	return nil
}

// catchUp passes on the events of the run that its parent, which has the number, has not recorded.
func (r *Run) catchUp(parent int64) error {
	ctx := context.WithoutCancel(r.ctx)
	after := 0
	err := r.e.opts.Runs.View(ctx, func(tx *store.Tx) error {
		return r.e.opts.Runs.EachOfType(tx, parent, event.SubagentEvent, func(payload json.RawMessage) error {
			var f journal.Forwarded
			err := json.Unmarshal(payload, &f)
			if f.Run == r.Row.N {
				after = max(after, f.Seq)
			}
			return err
		})
	})
	if err == nil {
		err = r.e.Replay(ctx, r.Row.ID, event.RunView, after, func(entry *hub.Entry) error {
			r.passUp(published{ev: event.Event{Type: entry.Type, Payload: entry.Payload}}, entry.Pos)
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrLeft, err)
	}
	return nil
}
