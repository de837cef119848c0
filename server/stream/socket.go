package stream

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"agentd/auth"
	"agentd/server/audit"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/ws"
)

// Subprotocol is the protocol that clients speak over WebSocket.
const Subprotocol = "svc.protocol.v1"

const (
	maxSubscriptions = 1000    // of one connection
	maxFrame         = 1 << 20 // bytes of a client's frame
	heavyFrame       = 64 << 10
	pingEvery        = 30 * time.Second
)

// socket is a client that speaks svc.protocol.v1. Its reader answers requests in the order in which they come.
type socket struct {
	c      *client
	conn   *ws.Conn
	prefix string   // of the ids of its subscriptions
	last   int      // the reader's: number of the latest subscription
	ready  bool     // the reader's: initialize has come
	ended  []string // the latest subscriptions that the server has ended and the client may not know of yet; guarded by c.mu
}

func (s *Service) newSocket(ctx context.Context, p auth.Principal, conn *ws.Conn) *socket {
	var unique [8]byte
	rand.Read(unique[:]) //nolint:errcheck // it never fails
	k := &socket{conn: conn, prefix: fmt.Sprintf("sub-conn-%x-", unique)}
	k.c = s.newClient(ctx, p, k, "ws")
	return k
}

// run reads until the connection has ended, and then gives up all of it. What a refused client sends means nothing, and is
// not held.
func (k *socket) run(refused bool) {
	if refused {
		k.conn.Discard()
		k.quit()
		return
	}
	typ, text, err := k.conn.Read()
	if err != nil {
		k.quit()
		return
	}
	ok := k.handle(typ, text)
	if !ok {
		k.c.finish(endProtocol)
	}
	// A fresh goroutine reads on: to answer takes more stack than to wait, and the runtime does not take it back.
	go k.run(!ok)
}

// quit gives up the connection.
func (k *socket) quit() {
	k.c.cancel()
	k.conn.Close(ws.CodeNormal, "") //nolint:errcheck // it is over either way
	k.c.close()
}

// parse reads a request. A long one takes a multiple of its length in memory, so of these the service reads one at a time.
func (k *socket) parse(text []byte) (*request, *rpcError) {
	if len(text) > heavyFrame {
		k.c.s.heavy.Lock()
		defer k.c.s.heavy.Unlock()
	}
	return parseRequest(text)
}

// handle answers one request. It returns false when the frame breaks the protocol, which ends the connection.
func (k *socket) handle(typ ws.Type, text []byte) bool {
	if typ != ws.Text {
		text = nil
	}
	r, refusal := k.parse(text)
	if refusal != nil {
		k.refuse(r, refusal)
		return false
	}
	if !k.ready && r.method != methodInitialize && r.method != methodPing {
		if r.id != nil {
			k.refuse(r, &rpcError{Code: codeTooEarly, Message: "Send `initialize` before any other request."})
		}
		return true
	}
	r.id = slices.Clone(r.id) // the text is only valid until the next read, and answers are written later
	switch p := r.params.(type) {
	case *initializeParams:
		k.ready = true
		var a initialized
		a.ServerInfo.Name, a.ServerInfo.Version = "svc-server", k.c.s.opts.Version
		a.Capabilities.Subscriptions, a.Capabilities.ReplayBuffer, a.Capabilities.SSEFallback = true, true, true
		k.send(nil, r.answer(a))
	case *pingParams:
		k.send(nil, encode(frame{V: "1", Kind: "pong", Nonce: p.Nonce}), r.answer(ponged{true}))
	case *subscribeParams:
		k.subscribe(r, p)
	case *unsubscribeParams:
		k.unsubscribe(r, p.SubscriptionID)
	case *cancelParams:
		if p.OnPendingApprovals == "preserve" {
			p.OnPendingApprovals = "hold"
		}
		stopped, err := k.c.s.opts.Cancel(k.c.ctx, k.c.principal, p.RunID, Cancellation{r.action, p.Reason, p.Drain, p.OnPendingApprovals})
		if err != nil {
			k.fail(r, err)
			break
		}
		k.send(nil, r.answer(cancelled{p.RunID, stopped, true}))
	case *cancelledParams: // a notification has no answer
		k.c.s.opts.Cancel(k.c.ctx, k.c.principal, p.RequestID, Cancellation{Action: r.action, Reason: "mcp-cancel"}) //nolint:errcheck
	}
	return true
}

func (r *request) answer(result any) []byte { return encode(rpcAnswer{"1", "2.0", r.id, result, nil}) }

func (k *socket) refuse(r *request, e *rpcError) {
	id := json.RawMessage("0")
	if r != nil && r.id != nil {
		id = r.id
	}
	k.send(nil, encode(rpcAnswer{"1", "2.0", id, nil, e}))
}

