package client_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/client"
	"agentd/server/fault"
	"agentd/ws"
)

// A peer is the server's end of one connection.
type peer struct {
	t    *testing.T
	conn *ws.Conn
}

// expect reads a frame.
func (p *peer) expect(want string) {
	p.t.Helper()
	if _, got, err := p.conn.Read(p.t.Context()); err != nil || string(got) != want {
		p.t.Errorf("the client sends %s, %v; want %s", got, err, want)
	}
}

func (p *peer) send(frames ...string) {
	for _, f := range frames {
		p.conn.Write(p.t.Context(), ws.Text, []byte(f)) //nolint:errcheck // the client may be gone
	}
}

const (
	initialize  = `{"v":"1","jsonrpc":"2.0","id":"initialize","method":"initialize","params":{"clientInfo":{"name":"agentd","version":"9"}}}`
	initialized = `{"v":"1","jsonrpc":"2.0","id":"initialize","result":{"serverInfo":{"name":"svc-server","version":"1"},"capabilities":{}}}`
	subscribed  = `{"v":"1","jsonrpc":"2.0","id":"subscribe","result":{"subscriptionId":"sub1","subject":"s","replayedCount":0}}`
)

// greet takes a subscription after a cursor.
func (p *peer) greet(cursor string) {
	p.t.Helper()
	p.expect(initialize)
	p.send(initialized)
	since := ""
	if cursor != "" {
		since = fmt.Sprintf(`"sinceEventId":%q,`, cursor)
	}
	p.expect(`{"v":"1","jsonrpc":"2.0","id":"subscribe","method":"subscription.subscribe","params":{` + since + `"subject":"s"}}`)
	p.send(subscribed, `{"v":"1","kind":"subscribed","subscriptionId":"sub1","subject":"s"}`)
}

func event(id string) string {
	return fmt.Sprintf(`{"v":"1","kind":"event","subscriptionId":"sub1","eventId":%q,"subject":"s","type":"t","payload":{"type":"t"}}`, id)
}

func lifecycle(status string) string {
	return fmt.Sprintf(`{"v":"1","kind":"lifecycle","subscriptionId":"sub1","status":%q}`, status)
}

func (p *peer) close(code ws.Code, reason string) { p.conn.Close(p.t.Context(), code, reason) } //nolint:errcheck

// watch watches a server that does one thing after the other, a connection each, and returns what was handed over.
func watch(t *testing.T, ctx context.Context, o client.Options, conns ...func(*peer)) (got string, err error) {
	t.Helper()
	next := make(chan func(*peer), len(conns))
	for _, c := range conns {
		next <- c
	}
	close(next)
	done := make(chan struct{}, len(conns))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		act, ok := <-next
		if !ok {
			t.Error("the client connects once more")
			return
		}
		if got := r.Header.Get("Authorization"); got != "Bearer x" {
			t.Errorf("Authorization %q", got)
		}
		conn, err := ws.Accept(w, r, &ws.AcceptOptions{Protocol: "svc.protocol.v1"})
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { done <- struct{}{} }()
		act(&peer{t, conn})
		conn.CloseNow()
	}))
	defer srv.Close()
	var frames []string
	o.Server = func() (client.Place, error) {
		return client.Place{URL: "ws" + strings.TrimPrefix(srv.URL, "http")}, nil
	}
	o.Header, o.Subject, o.Version = http.Header{"Authorization": {"Bearer x"}}, "s", "9"
	err = client.Watch(ctx, o, func(f *client.Frame) error {
		text := f.Kind
		switch f.Kind {
		case "event":
			if text = f.EventID; f.Type != "t" || string(f.Payload) != `{"type":"t"}` || !strings.HasPrefix(string(f.Raw), `{"v":"1"`) {
				t.Errorf("frame %+v", f)
			}
		case "lifecycle":
			text = f.Status
		}
		frames = append(frames, text)
		return nil
	})
	for range len(conns) - len(next) {
		<-done
	}
	return strings.Join(frames, " "), err
}

