package stream

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"agentd/auth"
	"agentd/server/hub"
	"agentd/server/sse"
)

// sink keeps what is written to it.
type sink struct {
	net.Conn // nil: all that is used is below
	bytes.Buffer
}

func (s *sink) Write(b []byte) (int, error)      { return s.Buffer.Write(b) }
func (s *sink) Read(b []byte) (int, error)       { return s.Buffer.Read(b) }
func (s *sink) SetWriteDeadline(time.Time) error { return nil }

// FuzzSSE writes an event whose parts others have made, and reads the stream as clients do: it has that one event,
// whatever is in it, and those around it.
func FuzzSSE(f *testing.F) {
	f.Add("text.delta", "evt-r-a-1", "session:s/events", []byte(`{"type":"text.delta","delta":"a\nb"}`), "reason")
	f.Add("a\nid: b", "1\r\ndata: x", "s\n\n", []byte("{\r\n\"a\": \"\\r\\n\"}\n"), "r\n\n")
	f.Add("\r", "\x00", "\u2028\"", []byte("not\nJSON"), "\xff")
	f.Add(" a", ": b", "", []byte(`"data: x"`), "")
	f.Fuzz(func(t *testing.T, typ, id, subject string, payload []byte, reason string) {
		out := &sink{}
		o := &sseWire{conn: out}
		o.c = New(Options{}).newClient(t.Context(), auth.Anonymous(), o, "sse")
		o.c.tail = "\n\n"
		sub := &follower{feed: &Feed{Subject: subject}, id: "sse", unknown: true}
		o.idle()
		o.c.show(sub, &hub.Entry{Pos: hub.Position{Seq: 1}, ID: id, Type: typ, Payload: payload})
		o.c.mark(sub)
		o.c.note(sub, frame{Kind: "error", Code: "replay.failed", Message: reason})
		o.c.note(sub, frame{Kind: "lifecycle", Status: "failed", Reason: reason})
		o.c.sendFrom(1)
		written := out.Bytes()
		// A reader takes one space away, as a writer that writes one must expect.
		field := func(value string) string {
			if strings.ContainsAny(value, "\r\n\x00") {
				return ""
			}
			return value
		}
		r := sse.NewReader(bytes.NewReader(written), 1<<20)
		for i, want := range []sse.Event{{Type: field(typ), ID: field(id)}, {Type: "replay-marker", ID: field(id)}, {Type: "error"}, {Type: "lifecycle"}} {
			got, err := r.Next()
			if err != nil || got.Type != want.Type || got.ID != want.ID {
				t.Fatalf("event %d of %q is %+v, %v; want %+v", i+1, written, got, err, want)
			}
			var frame struct {
				V, Kind, EventID, Subject, Type, Message string
				Payload                                  json.RawMessage
			}
			err = json.Unmarshal(got.Data, &frame)
			if i == 0 && !json.Valid(payload) {
				continue
			}
			if err != nil || frame.V != "1" {
				t.Fatalf("event %d of %q has the data %q, want a frame", i+1, written, got.Data)
			}
			u := func(s string) string { return string([]rune(s)) } // as JSON has it
			if i == 0 && (frame.Kind != "event" || frame.EventID != u(id) || frame.Subject != u(subject) || frame.Type != u(typ) || !sameJSON(frame.Payload, payload)) {
				t.Errorf("event %q is %q, want the payload %q", written, got.Data, payload)
			}
		}
		if _, err := r.Next(); err != io.EOF {
			t.Errorf("the stream %q goes on", written)
		}
	})
}

// sameJSON reports whether two JSON texts differ in white space only.
func sameJSON(a, b []byte) bool {
	var x, y bytes.Buffer
	return json.Compact(&x, a) == nil && json.Compact(&y, b) == nil && bytes.Equal(x.Bytes(), y.Bytes())
}
