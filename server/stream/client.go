package stream

import (
	"context"
	"errors"
	"sync"
	"time"

	"agentd/auth"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
)

const (
	// flushAt is how many bytes are gathered for one write to a client, about.
	flushAt = 32 << 10
	// replayBurst is how many entries of one replay are written before what is live comes between.
	replayBurst = 64
	// maxTasks is how many answers may wait for a client's writer, and maxTaskBytes how long they may be together, except
	// for one that is alone; beyond, its reader waits too.
	maxTasks     = 64
	maxTaskBytes = 64 << 10
)

// A wire is how one transport writes to a client. Its methods are called by the client's writer only.
type wire interface {
	// event, lifecycle, marker and failure add frames to what the next flush sends.
	event(f *follower, e *hub.Entry, b *body)
	lifecycle(f *follower, status, reason string)
	marker(f *follower, eventID string, missed int)
	failure(f *follower, code, message string)
	// idle adds what tells a silent client that it is not forgotten.
	idle()
	// buffered is how many bytes wait for flush.
	buffered() int
	// flush sends what was added. An error means that the client is lost.
	flush() error
	// over is called when the server has ended a subscription. The last of an SSE client ends the connection.
	over(f *follower)
	// bye ends the connection for a reason; after it nothing is written any more.
	bye(e ending)
	// transport is its name in the audit log.
	transport() string
	// shut cuts the connection. Any goroutine may call it, also while others write.
	shut()
}

// An ending is why the server ends a connection.
type ending struct {
	code   int // of the close frame
	reason string
}

var (
	endRevoked   = ending{4003, "auth.revoked"}
	endExpired   = ending{4002, "auth.invalid"}
	endThrottled = ending{4006, "flow.throttled"}
	endShutdown  = ending{4007, "server.shutdown"}
	endProtocol  = ending{4008, "protocol.violation"}
)

// client is one connection with its subscriptions. It has a reader, who notices that the client has gone and calls
// close, and while there is something to write a writer, from start on.
type client struct {
	s         *Service
	principal auth.Principal
	ctx       context.Context // ends with close
	cancel    context.CancelFunc
	wire      wire
	queue     *hub.Queue

	mu      sync.Mutex // guards the fields below
	changed *sync.Cond // tasks have been taken, or the writer has ended
	tasks   []func()   // for the writer, in order
	waiting int        // bytes that they hold
	started bool
	dirty   bool // the writer has something to look at
	writing bool
	closed  bool
	silence *time.Timer // until something idle is written; nil before start
	expiry  *time.Timer // of the token; nil when it has none
	wrote   time.Time
	end     *ending // to be told to the client

	patience *time.Timer // with the client that is to be told; nil before

	replaying []*follower // the writer's: those that are not live
	held      int         // the writer's: how many entries all subscriptions hold back, and their bytes
	heldBytes int
	readable  map[string]bool // the writer's: which agents the client may read, of those that were asked about
	gone      bool            // the writer's: bye has been said, or the client is lost
}

func (s *Service) newClient(p auth.Principal, w wire) *client {
	c := &client{s: s, principal: p, wire: w}
	c.changed = sync.NewCond(&c.mu)
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.queue = hub.NewQueue(s.opts.Queue, s.opts.Queue*1024, c.wake)
	return c
}

// start lets the writer use the wire. What has been asked of the client before, the writer does now.
func (c *client) start(silence time.Duration) {
	c.mu.Lock()
	c.started, c.wrote = true, time.Now()
	c.silence = time.AfterFunc(silence, func() { c.beat(silence) })
	if at := c.principal.Expires; !at.IsZero() {
		c.expiry = time.AfterFunc(untilExpiry(at), func() { c.expire(at) })
	}
	c.hurryLocked()
	if c.dirty {
		c.startLocked()
	}
	c.mu.Unlock()
	if c.ctx.Err() != nil { // it was cut before there was a wire
		c.wire.shut()
	}
}

// expiryCheck is how long a connection may outlive its token when the clock was set on.
const expiryCheck = 10 * time.Second

// untilExpiry is how long not to look at the clock: tokens expire by it, and timers do not follow it.
func untilExpiry(at time.Time) time.Duration { return min(time.Until(at), expiryCheck) }

// expire ends the connection if its token has expired.
func (c *client) expire(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
	case time.Now().Before(at):
		c.expiry.Reset(untilExpiry(at))
	default:
		c.finishLocked(endExpired)
	}
}

