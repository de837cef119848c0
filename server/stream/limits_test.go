package stream_test

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/auth"
	"agentd/server/hub"
	"agentd/server/stream"
)

// A client that does not read is cut off, and others lose nothing by it.
func TestStalledClientIsThrottledAlone(t *testing.T) {
	inBubble(t, stream.Options{Queue: 4}, func(r *rig) {
		stalled, good, quiet := r.dial(), r.dial(), r.dial()
		stalled.subscribe(subject, "")
		good.subscribe(subject, "")
		quiet.subscribe("session:other/events", "")
		stream := r.watch(auth.Anonymous(), "")
		for i := range 20 {
			r.publish(i + 1)
			synctest.Wait() // the first is being written, alone
			id := entry(i+1, 0, "").ID
			good.wants(id)
			stream.wants(id)
		}
		synctest.Wait()
		// What was being written when it stalled; the rest is lost, and it is told so.
		stalled.wants("1.0", "4006 flow.throttled")
		r.publish(21)
		good.wants("21.0")
		stream.wants("21.0")
		good.send(`"id":4,"method":"ping"`)
		good.wants("pong", "result")
		quiet.send(`"id":4,"method":"ping"`)
		quiet.wants("pong", "result")
		synctest.Wait()
		if n := r.Clients(); n != 3 {
			r.Errorf("Clients() = %d, want the 3 that are left", n)
		}
		// It comes back and gets what it has missed.
		again := r.dial()
		again.subscribe(subject, "1.0")
		for i := 2; i <= 21; i++ {
			again.wants(fmt.Sprintf("%d.0", i))
		}
	})
}

// So is one whose stream is not read.
func TestStalledStreamIsThrottled(t *testing.T) {
	inBubble(t, stream.Options{Queue: 4}, func(r *rig) {
		stalled, good := r.watch(auth.Anonymous(), ""), r.watch(auth.Anonymous(), "")
		for i := range 20 {
			r.publish(i + 1)
			synctest.Wait() // the first is being written, alone
			good.wants(fmt.Sprintf("%d.0", i+1))
		}
		stalled.wants("1.0", lifecycle("paused", "flow.throttled"), "end")
		back := r.watch(auth.Anonymous(), "1.0") // it misses nothing and gets nothing twice
		for i := 2; i <= 20; i++ {
			back.wants(fmt.Sprintf("%d.0", i))
		}
		r.publish(21)
		good.wants("21.0")
		back.wants("21.0")
		r.watch(auth.Anonymous(), "20.0").wants("21.0")
	})
}

// A client that never reads again is given up: when a write to it takes too long or, once it is throttled, soon.
func TestStalledClientIsGivenUp(t *testing.T) {
	for events, patience := range map[int]time.Duration{1: 2 * time.Minute, 20: 6 * time.Second} {
		inBubble(t, stream.Options{Queue: 4}, func(r *rig) {
			r.dial().subscribe(subject, "")
			r.watch(auth.Anonymous(), "")
			for i := range events {
				r.publish(i + 1)
				synctest.Wait()
			}
			<-time.After(patience)
			synctest.Wait()
			if n := r.Clients(); n != 0 {
				r.Errorf("Clients() = %d %v after %d events to stalled ones, want 0", n, patience, events)
			}
		})
	}
}

// The bytes that wait are bounded as their number is.
func TestBytesAreBounded(t *testing.T) {
	inBubble(t, stream.Options{Queue: 4}, func(r *rig) {
		stalled := r.dial()
		stalled.subscribe(subject, "")
		r.publish(1)
		synctest.Wait()
		for i := range 2 {
			e := entry(2+i, 0, "")
			e.Payload = fmt.Appendf(nil, `{"type":"durable","text":"%3000d"}`, i)
			r.hub.Publish(subject, e)
		}
		stalled.wants("1.0", "4006 flow.throttled")
	})
}

