package stream

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"agentd/auth"
	"agentd/server/hub"
)

// writeTimeout is how long one write to a client may take.
const writeTimeout = 30 * time.Second

// ServeSSE streams a feed until its subject ends, the client leaves or the service shuts down. The answer's headers must
// not have been written; those that are set are sent. A client that has had everything of a run that has ended gets 204,
// at which browsers do not come back. An error is returned only while the status can still be chosen.
// On a connection that can be taken over it returns at once, so that an idle stream costs no more than an idle socket.
func (s *Service) ServeSSE(w http.ResponseWriter, r *http.Request, p auth.Principal, feed Feed) error {
	f := &follower{feed: &feed, id: "sse"}
	out := &sseWire{f: f}
	c := s.newClient(p, out)
	out.client = c
	followers := []*follower{f}
	if err := s.enter(c); err != nil {
		c.close(nil)
		return err
	}
	_, _, err := f.begin(r.Context(), s.opts.Hub, c.queue, r.Header.Get("Last-Event-ID"))
	whole := false
	if err == nil {
		whole, err = f.whole(r.Context())
	}
	if err != nil || whole || r.Method == http.MethodHead {
		c.close(followers)
		s.leave(c)
		switch {
		case err != nil:
			return err
		case whole:
			w.WriteHeader(http.StatusNoContent)
		default:
			streamHead(w.Header())
			w.WriteHeader(http.StatusOK)
		}
		return nil
	}
	streamHead(w.Header())
	read, err := out.open(w, r)
	if err != nil { // the client has gone
		out.shut()
		c.close(followers)
		s.leave(c)
		return nil
	}
	c.start(s.opts.KeepAlive)
	c.do(0, func() { c.attach(f) })
	serve := func() {
		read()
		out.shut()
		c.close(followers)
		s.leave(c)
	}
	if out.conn != nil {
		go serve()
		return nil
	}
	serve()
	return nil
}

func streamHead(h http.Header) {
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("Connection", "close") // it ends with the stream, so no client may send another request on it
	h.Set("X-Accel-Buffering", "no")
}

// sseWire writes the frames of one stream. Data is on one line.
type sseWire struct {
	client *client
	conn   net.Conn // taken over from the HTTP server, or nil: then
	w      http.ResponseWriter
	rc     *http.ResponseController
	done   chan struct{} // closed when the stream is over; only without conn
	once   sync.Once

	f   *follower
	out *buffer // what flush sends, a chunk with its head; nil: nothing
}

// chunkHead is a chunk's size with leading zeros (RFC 9112 section 7.1), to be filled in.
const chunkHead = "00000000\r\n"

// open sends the head of the answer, and returns what waits until the client has left or the stream is over.
func (o *sseWire) open(w http.ResponseWriter, r *http.Request) (read func(), err error) {
	rc := http.NewResponseController(w)
	if r.ProtoMajor == 1 && r.ProtoMinor == 1 {
		if s, ok := w.(interface{ SetStatus(int) }); ok {
			s.SetStatus(http.StatusOK)
		}
		conn, _, err := rc.Hijack()
		if err == nil {
			o.conn = conn
			// Nothing of the request stays: what net/http reads and writes with is several times as large as the stream.
			return func() { discard(conn) }, o.head(w.Header())
		}
		if !errors.Is(err, http.ErrNotSupported) {
			return nil, err
		}
	}
	o.w, o.rc, o.done = w, rc, make(chan struct{})
	w.WriteHeader(http.StatusOK)
	ctx := r.Context()
	return func() {
		select {
		case <-o.done:
		case <-ctx.Done():
		}
	}, rc.Flush()
}

// head writes what net/http would have written.
func (o *sseWire) head(h http.Header) error {
	o.conn.SetDeadline(time.Time{}) //nolint:errcheck // the write tells
	var b bytes.Buffer
	b.WriteString("HTTP/1.1 200 OK\r\nDate: " + time.Now().UTC().Format(http.TimeFormat) + "\r\nTransfer-Encoding: chunked\r\n")
	h.Write(&b) //nolint:errcheck // a buffer takes everything
	b.WriteString("\r\n")
	return o.write(b.Bytes())
}

// discard reads until the client has gone. It sends nothing that would mean anything, and perhaps has already.
func discard(conn net.Conn) {
	var b [64]byte
	for {
		if _, err := conn.Read(b[:]); err != nil {
			return
		}
	}
}

