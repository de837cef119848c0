package stream

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"agentd/auth"
)

// writeTimeout is how long one write to a client may take.
const writeTimeout = 30 * time.Second

// ServeSSE streams a feed until its subject ends, the client leaves or the service shuts down. The caller must not have
// written the answer's headers; those that it has set are sent. A client that has had everything of a run that has ended
// gets 204, at which browsers do not come back. An error is returned only while the status can still be chosen.
// It takes over the connection and returns at once, so that an idle stream costs no more than an idle socket.
func (s *Service) ServeSSE(w http.ResponseWriter, r *http.Request, p auth.Principal, feed Feed) error {
	if err := s.draining(); err != nil {
		return err
	}
	f, o := &follower{feed: &feed, id: "sse"}, &sseWire{}
	o.c = s.newClient(r.Context(), p, o, "sse")
	o.c.tail, o.c.subs[f.id] = "\n\n", f
	_, _, err := f.begin(r.Context(), s.opts.Hub, o.c.queue, r.Header.Get("Last-Event-ID"))
	whole := false
	if err == nil {
		whole, err = f.whole(r.Context())
	}
	if err == nil && whole {
		w.WriteHeader(http.StatusNoContent)
	} else if err == nil {
		h := w.Header()
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-cache, no-transform")
		h.Set("Connection", "close") // it ends with the stream, so no client may send another request on it
		h.Set("X-Accel-Buffering", "no")
		if r.Method == http.MethodHead {
			w.WriteHeader(http.StatusOK)
		} else {
			err = o.open(w, r)
		}
	}
	if err != nil || whole || r.Method == http.MethodHead {
		f.close()
		return err
	}
	if s.start(o.c, s.opts.KeepAlive) != nil { // the server began to stop a moment ago
		o.shut()
		f.close()
		return nil
	}
	o.c.do(0, func() {
		if o.send(o.answer) != nil {
			o.shut()
		}
		o.answer = nil
		o.c.attach(f)
	})
	go o.serve()
	return nil
}

// serve reads until the client has gone or the stream is over. What the client sends means nothing.
func (o *sseWire) serve() {
	for b := [64]byte{}; ; { // io.Copy would hold a larger buffer
		if _, err := o.conn.Read(b[:]); err != nil {
			o.c.close()
			return
		}
	}
}

// sseWire writes the frames of one stream. Data is on one line.
type sseWire struct {
	c      *client
	conn   net.Conn
	answer []byte // its head, until it is sent
}

// chunkHead is a chunk's size with leading zeros (RFC 9112 section 7.1), to be filled in.
const chunkHead = "00000000\r\n"

// open takes over the client's connection and makes the head of the answer, as net/http would have written it. Nothing of the
// request stays: what net/http reads and writes with is several times as large as the stream.
func (o *sseWire) open(w http.ResponseWriter, r *http.Request) (err error) {
	answers(w, http.StatusOK)
	if o.conn, _, err = http.NewResponseController(w).Hijack(); err != nil {
		return err
	}
	o.conn.SetDeadline(time.Time{}) //nolint:errcheck // the write fails
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.%d 200 OK\r\nDate: %s\r\n", r.ProtoMinor, time.Now().UTC().Format(http.TimeFormat))
	if r.ProtoMinor > 0 { // HTTP/1.0 has no chunks
		o.c.lead = chunkHead
		b.WriteString("Transfer-Encoding: chunked\r\n")
	}
	w.Header().Write(&b) //nolint:errcheck // a buffer takes everything
	b.WriteString("\r\n")
	o.answer = b.Bytes()
	return nil
}

// send writes to the connection. Each write has a deadline, so a stream may last and a client that stopped reading may not.
func (o *sseWire) send(b []byte) error {
	o.conn.SetWriteDeadline(time.Now().Add(writeTimeout)) //nolint:errcheck // the write fails
	_, err := o.conn.Write(b)
	return err
}

// shut ends the connection at once.
func (o *sseWire) shut() {
	o.conn.Close() //nolint:errcheck // it is over either way
}

func (o *sseWire) head(out []byte, name, id string, _ int) []byte {
	out = appendField(out, "event: ", name)
	if id != "" {
		out = appendField(out, "id: ", id)
	}
	return append(out, "data: "...)
}

// appendField adds a line. It leaves out a value with a line break.
func appendField(out []byte, name, value string) []byte {
	if strings.ContainsAny(value, "\r\n\x00") {
		return out
	}
	return append(append(append(out, name...), value...), '\n')
}

func (o *sseWire) idle() {
	out := o.c.output()
	out.b = append(out.b, ": keep-alive\n\n"...)
}

// write sends what was added, as a chunk where there are chunks.
func (o *sseWire) write(out []byte) error {
	if o.c.lead != "" {
		n := len(out) - len(chunkHead)
		hex.Encode(out, []byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
		out = append(out, "\r\n"...)
	}
	err := o.send(out)
	if err != nil {
		o.shut()
	}
	return err
}

func (o *sseWire) over(*follower) { o.c.finish(ending{}) }

// bye ends the stream. If the client may continue after its latest event, the last frame says that the stream pauses, and why.
func (o *sseWire) bye(e ending) {
	for _, f := range o.c.followers() { // none if its subject has ended
		v := frame{Kind: "lifecycle", Status: "failed", Reason: e.reason}
		switch e {
		case endShutdown:
			v.Status, v.Reason = "paused", "server-shutdown"
		case endThrottled:
			v.Status = "paused"
		}
		o.c.note(f, v)
	}
	if o.c.sendFrom(1); !o.c.gone && o.c.lead != "" {
		o.send([]byte("0\r\n\r\n")) //nolint:errcheck // it is over either way
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
