package stream_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentd/auth"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/server/stream"
	"agentd/ws/wstest"
)

func token(id string) auth.Principal {
	return auth.Principal{Kind: auth.KindToken, TokenID: id, Grant: auth.Anonymous().Grant}
}

// Shutdown tells everybody, and waits no longer than it may for those who do not go.
func TestShutdown(t *testing.T) {
	inBubble(t, stream.Options{}, func(r *rig) {
		polite, rude := r.dial(), r.dial()
		polite.subscribe(subject, "")
		rude.subscribe(subject, "")
		watcher := r.watch(auth.Anonymous(), "")
		idle := r.watch(auth.Anonymous(), "") // never reads
		began := time.Now()
		told := make(chan string, 2)
		go func() { told <- polite.next() + ", " + polite.next() }()
		go func() { told <- watcher.next() + ", " + watcher.next() }()
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		r.Shutdown(ctx)
		if took := time.Since(began); took != 2*time.Second {
			r.Errorf("Shutdown() took %v with clients that do not go, want its 2s", took)
		}
		if n := r.Clients(); n != 0 {
			r.Errorf("Clients() = %d after Shutdown(), want 0", n)
		}
		for range 2 {
			if got := <-told; got != "paused server-shutdown, 4007 server.shutdown" && got != lifecycle("paused", "server-shutdown")+", end" {
				r.Errorf("a client is told %s", got)
			}
		}
		if got := rude.next(); !strings.Contains(got, "closed") && !strings.Contains(got, "EOF") {
			r.Errorf("a client that does not read is told %s, want its connection cut", got)
		}
		idle.conn.Close()

		// Nobody comes in any more, and no ticket is used up.
		ticket, _ := r.tickets.Issue(auth.Anonymous())
		_, err := wstest.Dial(r.Context(), "ws://pipe/ws", &wstest.DialOptions{Dial: r.network.dial, Protocols: []string{stream.Subprotocol, "ticket." + ticket}})
		if e, ok := errors.AsType[*wstest.DialError](err); !ok || e.Status != 503 {
			r.Errorf("Dial() while it stops = %v, want 503", err)
		}
		if _, err := r.tickets.Take(ticket); err != nil {
			r.Errorf("Take(ticket of a refused upgrade) = %v, want it still good", err)
		}
		if w := r.watch(auth.Anonymous(), ""); w.resp.StatusCode != 503 || strings.HasPrefix(w.resp.Header.Get("Content-Type"), "text/event-stream") {
			r.Errorf("a stream while it stops = %d %s, want 503", w.resp.StatusCode, w.resp.Header)
		}
	})
}

// Clients that go when they are told keep Shutdown no longer.
func TestShutdownIsQuick(t *testing.T) {
	inBubble(t, stream.Options{}, func(r *rig) {
		var told sync.WaitGroup
		defer told.Wait()
		for range 3 {
			p, w := r.dial(), r.watch(auth.Anonymous(), "")
			told.Go(func() { p.wants("4007 server.shutdown") })
			told.Go(func() { w.wants(lifecycle("paused", "server-shutdown"), "end") })
		}
		began := time.Now()
		r.Shutdown(r.Context())
		if took := time.Since(began); took != 0 {
			r.Errorf("Shutdown() took %v, want no time", took)
		}
	})
}

// A token may be revoked, or the server stop, between the check of who calls and the first frame.
func TestEndWhileAClientComes(t *testing.T) {
	t.Run("revoked before a socket", func(t *testing.T) {
		inBubble(t, stream.Options{}, func(r *rig) {
			r.Revoked("t") // the ticket is still good
			p, err := r.dialAs(token("t"))
			if err != nil {
				r.Fatal(err)
			}
			p.wants("4003 auth.revoked")
			other, err := r.dialAs(token("other"))
			if err != nil {
				r.Fatal(err)
			}
			other.send(`"id":1,"method":"ping"`)
			other.wants("pong", "result")
		})
	})
	t.Run("revoked before a stream", func(t *testing.T) {
		inBubble(t, stream.Options{}, func(r *rig) {
			r.Revoked("t")
			r.watch(token("t"), "").wants(lifecycle("failed", "auth.revoked"), "end")
		})
	})
	// The stream is being set up: nothing can be written yet.
	for name, tc := range map[string]struct {
		do   func(r *rig)
		want []string
	}{
		"revoked":   {func(r *rig) { r.Revoked("t") }, []string{lifecycle("failed", "auth.revoked"), "end"}},
		"published": {func(r *rig) { r.publish(1, 2) }, []string{"1.0", "2.0"}},
		"silent":    {func(r *rig) { <-time.After(time.Minute) }, []string{"comment"}},
		"erased": {func(r *rig) { r.hub.Drop(subject) },
			[]string{`{"v":"1","kind":"error","code":"subject.erased","message":"The session of the subject was erased.","subscriptionId":"sse"}`, "end"}},
	} {
		t.Run(name+" while a stream begins", func(t *testing.T) {
			inBubble(t, stream.Options{KeepAlive: time.Second}, func(r *rig) {
				r.feeds[subject] = onBacklog(func() {
					tc.do(r)
					synctest.Wait()
				})
				r.watch(token("t"), "").wants(tc.want...)
			})
		})
	}
	t.Run("stopped while a stream begins", func(t *testing.T) {
		inBubble(t, stream.Options{}, func(r *rig) {
			stopped := make(chan struct{})
			r.feeds[subject] = onBacklog(func() {
				go func() {
					r.Shutdown(ended())
					close(stopped)
				}()
				synctest.Wait()
			})
			conn, _ := r.network.dial(r.Context(), "", "")
			ticket, _ := r.tickets.Issue(auth.Anonymous())
			if _, err := conn.Write([]byte("GET /sse HTTP/1.1\r\nHost: pipe\r\nTicket: " + ticket + "\r\n\r\n")); err != nil {
				r.Fatal(err)
			}
			for b := make([]byte, 100); ; { // what comes before the end is of no interest
				if _, err := conn.Read(b); err != nil {
					break
				}
			}
			<-stopped
		})
	})
}

