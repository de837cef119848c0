// Package stream delivers events to clients. In this version: as Server-Sent Events.
//
// A client that comes back names the last event it has seen. What follows that event is taken from the hub's ring
// and, where the ring does not reach back that far, from the durable events of the run; positions decide, so that
// nothing is delivered twice and no durable event is missed, also after a restart.
package stream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"agentd/server/event"
	"agentd/server/hub"
	"agentd/server/message"
)

// SSE serves event streams.
type SSE struct {
	Hub       *hub.Hub
	KeepAlive time.Duration // a comment after so much silence
	Queue     int           // entries that may wait for one client; beyond, the stream ends with flow.throttled
}

// writeTimeout is how long one write to a client may take.
const writeTimeout = 30 * time.Second

// Feed is what one stream shows.
type Feed struct {
	Subject string
	// Resolve finds the position of the client's cursor; ok is false when the cursor is unknown here.
	Resolve func(ctx context.Context, cursor string) (pos hub.Position, ok bool, err error)
	// Replay yields durable events after a position, oldest first; the zero position asks for all that is to be shown
	// to a client without a cursor.
	Replay func(ctx context.Context, after hub.Position, yield func(*hub.Entry) error) error
	// Whole reports whether a ring that begins with this entry holds all that Replay would yield for the zero position.
	Whole func(first *hub.Entry) bool
	// Ended is the lifecycle status to close with when all has been delivered already; nil or "" to stay.
	Ended func(ctx context.Context) (string, error)
	// EndOnPause ends the stream also when the run waits for an approval.
	EndOnPause bool
}

// Serve streams until the subject ends, the client leaves or the hub closes. The answer's headers must not have been
// written. An error is returned only while the status can still be chosen.
func (s *SSE) Serve(w http.ResponseWriter, r *http.Request, f Feed) error {
	var from hub.Position
	unknown := false
	if cursor := r.Header.Get("Last-Event-ID"); cursor != "" {
		pos, ok, err := f.Resolve(r.Context(), cursor)
		if err != nil {
			return err
		}
		from, unknown = pos, !ok
	}
	sub, ring := s.Hub.Subscribe(f.Subject, s.Queue)
	defer sub.Close()

	h := w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("Connection", "keep-alive")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	c := &client{w: w, rc: http.NewResponseController(w), feed: &f, last: from, unknown: unknown}
	if err := c.flush(); err != nil || r.Method == http.MethodHead {
		return nil
	}
	c.serve(r.Context(), s, sub, ring)
	return nil
}

// client is one stream being written.
type client struct {
	w    http.ResponseWriter
	rc   *http.ResponseController
	feed *Feed
	last hub.Position // of the latest entry that was written
	id   string       // its event id
	buf  bytes.Buffer
	over bool // a final lifecycle frame has been written

	unknown bool // the cursor was, and the client has not been told yet
}

// errOver ends a replay because the stream has ended.
var errOver = errors.New("stream: over")

func (c *client) serve(ctx context.Context, s *SSE, sub *hub.Sub, ring []*hub.Entry) {
	var early []*hub.Entry // have come while durable events were read
	if !c.covered(ring) {
		err := c.feed.Replay(ctx, c.last, func(e *hub.Entry) error {
			if len(early) == 0 {
				early = waiting(sub)
			}
			// From here the ring goes on or, where that was empty, the queue. Either has what is not stored, too.
			if reached(ring, e) || reached(early, e) {
				return errOver
			}
			return c.write(e)
		})
		if err != nil && !errors.Is(err, errOver) || c.over {
			return
		}
	}
	if c.all(ring) != nil {
		return
	}
	c.marker()
	if c.all(early) != nil {
		return
	}
	if c.feed.Ended != nil && !c.over {
		if status, err := c.feed.Ended(ctx); err != nil {
			return
		} else if status != "" {
			// What ended the run is committed, though perhaps not published yet. All that came before it is in
			// the queue.
			if c.all(waiting(sub)) != nil || c.feed.Replay(ctx, c.last, c.write) != nil {
				return
			}
			c.lifecycle(status, "")
		}
	}
	if c.flush() != nil || c.over {
		return
	}
	c.live(ctx, s, sub)
}

// reached reports whether entries begin at e or before it.
func reached(entries []*hub.Entry, e *hub.Entry) bool {
	return len(entries) > 0 && !entries[0].Pos.After(e.Pos)
}

// waiting takes what the queue of a subscriber holds already.
func waiting(sub *hub.Sub) []*hub.Entry {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	entries, _ := sub.Next(now) // an error comes again with the next call
	return entries
}

// all writes entries, until one ends the stream.
func (c *client) all(entries []*hub.Entry) error {
	for _, e := range entries {
		if err := c.write(e); err != nil {
			return err
		}
	}
	return nil
}

// covered reports whether the ring holds everything after the position to begin from.
func (c *client) covered(ring []*hub.Entry) bool {
	if len(ring) == 0 || c.feed.Replay == nil {
		return c.feed.Replay == nil
	}
	if c.last == (hub.Position{}) {
		return c.feed.Whole(ring[0])
	}
	for _, e := range ring {
		if e.Pos == c.last {
			return true
		}
	}
	return false
}

var errQuiet = errors.New("stream: nothing happened")