func TestWatchGoesOnAfterTheLastEvent(t *testing.T) {
	var told []string
	got, err := watch(t, t.Context(), client.Options{Since: "e0", Lost: func(err error) { told = append(told, fault.Of(err).Message) }},
		func(p *peer) { // stops
			p.greet("e0")
			p.send(event("e1"), event("e2"), `{"v":"1","kind":"lifecycle","subscriptionId":"sub1","status":"paused","reason":"server-shutdown"}`)
			p.close(4007, "server.shutdown")
		},
		func(p *peer) { p.conn.CloseNow() }, // is killed before it has answered
		func(p *peer) { // has too much to do
			p.expect(initialize)
			p.send(initialized)
			p.expect(`{"v":"1","jsonrpc":"2.0","id":"subscribe","method":"subscription.subscribe","params":{"sinceEventId":"e2","subject":"s"}}`)
			p.send(`{"v":"1","jsonrpc":"2.0","id":"subscribe","error":{"code":-32603,"message":"Busy.","data":{"error":"storage-failed"}}}`)
		},
		func(p *peer) { // is too fast for the client
			p.greet("e2")
			p.send(`{"v":"1","kind":"replay-marker","subscriptionId":"sub1","eventId":"evt-replay-1","droppedCount":1}`, event("e3"))
			p.close(4006, "flow.throttled")
		},
		func(p *peer) { // cannot read its store
			p.greet("e3")
			p.send(`{"v":"1","kind":"error","code":"replay.failed","message":"Again.","subscriptionId":"sub1"}`)
		},
		func(p *peer) { // sends also what is of no interest
			p.greet("e3")
			p.send(strings.ReplaceAll(event("e9"), "sub1", "sub2"), `{"v":"1","kind":"news"}`, `{"v":"1","kind":"news","subscriptionId":"sub1"}`,
				lifecycle("paused"), event("e4"), lifecycle("completed"), event("e5"))
			for {
				if _, _, err := p.conn.Read(t.Context()); err != nil {
					if e, ok := err.(*ws.CloseError); !ok || e.Code != 1000 || e.Reason != "client-disconnect" {
						t.Errorf("the client leaves with %v, want close 1000 client-disconnect", err)
					}
					break
				}
			}
		})
	if want := "e1 e2 paused replay-marker e3 paused e4 completed"; got != want || err != nil {
		t.Errorf("Watch() = %v with %s, want %s", err, got, want)
	}
	want := []string{"The server has closed the connection (4007: server.shutdown).", "The connection is lost: ", "Busy.",
		"The server has closed the connection (4006: flow.throttled).", "Again."}
	if len(told) != len(want) {
		t.Fatalf("Lost was told %q, want %q", told, want)
	}
	for i := range want {
		if !strings.HasPrefix(told[i], want[i]) {
			t.Errorf("Lost was told %q, want %q", told[i], want[i])
		}
	}
}

// What no other attempt could mend ends the watch, also after a connection that was good.
func TestWatchEndsWhenRefused(t *testing.T) {
	refuse := func(code ws.Code, reason string) func(*peer) { return func(p *peer) { p.close(code, reason) } }
	answer := func(frame string) func(*peer) {
		return func(p *peer) {
			p.expect(initialize)
			p.send(frame)
		}
	}
	for name, tc := range map[string]struct {
		act  func(*peer)
		code string
		hint string
	}{
		"auth.required":      {refuse(4001, "auth.required"), "auth-required", fault.AuthRequired.Hint},
		"auth.invalid":       {refuse(4002, "auth.invalid"), "auth-invalid", fault.AuthInvalid.Hint},
		"auth.revoked":       {refuse(4003, "auth.revoked"), "auth-revoked", fault.AuthRevoked.Hint},
		"protocol.violation": {refuse(4008, "protocol.violation"), "server-unreachable", "Use the program in the server's version."},
		"scope": {answer(`{"v":"1","jsonrpc":"2.0","id":"subscribe","error":{"code":-32003,"message":"No.","data":{"error":"scope-denied","hint":"Ask."}}}`),
			"scope-denied", "Ask."},
		"an error of a later version": {answer(`{"v":"1","jsonrpc":"2.0","id":"subscribe","error":{"code":-1,"message":"No.","data":{"error":"moon-phase","hint":"Wait."}}}`),
			"moon-phase", "Wait."},
		"an error without data": {answer(`{"v":"1","jsonrpc":"2.0","id":0,"error":{"code":-32600,"message":"No."}}`), "server-unreachable", fault.ServerUnreachable.Hint},
		"no frame":              {answer(`{`), "server-unreachable", fault.ServerUnreachable.Hint},
		"erased": {func(p *peer) {
			p.expect(initialize)
			p.send(subscribed, `{"v":"1","kind":"error","code":"subject.erased","message":"Gone.","subscriptionId":"sub1"}`)
		}, "subject.erased", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, first := range []bool{true, false} {
				conns := []func(*peer){tc.act}
				if !first {
					conns = []func(*peer){func(p *peer) { p.greet("") }, tc.act}
				}
				_, err := watch(t, t.Context(), client.Options{}, conns...)
				f, ok := errors.AsType[*fault.Error](err)
				if !ok || f.Kind.Code != tc.code || f.NextStep() != tc.hint {
					t.Errorf("Watch() at the first connection (%v) = %v, want %s with hint %q", first, err, tc.code, tc.hint)
				}
			}
		})
	}
}

