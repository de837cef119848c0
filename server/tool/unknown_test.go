package tool_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"agentd/server/outbound"
	"agentd/server/proc"
	"agentd/server/tool"
)

// TestHTTPOutcomes is the table of what is known of a request: not begun, known, or unknown.
func TestHTTPOutcomes(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free.Close() // nobody listens there now
	nobody := "http://" + free.Addr().String() + "/"
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	cut := func(answer string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			conn, buf, err := w.(http.Hijacker).Hijack()
			if err == nil {
				buf.WriteString(answer)
				buf.Flush()
				conn.Close()
			}
		}
	}
	hangs := func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}
	for _, tc := range []struct {
		name    string
		handler http.HandlerFunc // nil: url
		url     string
		unknown bool
	}{
		{"200", status(200), "", false},
		{"400", status(400), "", false},
		{"429", status(429), "", false},
		{"500", status(500), "", false},
		{"503", status(503), "", false},
		{"408", status(408), "", true},
		{"502", status(502), "", true},
		{"504", status(504), "", true},
		{"no answer", cut(""), "", true},
		{"a broken head", cut("HTTP/1.1 200"), "", true},
		{"a broken body", cut("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"), "", true},
		{"a broken refusal", cut("HTTP/1.1 400 Bad Request\r\nContent-Length: 10\r\n\r\nhalf"), "", true},
		{"time-out", hangs, "", true},
		{"a redirect elsewhere", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "http://elsewhere.test/", 307) }, "", false},
		{"a redirect to nobody", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, nobody, 307) }, "", false},
		{"no connection", nil, nobody, false},
		{"refused by the guard", nil, "http://169.254.169.254/", false},
		{"no TLS", nil, "https", false},
	} {
		url := tc.url
		if tc.handler != nil {
			url = serve(t, tc.handler)
		}
		if url == "https" {
			s := httptest.NewTLSServer(status(200))
			s.Config.ErrorLog = nil
			defer s.Close()
			url = s.URL
		}
		for _, repeatable := range []bool{false, true} {
			s := spec("web")
			s.Timeout, s.Idempotent = 300*time.Millisecond, repeatable
			tl, err := tool.NewHTTP(tool.HTTPOptions{Spec: s, Method: "POST", URL: url, MaxBytes: 1 << 20, AllowHosts: []string{free.Addr().String()}, Outbound: new(outbound.Guard)})
			if err != nil {
				t.Fatal(err)
			}
			got := set(t, tl).Execute(t.Context(), "web", call)
			if want := tc.unknown && !repeatable; got.Unknown != want {
				t.Errorf("%s, repeatable %t: unknown %t, want %t; %s %s", tc.name, repeatable, got.Unknown, want, got.Outcome.Kind, got.Outcome.Message)
			}
		}
	}
}

// TestHTTPAbortOutcomes aborts calls whose request was begun, and one that waits for a connection.
func TestHTTPAbortOutcomes(t *testing.T) {
	begun := make(chan bool, 1)
	addr := serve(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		begun <- true
		<-r.Context().Done()
	})
	full, err := net.Listen("tcp", "127.0.0.1:0") // it never accepts a connection, but the system does: TLS is not set up
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for url, unknown := range map[string]bool{addr: true, "https://" + full.Addr().String(): false} {
		ctx, cancel := context.WithCancel(t.Context())
		tl := newHTTP(t, tool.HTTPOptions{Method: "POST", URL: url})
		settled := make(chan tool.Settled)
		go func() { settled <- set(t, tl).Execute(ctx, tl.Spec().Name, call) }()
		if unknown {
			<-begun
		} else {
			conn, err := full.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
		}
		cancel()
		if got := <-settled; got.Unknown != unknown || got.Outcome.Kind != "aborted" || strings.Contains(got.Outcome.Hint, "may have happened") != unknown {
			t.Errorf("aborted, unknown %t: %+v", unknown, got)
		}
	}
}

// TestExecOutcomes is the same table for programs.
func TestExecOutcomes(t *testing.T) {
	begun := filepath.Join(t.TempDir(), "begun") // its reader gets on when the program has begun
	if err := syscall.Mkfifo(begun, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, script string
		command      string
		timeout      time.Duration
		abort        bool
		unknown      bool
	}{
		{name: "success", script: "true"},
		{name: "failure", script: "exit 3"},
		{name: "a failure that a child's end caused", script: "sh -c 'kill -9 $$'; exit 137"},
		{name: "signal", script: "kill -9 $$", unknown: true},
		{name: "time-out", script: "exec sleep 1000", timeout: 300 * time.Millisecond, unknown: true},
		{name: "abort", script: "echo > " + begun + "; exec sleep 1000", abort: true, unknown: true},
		{name: "no program", command: "/no/such/program"},
	} {
		for _, repeatable := range []bool{false, true} {
			s := tool.Spec{Name: "sh", Description: "d", Timeout: tc.timeout, Idempotent: repeatable}
			command := []string{"/bin/sh", "-c", tc.script}
			if tc.command != "" {
				command = []string{tc.command}
			}
			tl := tool.NewExec(tool.ExecOptions{Spec: s, Program: proc.Command{Argv: command}})
			ctx, cancel := context.WithCancel(t.Context())
			if tc.abort {
				go func() { os.ReadFile(begun); cancel() }() //nolint:errcheck // what was read does not matter
			}
			got := set(t, tl).Execute(ctx, "sh", call)
			cancel()
			if want := tc.unknown && !repeatable; got.Unknown != want {
				t.Errorf("%s, repeatable %t: unknown %t, want %t; %s %s", tc.name, repeatable, got.Unknown, want, got.Outcome.Kind, got.Outcome.Message)
			}
		}
	}
}

// TestUnknownIsRetried: what may have happened is sent again only where the tool asks for that, under the same key.
func TestUnknownIsRetried(t *testing.T) {
	for policy, want := range map[tool.OnUnknown]int32{tool.Ask: 1, tool.Retry: 3} {
		var requests atomic.Int32
		var keys atomic.Value
		addr := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if was, ok := keys.Swap(r.Header.Get("Idempotency-Key")).(string); ok && was != r.Header.Get("Idempotency-Key") {
				t.Errorf("keys %q and %q, want the same", was, r.Header.Get("Idempotency-Key"))
			}
			w.WriteHeader(502 + 2*int(requests.Add(1)%2))
		})
		s := spec("web")
		s.Idempotent, s.OnUnknownOutcome = true, policy
		tl, err := tool.NewHTTP(tool.HTTPOptions{Spec: s, Method: "POST", URL: addr, MaxBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		all := set(t, tl)
		all.Retry.Backoff = time.Millisecond
		if got := all.Execute(t.Context(), "web", call); got.Unknown || requests.Load() != want {
			t.Errorf("onUnknownOutcome %s: %s requests, want %d; %+v", policy, strconv.Itoa(int(requests.Load())), want, got)
		}
	}
}

// TestPanicIsUnknown: a tool that panics may have done what it was to do.
func TestPanicIsUnknown(t *testing.T) {
	if got := one(t, tool.Spec{}, func(context.Context, tool.Call) (tool.Result, error) { panic("x") }).Execute(t.Context(), "t", call); !got.Unknown {
		t.Errorf("a panic: %+v, want unknown", got)
	}
}