// cut ends the connection at once.
func (c *client) cut() {
	c.cancel()
	c.mu.Lock()
	started := c.started
	c.mu.Unlock()
	if started {
		c.wire.shut()
	}
}

// beat lets the writer say something after a silence.
func (c *client) beat(silence time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	rest := silence - time.Since(c.wrote)
	if rest <= 0 {
		rest = silence
		c.tasks = append(c.tasks, c.wire.idle)
		c.startLocked()
	}
	c.silence.Reset(rest)
}

// wake makes the writer look at what there is to do. It never blocks for long: publishers call it.
func (c *client) wake() {
	full := c.queue.Overflowed()
	c.mu.Lock()
	defer c.mu.Unlock()
	if full { // the writer may not come round for long
		c.finishLocked(endThrottled)
	}
	c.startLocked()
}

func (c *client) startLocked() {
	c.dirty = true
	if c.writing || c.closed || !c.started {
		return
	}
	c.writing = true
	c.s.group.Add(1)
	go c.write()
}

// do lets the writer run a task, which holds so many bytes, after those before it. It waits while too much waits; it does
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
	c.startLocked()
}

// finish ends the connection for a reason, after what is being written. The first reason counts.
func (c *client) finish(e ending) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.finishLocked(e)
}

// endGrace is how long a client that is cut off may take to notice: what is being written to it has to be read first.
const endGrace = 5 * time.Second

func (c *client) finishLocked(e ending) {
	if c.end != nil || c.closed {
		return
	}
	c.end = &e
	c.hurryLocked()
	c.startLocked()
}

// hurryLocked limits the time of a client that is to be told of an end, once there is a wire to tell it by.
func (c *client) hurryLocked() {
	if c.started && c.end != nil && *c.end != (ending{}) {
		c.patience = time.AfterFunc(endGrace, c.cut)
	}
}

// close gives up the client, waits for its writer and detaches its subscriptions. The wire must be shut before, so that
// the writer does not block.
func (c *client) close(followers []*follower) {
	c.cancel()
	c.mu.Lock()
	c.closed, c.tasks, c.waiting = true, nil, 0
	for _, t := range []*time.Timer{c.silence, c.expiry, c.patience} {
		if t != nil {
			t.Stop()
		}
	}
	c.changed.Broadcast()
	for c.writing {
		c.changed.Wait()
	}
	c.mu.Unlock()
	for _, f := range followers {
		f.close()
	}
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
		c.tasks, c.waiting, c.dirty = nil, 0, len(c.replaying) > 0
		c.changed.Broadcast()
		c.mu.Unlock()
		c.round(tasks, end)
	}
}

// round does what there is to do now: the tasks, what is live, a burst of each replay; then all is sent.
func (c *client) round(tasks []func(), end *ending) {
	if c.gone {
		return
	}
	for _, task := range tasks {
		task()
		if c.wire.buffered() > flushAt {
			c.send()
		}
	}
	c.take()
	all := c.replaying // which is nil once the client is lost
	kept := all[:0]
	for _, f := range all {
		if !c.gone && !c.replay(f) {
			kept = append(kept, f)
		}
	}
	clear(all[len(kept):])
	if c.replaying = nil; len(kept) > 0 && !c.gone {
		c.replaying = kept
		c.again()
	}
	c.send()
	if end != nil && !c.gone {
		c.gone, c.replaying = true, nil
		c.wire.bye(*end)
	}
}

// again makes the writer come round once more.
func (c *client) again() {
	c.mu.Lock()
	c.dirty = true
	c.mu.Unlock()
}

// send flushes the wire. A client that is lost needs nothing more: its reader notices.
func (c *client) send() {
	if c.gone || c.wire.buffered() == 0 {
		return
	}
	if c.wire.flush() != nil {
		c.gone, c.replaying = true, nil
		c.cancel()
		return
	}
	c.mu.Lock()
	c.wrote = time.Now()
	c.mu.Unlock()
}

// take hands what was published to the subscriptions.
func (c *client) take() {
	batch, err := c.queue.Take()
	for _, d := range batch.All() {
		f := d.Sub.Owner.(*follower)
		switch {
		case f.over:
		case !f.attached && d.Entry == nil:
			f.lost = d.Sub.Err()
		case d.Entry == nil:
			c.endOf(f, d.Sub.Err())
		case !f.attached || f.phase != live:
			if c.held >= c.s.opts.Queue || c.held > 0 && c.heldBytes+len(d.Entry.Payload) > c.s.opts.Queue*1024 {
				err = hub.ErrOverflow
				break
			}
			f.held = append(f.held, d.Entry)
			c.hold(d.Entry, 1)
		default:
			c.show(f, d.Entry)
		}
	}
	batch.Free()
	if err != nil {
		c.finish(endThrottled)
	}
}

