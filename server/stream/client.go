package stream

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"agentd/auth"
	"agentd/server/hub"
	"agentd/server/tracecontext"
)

const (
	// flushAt is about how many bytes the writer gathers for one write to a client.
	flushAt = 32 << 10
	// maxTasks and maxTaskBytes bound the answers that wait for a client's writer; beyond, its reader waits too. One answer
	// that waits alone may be longer.
	maxTasks     = 64
	maxTaskBytes = 64 << 10
	// endGrace is how long a client that is cut off has to read what is being written to it, and why it is cut off.
	endGrace = 5 * time.Second
	// expiryCheck is how long a connection may outlive its token if somebody sets the clock forward: tokens expire by the
	// clock, which timers do not follow.
	expiryCheck = 10 * time.Second
)

// A wire is how one transport writes to a client. Only the client's writer calls its methods, except for shut.
type wire interface {
	// head appends to out what precedes a frame of size bytes. SSE also sends the frame's name and, unless empty, its id.
	head(out []byte, name, id string, size int) []byte
	// idle shows a silent client that the connection is alive.
	idle()
	// write sends what the writer gathered. After an error the client is lost.
	write(out []byte) error
	// over is called when the server has ended a subscription.
	over(f *follower)
	// bye sends the reason why the connection ends, and ends it.
	bye(e ending)
	// shut cuts the connection. Any goroutine may call it, also while others write.
	shut()
}

// An ending is why the server ends a connection. The zero one means that the last subject of an SSE stream has ended.
type ending struct {
	code   int // of the close frame
	reason string
}

var (
	endRequired  = ending{4001, "auth.required"}
	endExpired   = ending{4002, "auth.invalid"}
	endRevoked   = ending{4003, "auth.revoked"}
	endThrottled = ending{4006, "flow.throttled"}
	endShutdown  = ending{4007, "server.shutdown"}
	endProtocol  = ending{4008, "protocol.violation"}
)

// client is one connection with its subscriptions. From start on it has a reader, which notices that the client has gone
// and calls close, and a writer while there is something to write.
type client struct {
	s          *Service
	principal  auth.Principal
	ctx        context.Context // ends with close
	cancel     context.CancelFunc
	wire       wire
	transport  string // ws or sse
	lead, tail string // what begins each write, and ends each frame
	queue      *hub.Queue

	mu       sync.Mutex // guards the fields below
	changed  *sync.Cond // tasks have been taken, or the writer has ended
	subs     map[string]*follower
	tasks    []func() // for the writer, in order
	waiting  int      // bytes that they hold
	dirty    bool     // the writer has something to look at
	writing  bool     // the writer runs; also true before start
	closed   bool
	silence  time.Duration // after which the writer writes something idle
	wrote    time.Time
	timer    *time.Timer // of tick; nil before start
	end      *ending     // why the server ends the connection; nil: it does not
	deadline time.Time   // for telling it; zero: none

	// The writer's own.
	out       *buffer // frames that wait for send
	replaying []*follower
	held      int // how many entries all subscriptions hold back, and their bytes
	heldBytes int
	owner     string // the latest that reads was asked about
	readable  bool   // whether the client may read it
	gone      bool   // bye has been said, or the client is lost
}

// newClient makes the client of a connection that a request with a context has begun.
func (s *Service) newClient(ctx context.Context, p auth.Principal, w wire, transport string) *client {
	c := &client{s: s, principal: p, wire: w, transport: transport, subs: map[string]*follower{}, writing: true}
	c.changed = sync.NewCond(&c.mu)
	c.ctx, c.cancel = context.WithCancel(tracecontext.With(context.Background(), tracecontext.From(ctx)))
	c.queue = hub.NewQueue(s.opts.Queue, s.opts.Queue*1024, c.wake)
	return c
}

// log is the service's log, with the ids of the request that began the connection.
func (c *client) log() *slog.Logger {
	return tracecontext.Log(c.ctx, c.s.opts.Logger)
}

// start lets the writer use the wire. What publishers have for the client already, the writer takes now.
func (c *client) start(silence time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silence, c.wrote = silence, time.Now()
	c.timer = time.AfterFunc(c.rest(c.wrote), c.tick)
	if c.writing = false; c.dirty {
		c.wakeLocked()
	}
}

// rest is how long tick has nothing to do.
func (c *client) rest(now time.Time) time.Duration {
	rest := c.silence - now.Sub(c.wrote)
	if at := c.principal.Expires; !at.IsZero() {
		rest = min(rest, time.Until(at), expiryCheck)
	}
	return rest
}

