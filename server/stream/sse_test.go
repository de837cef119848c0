package stream_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/auth"
	"agentd/server/hub"
	"agentd/server/stream"
)

// entry is an event at a position. Those with a sub are not stored.
func entry(seq, sub int, lifecycle string) *hub.Entry {
	typ := "durable"
	if sub > 0 {
		typ = "delta"
	}
	return &hub.Entry{Pos: hub.Position{Epoch: 1, Seq: seq, Sub: sub}, ID: fmt.Sprintf("%d.%d", seq, sub), Type: typ,
		Payload: json.RawMessage(`{"type":"` + typ + `"}`), Lifecycle: lifecycle}
}

// again is the same entry, not published yet.
func again(e *hub.Entry) *hub.Entry {
	return &hub.Entry{Pos: e.Pos, ID: e.ID, Type: e.Type, Payload: e.Body(), Lifecycle: e.Lifecycle}
}

// taken is an answer whose connection can be taken over.
type taken struct {
	http.ResponseWriter
	conn net.Conn
}

func (t taken) Hijack() (net.Conn, *bufio.ReadWriter, error) { return t.conn, nil, nil }

// take makes an answer, and what reads it to its end, with status 200.
func take() (http.ResponseWriter, func(t *testing.T) string) {
	near, far := net.Pipe()
	return taken{httptest.NewRecorder(), near}, func(t *testing.T) string {
		t.Helper()
		far.SetReadDeadline(time.Now().Add(time.Hour)) //nolint:errcheck // the read fails
		res, err := http.ReadResponse(bufio.NewReader(far), nil)
		if err != nil || res.StatusCode != 200 {
			t.Fatalf("the answer is %v, %v, want 200", res, err)
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatalf("the stream does not end: %v; it is\n%s", err, body)
		}
		return string(body)
	}
}

// serve runs a stream to its end and returns the ids of its events and the names of its other frames.
func serve(t *testing.T, h *hub.Hub, cursor string, f stream.Feed) string {
	t.Helper()
	f.Subject = "s"
	f.Backlog = func(context.Context, hub.Position, *hub.Entry) (int, string, error) { return 0, "", nil }
	f.Resolve = func(context.Context, string) (hub.Position, bool, error) { return hub.Position{}, false, nil }
	f.Whole = func(first *hub.Entry) bool { return first.Pos.Seq == 1 && first.Pos.Sub == 0 }
	r := httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)
	r.Header.Set("Last-Event-ID", cursor)
	var body string
	synctest.Test(t, func(t *testing.T) {
		w, answer := take()
		s := stream.New(stream.Options{Hub: h, KeepAlive: time.Minute, Queue: 100})
		if err := s.ServeSSE(w, r, auth.Anonymous(), f); err != nil {
			t.Fatalf("ServeSSE() = %v, want none", err)
		}
		body = answer(t)
	})
	var got []string
	for _, m := range regexp.MustCompile(`event: (\S+)\n(?:id: (\S+)\n)?data: .*"status":"(\w+)"|event: (\S+)\nid: (\S+)`).FindAllStringSubmatch(body, -1) {
		switch {
		case m[1] != "":
			got = append(got, m[3])
		case m[4] == "replay-marker":
			got = append(got, "marker")
		default:
			got = append(got, m[5])
		}
	}
	return strings.Join(got, " ")
}

