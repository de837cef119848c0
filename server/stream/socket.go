package stream

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"agentd/auth"
	"agentd/server/audit"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
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
	prefix string  // of the ids of its subscriptions
	ready  bool    // the reader's: initialize has come
	out    *buffer // the writer's: encoded frames
	pinged time.Time

	mu    sync.Mutex // guards the fields below
	subs  map[string]*follower
	last  int      // number of the latest subscription
	ended []string // the latest subscriptions that the server has ended and the client may not know of yet
}

// run reads until the connection has ended, and then gives up all of it. What a refused client sends means nothing, and is
// not held. Reads and writes have no context: who ends the client's shuts its wire, and a connection that watches a context
// holds more.
func (k *socket) run(refused bool) {
	if refused {
		k.conn.Discard(context.Background())
		k.quit()
		return
	}
	typ, frame, err := k.conn.Read(context.Background())
	if err != nil {
		k.quit()
		return
	}
	ok := k.handle(typ, frame)
	if !ok {
		k.c.finish(endProtocol)
	}
	// A fresh goroutine reads on: to answer takes more stack than to wait, and the runtime does not take it back.
	go k.run(!ok)
}

// parse reads a frame. A long one takes a multiple of its length in memory, so of these one is read at a time.
func (k *socket) parse(frame []byte) (*request, *rpcError) {
	if len(frame) > heavyFrame {
		k.c.s.heavy.Lock()
		defer k.c.s.heavy.Unlock()
	}
	return parseRequest(frame)
}

// quit gives up the connection.
func (k *socket) quit() {
	k.c.cancel()
	k.conn.Close(context.Background(), ws.CodeNormal, "") //nolint:errcheck // it is over either way
	k.c.close(k.followers())
	k.c.s.leave(k.c)
}

// followers are the subscriptions, oldest first.
func (k *socket) followers() []*follower {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.SortedFunc(maps.Values(k.subs), func(a, b *follower) int { return cmp.Compare(a.id, b.id) })
}

// handle answers one frame. It returns false when the frame breaks the protocol, which ends the connection.
func (k *socket) handle(typ ws.Type, frame []byte) bool {
	if typ != ws.Text {
		frame = nil
	}
	r, refusal := k.parse(frame)
	if refusal != nil {
		k.refuse(r, refusal)
		return false
	}
	if !k.ready && r.method != methodInitialize && r.method != methodPing {
		if r.id != nil {
			k.refuse(r, &rpcError{Code: codeTooEarly, Message: "Send `initialize` before any other RPC."})
		}
		return true
	}
	// The frame is only valid until the next read, and answers are written later.
	r.id = slices.Clone(r.id)
	switch p := r.params.(type) {
	case *initializeParams:
		k.ready = true
		var a initialized
		a.ServerInfo = serverInfo{"svc-server", k.c.s.opts.Version}
		a.Capabilities.Subscriptions, a.Capabilities.ReplayBuffer, a.Capabilities.SSEFallback = true, true, true
		k.reply(r, a)
	case *pingParams:
		k.reply(r, ponged{true}, pongFrame{"1", "pong", p.Nonce})
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
		k.reply(r, cancelled{p.RunID, stopped, true})
	case *cancelledParams: // nobody is told what became of it
		k.c.s.opts.Cancel(k.c.ctx, k.c.principal, p.RequestID, Cancellation{Action: r.action, Reason: "mcp-cancel"}) //nolint:errcheck
	}
	return true
}

// reply answers a request, after the given frames.
func (k *socket) reply(r *request, result any, before ...any) {
	var frames [][]byte
	for _, f := range before {
		frames = append(frames, encode(f))
	}
	k.send(append(frames, encode(rpcResult{"1", "2.0", r.id, result}))...)
}

func (k *socket) refuse(r *request, e *rpcError) {
	id := json.RawMessage("0")
	if r != nil && r.id != nil {
		id = r.id
	}
	k.send(encode(rpcFailure{"1", "2.0", id, e}))
}

// send has the writer send frames.
func (k *socket) send(frames ...[]byte) {
	size := 0
	for _, f := range frames {
		size += len(f)
	}
	k.c.do(size, func() { k.add(frames...) })
}

// fail refuses a request for a fault. What is ours goes to the log.
func (k *socket) fail(r *request, err error) {
	e := failed(err)
	if e.Code == codeInternal && k.c.ctx.Err() == nil {
		k.c.s.opts.Logger.Error("request failed", "method", r.method, "error", err)
	}
	k.refuse(r, e)
}

