package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/client"
	"agentd/server/fault"
	"agentd/server/fuzztest"
)

func event(id string) string {
	return fmt.Sprintf("event: t\nid: %s\ndata: {\"v\":\"1\",\"kind\":\"event\",\"eventId\":%q,\"type\":\"t\",\"payload\":{\"type\":\"t\"}}\n\n", id, id)
}

func lifecycle(status, reason string) string {
	return fmt.Sprintf("event: lifecycle\ndata: {\"v\":\"1\",\"kind\":\"lifecycle\",\"status\":%q,\"reason\":%q}\n\n", status, reason)
}

func data(text string) string { return "data: " + text + "\n\n" }

// An answer is what a server says to one request: after a cursor, a status and a body, which it may cut off.
type answer struct {
	after  string
	status int // 0: 200
	body   string
	cut    bool
}

// watch watches a server that gives one answer after the other, and returns what was handed over.
func watch(t *testing.T, w client.Watch, answers ...answer) (got string, err error) {
	t.Helper()
	asked := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked++; asked > len(answers) {
			t.Error("the client connects once more")
			return
		}
		a := answers[asked-1]
		if r.URL.Path != "/v1/events" || r.Header.Get("Authorization") != "Bearer x" || r.Header.Get("Last-Event-ID") != a.after {
			t.Errorf("the client asks for %s after %q with %q, want what comes after %q", r.URL, r.Header.Get("Last-Event-ID"), r.Header.Get("Authorization"), a.after)
		}
		if a.status != 0 && a.status != 200 {
			w.WriteHeader(a.status)
		} else {
			w.Header().Set("Content-Type", "text/event-stream")
		}
		io.WriteString(w, a.body)
		if a.cut {
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
	}))
	defer srv.Close()
	var frames []string
	w.Client = func() (*client.Client, error) { return client.New(client.Options{URL: srv.URL + "/v1", Token: "x"}) }
	if w.Path = "/events"; w.Lost == nil {
		w.Lost = func(error) error { return nil }
	}
	err = w.Run(t.Context(), func(f *client.Frame) error {
		text := f.Kind
		switch f.Kind {
		case "event":
			if text = f.EventID; f.Type != "t" || string(f.Payload) != `{"type":"t"}` || !strings.HasPrefix(string(f.Raw), `{"v":"1"`) {
				t.Errorf("frame %+v", f)
			}
		case "lifecycle":
			text = f.Status
		}
		frames = append(frames, text)
		return nil
	})
	return strings.Join(frames, " "), err
}

func TestWatchContinuesAfterTheLastEvent(t *testing.T) {
	var said []string
	got, err := watch(t, client.Watch{Cursor: "e0", Lost: func(err error) error { said = append(said, fault.Of(err).Message); return nil }},
		answer{after: "e0", body: ": hello\n\n" + event("e1") + event("e2") + lifecycle("paused", "server-shutdown")},
		answer{after: "e2", status: 503, body: `{"error":"storage-failed","message":"Busy."}`},
		answer{after: "e2", cut: true},
		answer{after: "e2", body: data(`{"v":"1","kind":"replay-marker","eventId":"e2"}`) + event("e3") + lifecycle("paused", "flow.throttled")},
		answer{after: "e3", body: data(`{"kind":"error","code":"replay.failed","message":"Again."}`)},
		answer{after: "e3", body: lifecycle("paused", "")}, // the run waits, and this stream ends
		answer{after: "e3", body: data(`{"kind":"news"}`) + event("e4") + lifecycle("completed", "") + event("e5")})
	if want := "e1 e2 replay-marker e3 paused e4 completed"; got != want || err != nil {
		t.Errorf("Run() = %v with %s, want %s", err, got, want)
	}
	want := []string{"The server stops.", "Busy.", "The connection is lost: ", "The server has closed the stream (flow.throttled).", "Again."}
	if len(said) != len(want) {
		t.Fatalf("Lost got %q, want %q", said, want)
	}
	for i := range want {
		if !strings.HasPrefix(said[i], want[i]) {
			t.Errorf("Lost got %q, want %q", said[i], want[i])
		}
	}
}

// What no other attempt could mend ends the watch, also after a connection that was good.
func TestWatchEndsWhenRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		answer
		code string
	}{
		"revoked": {answer{status: 401, body: `{"error":"auth-revoked","message":"No."}`}, "auth-revoked"},
		"scope":   {answer{status: 403, body: `{"error":"scope-denied","message":"No."}`}, "scope-denied"},
		"erased":  {answer{body: data(`{"kind":"error","code":"subject.erased","message":"Gone."}`)}, "subject.erased"},
		"no JSON": {answer{body: data("{")}, "server-unreachable"},
		"no SSE":  {answer{status: 202, body: `{}`}, "server-unreachable"},
	} {
		for _, before := range [][]answer{nil, {{cut: true}}} {
			_, err := watch(t, client.Watch{}, append(before, tc.answer)...)
			if f, ok := errors.AsType[*fault.Error](err); !ok || f.Kind.Code != tc.code {
				t.Errorf("%s: Run() = %v, want %s", name, err, tc.code)
			}
		}
	}
	if got, err := watch(t, client.Watch{Cursor: "e9"}, answer{after: "e9", status: 204}); got != "" || err != nil {
		t.Errorf("Run() of what is over = %s, %v, want nothing", got, err)
	}
}