// onBacklog is a feed that does something after it has attached to the hub and before the client is told.
func onBacklog(do func()) stream.Feed {
	return stream.Feed{
		Replay:  func(context.Context, hub.Position, func(*hub.Entry) error) error { return nil },
		Backlog: func(context.Context, hub.Position, *hub.Entry) (int, string, error) { do(); return 0, "", nil },
		Whole:   func(*hub.Entry) bool { return false },
	}
}

// The connections of a token end with it.
func TestExpiry(t *testing.T) {
	inBubble(t, stream.Options{}, func(r *rig) {
		began := time.Now()
		brief := token("t")
		brief.Expires = began.Add(time.Minute)
		p, err := r.dialAs(brief)
		if err != nil {
			r.Fatal(err)
		}
		w := r.watch(brief, "")
		var told sync.WaitGroup
		told.Go(func() { w.wants(lifecycle("failed", "auth.invalid"), "end") })
		told.Go(func() { p.wants("4002 auth.invalid") })
		told.Wait()
		if took := time.Since(began); took != time.Minute {
			r.Errorf("they end after %v, want a minute", took)
		}
	})
}

// What happens to a subject while a subscription begins is told after the subscription.
func TestSubscriptionBegins(t *testing.T) {
	for name, tc := range map[string]struct {
		do   func(r *rig)
		want []string
	}{
		"published": {func(r *rig) { r.publish(1, 2) }, []string{"result", "subscribed", "1.0", "2.0"}},
		"erased":    {func(r *rig) { r.publish(1); r.hub.Drop(subject) }, []string{"result", "subscribed", "subject.erased"}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, stream.Options{}, func(r *rig) {
				p := r.dial()
				p.subscribe("session:other/events", "")
				r.feeds[subject] = onBacklog(func() {
					tc.do(r)
					synctest.Wait() // until the writer has looked at it
				})
				p.ask(subject, "")
				p.wants(tc.want...)
				p.send(`"id":4,"method":"ping"`)
				p.wants("pong", "result")
			})
		})
	}
}

// What cannot be read is told, and costs nothing but the subscription.
func TestFaultsOfAFeed(t *testing.T) {
	broken := errors.New("the disk is on fire")
	stored := func(n int, err error) func(context.Context, hub.Position, func(*hub.Entry) error) error {
		return func(_ context.Context, after hub.Position, yield func(*hub.Entry) error) error {
			for i := after.Seq + 1; i <= n; i++ {
				if err := yield(entry(i, 0, "")); err != nil {
					return err
				}
			}
			return err
		}
	}
	sound := stream.Feed{
		Replay:  stored(2, nil),
		Backlog: func(context.Context, hub.Position, *hub.Entry) (int, string, error) { return 2, "2.0", nil },
		Whole:   func(*hub.Entry) bool { return false },
		Resolve: func(context.Context, string) (hub.Position, bool, error) { return hub.Position{}, false, nil },
		Ended:   func(context.Context) (string, error) { return "", nil },
	}
	for name, tc := range map[string]struct {
		change func(*stream.Feed)
		want   []string
		over   bool // the subscription
	}{
		"none": {func(*stream.Feed) {}, []string{"result", "subscribed", "1.0", "2.0", "replay-marker", "3.0"}, false},
		"of Resolve": {func(f *stream.Feed) {
			f.Resolve = func(context.Context, string) (hub.Position, bool, error) { return hub.Position{}, false, broken }
		}, []string{"-32603"}, true},
		"of Backlog": {func(f *stream.Feed) {
			f.Backlog = func(context.Context, hub.Position, *hub.Entry) (int, string, error) { return 0, "", broken }
		}, []string{"-32603"}, true},
		"of Replay at once": {func(f *stream.Feed) { f.Replay = stored(0, broken) }, []string{"result", "subscribed", "replay.failed"}, true},
		"of Replay later":   {func(f *stream.Feed) { f.Replay = stored(2, broken) }, []string{"result", "subscribed", "1.0", "2.0", "replay.failed"}, true},
		"of Ended": {func(f *stream.Feed) { f.Ended = func(context.Context) (string, error) { return "", broken } },
			[]string{"result", "subscribed", "1.0", "2.0", "replay-marker", "replay.failed"}, true},
		"erased meanwhile": {func(f *stream.Feed) { f.Replay = stored(1, fault.New(fault.RunNotFound, "No run.")) },
			[]string{"result", "subscribed", "1.0", "subject.erased"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, stream.Options{}, func(r *rig) {
				f := sound
				tc.change(&f)
				r.feeds[subject] = f
				p := r.dial()
				other := p.subscribe("session:other/events", "")
				p.ask(subject, "unknown")
				if !tc.over {
					synctest.Wait()
					r.publish(3)
				}
				p.wants(tc.want...)
				if tc.over {
					synctest.Wait()
					if st := r.hub.Stats(); st.Subscriptions != 1 {
						r.Errorf("the hub has %d subscriptions, want the other only", st.Subscriptions)
					}
					r.publish(3)
				}
				r.hub.Publish("session:other/events", entry(7, 0, ""))
				p.wants("7.0")
				if p.last.SubscriptionID != other {
					r.Errorf("the event is of %s, want %s", p.last.SubscriptionID, other)
				}
			})
		})
	}
}
