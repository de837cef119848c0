package ws_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"agentd/ws"
	"agentd/ws/wstest"
)

func TestCheckHandshake(t *testing.T) {
	set := func(pairs ...string) func(*http.Request) {
		return func(r *http.Request) {
			for i := 0; i < len(pairs); i += 2 {
				r.Header.Del(pairs[i])
			}
			for i := 0; i < len(pairs); i += 2 {
				if pairs[i+1] != "-" {
					r.Header.Add(pairs[i], pairs[i+1])
				}
			}
		}
	}
	const key, version, protocol, extensions = "Sec-WebSocket-Key", "Sec-WebSocket-Version", "Sec-WebSocket-Protocol", "Sec-WebSocket-Extensions"
	good := "dGhlIHNhbXBsZSBub25jZQ=="
	tests := []struct {
		name   string
		change func(*http.Request)
		status int // 0: none is wrong
	}{
		{"proper", set(), 0},
		{"lists", set("Upgrade", "h2c, WebSocket", "Connection", "keep-alive, , UPGRADE"), 0},
		{"several fields", set("Connection", "keep-alive", "Connection", "upgrade"), 0},
		{"a list with versions", set("Upgrade", "websocket, TLS/1.0"), 0},
		{"versions first", set("Upgrade", "HTTP/2.0,\tIRC/6.9 ,WEBSOCKET"), 0},
		{"several Upgrade fields", set("Upgrade", "TLS/1.0", "Upgrade", ", websocket"), 0},
		{"another version of the protocol", set("Upgrade", "websocket/8"), 426},
		{"HTTP/1.0", func(r *http.Request) { r.ProtoMinor = 0 }, 426},
		{"HEAD", func(r *http.Request) { r.Method = "HEAD" }, 426},
		{"HTTP/2", func(r *http.Request) { r.ProtoMajor, r.ProtoMinor = 2, 0 }, 400},
		{"POST", func(r *http.Request) { r.Method = "POST" }, 405},
		{"no Upgrade", set("Upgrade", "-"), 426},
		{"other Upgrade", set("Upgrade", "websockets"), 426},
		{"malformed Upgrade", set("Upgrade", "websocket;"), 426},
		{"no Connection", set("Connection", "-"), 400},
		{"other Connection", set("Connection", "keep-alive"), 400},
		{"body", func(r *http.Request) { r.ContentLength = 1 }, 400},
		{"body of unknown length", func(r *http.Request) { r.ContentLength = -1 }, 400},
		{"chunked body", func(r *http.Request) { r.TransferEncoding = []string{"chunked"} }, 400},
		{"no version", set(version, "-"), 426},
		{"version 8", set(version, "8"), 426},
		{"versions", set(version, "13", version, "8"), 426},
		{"version twice", set(version, "13", version, "13"), 426},
		{"version list", set(version, "13, 8"), 426},
		{"no key", set(key, "-"), 400},
		{"empty key", set(key, ""), 400},
		{"two keys", set(key, good, key, good), 400},
		{"key of 15 bytes", set(key, "dGhlIHNhbXBsZSBub25j"), 400},
		{"key of 17 bytes", set(key, "dGhlIHNhbXBsZSBub25jZWU="), 400},
		{"key of 18 bytes", set(key, "dGhlIHNhbXBsZSBub25jZWVl"), 400},
		{"key without padding", set(key, strings.TrimRight(good, "=")), 400},
		{"key not in base64", set(key, "!Ghl HNhbXBsZSBub25jZQ=="), 400},
		{"key for URLs", set(key, "__hlIHNhbXBsZSBub25jZQ=="), 400},
		{"protocols", set(protocol, "svc.protocol.v1, ticket.abc"), 0},
		{"protocols in two fields", set(protocol, "a", protocol, "b"), 0},
		{"empty elements", set(protocol, ",a, ,b,"), 0},
		{"no protocol", set(protocol, ""), 400},
		{"only commas", set(protocol, ", ,"), 400},
		{"protocol with space", set(protocol, "a b"), 400},
		{"protocol with slash", set(protocol, "a/b"), 400},
		{"quoted protocol", set(protocol, `"a"`), 400},
		{"protocol beyond ASCII", set(protocol, "\u00e9"), 400},
		{"protocol twice", set(protocol, "a, b, a"), 400},
		{"protocol twice in two fields", set(protocol, "a", protocol, "a"), 400},
		{"protocols that differ in case", set(protocol, "a, A"), 0},
		{"extension", set(extensions, "permessage-deflate; client_max_window_bits; server_max_window_bits=10, x"), 0},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			r := handshake()
			tc.change(r)
			_, err := ws.CheckHandshake(r)
			bad, ok := errors.AsType[*ws.HandshakeError](err)
			switch {
			case tc.status == 0 && err != nil:
				t.Fatalf("CheckHandshake() = %v", err)
			case tc.status != 0 && (!ok || bad.Status != tc.status):
				t.Fatalf("CheckHandshake() = %v, want status %d", err, tc.status)
			case tc.status == 405 && bad.Header.Get("Allow") != "GET",
				tc.status == 426 && (bad.Header.Get(version) != "13" || bad.Header.Get("Upgrade") != "websocket"):
				t.Errorf("CheckHandshake() wants the header %v", bad.Header)
			}
			if tc.status != 0 {
				if _, err := ws.Accept(hijacked{}, r, ws.Options{}); err == nil || err.Error() != bad.Error() {
					t.Errorf("Accept() = %v, want %v", err, bad)
				}
			}
		})
	}
	offer := func(values ...string) ([]string, error) {
		r := handshake()
		if values != nil {
			r.Header[http.CanonicalHeaderKey(protocol)] = values
		}
		return ws.CheckHandshake(r)
	}
	if got, err := offer("svc.protocol.v1, ticket.abc", "x"); err != nil || !slices.Equal(got, []string{"svc.protocol.v1", "ticket.abc", "x"}) {
		t.Errorf("CheckHandshake() = %q, %v", got, err)
	}
	if got, err := offer(); err != nil || got != nil {
		t.Errorf("CheckHandshake() = %q, %v, want no protocols", got, err)
	}
	if _, err := offer("ticket.secret, ticket.secret"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("CheckHandshake() = %v, want an error that shows no value", err)
	}
}