// shut ends the connection at once.
func (o *sseWire) shut() {
	if o.conn != nil {
		o.conn.Close()
		return
	}
	if o.done != nil {
		o.once.Do(func() { close(o.done) })
	}
}

// add returns the output, to add to.
func (o *sseWire) add() *buffer {
	if o.out == nil {
		o.out = buffers.Get().(*buffer)
		if o.conn != nil {
			o.out.b = append(o.out.b, chunkHead...)
		}
	}
	return o.out
}

// field adds a line. A value that a line cannot hold is left out: it would make lines of its own.
func (b *buffer) field(name, value string) {
	if strings.ContainsAny(value, "\r\n\x00") {
		return
	}
	b.b = append(b.b, name...)
	b.b = append(b.b, ": "...)
	b.b = append(b.b, value...)
	b.b = append(b.b, '\n')
}

func (o *sseWire) event(f *follower, e *hub.Entry, body *body) {
	out := o.add()
	out.field("event", e.Type)
	out.field("id", e.ID)
	out.b = append(out.b, "data: "...)
	out.b = body.append(out.b, f.id)
	out.b = append(out.b, "\n\n"...)
}

func (o *sseWire) frame(name, id string, frame any) {
	out := o.add()
	out.field("event", name)
	if id != "" {
		out.field("id", id)
	}
	out.b = append(out.b, "data: "...)
	out.b = append(out.b, encode(frame)...)
	out.b = append(out.b, "\n\n"...)
}

func (o *sseWire) lifecycle(f *follower, status, reason string) {
	o.frame("lifecycle", "", lifecycleFrame{"1", "lifecycle", f.id, status, reason})
}

func (o *sseWire) marker(f *follower, eventID string, missed int) {
	o.frame("replay-marker", f.eventID, markerFrame{"1", "replay-marker", f.id, eventID, missed})
}

func (o *sseWire) failure(f *follower, code, message string) {
	o.frame("error", "", errorFrame{"1", "error", code, message, f.id})
}

func (o *sseWire) idle() {
	out := o.add()
	out.b = append(out.b, ": keep-alive\n\n"...)
}

func (o *sseWire) buffered() int {
	if o.out == nil {
		return 0
	}
	return len(o.out.b)
}

// flush sends what was added. Every write has a deadline of its own, so a stream may last and a client that stopped
// reading may not.
func (o *sseWire) flush() error {
	out := o.out
	o.out = nil
	defer out.free()
	var err error
	if o.conn != nil {
		n := len(out.b) - len(chunkHead)
		hex.Encode(out.b, []byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
		out.b = append(out.b, "\r\n"...)
		err = o.write(out.b)
	} else {
		o.rc.SetWriteDeadline(time.Now().Add(writeTimeout)) //nolint:errcheck // a recorder in a test has none
		if _, err = o.w.Write(out.b); err == nil {
			err = o.rc.Flush()
		}
		o.rc.SetWriteDeadline(time.Time{}) //nolint:errcheck
	}
	if err != nil {
		o.shut()
	}
	return err
}

func (o *sseWire) write(b []byte) error {
	o.conn.SetWriteDeadline(time.Now().Add(writeTimeout)) //nolint:errcheck // the write tells
	_, err := o.conn.Write(b)
	return err
}

func (o *sseWire) transport() string { return "sse" }

func (o *sseWire) over(*follower) { o.client.finish(ending{}) }

// bye ends the stream. A client that may go on after its latest event is told that the stream pauses, and why.
func (o *sseWire) bye(e ending) {
	switch {
	case o.f.over:
	case e == endShutdown:
		o.lifecycle(o.f, "paused", "server-shutdown")
	case e == endThrottled:
		o.lifecycle(o.f, "paused", e.reason)
	default:
		o.lifecycle(o.f, "failed", e.reason)
	}
	if (o.out == nil || o.flush() == nil) && o.conn != nil {
		o.write([]byte("0\r\n\r\n")) //nolint:errcheck // it is over either way
	}
	o.shut()
}

// buffer is output that is shared by all clients: one that has nothing to write holds none.
type buffer struct{ b []byte }

var buffers = sync.Pool{New: func() any { return &buffer{make([]byte, 0, 4<<10)} }}

func (b *buffer) free() {
	if cap(b.b) <= 4*flushAt {
		b.b = b.b[:0]
		buffers.Put(b)
	}
}
