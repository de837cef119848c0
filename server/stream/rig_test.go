package stream_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/auth"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/server/stream"
	"agentd/ws"
	"agentd/ws/wstest"
)

// rig is a service on a network of pipes, so that it can be in a bubble and a client that does not read stalls it at
// once.
type rig struct {
	*testing.T
	*stream.Service
	hub     *hub.Hub
	tickets *auth.Tickets
	feeds   map[string]stream.Feed // by subject; others show only what is published
	network network
	opts    stream.Options
}

const subject = "session:s/events"

// inBubble runs a test with a service, which is shut down at its end.
func inBubble(t *testing.T, o stream.Options, do func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{T: t, hub: hub.New(hub.Options{}), tickets: auth.NewTickets(0), feeds: map[string]stream.Feed{}, network: make(network)}
		o.Hub, o.Verifier, o.Tickets = r.hub, new(auth.Verifier), r.tickets // everybody comes with a ticket
		o.Feed = func(_ context.Context, s event.Subject) (stream.Feed, error) {
			f := r.feeds[s.String()]
			f.Subject = s.String()
			return f, nil
		}
		if o.Queue == 0 {
			o.Queue = 100
		}
		if o.KeepAlive == 0 {
			o.KeepAlive = time.Hour
		}
		r.Service, r.opts = stream.New(o), o
		mux := http.NewServeMux()
		mux.HandleFunc("/ws", func(w http.ResponseWriter, q *http.Request) {
			r.answer(w, r.ServeWS(w, q, netip.Addr{}, ""))
		})
		mux.HandleFunc("/sse", func(w http.ResponseWriter, q *http.Request) {
			f, _ := o.Feed(q.Context(), event.OfSession("s"))
			p, err := r.tickets.Take(q.Header.Get("Ticket"))
			if err == nil {
				err = r.ServeSSE(w, q, p, f)
			}
			r.answer(w, err)
		})
		server := &http.Server{Handler: mux}
		done := make(chan struct{})
		go func() {
			defer close(done)
			server.Serve(r.network) //nolint:errcheck // it ends with Close
		}()
		do(r)
		r.Shutdown(ended())
		server.Close()
		<-done
		if n := r.Clients(); n != 0 {
			t.Errorf("Clients() = %d after Shutdown, want 0", n)
		}
	})
}

func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func (r *rig) answer(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, fault.Of(err).Kind.Code, fault.Of(err).Kind.Status)
	}
}

// network hands the server's ends of pipes over.
type network chan net.Conn

func (n network) Accept() (net.Conn, error) {
	c, ok := <-n
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (n network) Close() error   { close(n); return nil }
func (n network) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

func (n network) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	n <- theirs
	return ours, nil
}

func (r *rig) publish(ids ...int) {
	for _, i := range ids {
		r.hub.Publish(subject, entry(i, 0, ""))
	}
}

// peer is a client over WebSocket. It reads when it is told to.
type peer struct {
	*rig
	conn *wstest.Conn
	last struct {
		Kind, EventID, Status, Reason, Code, SubscriptionID string
		Result                                              *struct{ SubscriptionID string }
		Error                                               *struct{ Code int }
	}
}

func (r *rig) dialAs(p auth.Principal) (*peer, error) {
	ticket, _ := r.tickets.Issue(p)
	conn, err := wstest.Dial(r.Context(), "ws://pipe/ws", &wstest.DialOptions{Dial: r.network.dial, Protocols: []string{stream.Subprotocol, "ticket." + ticket}})
	return &peer{rig: r, conn: conn}, err
}

func (r *rig) dial() *peer {
	r.Helper()
	p, err := r.dialAs(auth.Anonymous())
	if err != nil {
		r.Fatal(err)
	}
	p.send(`"id":1,"method":"initialize","params":{"clientInfo":{"name":"n","version":"1"}}`)
	p.wants("result")
	return p
}

func (p *peer) send(members string) {
	p.Helper()
	if err := p.conn.Write(p.Context(), ws.Text, []byte(`{"v":"1","jsonrpc":"2.0",`+members+`}`)); err != nil {
		p.Fatal(err)
	}
}