// Before a server has taken the subscription, nothing is tried twice.
func TestWatchTellsThatNobodyAnswers(t *testing.T) {
	for name, act := range map[string]func(*peer){
		"4007": func(p *peer) { p.close(4007, "server.shutdown") },
		"cut":  func(p *peer) { p.conn.CloseNow() },
	} {
		if _, err := watch(t, t.Context(), client.Options{}, act); !fault.Is(err, fault.ServerUnreachable) {
			t.Errorf("Watch() with %s = %v, want server-unreachable", name, err)
		}
	}
	for _, tc := range []struct {
		status       int
		answer, code string
	}{
		{404, `{"error":"not-found","message":"No."}`, "not-found"},
		{403, `{"error":"origin-denied","message":"No."}`, "origin-denied"},
		{503, `{"error":"server-draining","message":"No."}`, "server-draining"},
		{429, `{"error":"rate-limited","message":"No."}`, "rate-limited"},
		{200, `<html>`, "server-unreachable"},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(tc.status)
			io.WriteString(w, tc.answer)
		}))
		url := "ws" + strings.TrimPrefix(srv.URL, "http")
		err := client.Watch(t.Context(), client.Options{Server: func() (client.Place, error) { return client.Place{URL: url}, nil }}, nil)
		if f, ok := errors.AsType[*fault.Error](err); !ok || f.Kind.Code != tc.code {
			t.Errorf("Watch() of %d %s = %v, want %s", tc.status, tc.answer, err, tc.code)
		}
		srv.Close()
	}
	nowhere := errors.New("nowhere")
	if err := client.Watch(t.Context(), client.Options{Server: func() (client.Place, error) { return client.Place{}, nowhere }}, nil); err != nowhere {
		t.Errorf("Watch() without a place = %v, want the error of Server", err)
	}
}

// A reading that ends closes the connection properly, while frames come and while none do.
func TestWatchEndsWithItsContext(t *testing.T) {
	for _, busy := range []bool{false, true} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("cause")
		_, err := watch(t, ctx, client.Options{MaxFrame: 1 << 10}, func(p *peer) {
			p.greet("")
			cancel(cause)
			flood, stop := context.WithCancel(t.Context())
			defer stop()
			if busy {
				go func() {
					for flood.Err() == nil && p.conn.Write(flood, ws.Text, []byte(event("e"))) == nil {
					}
				}()
			}
			if _, _, err := p.conn.Read(t.Context()); ws.CodeOf(err) != 1000 {
				t.Errorf("the client leaves with %v, want close 1000", err)
			}
		})
		if err != cause {
			t.Errorf("Watch() = %v, want the cause of its context", err)
		}
	}
}

func TestWatchEndsWithYield(t *testing.T) {
	broken := errors.New("broken")
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := ws.Accept(w, r, &ws.AcceptOptions{Protocol: "svc.protocol.v1"})
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.CloseNow()
		p := &peer{t, conn}
		p.send(subscribed, event("e1"), event("e2"))
		for err == nil {
			_, _, err = conn.Read(t.Context())
		}
	}))
	defer srv.Close()
	calls := 0
	err := client.Watch(t.Context(), client.Options{Server: func() (client.Place, error) {
		return client.Place{URL: "ws" + strings.TrimPrefix(srv.URL, "http")}, nil
	}},
		func(*client.Frame) error { calls++; return broken })
	if err != broken || calls != 1 {
		t.Errorf("Watch() = %v after %d frames, want the error of yield after 1", err, calls)
	}
}

func TestWait(t *testing.T) {
	for attempt, most := range map[int]time.Duration{0: 500 * time.Millisecond, 1: time.Second, 5: 16 * time.Second, 6: 30 * time.Second, 1 << 40: 30 * time.Second} {
		longest := time.Duration(0)
		for range 1000 {
			d := client.Wait(attempt)
			if longest = max(longest, d); d < 0 || d >= most {
				t.Fatalf("wait(%d) = %v, want less than %v", attempt, d, most)
			}
		}
		if longest < most/2 {
			t.Errorf("wait(%d) is %v at most, want nearly %v", attempt, longest, most)
		}
	}
}

// hijacked is a response whose connection can be taken over, as that of net/http.
type hijacked struct {
	http.ResponseWriter
	nc net.Conn
}

func (h hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return h.nc, bufio.NewReadWriter(bufio.NewReader(h.nc), bufio.NewWriter(h.nc)), nil
}

// A peer that answers no ping is given up, one that does is not.
func TestKeepAlive(t *testing.T) {
	for _, answers := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			near, far := net.Pipe()
			defer far.Close()
			go func() {
				r, err := http.ReadRequest(bufio.NewReader(far))
				if err != nil {
					t.Error(err)
					return
				}
				other, err := ws.Accept(hijacked{httptest.NewRecorder(), far}, r, nil)
				if err != nil {
					t.Error(err)
					return
				}
				if answers {
					other.Read(context.Background()) //nolint:errcheck // it answers pings meanwhile
					other.CloseNow()
				}
				io.Copy(io.Discard, far) //nolint:errcheck // its end is what is waited for
			}()
			conn, err := ws.Dial(t.Context(), "ws://server", &ws.DialOptions{Dial: func(context.Context, string, string) (net.Conn, error) { return near, nil }})
			if err != nil {
				t.Fatal(err)
			}
			go conn.Read(context.Background()) //nolint:errcheck // it takes the pongs meanwhile
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			began := time.Now()
			client.KeepAlive(ctx, conn)
			if took := time.Since(began); answers != (took == time.Hour) || !answers && took > 3*time.Minute {
				t.Errorf("keepAlive of a peer that answers (%v) took %v", answers, took)
			}
			conn.CloseNow()
		})
	}
}