// Before a server has accepted the stream, nothing is tried twice.
func TestWatchDoesNotInsist(t *testing.T) {
	for code, a := range map[string]answer{
		"server-draining":    {status: 503, body: `{"error":"server-draining","message":"No."}`},
		"rate-limited":       {status: 429, body: `{"error":"rate-limited","message":"No."}`},
		"not-found":          {status: 404, body: `{"error":"not-found","message":"No."}`},
		"server-unreachable": {status: 500, body: `<html>`},
	} {
		if _, err := watch(t, client.Watch{}, a); err == nil || fault.Of(err).Kind.Code != code {
			t.Errorf("Run() of %d %s = %v, want %s", a.status, a.body, err, code)
		}
	}
	nowhere, broken := errors.New("nowhere"), errors.New("broken")
	w := client.Watch{Client: func() (*client.Client, error) { return nil, nowhere }}
	if err := w.Run(t.Context(), nil); err != nowhere {
		t.Errorf("Run() without a server = %v, want the error of Client", err)
	}
	if _, err := watch(t, client.Watch{Lost: func(error) error { return broken }}, answer{cut: true}); err != broken {
		t.Errorf("Run() = %v, want the error of Lost", err)
	}
}

// A watch ends with its context, with yield, and does not wait for ever for a server that says nothing.
func TestWatchEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		connect := func(say string) func() (*client.Client, error) {
			return func() (*client.Client, error) {
				return client.New(client.Options{URL: "http://inside", Dial: func(context.Context, string, string) (net.Conn, error) {
					near, far := net.Pipe()
					go func() {
						far.Read(make([]byte, 4096))
						io.WriteString(far, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"+say)
						far.Read(make([]byte, 1)) // until the client has left
						far.Close()
					}()
					return near, nil
				}})
			}
		}
		cause, lost := errors.New("cause"), errors.New("lost")
		w := client.Watch{Client: connect(event("e1")), Path: "/", Lost: func(error) error { return lost }}
		if err := w.Run(t.Context(), func(*client.Frame) error { return cause }); err != cause {
			t.Errorf("Run() = %v, want the error of yield", err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		if err := w.Run(ctx, func(*client.Frame) error { cancel(cause); return nil }); err != cause {
			t.Errorf("Run() = %v, want the cause of its context", err)
		}
		began := time.Now()
		if err := w.Run(t.Context(), func(*client.Frame) error { return nil }); err != lost || time.Since(began) > 3*time.Minute {
			t.Errorf("Run() of a silent server = %v after %v, want it lost", err, time.Since(began))
		}
	})
}

// FuzzFrames is a server that sends lines as data.
func FuzzFrames(f *testing.F) {
	f.Add(`{"kind":"event","eventId":"e1","payload":{}}` + "\n" + `{"kind":"lifecycle","status":"paused"}` + "\n" + `{"kind":"lifecycle","status":"completed"}`)
	f.Add(`{"kind":"error","code":"subject.erased","message":"Gone."}`)
	f.Add(`{"kind":"event","kind":"lifecycle","Status":"failed","payload":[1e999]}` + "\n[]\nnull\n7")
	f.Fuzz(func(t *testing.T, lines string) {
		body := ""
		for line := range strings.SplitSeq(lines, "\n") {
			body += data(line)
		}
		gone, over := errors.New("gone"), false
		res := &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: io.NopCloser(strings.NewReader(body))}
		w := client.Watch{Open: res, Lost: func(error) error { return gone }, Client: func() (*client.Client, error) { return nil, gone }}
		var err error
		fuzztest.Cost{PerByte: 32, Base: 512 << 10}.Check(t, len(body), func() {
			err = w.Run(t.Context(), func(f *client.Frame) error {
				if over || f.Kind != "event" && f.Kind != "lifecycle" && f.Kind != "replay-marker" {
					t.Errorf("Run() of %q hands over %+v", body, f)
				}
				over = f.Ended()
				return nil
			})
		})
		if _, told := errors.AsType[*fault.Error](err); over != (err == nil) || err != nil && err != gone && !told {
			t.Errorf("Run() of %q = %v, though the run has ended: %v", body, err, over)
		}
	})
}

// FuzzLocate reads the address in the lock file of a server.
func FuzzLocate(f *testing.F) {
	for _, s := range []string{"http://127.0.0.1:8080/v1", "https://[::]:80", "http://0.0.0.0:1/", "unix:/run/x.sock#/v1", "unix:#", "ftp://h", "http://", "//h", "http://[::%25x]:1", "http://u:p@h/?q#f"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, address string) {
		o, err := client.Locate(address)
		if err != nil {
			if !fault.Is(err, fault.ServerUnreachable) || o.URL != "" {
				t.Errorf("Locate(%q) = %q, %v, want server-unreachable", address, o.URL, err)
			}
			return
		}
		if rest, isSocket := strings.CutPrefix(address, "unix:"); isSocket {
			if _, after, _ := strings.Cut(rest, "#"); o.Dial == nil || o.URL != "http://localhost"+after {
				t.Errorf("Locate(%q) = %q", address, o.URL)
			}
			return
		}
		u, err := url.Parse(o.URL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || o.Dial != nil {
			t.Fatalf("Locate(%q) = %q, %v", address, o.URL, err)
		}
		if ip, err := netip.ParseAddr(u.Hostname()); err == nil && ip.IsUnspecified() {
			t.Errorf("Locate(%q) = %q, which is nowhere", address, o.URL)
		}
	})
}