func (c *client) live(ctx context.Context, s *SSE, sub *hub.Sub) {
	for {
		wait, cancel := context.WithTimeoutCause(ctx, s.KeepAlive, errQuiet)
		batch, err := sub.Next(wait)
		cancel()
		switch {
		case errors.Is(err, errQuiet):
			c.buf.WriteString(": keep-alive\n\n")
		case errors.Is(err, hub.ErrOverflow):
			c.lifecycle("failed", "flow.throttled")
		case errors.Is(err, hub.ErrClosed):
			c.lifecycle("aborted", "server-shutdown")
		case err != nil:
			return
		}
		for _, e := range batch {
			if c.write(e) != nil {
				break
			}
		}
		if c.flush() != nil || c.over {
			return
		}
	}
}

// write adds an entry to the buffer unless it has been written, and its lifecycle frame after it.
func (c *client) write(e *hub.Entry) error {
	if c.over {
		return errOver
	}
	if !e.Pos.After(c.last) {
		return nil
	}
	c.last, c.id = e.Pos, e.ID
	c.field("event", e.Type)
	c.field("id", e.ID)
	c.buf.WriteString(`data: {"v":"1","kind":"event","eventId":`)
	c.quote(e.ID)
	c.buf.WriteString(`,"subscriptionId":"sse","subject":`)
	c.quote(c.feed.Subject)
	c.buf.WriteString(`,"type":`)
	c.quote(e.Type)
	c.buf.WriteString(`,"payload":`)
	c.buf.Write(oneLine(e.Payload))
	c.buf.WriteString("}\n\n")
	switch {
	case e.Lifecycle == "":
	case e.Lifecycle == "paused":
		c.frame("paused", "")
		c.over = c.feed.EndOnPause
	default:
		c.lifecycle(e.Lifecycle, "")
	}
	if c.over {
		return c.flush()
	}
	if c.buf.Len() > 64<<10 {
		return c.flush()
	}
	return nil
}

// oneLine is the payload without line breaks, which JSON has between tokens only.
func oneLine(p json.RawMessage) []byte {
	if !bytes.ContainsAny(p, "\r\n") {
		return p
	}
	var b bytes.Buffer
	if json.Compact(&b, p) != nil {
		return []byte("null")
	}
	return b.Bytes()
}

// lifecycle writes the last frame of a stream.
func (c *client) lifecycle(status, reason string) {
	if !c.over {
		c.marker() // nobody reads on after the last frame
		c.frame(status, reason)
		c.over = true
	}
}

func (c *client) frame(status, reason string) {
	body, _ := message.Encode(struct {
		V              string `json:"v"`
		Kind           string `json:"kind"`
		SubscriptionID string `json:"subscriptionId"`
		Status         string `json:"status"`
		Reason         string `json:"reason,omitempty"`
	}{"1", "lifecycle", "sse", status, reason})
	c.field("event", "lifecycle")
	c.field("data", string(body))
	c.buf.WriteByte('\n')
}

// marker tells a client once, after what is replayed, that its cursor was unknown, so that it may have missed or
// doubled something.
func (c *client) marker() {
	if !c.unknown {
		return
	}
	c.unknown = false
	id := c.id
	if id == "" {
		id = "evt-replay-" + strconv.FormatInt(time.Now().UnixMilli(), 36)
	}
	body, _ := message.Encode(struct {
		V              string `json:"v"`
		Kind           string `json:"kind"`
		SubscriptionID string `json:"subscriptionId"`
		EventID        string `json:"eventId"`
		DroppedCount   int    `json:"droppedCount"`
	}{"1", "replay-marker", "sse", id, 1})
	c.field("event", "replay-marker")
	if c.id != "" {
		c.field("id", c.id)
	}
	c.field("data", string(body))
	c.buf.WriteByte('\n')
}

func (c *client) field(name, value string) {
	c.buf.WriteString(name)
	c.buf.WriteString(": ")
	c.buf.WriteString(value)
	c.buf.WriteByte('\n')
}

func (c *client) quote(s string) {
	b, _ := message.Encode(s)
	c.buf.Write(b)
}

// flush sends what the buffer holds. Every write has a deadline of its own, so a stream may last and a client that
// stopped reading may not.
func (c *client) flush() error {
	c.rc.SetWriteDeadline(time.Now().Add(writeTimeout)) //nolint:errcheck // a recorder in a test has none
	defer c.rc.SetWriteDeadline(time.Time{})            //nolint:errcheck
	if _, err := c.w.Write(c.buf.Bytes()); err != nil {
		return err
	}
	if c.buf.Reset(); c.buf.Cap() > 256<<10 {
		c.buf = bytes.Buffer{}
	}
	return c.rc.Flush()
}

// OfRun is the feed of one run on its own subject.
func OfRun(subject event.Subject, number int64, f Feed) Feed {
	f.Subject = subject.String()
	f.Resolve = func(_ context.Context, cursor string) (hub.Position, bool, error) {
		c, ok := event.ParseCursor(cursor)
		if !ok || c.View != event.RunView || c.Run != subject.Run {
			return hub.Position{}, false, nil
		}
		return hub.Position{Epoch: number, Seq: c.Seq, Sub: c.Sub}, true, nil
	}
	f.Whole = func(first *hub.Entry) bool { return first.Pos.Seq == 1 && first.Pos.Sub == 0 }
	return f
}
