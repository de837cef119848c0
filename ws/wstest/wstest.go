// Package wstest is a WebSocket client for tests of servers. It shares no code with package ws, so that an error in that
// package cannot hide in it.
package wstest

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"agentd/ws"
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
	err      error // of the Read that failed

	mu     sync.Mutex // guards writes
	closed bool       // a close frame has been sent
}

// Dial opens a connection to a URL with the scheme ws. The context limits the handshake. Nil options are the zero ones.
func Dial(ctx context.Context, rawURL string, o *DialOptions) (*Conn, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, err
	}
	if o == nil {
		o = &DialOptions{}
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
	}
	return c, err
}

func shakeHands(nc net.Conn, u *url.URL, o *DialOptions) (*Conn, error) {
	r := &http.Request{Method: http.MethodGet, URL: u, Host: o.Header.Get("Host"), Header: o.Header.Clone()}
	if r.Header == nil {
		r.Header = http.Header{}
	}
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

// CloseNow closes the TCP connection.
func (c *Conn) CloseNow() { c.nc.Close() }

// Read returns the next message and answers pings. Its error is *ws.CloseError after a close frame, which Read answers.
// A context that ends closes the TCP connection.
func (c *Conn) Read(ctx context.Context) (typ ws.Type, message []byte, err error) {
	leave := context.AfterFunc(ctx, c.CloseNow)
	defer leave()
	for c.err == nil {
		first, payload, err := c.frame()
		switch op := first & 15; {
		case ctx.Err() != nil:
			c.err = context.Cause(ctx)
		case err != nil:
			c.err = err
		case op == 10: // pong
		case op == 9: // ping
			c.write(10, payload) //nolint:errcheck // the next read fails
		case op == 8: // close
			c.write(8, payload[:min(2, len(payload))]) //nolint:errcheck // it is over either way
			if c.err = (&ws.CloseError{Code: ws.CodeNone}); len(payload) >= 2 {
				c.err = &ws.CloseError{Code: ws.Code(binary.BigEndian.Uint16(payload)), Reason: string(payload[2:])}
			}
		default:
			typ = max(typ, ws.Type(op)) // a continuation is 0
			if message = append(message, payload...); first&0x80 != 0 {
				return typ, message, nil
			}
		}
	}
	return 0, nil, c.err
}

// frame reads one.
func (c *Conn) frame() (first byte, payload []byte, err error) {
	var head [10]byte
	if _, err := io.ReadFull(c.br, head[:2]); err != nil {
		return 0, nil, err
	}
	if head[0]&0x70 != 0 || head[1]&0x80 != 0 {
		return 0, nil, fmt.Errorf("wstest: the server sends a frame that begins with %x", head[:2])
	}
	length := uint64(head[1])
	if extended := map[uint64]int{126: 2, 127: 8}[length]; extended > 0 {
		if _, err := io.ReadFull(c.br, head[10-extended:]); err != nil {
			return 0, nil, err
		}
		length = binary.BigEndian.Uint64(head[2:])
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

// write sends one frame, none after a close frame.
func (c *Conn) write(op byte, p []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed = op == 8
	b := []byte{0x80 | op}
	switch n := len(p); {
	case n < 126:
		b = append(b, 0x80|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(n))
	}
	key := rand.Text()[:4]
	b = append(b, key...)
	for i, x := range p {
		b = append(b, x^key[i%4])
	}
	_, err := c.nc.Write(b)
	return err
}