func (k *socket) subscribe(r *request, p *subscribeParams) {
	subject, err := event.ParseSubject(p.Subject)
	if err != nil {
		k.fail(r, err)
		return
	}
	if scope, err := auth.ParseScope(subject.Scope()); err != nil || !k.c.principal.Grant.Covers(scope) {
		k.fail(r, k.record(r, subject, fault.New(fault.ScopeDenied, "The scope %s is needed.", subject.Scope())))
		return
	}
	f := &follower{}
	if k.enlist(f); f.id == "" { // it is not told: what goes on that way has no end
		k.refuse(r, &rpcError{Code: codeLimited, Message: fmt.Sprintf("A connection has at most %d subscriptions.", maxSubscriptions)})
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
		k.strike(f.id)
		k.c.do(0, func() { k.c.release(f) })
		k.fail(r, err)
		return
	}
	if snapshot == "" && f.unknown {
		snapshot = noEvent()
	}
	result := encode(rpcResult{"1", "2.0", r.id, subscribed{f.id, p.Subject, snapshot, replayed}})
	frame := encode(subscribedFrame{"1", "subscribed", f.id, p.Subject, snapshot})
	k.c.do(len(result)+len(frame), func() {
		k.add(result, frame)
		k.c.attach(f)
	})
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

// enlist gives a follower its id, unless there are too many.
func (k *socket) enlist(f *follower) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.subs) >= maxSubscriptions {
		return
	}
	k.last++
	f.id = fmt.Sprintf("%s%012x", k.prefix, k.last)
	k.subs[f.id] = f
}

func (k *socket) strike(id string) *follower {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.subs[id]
	delete(k.subs, id)
	return f
}

func (k *socket) unsubscribe(r *request, id string) {
	f := k.strike(id)
	if f == nil && !k.hasEnded(id) {
		k.refuse(r, &rpcError{Code: codeSubscriptionGone, Message: fmt.Sprintf("This connection has no subscription %.100q.", id)})
		return
	}
	result := encode(rpcResult{"1", "2.0", r.id, unsubscribed{id, true}})
	k.c.do(len(result), func() {
		if f != nil {
			k.c.release(f)
		}
		k.add(result, encode(unsubscribedFrame{"1", "unsubscribed", id}))
	})
}

// hasEnded reports, once, whether the server has ended a subscription that a client wants to end.
func (k *socket) hasEnded(id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	at := slices.Index(k.ended, id)
	if at >= 0 {
		k.ended = slices.Delete(k.ended, at, at+1)
	}
	return at >= 0
}

// prefixOf makes the prefix of a connection's subscription ids, which are unique and all of one length.
func prefixOf() string {
	var b [8]byte
	rand.Read(b[:]) //nolint:errcheck // it never fails
	return "sub-conn-" + hex.EncodeToString(b[:]) + "-"
}

// The wire of a socket.

func (k *socket) output() *buffer {
	if k.out == nil {
		k.out = buffers.Get().(*buffer)
	}
	return k.out
}

func (k *socket) add(frames ...[]byte) {
	out := k.output()
	for _, f := range frames {
		out.b = append(ws.AppendHead(out.b, ws.Text, len(f)), f...)
	}
}

func (k *socket) event(f *follower, _ *hub.Entry, b *body) {
	out := k.output()
	out.b = b.append(ws.AppendHead(out.b, ws.Text, b.size(f.id)), f.id)
}

func (k *socket) lifecycle(f *follower, status, reason string) {
	k.add(encode(lifecycleFrame{"1", "lifecycle", f.id, status, reason}))
}

func (k *socket) marker(f *follower, eventID string, missed int) {
	k.add(encode(markerFrame{"1", "replay-marker", f.id, eventID, missed}))
}

func (k *socket) failure(f *follower, code, message string) {
	k.add(encode(errorFrame{"1", "error", code, message, f.id}))
}

// idle pings a silent client, and gives up one that has not answered the ping before.
func (k *socket) idle() {
	if !k.pinged.IsZero() && k.conn.LastPong().Before(k.pinged) {
		k.conn.CloseNow()
		return
	}
	k.pinged = time.Now()
	k.conn.Ping(context.Background()) //nolint:errcheck // the reader notices
}

func (k *socket) buffered() int {
	if k.out == nil {
		return 0
	}
	return len(k.out.b)
}

func (k *socket) flush() error {
	out := k.out
	k.out = nil
	defer out.free()
	return k.conn.WriteEncoded(context.Background(), out.b)
}

func (k *socket) over(f *follower) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.subs, f.id)
	if len(k.ended) == maxSubscriptions {
		k.ended = slices.Delete(k.ended, 0, 1)
	}
	k.ended = append(k.ended, f.id)
}

func (k *socket) bye(e ending) {
	if e == endShutdown {
		for _, f := range k.followers() {
			if f.attached {
				k.lifecycle(f, "paused", "server-shutdown") // its runs go on when the server is back
			}
		}
	}
	if k.buffered() > 0 && k.flush() != nil {
		return
	}
	k.conn.Close(context.Background(), ws.Code(e.code), e.reason) //nolint:errcheck // it is over either way
}

func (k *socket) transport() string { return "ws" }

func (k *socket) shut() { k.conn.CloseNow() }