// fail refuses a request for a fault. What is ours goes to the log.
func (k *socket) fail(r *request, err error) {
	e := failed(err)
	if e.Code == codeInternal && k.c.ctx.Err() == nil {
		k.c.log().Error("request failed", "method", r.method, "error", err)
	}
	k.refuse(r, e)
}

// send lets the writer send frames and then, unless it is nil, call then.
func (k *socket) send(then func(), frames ...[]byte) {
	size := 0
	for _, f := range frames {
		size += len(f)
	}
	k.c.do(size, func() {
		for _, f := range frames {
			k.c.add("", "", f)
		}
		if then != nil {
			then()
		}
	})
}

func (k *socket) subscribe(r *request, p *subscribeParams) {
	subject, err := event.ParseSubject(p.Subject)
	if err != nil {
		k.fail(r, err)
		return
	}
	if scope, err := auth.ParseScope(subject.Scope()); err != nil || !k.c.principal.Grant.Covers(scope) {
		k.fail(r, k.record(r, subject, fault.New(fault.ScopeDenied, "The request requires the scope %s.", subject.Scope())))
		return
	}
	f := k.enlist()
	if f == nil { // not recorded: a client could do so without end
		k.refuse(r, &rpcError{Code: codeLimited, Message: fmt.Sprintf("A connection can have at most %d subscriptions.", maxSubscriptions)})
		return
	}
	feed, err := k.c.s.opts.Feed(k.c.ctx, subject)
	var replayed int
	var snapshot string
	if err == nil {
		f.feed = &feed
		replayed, snapshot, err = f.begin(k.c.ctx, k.c.s.opts.Hub, k.c.queue, p.SinceEventID)
	}
	if err = k.record(r, subject, err); err != nil {
		k.c.do(0, func() { k.c.drop(f) })
		k.fail(r, err)
		return
	}
	if snapshot == "" && f.unknown {
		snapshot = noEvent()
	}
	k.send(func() { k.c.attach(f) }, r.answer(subscribed{f.id, p.Subject, snapshot, replayed}),
		encode(frame{V: "1", Kind: "subscribed", SubscriptionID: f.id, Subject: p.Subject, Snapshot: snapshot}))
}

// record writes the entry of a subscription. It returns the error to refuse it with: the one that refuses it anyway, or
// that of the audit chain.
func (k *socket) record(r *request, subject event.Subject, refused error) error {
	if k.c.s.opts.Record == nil {
		return refused
	}
	entry := audit.Record{Action: r.action, Target: subject.String(), Metadata: map[string]any{"transport": "ws"}}
	return cmp.Or(k.c.s.opts.Record(k.c.ctx, k.c.principal, entry, refused), refused)
}

// enlist makes a follower with an id; nil when there are too many.
func (k *socket) enlist() *follower {
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	if len(k.c.subs) >= maxSubscriptions {
		return nil
	}
	k.last++
	f := &follower{id: fmt.Sprintf("%s%012x", k.prefix, k.last)}
	k.c.subs[f.id] = f
	return f
}

func (k *socket) unsubscribe(r *request, id string) {
	k.c.mu.Lock()
	f, at := k.c.subs[id], slices.Index(k.ended, id)
	known := f != nil && !f.leaving || at >= 0
	switch {
	case f != nil:
		f.leaving = true
	case known: // the server has ended it, and the client did not know yet
		k.ended = slices.Delete(k.ended, at, at+1)
	}
	k.c.mu.Unlock()
	if !known {
		k.refuse(r, &rpcError{Code: codeSubscriptionGone, Message: fmt.Sprintf("This connection has no subscription %.100q.", id)})
		return
	}
	k.send(func() {
		if f != nil {
			k.c.drop(f)
		}
	}, r.answer(unsubscribed{id, true}), encode(frame{V: "1", Kind: "unsubscribed", SubscriptionID: id}))
}

// The wire of a socket.

func (k *socket) head(out []byte, _, _ string, size int) []byte {
	return ws.AppendHead(out, ws.Text, size)
}

func (k *socket) idle() {
	k.conn.Ping() //nolint:errcheck // the reader notices
}

func (k *socket) write(out []byte) error { return k.conn.WriteEncoded(out) }

func (k *socket) over(f *follower) {
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	if f.leaving {
		return
	}
	if len(k.ended) == maxSubscriptions {
		k.ended = slices.Delete(k.ended, 0, 1)
	}
	k.ended = append(k.ended, f.id)
}

func (k *socket) bye(e ending) {
	if e == endShutdown {
		for _, f := range k.c.followers() {
			if f.attached {
				k.c.note(f, frame{Kind: "lifecycle", Status: "paused", Reason: "server-shutdown"}) // its runs continue when the server is back
			}
		}
	}
	if k.c.sendFrom(1); !k.c.gone {
		k.conn.Close(ws.Code(e.code), e.reason) //nolint:errcheck // it is over either way
	}
}

func (k *socket) shut() { k.conn.CloseNow() }
