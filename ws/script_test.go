package ws_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"agentd/ws"
)

// script is a connection that delivers what it is told, one piece for each read, and keeps what is written.
type script struct {
	net.Conn // nil: all that is used is below
	in       [][]byte
	out      bytes.Buffer
	answer   func(request []byte) []byte // to the first write; nil: none
}

func (s *script) Read(p []byte) (int, error) {
	for len(s.in) > 0 && len(s.in[0]) == 0 {
		s.in = s.in[1:]
	}
	if len(s.in) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.in[0])
	s.in[0] = s.in[0][n:]
	return n, nil
}

func (s *script) Write(p []byte) (int, error) {
	if s.answer != nil {
		s.in = append([][]byte{s.answer(p)}, s.in...)
		s.answer = nil
		return len(p), nil
	}
	return s.out.Write(p)
}

func (s *script) Close() error                     { return nil }
func (s *script) SetDeadline(time.Time) error      { return nil }
func (s *script) SetReadDeadline(time.Time) error  { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }

// scripted opens a connection whose peer sends in, in those pieces, and no more.
func scripted(t testing.TB, role string, o ws.Options, in ...[]byte) *ws.Conn {
	c, _ := scriptedBoth(t, role, o, in...)
	return c
}

func scriptedBoth(t testing.TB, role string, o ws.Options, in ...[]byte) (*ws.Conn, *script) {
	t.Helper()
	for i := range in {
		in[i] = bytes.Clone(in[i])
	}
	s := &script{in: in}
	if role == "server" {
		c, err := ws.Accept(hijacked{nc: s}, handshake(), &ws.AcceptOptions{Options: o})
		if err != nil {
			t.Fatalf("Accept() = %v", err)
		}
		s.out.Reset()
		return c, s
	}
	s.answer = func(request []byte) []byte {
		return []byte("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
			"Sec-WebSocket-Accept: " + keyOf(t, request) + "\r\n\r\n")
	}
	dial := func(context.Context, string, string) (net.Conn, error) { return s, nil }
	c, err := ws.Dial(context.Background(), "ws://localhost/ws", &ws.DialOptions{Options: o, Dial: dial})
	if err != nil {
		t.Fatalf("Dial() = %v", err)
	}
	return c, s
}

// newReader reads b, and then more.
func newReader(b []byte, more ...io.Reader) *bufio.Reader {
	return bufio.NewReader(io.MultiReader(append([]io.Reader{bytes.NewReader(b)}, more...)...))
}

// keyOf tells how a server answers the key of a request.
func keyOf(t testing.TB, request []byte) string {
	t.Helper()
	r, err := http.ReadRequest(newReader(request))
	if err != nil {
		t.Fatalf("Dial sends %q: %v", request, err)
	}
	sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(sum[:])
}
