package server_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"agentd/ws"
)

// A caller is a connection that requests are sent over one after the other.
type caller struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func (r *rig) caller(t *testing.T) *caller {
	t.Helper()
	conn := r.connect()
	t.Cleanup(func() { conn.Close() })
	return &caller{t, conn, bufio.NewReader(conn)}
}

func (l *caller) send(request string) {
	l.t.Helper()
	if _, err := io.WriteString(l.conn, strings.ReplaceAll(request, "\n", "\r\n")); err != nil {
		l.t.Fatal(err)
	}
}

// answer reads an answer with its body.
func (l *caller) answer() answer {
	l.t.Helper()
	res, err := http.ReadResponse(l.in, nil)
	if err != nil {
		l.t.Fatalf("a connection is not answered: %v", err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		l.t.Fatal(err)
	}
	return answer{res, string(body)}
}

const askHealth = "GET /v1/health HTTP/1.1\nHost: localhost\n\n"

type connectionHealth struct {
	Status, Message string
	Open, Max       int
}

func (l *caller) health() connectionHealth {
	l.t.Helper()
	l.send(askHealth)
	var doc struct {
		Checks struct{ Connections connectionHealth }
	}
	if res := l.answer(); json.Unmarshal([]byte(res.body), &doc) != nil || res.StatusCode != 200 {
		l.t.Fatalf("GET /health = %d %s", res.StatusCode, res.body)
	}
	return doc.Checks.Connections
}

// wantRefused checks the answer to a connection too many, and that it ends.
func (l *caller) wantRefused(max int) {
	l.t.Helper()
	res := l.answer()
	want := fmt.Sprintf(`{"error":"overloaded","hint":"Try again after `+"`Retry-After`"+`.","message":"%d connections are open, and the server accepts no more."}`+"\n", max)
	if res.StatusCode != 503 || res.Header.Get("Retry-After") != "1" || res.Header.Get("Content-Type") != "application/json" || res.body != want {
		l.t.Errorf("a connection too many = %d %v %s, want 503 %s", res.StatusCode, res.Header, res.body, want)
	}
	if n, err := l.in.Read(make([]byte, 1)); n > 0 || err != io.EOF {
		l.t.Errorf("a connection too many then ends with %d bytes, %v, want EOF", n, err)
	}
}

// TestMaxConnections has a plain connection, a WebSocket, an event stream and a request under way take all places.
func TestMaxConnections(t *testing.T) {
	r := newRig(t, `{"auth": {"kind": "none"}, "server": {"maxConnections": 4}}`, nil)
	r.client.CloseIdleConnections()
	first := r.caller(t)
	open := func(want int) {
		t.Helper()
		got := first.health()
		for limit := time.Now().Add(patience); got.Open != want && time.Now().Before(limit); got = first.health() {
			<-time.After(5 * time.Millisecond)
		}
		if status := map[bool]string{true: "warn", false: "ok"}[want >= 4]; got.Open != want || got.Max != 4 || got.Status != status {
			t.Fatalf("health tells %+v, want %d of 4 connections and %s", got, want, status)
		}
	}
	open(1)

	socket, err := ws.Dial(t.Context(), "ws"+strings.TrimPrefix(r.url, "http")+"/v1/ws", &ws.DialOptions{Protocols: []string{subprotocol}})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.CloseNow()
	stream := r.caller(t)
	stream.send("GET /v1/sessions/s/events HTTP/1.1\nHost: localhost\nAccept: text/event-stream\n\n")
	if res, err := http.ReadResponse(stream.in, nil); err != nil || res.StatusCode != 200 {
		t.Fatalf("GET /sessions/s/events: %v, %v", res, err)
	}
	busy := r.caller(t)
	busy.send("POST /v1/agents/hold/run HTTP/1.1\nHost: localhost\nContent-Length: 2\n\n{}")
	open(4)

	for name, request := range map[string]string{
		"asks":          askHealth,
		"asks at large": "POST /v1/agents/echo/run HTTP/1.1\nHost: localhost\nContent-Length: 30000\n\n" + strings.Repeat("x", 30_000),
		"says nothing":  "",
		"upgrades":      "GET /v1/ws HTTP/1.1\nHost: localhost\nConnection: Upgrade\nUpgrade: websocket\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			l := r.caller(t)
			l.send(request)
			l.wantRefused(4)
		})
	}
	var flood sync.WaitGroup
	told := make(chan bool, 500)
	for range cap(told) {
		flood.Go(func() {
			c := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
			res, err := c.Get(r.url + "/v1/health")
			if err == nil {
				res.Body.Close()
			}
			told <- err == nil && res.StatusCode == 503
		})
	}
	flood.Wait()
	close(told)
	answered := 0
	for yes := range told {
		if yes {
			answered++
		}
	}
	t.Logf("%d of %d clients at once are told so, the others cut off", answered, cap(told))
	if answered == 0 {
		t.Error("no client of a flood is told that there are too many")
	}
	first.send("GET /v1/metrics HTTP/1.1\nHost: localhost\n\n")
	if res := first.answer(); !strings.Contains(res.body, "svc_http_connections 4\n") || !strings.Contains(res.body, "svc_http_connections_refused_total 504\n") {
		t.Errorf("the metrics tell %s, want 4 connections and 504 refused", res.body)
	}

	r.release() // those who are in are served to the end
	if res := busy.answer(); res.StatusCode != 200 {
		t.Errorf("the run that was under way = %d %s", res.StatusCode, res.body)
	}
	socket.CloseNow()
	open(3)
	next := r.caller(t)
	if got := next.health(); got.Open != 4 {
		t.Errorf("health tells %+v, want 4 connections", got)
	}
	stream.conn.Close()
	busy.conn.Close()
	next.conn.Close()
	open(1)
}
