package cli_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// from opens a connection from another address of this machine and sends a request.
func (s *listener) from(ip, request string) (net.Conn, *http.Response, error) {
	s.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}, Timeout: patience}
	conn, err := d.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(s.url, "http://"), "/v1"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience)) //nolint:errcheck // the read tells
	if _, err := io.WriteString(conn, request); err != nil {
		return conn, nil, err
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	return conn, res, err
}

// An address that keeps as many connections open as it can get, idle and busy ones, keeps nobody else out.
func TestCrowd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "agentd.json"), `{"server": {"maxConnections": 40, "rateLimit": {"enabled": false}}, "auth": {"kind": "none"}, "storage": {"path": "data.db"}}`)
	s := serve(t, dir)
	const health = "GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
	const events = "GET /v1/sessions/s/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
	refused := 0
	for i := range 120 {
		request := events
		if i%2 == 0 {
			request = health
		}
		if _, res, err := s.from("127.0.0.1", request); err != nil || res.StatusCode == http.StatusServiceUnavailable {
			refused++
		}
	}
	if refused < 20 {
		t.Errorf("%d of 120 connections of an address are refused, want those above its share", refused)
	}
	for _, ip := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.2"} {
		if _, res, err := s.from(ip, health); err != nil || res.StatusCode != http.StatusOK {
			t.Errorf("GET /health from %s, beside an address that takes all it can get: %v, %v; want 200", ip, res, err)
		}
	}
	// Those that stay idle make room for each other.
	for i := range 60 {
		ip := net.IPv4(127, 0, 1, byte(i)).String()
		ok := false
		for limit := time.Now().Add(patience); !ok && time.Now().Before(limit); { // the server notes that a connection is idle after its client has the answer
			_, res, err := s.from(ip, health)
			ok = err == nil && res.StatusCode == http.StatusOK
		}
		if !ok {
			t.Fatalf("the %d-th address does not get in beside others that are idle", i)
		}
	}
}