// subscribe returns the id of a subscription, which has been told of.
func (p *peer) subscribe(subject, since string) string {
	p.Helper()
	p.ask(subject, since)
	p.wants("result")
	id := p.last.Result.SubscriptionID
	p.wants("subscribed")
	return id
}

func (p *peer) ask(subject, since string) {
	p.Helper()
	if since != "" {
		since = fmt.Sprintf(`,"sinceEventId":%q`, since)
	}
	p.send(fmt.Sprintf(`"id":2,"method":"subscription.subscribe","params":{"subject":%q%s}`, subject, since))
}

func (p *peer) unsubscribe(id string) {
	p.Helper()
	p.send(fmt.Sprintf(`"id":3,"method":"subscription.unsubscribe","params":{"subscriptionId":%q}`, id))
}

// next is the next frame in short: the id of an event, the status of a lifecycle frame and so on.
func (p *peer) next() string {
	p.last = peer{}.last
	_, frame, err := p.conn.Read(p.Context())
	if err != nil {
		if e, ok := err.(*ws.CloseError); ok {
			return fmt.Sprintf("%d %s", e.Code, e.Reason)
		}
		return err.Error()
	}
	if err := json.Unmarshal(frame, &p.last); err != nil {
		p.Errorf("the frame %s: %v", frame, err)
	}
	switch {
	case p.last.Kind == "event":
		return p.last.EventID
	case p.last.Kind == "lifecycle":
		return strings.TrimSpace(p.last.Status + " " + p.last.Reason)
	case p.last.Kind == "error":
		return p.last.Code
	case p.last.Kind != "":
		return p.last.Kind
	case p.last.Error != nil:
		return fmt.Sprint(p.last.Error.Code)
	}
	return "result"
}

// wants reads so many frames and says where they are others.
func (p *peer) wants(frames ...string) {
	p.Helper()
	for i, want := range frames {
		if got := p.next(); got != want {
			p.Errorf("frame %d of %q is %s", i, frames, got)
			return
		}
	}
}

// watcher is a client over SSE.
type watcher struct {
	*rig
	conn net.Conn
	resp *http.Response
	body *bufio.Reader
}

func (r *rig) watch(p auth.Principal, since string) *watcher {
	r.Helper()
	conn, _ := r.network.dial(r.Context(), "", "")
	ticket, _ := r.tickets.Issue(p)
	fmt.Fprintf(conn, "GET /sse HTTP/1.1\r\nHost: pipe\r\nTicket: %s\r\nLast-Event-ID: %s\r\n\r\n", ticket, since)
	w := &watcher{rig: r, conn: conn}
	var err error
	if w.resp, err = http.ReadResponse(bufio.NewReader(conn), nil); err != nil {
		r.Fatal(err)
	}
	w.body = bufio.NewReader(w.resp.Body)
	return w
}

// next is the next event in short: the id of an event, the data of others, a comment, or how the stream ends.
func (w *watcher) next() string {
	id, data, other := "", "", ""
	for {
		text, err := w.body.ReadString('\n')
		if err != nil {
			if err == io.EOF && text == "" {
				return "end"
			}
			return err.Error()
		}
		name, value, _ := strings.Cut(strings.TrimSuffix(text, "\n"), ": ")
		switch name {
		case "id":
			id = value
		case "data":
			data = value
		case "":
			if other = value; other != "" {
				continue
			}
		default:
			continue
		}
		if text != "\n" {
			continue
		}
		switch {
		case id != "":
			return id
		case data != "":
			return data
		}
		return "comment"
	}
}

func (w *watcher) wants(events ...string) {
	w.Helper()
	for i, want := range events {
		if got := w.next(); got != want {
			w.Errorf("event %d of %q is %s", i, events, got)
			return
		}
	}
}

func lifecycle(status, reason string) string {
	return fmt.Sprintf(`{"v":"1","kind":"lifecycle","subscriptionId":"sse","status":%q,"reason":%q}`, status, reason)
}
