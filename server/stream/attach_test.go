package stream_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"agentd/server/event"
	"agentd/server/hub"
	"agentd/server/stream"
	"agentd/ws"
	"agentd/ws/wstest"
)

// Subscriptions begin while events of their subject come, on a connection whose writer is at work for others. The race
// detector has its say, too.
func TestSubscribeWhileEventsCome(t *testing.T) {
	h := hub.New(hub.Options{MaxEvents: 100})
	more := make(chan struct{}) // asks for an event
	s := stream.New(stream.Options{Hub: h, KeepAlive: time.Hour, Queue: 10_000,
		Feed: func(_ context.Context, s event.Subject) (stream.Feed, error) {
			return stream.Feed{Subject: s.String(),
				Whole: func(*hub.Entry) bool { return false },
				Backlog: func(context.Context, hub.Position, *hub.Entry) (int, string, error) {
					for range 5 {
						more <- struct{}{}
					}
					return 0, "", nil
				},
				Replay: func(context.Context, hub.Position, func(*hub.Entry) error) error { return nil },
			}, nil
		}})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.ServeWS(w, r, netip.Addr{}, ""); err != nil {
			t.Error(err)
		}
	}))
	defer srv.Close()
	conn, err := wstest.Dial(t.Context(), "ws"+strings.TrimPrefix(srv.URL, "http"), &wstest.DialOptions{Protocols: []string{stream.Subprotocol}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	const subscriptions = 50
	subscribed := make(chan struct{})
	total := make(chan int, 1)
	go func() {
		for i := 1; ; i++ {
			h.Publish("session:s/events", &hub.Entry{Pos: hub.Position{Epoch: 1, Seq: i}, ID: fmt.Sprint(i), Type: "t", Payload: json.RawMessage(`{}`)})
			select {
			case <-more:
			case <-subscribed:
				total <- i
				return
			}
		}
	}()
	go func() {
		send := func(id int, rest string) {
			conn.Write(t.Context(), ws.Text, fmt.Appendf(nil, `{"v":"1","jsonrpc":"2.0","id":%d,%s}`, id, rest)) //nolint:errcheck // the reader notices
		}
		send(0, `"method":"initialize","params":{"clientInfo":{"name":"t","version":"1"}}`)
		for i := range subscriptions {
			send(i+1, `"method":"subscription.subscribe","params":{"subject":"session:s/events"}`)
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
		_, b, err := conn.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var f struct {
			Kind, SubscriptionID, EventID string
			Result                        struct{ SubscriptionID string }
		}
		if err := json.Unmarshal(b, &f); err != nil {
			t.Fatal(err)
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
		fmt.Sscan(f.EventID, &n)
		before, known := latest[f.SubscriptionID]
		if !known || before > 0 && n != before+1 {
			t.Fatalf("%s comes after %d (subscription known: %v)", b, before, known)
		}
		latest[f.SubscriptionID] = n
	}
}