// endOf tells a subscription that its subject has ended.
func (c *client) endOf(f *follower, err error) {
	if errors.Is(err, hub.ErrErased) {
		c.wire.failure(f, "subject.erased", "What the subject told of has been erased.")
	} else {
		c.finish(endShutdown)
		return
	}
	c.over(f)
}

// attach begins to show a subscription.
func (c *client) attach(f *follower) {
	f.attached = true
	if f.lost != nil {
		c.endOf(f, f.lost)
		return
	}
	c.replaying = append(c.replaying, f)
}

// hold counts an entry as held back, by 1, or no more, by -1.
func (c *client) hold(e *hub.Entry, by int) {
	c.held, c.heldBytes = c.held+by, c.heldBytes+by*len(e.Payload)
}

// release detaches a subscription, of which nothing more is shown.
func (c *client) release(f *follower) {
	for _, e := range f.held {
		c.hold(e, -1)
	}
	f.close()
}

// replay writes a burst of what came before the live entries, and reports whether that is done.
func (c *client) replay(f *follower) (done bool) {
	for range replayBurst {
		if f.over || f.phase == live {
			return true
		}
		e, left, err := f.pull(c.ctx, c.take)
		switch {
		case fault.Is(err, fault.RunNotFound): // the hub is about to tell so
			c.endOf(f, hub.ErrErased)
		case err != nil:
			if c.ctx.Err() == nil {
				c.s.opts.Logger.Error("replay failed", "subject", f.feed.Subject, "error", err)
				c.wire.failure(f, "replay.failed", "The stored events could not be read; subscribe again.")
			}
			c.over(f)
		case e != nil:
			if left == held {
				c.hold(e, -1)
			}
			c.show(f, e)
		case left == ring:
			c.mark(f)
		case f.phase == live && f.status != "":
			c.lifecycle(f, f.status)
		}
		if c.wire.buffered() > flushAt {
			c.send()
		}
	}
	return f.over || f.phase == live
}

// show writes an entry unless it has been written, and its lifecycle frame after it.
func (c *client) show(f *follower, e *hub.Entry) {
	if f.over || !e.Pos.After(f.pos) {
		return
	}
	f.missed += f.gap(e)
	if f.phase > ring { // what is replayed has one marker, at its end
		c.mark(f)
	}
	f.pos, f.eventID = e.Pos, e.ID
	if reduced := !c.reads(e.Owner); !reduced || !f.feed.Answer || event.InAnswer(e.Type) {
		c.wire.event(f, e, c.bodyOf(f.feed.Subject, e, reduced))
	}
	if e.Lifecycle != "" {
		c.lifecycle(f, e.Lifecycle)
	}
	if c.wire.buffered() > flushAt {
		c.send()
	}
}

// reads reports whether the client may read an agent. It asks the grant once for each.
func (c *client) reads(agentID string) bool {
	if agentID == "" {
		return true
	}
	may, known := c.readable[agentID]
	if !known {
		if len(c.readable) == maxReadable {
			clear(c.readable)
		}
		if c.readable == nil {
			c.readable = map[string]bool{}
		}
		may = c.principal.Grant.Covers(auth.Scope{Resource: "agents", Action: "read", Target: agentID})
		c.readable[agentID] = may
	}
	return may
}

// maxReadable is how many agents a client remembers.
const maxReadable = 64

// lifecycle tells the status that a run has reached, which ends the subscription unless the run only waits.
func (c *client) lifecycle(f *follower, status string) {
	paused := status == "paused"
	if !paused || f.feed.EndOnPause {
		c.mark(f) // nobody reads on after the last frame
	}
	c.wire.lifecycle(f, status, "")
	if !paused || f.feed.EndOnPause {
		c.over(f)
	}
}

// mark tells a client how many transient events it has missed since it was told last. A client whose cursor was unknown is
// told once that it may have missed or doubled something: that counts as one at least.
func (c *client) mark(f *follower) {
	n := f.missed
	if f.unknown {
		n = max(n, 1)
	}
	if n == 0 {
		return
	}
	f.unknown, f.missed = false, 0
	id := f.eventID
	if id == "" {
		id = noEvent()
	}
	c.wire.marker(f, id, n)
}

// over ends a subscription.
func (c *client) over(f *follower) {
	if !f.over {
		c.release(f)
		c.wire.over(f)
	}
}
