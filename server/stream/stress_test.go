package stream_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"agentd/auth"
	"agentd/server/hub"
	"agentd/server/stream"
)

// Clients come and go while events are published, subjects erased, tokens revoked and, at last, the service stopped. Each
// subscription gets the events in order, without one missing.
func TestEverythingAtOnce(t *testing.T) {
	inBubble(t, stream.Options{Queue: 1 << 20}, func(r *rig) {
		subjects := []string{"session:a/events", "session:b/events", "session:c/events"}
		var all sync.WaitGroup
		stop := make(chan struct{})
		for _, s := range subjects[:2] {
			all.Go(func() {
				for i := 1; ; i++ {
					select {
					case <-stop:
						return
					default:
						r.hub.Publish(s, &hub.Entry{Pos: hub.Position{Epoch: 1, Seq: i}, ID: fmt.Sprint(i), Type: "t", Payload: []byte(`{"type":"t"}`)})
					}
				}
			})
		}
		all.Go(func() {
			for i := 1; ; i++ {
				select {
				case <-stop:
					return
				default:
					r.hub.Publish(subjects[2], entry(i, 0, ""))
					r.hub.Drop(subjects[2])
					r.Revoked(fmt.Sprint("t", i%4))
				}
			}
		})
		var clients sync.WaitGroup
		for i := range 6 {
			clients.Go(func() {
				for round := range 4 {
					p, err := r.dialAs(token(fmt.Sprint("t", (i+round)%8)))
					if err != nil {
						r.Error(err)
						return
					}
					p.stress(subjects)
					p.conn.CloseNow()
				}
			})
			clients.Go(func() {
				for range 4 {
					w := r.watch(auth.Anonymous(), "")
					w.conn.Close()
				}
			})
		}
		clients.Wait()
		last := r.dial()
		for _, s := range subjects[:2] {
			last.ask(s, "")
		}
		all.Go(func() {
			for got := ""; got != "4007 server.shutdown"; got = last.next() { // not an event 4007
				if strings.Contains(got, "closed") {
					r.Errorf("the last client is told %s, want 4007", got)
					return
				}
			}
		})
		r.Shutdown(r.Context())
		close(stop)
		all.Wait()
	})
}

// stress subscribes, reads and unsubscribes until it has done so some times or is thrown out.
func (p *peer) stress(subjects []string) {
	p.tell(`"id":1,"method":"initialize","params":{"clientInfo":{"name":"n","version":"1"}}`)
	seen := map[string]int{} // by subscription
	results := 0
	for n := 0; n < 200 && results < 12; n++ {
		switch got := p.next(); {
		case got == "result" && p.last.Result.SubscriptionID == "", got == "subscribed", got == "unsubscribed":
			for _, s := range subjects {
				p.tell(fmt.Sprintf(`"id":2,"method":"subscription.subscribe","params":{"subject":%q}`, s))
			}
			results++
		case got == "result":
			if p.last.Kind == "" && n%3 == 0 {
				p.tell(fmt.Sprintf(`"id":3,"method":"subscription.unsubscribe","params":{"subscriptionId":%q}`, p.last.Result.SubscriptionID))
			}
		case p.last.Kind == "event":
			var seq int
			fmt.Sscan(got, &seq) //nolint:errcheck // it is a number
			id := p.last.SubscriptionID
			if before := seen[id]; before > 0 && seq != before+1 {
				p.Errorf("subscription %s gets event %d after %d", id, seq, before)
			}
			seen[id] = seq
		case p.last.Kind == "" && p.last.Error == nil:
			return // it is closed
		}
	}
}

// tell is send to somebody who may have gone.
func (p *peer) tell(members string) {
	p.conn.Write(p.Context(), 1, []byte(`{"v":"1","jsonrpc":"2.0",`+members+`}`)) //nolint:errcheck // the reading tells
}
