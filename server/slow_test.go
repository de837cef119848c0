package server_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentd/auth"
	"agentd/server"
)

// pipes is a listener in memory, so that a server can be in a bubble whose time is not real.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// client sends requests through pipes.
func (p *pipes) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return p.dial(), nil }}}
}

func (p *pipes) dial() net.Conn {
	client, conn := net.Pipe()
	p.conns <- conn
	return client
}

// inBubble runs fn in a bubble with a whole server, whose connections are pipes.
func inBubble(t *testing.T, overlay string, fn func(t *testing.T, at *pipes, token string)) {
	t.Helper()
	newRig(t, "{}", nil) // the thread that starts programs is the process's: it must not begin in the bubble
	synctest.Test(t, func(t *testing.T) {
		cfg := rigSettings(t, overlay, nil)
		r := &rig{t: t, cfg: cfg}
		_, token := r.operatorToken(auth.MintRequest{Label: "root", Scopes: []string{"admin:*"}})
		at := newPipes()
		srv, err := server.New(server.Options{Config: cfg, Listener: at})
		if err != nil {
			t.Fatal(err)
		}
		for _, reg := range testAgents(make(chan struct{})) {
			if err := srv.Agents().Register(reg); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := srv.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := srv.Shutdown(context.Background()); err != nil {
				t.Errorf("Shutdown() = %v, want none", err)
			}
		}()
		fn(t, at, token)
	})
}

// A client that is slow to send loses its connection when its time is over, whatever it asked for and whether or not it
// may: 10 seconds for a header, 30 for a body, 5 for 64 KiB of a large one, 120 between requests. 50 of each kind are there at once, and others are
// answered meanwhile without any delay.
func TestSlowClientsAreEnded(t *testing.T) {
	const (
		header = 10 * time.Second
		body   = 30 * time.Second
		piece  = 5 * time.Second
		idle   = 120 * time.Second
	)
	inBubble(t, "{}", func(t *testing.T, at *pipes, token string) {
		bearer := "Authorization: Bearer " + token + "\r\n"
		post := func(path, more string) string { return "POST /v1" + path + " HTTP/1.1\r\nHost: localhost\r\n" + more }
		kinds := []struct {
			name   string
			sent   string
			drip   string // is sent again every second
			after  time.Duration
			status int // of the answer; 0: there is none
		}{
			{"nothing", "", "", header, 0},
			{"a request line without end", "GET /", "a", header, 400},
			{"a header byte by byte", "GET /v1/health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", "a", header, 0},
			{"header lines without end", "GET /v1/health HTTP/1.1\r\nHost: localhost\r\n", "A: b\r\n", header, 0},
			{"half a body", post("/agents/echo/run", bearer+"Content-Length: 100\r\n\r\n{\"input\":"), "", body, 400},
			{"a body byte by byte", post("/agents/echo/run", bearer+"Content-Length: 100\r\n\r\n"), " ", body, 400},
			{"a large body byte by byte", post("/agents/echo/run", bearer+"Content-Length: 100000\r\n\r\n"+strings.Repeat(" ", 5000)), " ", piece, 400},
			{"large chunks byte by byte", post("/agents/echo/run", bearer+"Transfer-Encoding: chunked\r\n\r\n186a0\r\n"+strings.Repeat(" ", 5000)), " ", piece, 400},
			{"a chunk without end", post("/agents/echo/run", bearer+"Transfer-Encoding: chunked\r\n\r\n64\r\n{"), "", body, 400},
			{"a chunk's size without end", post("/agents/echo/run", bearer+"Transfer-Encoding: chunked\r\n\r\n"), "0", body, 400},
			{"no body after all", post("/agents/echo/run", bearer+"Expect: 100-continue\r\nContent-Length: 100\r\n\r\n"), "", body, 400},
			{"half a body and no token", post("/agents/echo/run", "Content-Length: 100\r\n\r\n{"), "", body, 401},
			{"half a body and a wrong token", post("/agents/echo/run", "Authorization: Bearer x\r\nContent-Length: 100\r\n\r\n{"), "", body, 401},
			{"half a body for a flag and no token", post("/runs/none/abort", "Content-Length: 100\r\n\r\n{"), "", body, 401},
			{"half a body for no route", post("/nowhere", bearer+"Content-Length: 100\r\n\r\n{"), "", body, 404},
			{"half a body for a method that is not", "PUT /v1/agents HTTP/1.1\r\nHost: localhost\r\n" + bearer + "Content-Length: 9\r\n\r\n{", "", body, 405},
			{"half a body that nobody reads", "GET /v1/health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{", "", body, 200},
			{"half a body of a stream", post("/agents/echo/stream", bearer+"Accept: text/event-stream\r\nContent-Length: 100\r\n\r\n{"), "", body, 400},
			{"half a body of an upgrade", "GET /v1/ws HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{", "", body, 426},
			{"half a body of a preflight", "OPTIONS /v1/agents HTTP/1.1\r\nHost: localhost\r\nOrigin: http://x\r\nAccess-Control-Request-Method: GET\r\n" +
				"Content-Length: 100\r\n\r\n{", "", body, 204},
			{"a request, and no other", "GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n", "", idle, 200},
			{"a request, and half of another", "GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /", "", header, 200},
		}
		var clients sync.WaitGroup
		for _, k := range kinds {
			for range 50 {
				clients.Go(func() {
					conn := at.dial()
					defer conn.Close()
					begun := time.Now()
					over := make(chan struct{})
					var sender sync.WaitGroup
					defer sender.Wait()
					sender.Go(func() {
						if _, err := io.WriteString(conn, k.sent); err != nil {
							t.Errorf("%s: sending: %v", k.name, err)
						}
						for k.drip != "" {
							select {
							case <-over:
								return
							case <-time.After(time.Second):
							}
							io.WriteString(conn, k.drip) //nolint:errcheck // it ends some time
						}
					})
					answer, err := io.ReadAll(conn)
					close(over)
					conn.Close()
					status := 0
					fmt.Sscanf(strings.TrimPrefix(string(answer), "HTTP/1.1 100 Continue\r\n\r\n"), "HTTP/1.1 %d ", &status) //nolint:errcheck // then it is 0
					if took := time.Since(begun); err != nil || took < k.after || took > k.after+time.Second || status != k.status {
						t.Errorf("%s: ended after %v with %.60q, %v; want %v and status %d", k.name, took, answer, err, k.after, k.status)
					}
				})
			}
		}
		others := func() {
			conn := at.dial()
			defer conn.Close()
			answers := bufio.NewReader(conn)
			for range 200 {
				begun := time.Now()
				io.WriteString(conn, post("/agents/echo/run", bearer+"Content-Length: 13\r\n\r\n{\"input\":\"x\"}")) //nolint:errcheck // the answer tells
				res, err := http.ReadResponse(answers, nil)
				if err != nil {
					t.Errorf("another client: %v", err)
					return
				}
				if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != 200 || time.Since(begun) > 10*time.Millisecond {
					t.Errorf("another client: %d after %v, %v; want 200 at once", res.StatusCode, time.Since(begun), err)
				}
				<-time.After(200 * time.Millisecond)
			}
		}
		others()
		clients.Wait()
	})
}