// What is published while a stream begins is delivered once and in order, whatever has overtaken it on disk.
func TestNothingIsLostWhileAStreamBegins(t *testing.T) {
	run := []*hub.Entry{entry(1, 0, ""), entry(1, 1, ""), entry(1, 2, ""), entry(2, 0, ""), entry(2, 1, ""), entry(3, 0, "completed")}
	const all = "1.0 1.1 1.2 2.0 2.1 3.0 completed"
	durable := func(after hub.Position, yield func(*hub.Entry) error) error {
		for _, e := range run {
			if e.Pos.Sub == 0 && e.Pos.After(after) {
				if err := yield(e); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for before := range len(run) + 1 { // so many were published before the client came
		for atReplay := range len(run) + 1 - before { // so many more while it was shown what is stored
			h := hub.New(hub.Options{})
			published := 0
			publish := func(n int) {
				for _, e := range run[published : published+n] {
					h.Publish("s", again(e))
				}
				published += n
			}
			publish(before)
			replayed := false
			f := stream.Feed{
				Replay: func(_ context.Context, after hub.Position, yield func(*hub.Entry) error) error {
					if !replayed && after == (hub.Position{}) {
						publish(atReplay)
					}
					replayed = true
					if published == 0 {
						return nil
					}
					return durable(after, yield)
				},
				Ended: func(context.Context) (string, error) {
					publish(len(run) - published)
					return "completed", nil
				},
			}
			if got := serve(t, h, "", f); got != all {
				t.Errorf("Serve() after %d, with %d more at the replay = %s, want %s", before, atReplay, got, all)
			}
		}
	}
}

// The marker comes after what is replayed and before the frame that ends the stream.
func TestMarkerComesBeforeTheEnd(t *testing.T) {
	ended := entry(2, 0, "failed")
	for name, published := range map[string][]*hub.Entry{
		"from the ring": {entry(1, 0, ""), ended}, "from the store": nil, "from both": {ended},
	} {
		h := hub.New(hub.Options{})
		for _, e := range published {
			h.Publish("s", again(e))
		}
		f := stream.Feed{
			Replay: func(_ context.Context, after hub.Position, yield func(*hub.Entry) error) error {
				for _, e := range []*hub.Entry{entry(1, 0, ""), ended} {
					if e.Pos.After(after) {
						if err := yield(e); err != nil {
							return err
						}
					}
				}
				return nil
			},
			Ended: func(context.Context) (string, error) { return "failed", nil },
		}
		if got, want := serve(t, h, "unknown", f), "1.0 2.0 marker failed"; got != want {
			t.Errorf("Serve(unknown cursor, %s) = %s, want %s", name, got, want)
		}
	}
}

// A client whose cursor is in what was deleted meanwhile gets a marker for it.
func TestMarkerCountsWhatIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stream.New(stream.Options{Hub: hub.New(hub.Options{}), KeepAlive: time.Minute, Queue: 100})
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)
		r.Header.Set("Last-Event-ID", "3.0")
		w, answer := take()
		err := s.ServeSSE(w, r, auth.Anonymous(), stream.Feed{Subject: "s",
			Resolve: func(context.Context, string) (hub.Position, bool, error) {
				return hub.Position{Epoch: 1, Seq: 3}, true, nil
			},
			Backlog: func(context.Context, hub.Position, *hub.Entry) (int, string, error) { return 1, "", nil },
			Replay: func(_ context.Context, after hub.Position, yield func(*hub.Entry) error) error {
				if e := entry(9, 0, "completed"); e.Pos.After(after) {
					return yield(e)
				}
				return nil
			},
			Ended: func(context.Context) (string, error) { return "completed", nil },
		})
		if err != nil {
			t.Fatalf("ServeSSE() = %v, want none", err)
		}
		if body := answer(t); !strings.Contains(body, `"droppedCount":5`) {
			t.Errorf("ServeSSE() after event 3 sends %s, want event 9 and a marker of 5", body)
		}
	})
}

// What ends a stream before its head is sent is told after the head.
func TestRevokedWhileAStreamBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := hub.New(hub.Options{})
		s := stream.New(stream.Options{Hub: h, KeepAlive: time.Minute, Queue: 100})
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)
		r.Header.Set("Last-Event-ID", "x")
		w, answer := take()
		err := s.ServeSSE(w, r, auth.Principal{TokenID: "t1"}, stream.Feed{Subject: "s", Resolve: func(context.Context, string) (hub.Position, bool, error) {
			s.Revoked("t1")
			<-time.After(2 * time.Minute) // also the keep-alive is due
			synctest.Wait()
			return hub.Position{}, true, nil
		}})
		if err != nil {
			t.Fatalf("ServeSSE() = %v, want none", err)
		}
		if body := answer(t); !strings.Contains(body, `"status":"failed","reason":"auth.revoked"`) {
			t.Errorf("ServeSSE() sends %s, want a lifecycle frame failed, auth.revoked", body)
		}
	})
}
