package stream_test

import (
	"testing"

	"agentd/server/stream"
)

// A client that ends a subscription when the server has just done so need not know which of them was first. What the client
// has ended itself, or never had, it cannot end.
func TestUnsubscribeFromWhatHasJustEnded(t *testing.T) {
	inBubble(t, stream.Options{}, func(r *rig) {
		p := r.dial()
		ended, erased, own := p.subscribe(subject, ""), p.subscribe("session:gone/events", ""), p.subscribe("session:other/events", "")
		r.hub.Publish(subject, entry(1, 0, "completed"))
		r.hub.Publish("session:gone/events", entry(1, 0, ""))
		p.wants("1.0", "completed", "1.0")
		r.hub.Drop("session:gone/events")
		p.wants("subject.erased")
		for _, id := range []string{ended, erased, own} {
			p.unsubscribe(id)
			p.wants("result", "unsubscribed")
			if p.last.SubscriptionID != id {
				r.Errorf("unsubscribed from %q, want %q", p.last.SubscriptionID, id)
			}
			p.unsubscribe(id)
			p.wants("-32011")
		}
		other := r.dial()
		mine := other.subscribe(subject, "")
		other.wants("1.0", "completed")
		p.unsubscribe(mine)
		p.wants("-32011")
	})
}

// One connection remembers no more of what has ended than it may have at once.
func TestEndedSubscriptionsAreForgotten(t *testing.T) {
	inBubble(t, stream.Options{}, func(r *rig) {
		r.hub.Publish(subject, entry(1, 0, "completed"))
		p := r.dial()
		var ids []string
		for range 1001 {
			ids = append(ids, p.subscribe(subject, ""))
			p.wants("1.0", "completed")
		}
		p.unsubscribe(ids[0])
		p.wants("-32011")
		p.unsubscribe(ids[1])
		p.wants("result", "unsubscribed")
	})
}
