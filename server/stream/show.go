package stream

import (
	"cmp"
	"errors"
	"strings"

	"agentd/auth"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
)

// What a client's writer makes of entries: which frames they become, for whom, and when a subscription ends.

// replayBurst is how many entries of one replay the writer writes before it looks at live ones.
const replayBurst = 64

// take hands what was published to the subscriptions.
func (c *client) take() {
	err := c.queue.Drain(func(d hub.Delivery) {
		f := d.Sub.Owner.(*follower)
		switch {
		case f.over:
		case !f.attached && d.Entry == nil:
			f.lost = d.Sub.Err()
		case d.Entry == nil:
			c.endOf(f, d.Sub.Err())
		case f.live:
			c.show(f, d.Entry)
		case c.held >= c.s.opts.Queue || c.held > 0 && c.heldBytes+d.Entry.Weight() > c.s.opts.Queue*1024:
			c.finish(endThrottled)
		default:
			f.held = append(f.held, d.Entry)
			c.hold(d.Entry, 1)
		}
	})
	if err != nil {
		c.finish(endThrottled)
	}
}

// endOf ends a subscription, or all if the hub has closed, whose subject gives no more.
func (c *client) endOf(f *follower, err error) {
	if !errors.Is(err, hub.ErrErased) {
		c.finish(endShutdown)
		return
	}
	c.note(f, frame{Kind: "error", Code: "subject.erased", Message: "The session of the subject was erased."})
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
	c.held, c.heldBytes = c.held+by, c.heldBytes+by*e.Weight()
}

// replay writes a burst of what precedes the live entries, and reports whether that is done.
func (c *client) replay(f *follower) (done bool) {
	for range replayBurst {
		if c.take(); f.over {
			return true
		}
		e, err, more := f.pull(c)
		switch {
		case !more:
			f.live = true
			if f.status != "" {
				c.lifecycle(f, f.status)
			}
			return true
		case fault.Is(err, fault.RunNotFound): // the hub is about to say so
			c.endOf(f, hub.ErrErased)
		case err != nil:
			if c.ctx.Err() == nil {
				c.log().Error("replay failed", "subject", f.feed.Subject, "error", err)
				c.note(f, frame{Kind: "error", Code: "replay.failed", Message: "The stored events could not be read; subscribe again."})
			}
			c.over(f)
		case e == nil:
			c.mark(f)
			f.marked = true
		default:
			c.show(f, e)
		}
		c.sendFrom(flushAt)
	}
	return f.over
}

// show writes an entry unless it has been written, and its lifecycle frame after it.
func (c *client) show(f *follower, e *hub.Entry) {
	if f.over || !e.Aside && !e.Pos.After(f.pos) {
		return
	}
	if !e.Aside {
		f.missed += f.gap(e)
	}
	if f.marked { // what is replayed has one marker, at its end
		c.mark(f)
	}
	if f.eventID = e.ID; !e.Aside {
		f.pos = e.Pos
	}
	if reduced := !c.reads(e.Owner); !reduced || !f.feed.Answer || event.InAnswer(e.Type) {
		b, out := c.bodyOf(f.feed.Subject, e, reduced), c.output()
		out.b = c.wire.head(out.b, e.Type, e.ID, b.size(f.id))
		out.b = append(b.append(out.b, f.id), c.tail...)
	}
	if e.Lifecycle != "" {
		c.lifecycle(f, e.Lifecycle)
	}
	c.sendFrom(flushAt)
}

// reads reports whether the client may read the owner of an entry. It remembers the answer for the latest one.
func (c *client) reads(owner string) bool {
	if owner != c.owner {
		scope := auth.Scope{Resource: "agents", Action: "read", Target: owner}
		if workflow, is := strings.CutPrefix(owner, "workflow:"); is {
			scope.Resource, scope.Target = "workflows", workflow
		}
		c.owner, c.readable = owner, c.principal.Grant.Covers(scope)
	}
	return owner == "" || c.readable
}

// lifecycle writes the status that a run has reached, which ends the subscription unless the run only waits.
func (c *client) lifecycle(f *follower, status string) {
	ends := status != "paused" || f.feed.EndOnPause
	if ends {
		c.mark(f) // nobody reads on after the last frame
	}
	c.note(f, frame{Kind: "lifecycle", Status: status})
	if ends {
		c.over(f)
	}
}

// mark writes how many events a client has missed since the last marker. A client whose cursor was unknown
// gets one marker with a count of one at least: it may have missed or doubled something.
func (c *client) mark(f *follower) {
	n := f.missed
	if f.unknown {
		n = max(n, 1)
	}
	if n == 0 {
		return
	}
	f.unknown, f.missed = false, 0
	c.note(f, frame{Kind: "replay-marker", EventID: cmp.Or(f.eventID, noEvent()), DroppedCount: n})
}

// note writes a frame about a subscription.
func (c *client) note(f *follower, v frame) {
	v.V, v.SubscriptionID = "1", f.id
	id := ""
	if v.EventID != "" {
		id = f.eventID
	}
	c.add(v.Kind, id, encode(v))
}

// add writes an encoded frame.
func (c *client) add(name, id string, frame []byte) {
	out := c.output()
	out.b = append(append(c.wire.head(out.b, name, id, len(frame)), frame...), c.tail...)
}

// over ends a subscription.
func (c *client) over(f *follower) {
	if f.over {
		return
	}
	c.drop(f)
	c.wire.over(f)
}

// drop detaches a subscription, of which nothing more is shown, and forgets it.
func (c *client) drop(f *follower) {
	for _, e := range f.held {
		c.hold(e, -1)
	}
	f.close()
	c.mu.Lock()
	delete(c.subs, f.id)
	c.mu.Unlock()
}