// tick ends the connection if its token has expired, cuts it if the client takes too long to notice its end, and else lets
// the writer say something after a silence.
func (c *client) tick() {
	c.mu.Lock()
	now, expires := time.Now(), c.principal.Expires
	late := c.end != nil && !c.deadline.IsZero() && !now.Before(c.deadline)
	switch {
	case c.closed || c.end != nil:
	case !expires.IsZero() && !now.Before(expires):
		c.finishLocked(endExpired)
	default:
		if now.Sub(c.wrote) >= c.silence {
			c.wrote = now
			c.tasks = append(c.tasks, c.wire.idle)
			c.wakeLocked()
		}
		c.timer.Reset(c.rest(now))
	}
	c.mu.Unlock()
	if late {
		c.cut()
	}
}

// cut ends the connection at once.
func (c *client) cut() {
	c.cancel()
	c.wire.shut()
}

// wake makes the writer look at what there is to do. Publishers call it, so it never blocks for long.
func (c *client) wake() {
	full := c.queue.Overflowed()
	c.mu.Lock()
	defer c.mu.Unlock()
	if full && c.timer != nil { // the writer may not come round for long
		c.finishLocked(endThrottled)
	}
	c.wakeLocked()
}

func (c *client) wakeLocked() {
	c.dirty = true
	if c.writing || c.closed {
		return
	}
	c.writing = true
	c.s.group.Add(1)
	go c.write()
}

// do lets the writer run a task, which holds size bytes, after those before it. It waits while too much waits. It does
// nothing once the client is closed.
func (c *client) do(size int, task func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for (len(c.tasks) >= maxTasks || c.waiting > 0 && c.waiting+size > maxTaskBytes) && !c.closed {
		c.changed.Wait()
	}
	if c.closed {
		return
	}
	c.tasks, c.waiting = append(c.tasks, task), c.waiting+size
	c.wakeLocked()
}

// finish ends the connection for a reason, after what is being written. The first reason counts.
func (c *client) finish(e ending) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.finishLocked(e)
}

func (c *client) finishLocked(e ending) {
	if c.end != nil || c.closed {
		return
	}
	c.end = &e
	if e != (ending{}) {
		c.deadline = time.Now().Add(endGrace)
		c.timer.Reset(endGrace)
	}
	c.wakeLocked()
}

// followers returns the subscriptions, oldest first.
func (c *client) followers() []*follower {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.SortedFunc(maps.Values(c.subs), func(a, b *follower) int { return cmp.Compare(a.id, b.id) })
}

// close gives up a client that was started: it cuts the connection, waits for the writer and detaches the subscriptions.
func (c *client) close() {
	c.cut()
	c.mu.Lock()
	c.closed, c.tasks, c.waiting = true, nil, 0
	c.timer.Stop()
	c.changed.Broadcast()
	for c.writing {
		c.changed.Wait()
	}
	c.mu.Unlock()
	for _, f := range c.followers() {
		f.close()
	}
	c.s.leave(c)
}

// write is the writer. It ends when there is nothing more to do.
func (c *client) write() {
	defer c.s.group.Done()
	for {
		c.mu.Lock()
		if !c.dirty || c.closed {
			c.writing = false
			c.changed.Broadcast()
			c.mu.Unlock()
			return
		}
		tasks, end := c.tasks, c.end
		c.tasks, c.waiting, c.dirty = nil, 0, false
		c.changed.Broadcast()
		c.mu.Unlock()
		if !c.gone {
			c.round(tasks, end)
		}
	}
}

// round does what there is to do now: the tasks, what is live, a burst of each replay; then it sends all of it.
func (c *client) round(tasks []func(), end *ending) {
	for _, task := range tasks {
		task()
		c.sendFrom(flushAt)
	}
	c.take()
	c.replaying = slices.DeleteFunc(c.replaying, func(f *follower) bool { return c.gone || c.replay(f) })
	if len(c.replaying) > 0 && !c.gone {
		c.mu.Lock()
		c.dirty = true // come round once more
		c.mu.Unlock()
	} else {
		c.replaying = nil
	}
	c.sendFrom(1)
	if end != nil && !c.gone {
		c.wire.bye(*end)
		c.gone, c.replaying = true, nil
	}
}

// output is the buffer that the writer gathers frames in.
func (c *client) output() *buffer {
	if c.out == nil {
		c.out = buffers.Get().(*buffer)
		c.out.b = append(c.out.b, c.lead...)
	}
	return c.out
}

// sendFrom sends what the writer gathered if it has so many bytes at least. A lost client needs nothing more: its reader
// notices.
func (c *client) sendFrom(size int) {
	if c.gone || c.out == nil || len(c.out.b) < size {
		return
	}
	out := c.out
	c.out = nil
	err := c.wire.write(out.b)
	out.free()
	if err != nil {
		c.gone = true
		c.cancel()
		return
	}
	c.mu.Lock()
	c.wrote = time.Now()
	c.mu.Unlock()
}