// However much is replayed, it waits for the client; what comes meanwhile waits within bounds.
func TestReplayIsPaced(t *testing.T) {
	const stored = 5000
	replay := func(_ context.Context, after hub.Position, yield func(*hub.Entry) error) error {
		for i := after.Seq + 1; i <= stored; i++ {
			if err := yield(entry(i, 0, "")); err != nil {
				return err
			}
		}
		return nil
	}
	feed := stream.Feed{Replay: replay, Backlog: func(context.Context, hub.Position, *hub.Entry) (int, string, error) { return stored, "5000.0", nil },
		Whole: func(*hub.Entry) bool { return false }}
	for _, tc := range []struct {
		first, second int // so many come before the first frame is read, and so many in the middle
		throttled     bool
	}{{0, 0, false}, {10, 0, false}, {11, 0, true}, {6, 4, false}, {6, 5, true}} {
		inBubble(t, stream.Options{Queue: 10}, func(r *rig) {
			r.feeds[subject] = feed
			p := r.dial()
			p.subscribe(subject, "")
			next := stored
			publish := func(n int) {
				synctest.Wait() // the writer waits for us
				for range n {
					next++
					r.publish(next)
				}
			}
			publish(tc.first)
			for i := range stored + tc.first + tc.second {
				got := p.next()
				if tc.throttled && got == "4006 flow.throttled" {
					return
				}
				if want := fmt.Sprintf("%d.0", i+1); got != want {
					r.Fatalf("frame %d is %s when %d and %d came meanwhile", i+1, got, tc.first, tc.second)
				}
				if i == 2000 { // the first are held back by now
					publish(tc.second)
				}
			}
			if tc.throttled {
				r.Errorf("%d and %d entries waited, want it throttled", tc.first, tc.second)
			}
		})
	}
}

func TestSubscriptionsAreBounded(t *testing.T) {
	inBubble(t, stream.Options{}, func(r *rig) {
		p := r.dial()
		var last string
		for i := range 1000 {
			last = p.subscribe("session:s"+strconv.Itoa(i)+"/events", "")
		}
		p.ask(subject, "")
		p.wants("-32004")
		p.unsubscribe(last)
		p.wants("result", "unsubscribed")
		p.subscribe(subject, "")
		p.ask(subject, "")
		p.wants("-32004")
		if st := r.hub.Stats(); st.Subscriptions != 1000 {
			r.Errorf("the hub has %d subscriptions, want 1000", st.Subscriptions)
		}
		r.publish(1)
		p.wants("1.0")
	})
}

// A peer that does not answer a ping is dropped; one that does stays, however silent.
func TestDeadPeerIsDropped(t *testing.T) {
	inBubble(t, stream.Options{}, func(r *rig) {
		live, other := r.dial(), r.dial()
		began := time.Now()
		gone := make(chan time.Duration, 1)
		go func() { // reads all, and answers nothing
			conn, _ := r.network.dial(r.Context(), "", "")
			ticket, _ := r.tickets.Issue(auth.Anonymous())
			fmt.Fprintf(conn, "GET /ws HTTP/1.1\r\nHost: pipe\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"+
				"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: %s, ticket.%s\r\n\r\n", stream.Subprotocol, ticket)
			io.Copy(io.Discard, conn) //nolint:errcheck // its end is what counts
			gone <- time.Since(began)
		}()
		go other.next() // answers pings
		go live.next()
		if got, want := <-gone, time.Minute; got != want {
			r.Errorf("a peer that does not answer is dropped after %v, want %v", got, want)
		}
		<-time.After(10 * time.Minute)
		synctest.Wait()
		if n := r.Clients(); n != 2 {
			r.Errorf("Clients() = %d after ten minutes of silence, want 2", n)
		}
	})
}

// A stream on which nothing happens gets a comment; an event puts it off.
func TestKeepAlive(t *testing.T) {
	inBubble(t, stream.Options{KeepAlive: 15 * time.Second}, func(r *rig) {
		began := time.Now()
		w := r.watch(auth.Anonymous(), "")
		at := func(want time.Duration) {
			r.Helper()
			if got := time.Since(began); got != want {
				r.Errorf("it comes after %v, want %v", got, want)
			}
		}
		at(0) // the head does not wait for an event
		w.wants("comment")
		at(15 * time.Second)
		w.wants("comment")
		at(30 * time.Second)
		time.AfterFunc(10*time.Second, func() { r.publish(1) })
		w.wants("1.0")
		at(40 * time.Second)
		w.wants("comment")
		at(55 * time.Second)
	})
}

// What a client has us send back to it is short, whatever it sends.
func TestEchoesAreShort(t *testing.T) {
	long := strings.Repeat("n", 1025)
	for members, want := range map[string][]string{
		`"id":2,"method":"ping","params":{"nonce":"` + long[:1024] + `"}`: {"pong", "result"},
		`"id":2,"method":"ping","params":{"nonce":"` + long + `"}`:        {"-32600", "4008 protocol.violation"},
		`"id":"` + long[:1022] + `","method":"ping"`:                      {"pong", "result"},
		`"id":"` + long + `","method":"ping"`:                             {"-32600", "4008 protocol.violation"},
	} {
		inBubble(t, stream.Options{Queue: 4}, func(r *rig) {
			p := r.dial()
			p.send(members)
			p.wants(want...)
		})
	}
}
