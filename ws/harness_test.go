package ws_test

import (
	"bufio"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"agentd/ws"
)

// The first bytes of frames.
const (
	fin  = 0x80
	cont = 0
	text = 1
	bin  = 2
	shut = 8
	ping = 9
	pong = 10
)

// hijacked is a response whose connection can be taken over, as that of net/http.
type hijacked struct {
	nc    net.Conn
	early string // what has been read of the connection already
}

func (h hijacked) Header() http.Header         { return http.Header{} }
func (h hijacked) Write(p []byte) (int, error) { return 0, http.ErrHijacked }
func (h hijacked) WriteHeader(int)             {}
func (h hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	br := bufio.NewReaderSize(io.MultiReader(strings.NewReader(h.early), h.nc), max(4096, len(h.early)))
	if h.early != "" {
		if _, err := br.Peek(len(h.early)); err != nil {
			return nil, nil, err
		}
	}
	return h.nc, bufio.NewReadWriter(br, bufio.NewWriter(h.nc)), nil
}

// handshake is a proper one.
func handshake() *http.Request {
	r, err := http.NewRequest(http.MethodGet, "http://localhost/ws", nil)
	if err != nil {
		panic(err)
	}
	r.Header.Set("Upgrade", "websocket")
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Sec-WebSocket-Version", "13")
	r.Header.Set("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==") // of section 1.3
	return r
}

// peer is a client: it sends what a test wants, allowed or not. It shares no code with package ws, so that an error there
// does not hide in it.
type peer struct {
	nc net.Conn
	br *bufio.Reader
}

// accepted opens a connection whose server is under test, over two connected ends.
func accepted(t testing.TB, o ws.Options, near, far net.Conn) (*ws.Conn, *peer) {
	t.Helper()
	type result struct {
		c   *ws.Conn
		err error
	}
	done := make(chan result, 1)
	go func() {
		c, err := ws.Accept(hijacked{nc: near}, handshake(), o)
		done <- result{c, err}
	}()
	p := &peer{nc: far, br: bufio.NewReader(far)}
	answer, err := http.ReadResponse(p.br, nil)
	if err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("Accept answers %v, %v, want 101", answer, err)
	}
	r := <-done
	if r.err != nil {
		t.Fatalf("Accept() = %v", r.err)
	}
	t.Cleanup(func() { r.c.CloseNow(); far.Close() })
	return r.c, p
}

// opened opens a connection over net.Pipe.
func opened(t testing.TB, o ws.Options) (*ws.Conn, *peer) {
	near, far := net.Pipe()
	return accepted(t, o, near, far)
}

// tcp returns the two ends of a TCP connection.
func tcp(t testing.TB) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if far, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if near, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return near, far
}

// header makes that of a frame, with the length in the shortest form.
func (p *peer) header(b0 byte, length int) []byte {
	const mask = 0x80
	b := []byte{b0}
	switch {
	case length <= 125:
		b = append(b, mask|byte(length))
	case length <= 65535:
		b = binary.BigEndian.AppendUint16(append(b, mask|126), uint16(length))
	default:
		b = binary.BigEndian.AppendUint64(append(b, mask|127), uint64(length))
	}
	return append(b, 0x1A, 0x2B, 0x3C, 0x4D)
}

// frame makes one.
func (p *peer) frame(b0 byte, payload string) []byte {
	b := p.header(b0, len(payload))
	at := len(b)
	b = append(b, payload...)
	for i := range b[at:] {
		b[at+i] ^= b[at-4+i%4]
	}
	return b
}

// send writes until the other side has had enough. What it makes of it tells whether that was too early.
func (p *peer) send(b ...[]byte) {
	for _, b := range b {
		if _, err := p.nc.Write(b); err != nil {
			return
		}
	}
}

// next reads a frame and tells it as "text hello", "more binary xy", "close 1000 reason" or "pong x"; a long payload is
// told by its length and its sum.
func (p *peer) next() (string, error) {
	var h [2]byte
	if _, err := io.ReadFull(p.br, h[:]); err != nil {
		return "", err
	}
	if h[1]&0x80 != 0 {
		return "", errors.New("frame with a mask")
	}
	length := uint64(h[1] & 0x7F)
	if extended := map[uint64]int{126: 2, 127: 8}[length]; extended > 0 {
		b := make([]byte, 8)
		if _, err := io.ReadFull(p.br, b[8-extended:]); err != nil {
			return "", err
		}
		length = binary.BigEndian.Uint64(b)
	}
	payload := make([]byte, length)
	if _, err := io.ReadFull(p.br, payload); err != nil {
		return "", err
	}
	s := ""
	if h[0]&0x80 == 0 {
		s = "more "
	}
	switch h[0] & 0x7F {
	case cont:
		s += "continuation"
	case text:
		s += "text"
	case bin:
		s += "binary"
	case ping:
		s += "ping"
	case pong:
		s += "pong"
	case shut:
		s += "close"
		if len(payload) >= 2 {
			s += fmt.Sprint(" ", binary.BigEndian.Uint16(payload))
			payload = payload[2:]
		}
		if len(payload) == 0 {
			return s, nil
		}
	default:
		return "", fmt.Errorf("first byte %#x", h[0])
	}
	return s + " " + short(payload), nil
}

// short tells a payload.
func short[T string | []byte](p T) string {
	if len(p) <= 130 {
		return string(p)
	}
	return fmt.Sprintf("%d bytes, sum %x", len(p), sha1.Sum([]byte(p)))
}

// want reads frames and compares them.
func (p *peer) want(t testing.TB, frames ...string) {
	t.Helper()
	for _, want := range frames {
		if got, err := p.next(); got != want || err != nil {
			t.Fatalf("peer.next() = %q, %v, want %q", got, err, want)
		}
	}
}

// closing is the payload of a close frame.
func closing(code uint16, reason string) string {
	return string(binary.BigEndian.AppendUint16(nil, code)) + reason
}

// echo sends back what it reads, and returns why it ended.
func echo(c *ws.Conn) error {
	for {
		typ, p, err := c.Read()
		if err == nil {
			err = c.Write(typ, p)
		}
		if err != nil {
			c.Close(ws.CodeNormal, "") //nolint:errcheck // it has ended already
			return err
		}
	}
}
