package ws_test

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"agentd/ws"
)

// script is a connection that delivers what it is told, one piece for each read, and keeps what is written.
type script struct {
	net.Conn // nil: all that is used is below
	in       [][]byte
	out      bytes.Buffer
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
	return s.out.Write(p)
}

func (s *script) Close() error                     { return nil }
func (s *script) SetDeadline(time.Time) error      { return nil }
func (s *script) SetReadDeadline(time.Time) error  { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }

// scripted opens a connection whose peer sends in, in those pieces, and no more.
func scripted(t testing.TB, o ws.Options, in ...[]byte) *ws.Conn {
	c, _ := scriptedBoth(t, o, in...)
	return c
}

func scriptedBoth(t testing.TB, o ws.Options, in ...[]byte) (*ws.Conn, *script) {
	t.Helper()
	for i := range in {
		in[i] = bytes.Clone(in[i])
	}
	s := &script{in: in}
	c, err := ws.Accept(hijacked{nc: s}, handshake(), o)
	if err != nil {
		t.Fatalf("Accept() = %v", err)
	}
	s.out.Reset()
	return c, s
}

// newReader reads b, and then more.
func newReader(b []byte, more ...io.Reader) *bufio.Reader {
	return bufio.NewReader(io.MultiReader(append([]io.Reader{bytes.NewReader(b)}, more...)...))
}
