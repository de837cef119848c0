package server_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"agentd/ws/wstest"
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
	want := fmt.Sprintf(`{"error":"overloaded","hint":"Try again after `+"`Retry-After`"+`.","message":"%d connections are open, or this address has as many as one address may have."}`+"\n", max)
	if res.StatusCode != 503 || res.Header.Get("Retry-After") != "1" || res.Header.Get("Content-Type") != "application/json" || res.body != want {
		l.t.Errorf("a connection too many = %d %v %s, want 503 %s", res.StatusCode, res.Header, res.body, want)
	}
	if n, err := l.in.Read(make([]byte, 1)); n > 0 || err != io.EOF {
		l.t.Errorf("a connection too many then ends with %d bytes, %v, want EOF", n, err)
	}
}

// TestMaxConnections has a WebSocket, an event stream and two requests under way take all places. A plain connection that
// is idle makes room. Behind a proxy all connections have its address.
func TestMaxConnections(t *testing.T) {
	r := newRig(t, `{"auth": {"kind": "none"}, "server": {"maxConnections": 4, "trustProxy": true}}`, nil)
	r.client.CloseIdleConnections()
	first := r.caller(t)
	open := func(want int) {
		t.Helper()
		got := first.health()
		for limit := time.Now().Add(patience); got.Open != want && time.Now().Before(limit); {
			got = first.health()
		}
		if status := map[bool]string{true: "warn", false: "ok"}[want >= 4]; got.Open != want || got.Max != 4 || got.Status != status {
			t.Fatalf("health tells %+v, want %d of 4 connections and %s", got, want, status)
		}
	}
	open(1)

	socket, err := wstest.Dial(t.Context(), "ws"+strings.TrimPrefix(r.url, "http")+"/v1/ws", &wstest.DialOptions{Protocols: []string{subprotocol}})
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
	next := displacing(t, first, func() *caller { return r.caller(t) }, askHealth)
	if res := next.answer(); res.StatusCode != 200 || !strings.Contains(res.body, `"open":4,"max":4`) {
		t.Errorf("health tells %s, want 4 connections", res.body)
	}
	late := displacing(t, next, func() *caller { return r.caller(t) }, "POST /v1/agents/hold/run HTTP/1.1\nHost: localhost\nContent-Length: 2\n\n{}")

	for name, request := range map[string]string{
		"asks":          askHealth,
		"asks at large": "POST /v1/agents/echo/run HTTP/1.1\nHost: localhost\nContent-Length: 30000\n\n" + strings.Repeat("x", 30_000),
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
	r.release() // those who are in are served to the end
	r.release()
	if res := late.answer(); res.StatusCode != 200 {
		t.Errorf("the run that was under way = %d %s", res.StatusCode, res.body)
	}
	late.send("GET /v1/metrics HTTP/1.1\nHost: localhost\n\n")
	if res := late.answer(); !strings.Contains(res.body, "svc_http_connections 4\n") || !regexp.MustCompile(`svc_http_connections_refused_total ([5-9]\d|\d{2,}\d)\d\n`).MatchString(res.body) {
		t.Errorf("the metrics tell %s, want 4 connections and 503 refused or more", res.body)
	}

	if res := busy.answer(); res.StatusCode != 200 {
		t.Errorf("the run that was under way = %d %s", res.StatusCode, res.body)
	}
	first = late
	socket.CloseNow()
	open(3)
	stream.conn.Close()
	busy.conn.Close()
	open(1)
}

// displacing opens connections and sends a request, until that makes another connection end. The server notes that a
// connection is idle after its client has the answer; until then it refuses the new one.
func displacing(t *testing.T, old *caller, open func() *caller, request string) *caller {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		_, err := old.in.ReadByte()
		ended <- err
	}()
	for limit := time.After(patience); ; {
		l := open()
		l.send(request)
		begun := make(chan string, 1) // how its answer begins
		go func() {
			b, _ := l.in.Peek(len("HTTP/1.1 200"))
			begun <- string(b)
		}()
		select {
		case <-ended:
			l.conn.SetReadDeadline(time.Now())
			<-begun
			l.conn.SetReadDeadline(time.Time{})
			return l
		case answer := <-begun:
			if answer == "HTTP/1.1 200" { // it is admitted, so the other one ends
				<-ended
				return l
			}
			l.conn.Close()
		case <-limit:
			t.Fatal("a connection that is idle stays while others are refused")
		}
	}
}

// One address cannot take all places: others get in.
func TestConnectionsOfOneAddress(t *testing.T) {
	r := newRig(t, `{"auth": {"kind": "none"}, "server": {"maxConnections": 8}}`, nil)
	r.client.CloseIdleConnections()
	from := func(ip string) *caller {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
		conn, err := d.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return &caller{t, conn, bufio.NewReader(conn)}
	}
	var streams []*caller
	for range 6 {
		stream := from("127.0.0.1")
		stream.send("GET /v1/sessions/s/events HTTP/1.1\nHost: localhost\nAccept: text/event-stream\n\n")
		if res, err := http.ReadResponse(stream.in, nil); err != nil || res.StatusCode != 200 {
			t.Fatalf("GET /sessions/s/events: %v, %v", res, err)
		}
		streams = append(streams, stream)
	}
	for range 3 {
		greedy := from("127.0.0.1")
		greedy.send(askHealth)
		if res := greedy.answer(); res.StatusCode != 503 {
			t.Errorf("the seventh connection of an address = %d %s, want 503", res.StatusCode, res.body)
		}
		greedy.conn.Close()
	}
	other, third := from("127.0.0.2"), from("127.0.0.3")
	third.send("POST /v1/agents/hold/run HTTP/1.1\nHost: localhost\nContent-Length: 2\n\n{}")
	for limit := time.Now().Add(patience); other.health().Open != 8 && time.Now().Before(limit); { // that of the rig closes yet
	}
	// All places are taken, and only the connection of other is idle.
	displacing(t, other, func() *caller { return from("127.0.0.4") }, askHealth)
	r.release()
	if res := third.answer(); res.StatusCode != 200 {
		t.Errorf("the run that was under way = %d %s", res.StatusCode, res.body)
	}
	streams[0].conn.Close()
	eventually := time.Now().Add(patience)
	for {
		own := from("127.0.0.1")
		own.send(askHealth)
		res, err := http.ReadResponse(own.in, nil) // one that is refused beside many others may miss its answer
		if err == nil && res.StatusCode == 200 {
			break
		} else if time.Now().After(eventually) {
			t.Fatalf("an address below its share: %v, %v; want 200", res, err)
		}
		own.conn.Close()
	}
}
