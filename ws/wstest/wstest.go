// Package wstest is a WebSocket client for tests of servers. It shares no code with package ws, so that an error in that
// package cannot hide in it. It checks what a server must hold to: frames without a mask, and the answer to the key.
package wstest

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"agentd/ws"
)

const (
	opContinuation = 0
	opClose        = 8
	opPing         = 9
	opPong         = 10
)

// DialOptions are what a test chooses. The zero value works.
type DialOptions struct {
	Protocols []string    // the subprotocols to offer
	Header    http.Header // further fields of the request
	Dial      func(ctx context.Context, network, address string) (net.Conn, error)
}

// DialError is an answer to a handshake other than 101.
type DialError struct {
	Status int
	Header http.Header
	Body   []byte
}

func (e *DialError) Error() string {
	return fmt.Sprintf("wstest: the server answers %d %s", e.Status, e.Body)
}

// Conn is a connection after its handshake. Any goroutine may call its methods, but only one may read.
type Conn struct {
	nc       net.Conn
	br       *bufio.Reader
	protocol string

	reading sync.Mutex // guards err
	err     error      // of the Read that failed

	mu       sync.Mutex // guards writes and the fields below
	closed   bool       // a close frame has been sent
	lastPong time.Time
}

// Dial opens a connection to a URL with the scheme ws. The context limits the handshake. Nil options are the zero ones.
func Dial(ctx context.Context, rawURL string, o *DialOptions) (*Conn, error) {
	if o == nil {
		o = &DialOptions{}
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, err
	}
	dial := o.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	nc, err := dial(ctx, "tcp", u.Host)
	if err != nil {
		return nil, err
	}
	leave := context.AfterFunc(ctx, func() { nc.Close() })
	c, err := shakeHands(nc, u, o)
	if !leave() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		nc.Close()
		return nil, err
	}
	return c, nil
}

func shakeHands(nc net.Conn, u *url.URL, o *DialOptions) (*Conn, error) {
	r, err := http.NewRequest(http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	if o.Header != nil {
		r.Header = o.Header.Clone()
	}
	r.Host = r.Header.Get("Host")
	key := base64.StdEncoding.EncodeToString([]byte(rand.Text()[:16]))
	for name, value := range map[string]string{"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key} {
		r.Header.Set(name, value)
	}
	if len(o.Protocols) > 0 {
		r.Header.Set("Sec-WebSocket-Protocol", strings.Join(o.Protocols, ", "))
	}
	if err := r.Write(nc); err != nil {
		return nil, err
	}
	br := bufio.NewReader(nc)
	answer, err := http.ReadResponse(br, r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusSwitchingProtocols {
		body, _ := io.ReadAll(answer.Body)
		return nil, &DialError{answer.StatusCode, answer.Header, body}
	}
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	if got := answer.Header.Get("Sec-WebSocket-Accept"); got != base64.StdEncoding.EncodeToString(sum[:]) {
		return nil, fmt.Errorf("wstest: the server answers the key %s with %q", key, got)
	}
	return &Conn{nc: nc, br: br, protocol: answer.Header.Get("Sec-WebSocket-Protocol")}, nil
}

// Protocol returns the subprotocol that the server chose, or "".
func (c *Conn) Protocol() string { return c.protocol }

// LastPong returns when the last pong came, or the zero time.
func (c *Conn) LastPong() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastPong
}

// CloseNow closes the TCP connection.
func (c *Conn) CloseNow() { c.nc.Close() }

// Read returns the next message and answers pings. Its error is *ws.CloseError after a close frame, which Read answers.
// A context that ends closes the TCP connection.
func (c *Conn) Read(ctx context.Context) (typ ws.Type, message []byte, err error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if ctx.Err() != nil {
		return 0, nil, context.Cause(ctx)
	}
	leave := context.AfterFunc(ctx, c.CloseNow)
	defer leave()
	for c.err == nil {
		first, payload, err := c.frame()
		op := first & 15
		switch {
		case ctx.Err() != nil:
			c.err = context.Cause(ctx)
		case err != nil:
			c.err = err
		case op == opPing:
			c.write(opPong, payload) //nolint:errcheck // the next read fails
		case op == opPong:
			c.mu.Lock()
			c.lastPong = time.Now()
			c.mu.Unlock()
		case op == opClose:
			c.write(opClose, payload[:min(2, len(payload))]) //nolint:errcheck // it is over either way
			if c.err = (&ws.CloseError{Code: ws.CodeNone}); len(payload) >= 2 {
				c.err = &ws.CloseError{Code: ws.Code(binary.BigEndian.Uint16(payload)), Reason: string(payload[2:])}
			}
		default:
			if op != opContinuation {
				typ = ws.Type(op)
			}
			if message = append(message, payload...); first&0x80 != 0 {
				return typ, message, nil
			}
		}
	}
	return 0, nil, c.err
}

// frame reads one.
func (c *Conn) frame() (first byte, payload []byte, err error) {
	var head [2]byte
	if _, err := io.ReadFull(c.br, head[:]); err != nil {
		return 0, nil, err
	}
	if head[0]&0x70 != 0 || head[1]&0x80 != 0 {
		return 0, nil, fmt.Errorf("wstest: the server sends a frame that begins with %#x", head)
	}
	length := uint64(head[1])
	if extended := map[uint64]int{126: 2, 127: 8}[length]; extended > 0 {
		var b [8]byte
		if _, err := io.ReadFull(c.br, b[8-extended:]); err != nil {
			return 0, nil, err
		}
		length = binary.BigEndian.Uint64(b[:])
	}
	payload = make([]byte, length)
	_, err = io.ReadFull(c.br, payload)
	return head[0], payload, err
}

// Write sends a message. A context that ends closes the TCP connection.
func (c *Conn) Write(ctx context.Context, t ws.Type, p []byte) error {
	leave := context.AfterFunc(ctx, c.CloseNow)
	defer leave()
	return c.write(byte(t), p)
}

// Ping sends a ping and does not wait for the pong: see LastPong.
func (c *Conn) Ping(ctx context.Context) error { return c.Write(ctx, opPing, nil) }

// write sends one frame, none after a close frame.
func (c *Conn) write(op byte, p []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed = op == opClose
	b := []byte{0x80 | op}
	switch n := len(p); {
	case n < 126:
		b = append(b, 0x80|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(n))
	}
	var key [4]byte
	rand.Read(key[:]) //nolint:errcheck // it never fails
	b = append(b, key[:]...)
	for i, x := range p {
		b = append(b, x^key[i%4])
	}
	_, err := c.nc.Write(b)
	return err
}

// Close sends a close frame, waits for the server's and closes the TCP connection. The error is nil if the server's has
// come within 5 s.
func (c *Conn) Close(ctx context.Context, code ws.Code, reason string) error {
	defer c.CloseNow()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c.write(opClose, append(binary.BigEndian.AppendUint16(nil, uint16(code)), reason...)) //nolint:errcheck // reading tells
	for {
		_, _, err := c.Read(ctx)
		if _, ok := errors.AsType[*ws.CloseError](err); ok {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