// A client that does not read its answer loses its connection, too, however short the answer is.
func TestClientsThatDoNotReadAreEnded(t *testing.T) {
	inBubble(t, "{}", func(t *testing.T, at *pipes, token string) {
		bearer := "Authorization: Bearer " + token + "\r\n"
		var clients sync.WaitGroup
		for _, request := range []string{
			"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
			"GET /v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n",
			"GET /v1/metrics HTTP/1.1\r\nHost: localhost\r\n" + bearer + "\r\n",
			"GET /v1/agents HTTP/1.1\r\nHost: localhost\r\n\r\n",
			"GET /nowhere HTTP/1.0\r\n\r\n",
			"OPTIONS /v1/agents HTTP/1.1\r\nHost: localhost\r\nAccess-Control-Request-Method: GET\r\n\r\n",
			"GET /v1/sessions/s/events HTTP/1.1\r\nHost: localhost\r\n" + bearer + "\r\n",
			"POST /v1/agents/echo/stream HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nContent-Length: 0\r\n" + bearer + "\r\n",
			"POST /v1/agents/echo/stream HTTP/1.0\r\nAccept: text/event-stream\r\nContent-Length: 0\r\n" + bearer + "\r\n",
		} {
			clients.Go(func() {
				conn := at.dial()
				defer conn.Close()
				if _, err := io.WriteString(conn, request); err != nil {
					t.Errorf("%.40q: sending: %v", request, err)
				}
				<-time.After(time.Minute)
				if n, err := io.Copy(io.Discard, conn); n > 0 || err != nil {
					t.Errorf("%.40q: after a minute in which nothing was read, there are %d bytes, %v; want the connection ended", request, n, err)
				}
			})
		}
		clients.Wait()
	})
}
