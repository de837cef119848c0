package stream_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"agentd/server/stream"
)

// Subscriptions begin while events of their subject come, on a connection whose writer is at work for others. The race
// detector has its say, too.
func TestSubscribeWhileEventsCome(t *testing.T) {
	inBubble(t, stream.Options{Queue: 10_000}, func(r *rig) {
		const subscriptions = 50
		r.feeds[subject] = onBacklog(func() { <-time.After(5 * time.Millisecond) }) // of the bubble: some events come
		p := r.dial()
		subscribed, total := make(chan struct{}), make(chan int, 1)
		go func() {
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for i := 1; ; i++ {
				r.publish(i)
				select {
				case <-tick.C:
				case <-subscribed:
					total <- i
					return
				}
			}
		}()
		go func() {
			for range subscriptions {
				p.ask(subject, "")
			}
		}()
		latest := map[string]int{} // of each subscription; 0: none yet
		last := 0
		behind := func() bool {
			for _, n := range latest {
				if n < last {
					return true
				}
			}
			return last == 0
		}
		for behind() {
			_, b, err := p.conn.Read(r.Context())
			if err != nil {
				r.Fatal(err)
			}
			var f struct {
				Kind, SubscriptionID, EventID string
				Result                        struct{ SubscriptionID string }
			}
			if err := json.Unmarshal(b, &f); err != nil {
				r.Fatal(err)
			}
			if f.Result.SubscriptionID != "" {
				if latest[f.Result.SubscriptionID] = 0; len(latest) == subscriptions {
					close(subscribed)
					last = <-total
				}
			}
			if f.Kind != "event" {
				continue
			}
			var n int
			fmt.Sscan(f.EventID, &n) //nolint:errcheck // it begins with a number
			before, known := latest[f.SubscriptionID]
			if !known || before > 0 && n != before+1 {
				r.Fatalf("%s comes after %d (subscription known: %v)", b, before, known)
			}
			latest[f.SubscriptionID] = n
		}
	})
}