// TestAccept compares the answer, byte for byte, and has frames come with the request.
func TestAccept(t *testing.T) {
	early := strings.Repeat("early ", 1000)
	for _, n := range []int{0, 1, 100, 600, 5000} {
		near, far := net.Pipe()
		p := &peer{nc: far, br: newReader(nil, far)}
		frame := string(p.frame(fin|text, early))
		r := handshake()
		r.Header.Set("Sec-WebSocket-Protocol", "ticket.abc, svc.protocol.v1")
		r.Header.Set("Sec-WebSocket-Extensions", "permessage-deflate")
		go func() {
			c, err := ws.Accept(hijacked{near, frame[:n]}, r, ws.Options{Protocol: "svc.protocol.v1", Header: http.Header{"X-Request-Id": {"7"}}})
			if err != nil {
				t.Errorf("Accept() = %v", err)
				return
			}
			echo(c) //nolint:errcheck // what comes back tells
		}()
		const want = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
			"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: svc.protocol.v1\r\nX-Request-Id: 7\r\n\r\n"
		got := make([]byte, len(want))
		if _, err := io.ReadFull(p.br, got); err != nil || string(got) != want {
			t.Fatalf("Accept sends %q, %v, want %q", got, err, want)
		}
		go p.send([]byte(frame[n:]))
		p.want(t, "text "+short(early))
		far.Close()
	}
}

func TestAcceptRefuses(t *testing.T) {
	if _, err := ws.Accept(hijacked{}, handshake(), ws.Options{Protocol: "other"}); err == nil {
		t.Error("Accept() with a protocol that is not offered = nil, want an error")
	}
	_, err := ws.Accept(httptest.NewRecorder(), handshake(), ws.Options{})
	if e, ok := errors.AsType[*ws.HandshakeError](err); !ok || e.Status != 500 {
		t.Errorf("Accept() of what cannot be hijacked = %v, want status 500", err)
	}
	near, far := net.Pipe()
	far.Close()
	if _, err := ws.Accept(hijacked{nc: near}, handshake(), ws.Options{}); err == nil {
		t.Error("Accept() of a connection that is gone = nil, want an error")
	} else if _, ok := errors.AsType[*ws.HandshakeError](err); ok {
		t.Errorf("Accept() = %v, want an error that tells there is nobody to answer", err)
	}
}

// deadlines is a connection that knows the deadlines it has.
type deadlines struct {
	script
	read, write time.Time
}

func (d *deadlines) SetDeadline(t time.Time) error      { d.read, d.write = t, t; return nil }
func (d *deadlines) SetReadDeadline(t time.Time) error  { d.read = t; return nil }
func (d *deadlines) SetWriteDeadline(t time.Time) error { d.write = t; return nil }

// TestServerDeadlines accepts a connection on which the server has set deadlines.
func TestServerDeadlines(t *testing.T) {
	soon := time.Now().Add(time.Second)
	d := &deadlines{read: soon, write: soon}
	if _, err := ws.Accept(hijacked{nc: d}, handshake(), ws.Options{}); err != nil {
		t.Fatal(err)
	}
	if !d.read.IsZero() || d.write.Before(soon.Add(time.Second)) {
		t.Errorf("Accept() leaves deadlines in %v to read and %v to write, want none and one of its own", time.Until(d.read), time.Until(d.write))
	}
}

func ExampleAccept() {
	ended := make(chan struct{})
	handler := func(w http.ResponseWriter, r *http.Request) {
		if _, err := ws.CheckHandshake(r); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		c, err := ws.Accept(w, r, ws.Options{})
		if err != nil {
			return
		}
		go func() {
			defer close(ended)
			defer c.CloseNow()
			_, p, err := c.Read()
			if err == nil {
				c.Write(ws.Text, append([]byte("hello "), p...)) //nolint:errcheck // Read tells
				_, _, err = c.Read()
			}
			fmt.Println("server:", ws.CodeOf(err))
			c.Close(ws.CodeNormal, "") //nolint:errcheck // it has ended
		}()
	}
	s := httptest.NewServer(http.HandlerFunc(handler))
	defer s.Close()
	ctx := context.Background()
	c, err := wstest.Dial(ctx, "ws"+strings.TrimPrefix(s.URL, "http"), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	c.Write(ctx, ws.Text, []byte("you")) //nolint:errcheck // Read tells
	_, p, _ := c.Read(ctx)
	fmt.Printf("client: %s\n", p)
	c.CloseNow()
	<-ended
	// Output:
	// client: hello you
	// server: 1006
}
