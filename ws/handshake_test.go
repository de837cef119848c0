package ws_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/ws"
)

// both connects the two sides of this package over TCP and net/http.
func both(t testing.TB, o ws.Options) (server, client *ws.Conn) {
	t.Helper()
	conns := make(chan *ws.Conn, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := ws.Accept(w, r, &ws.AcceptOptions{Options: o})
		if err != nil {
			t.Errorf("Accept() = %v", err)
		}
		conns <- c
	}))
	t.Cleanup(s.Close)
	client, err := ws.Dial(context.Background(), "ws"+strings.TrimPrefix(s.URL, "http"), &ws.DialOptions{Options: o})
	if err != nil {
		t.Fatalf("Dial() = %v", err)
	}
	server = <-conns
	t.Cleanup(func() { client.CloseNow(); server.CloseNow() })
	return server, client
}

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
		{"a protocol that breaks off", set("Upgrade", "websocket, TLS/"), 426},
		{"a version alone", set("Upgrade", "websocket, /1.0"), 426},
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
		{"quoted parameter", set(extensions, `a; b="c" ; d, e`), 0},
		{"parameter without name", set(extensions, "a; =b"), 400},
		{"parameter without value", set(extensions, "a; b="), 400},
		{"open quote", set(extensions, `a; b="c`), 400},
		{"quoted space", set(extensions, `a; b="c d"`), 400},
		{"extensions without comma", set(extensions, "a b"), 400},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			r := handshake()
			tc.change(r)
			err := ws.CheckHandshake(r)
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
				if _, err := ws.Accept(hijacked{}, r, nil); err == nil || err.Error() != bad.Error() {
					t.Errorf("Accept() = %v, want %v", err, bad)
				}
			}
		})
	}
	if got, err := ws.Protocols(http.Header{"Sec-Websocket-Protocol": {"svc.protocol.v1, ticket.abc", "x"}}); err != nil || !slices.Equal(got, []string{"svc.protocol.v1", "ticket.abc", "x"}) {
		t.Errorf("Protocols() = %q, %v", got, err)
	}
	if got, err := ws.Protocols(http.Header{}); err != nil || got != nil {
		t.Errorf("Protocols() = %q, %v, want none", got, err)
	}
	if _, err := ws.Protocols(http.Header{"Sec-Websocket-Protocol": {"ticket.secret, ticket.secret"}}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("Protocols() = %v, want an error that tells no value", err)
	}
}

// TestAccept compares the answer, byte for byte, and has frames come with the request.
func TestAccept(t *testing.T) {
	early := strings.Repeat("early ", 1000)
	for _, n := range []int{0, 1, 100, 600, 5000} {
		near, far := net.Pipe()
		p := &peer{nc: far, br: newReader(nil, far), client: true}
		frame := string(p.frame(fin|text, early))
		r := handshake()
		r.Header.Set("Sec-WebSocket-Protocol", "ticket.abc, svc.protocol.v1")
		r.Header.Set("Sec-WebSocket-Extensions", "permessage-deflate")
		go func() {
			c, err := ws.Accept(hijacked{near, frame[:n]}, r, &ws.AcceptOptions{Protocol: "svc.protocol.v1", Header: http.Header{"X-Request-Id": {"7"}}})
			if err != nil || c.Protocol() != "svc.protocol.v1" {
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
	for name, o := range map[string]ws.AcceptOptions{
		"protocol that is not offered": {Protocol: "other"},
		"field of the handshake":       {Header: http.Header{"Sec-Websocket-Extensions": {"x"}}},
		"another":                      {Header: http.Header{"upgrade": {"x"}}},
	} {
		if _, err := ws.Accept(hijacked{}, handshake(), &o); err == nil {
			t.Errorf("Accept() with a %s = nil, want an error", name)
		}
	}
	_, err := ws.Accept(httptest.NewRecorder(), handshake(), nil)
	if e, ok := errors.AsType[*ws.HandshakeError](err); !ok || e.Status != 500 {
		t.Errorf("Accept() of what cannot be hijacked = %v, want status 500", err)
	}
	near, far := net.Pipe()
	far.Close()
	if _, err := ws.Accept(hijacked{nc: near}, handshake(), nil); err == nil {
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
	if _, err := ws.Accept(hijacked{nc: d}, handshake(), nil); err != nil {
		t.Fatal(err)
	}
	if !d.read.IsZero() || d.write.Before(soon.Add(time.Second)) {
		t.Errorf("Accept() leaves deadlines in %v to read and %v to write, want none and one of its own", time.Until(d.read), time.Until(d.write))
	}
}

func TestDialTLS(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization") + " " + r.Header.Get("User-Agent") + " " + r.Host; got != "Bearer x  example.com" {
			t.Errorf("Dial sends %q", got)
		}
		c, err := ws.Accept(w, r, &ws.AcceptOptions{Protocol: "two"})
		if err != nil {
			t.Error(err)
			return
		}
		echo(c) //nolint:errcheck // what comes back tells
	}))
	defer s.Close()
	c, err := ws.Dial(t.Context(), "wss"+s.URL[5:], &ws.DialOptions{
		Protocols: []string{"one", "two"},
		Header:    http.Header{"Authorization": {"Bearer x"}, "Host": {"example.com"}},
		TLS:       s.Client().Transport.(*http.Transport).TLSClientConfig,
	})
	if err != nil || c.Protocol() != "two" {
		t.Fatalf("Dial() = %v", err)
	}
	long := []byte(strings.Repeat("long", 50_000))
	go c.Write(t.Context(), ws.Binary, long) //nolint:errcheck // what comes back tells
	if _, m, err := c.Read(t.Context()); err != nil || string(m) != string(long) {
		t.Errorf("Read() = %s, %v", short(m), err)
	}
	if err := c.Close(t.Context(), ws.CodeNormal, ""); err != nil {
		t.Errorf("Close() = %v", err)
	}
	if _, err := ws.Dial(t.Context(), "wss"+s.URL[5:], &ws.DialOptions{TLS: &tls.Config{}}); err == nil {
		t.Error("Dial() of a server that nobody vouches for = nil, want an error")
	}
}

func TestDialRefuses(t *testing.T) {
	for _, tc := range []struct {
		url string
		o   ws.DialOptions
	}{
		{url: "http://localhost/"},
		{url: "ws://"},
		{url: "ws://:80/"},
		{url: "ws://localhost/#"},
		{url: "ws://localhost/#x"},
		{url: "ws://me:secret@localhost/"},
		{url: "ws://local host/"},
		{url: "ws://localhost/", o: ws.DialOptions{Protocols: []string{"a b"}}},
		{url: "ws://localhost/", o: ws.DialOptions{Protocols: []string{"a", "a"}}},
		{url: "ws://localhost/", o: ws.DialOptions{Protocols: []string{"a,b"}}},
		{url: "ws://localhost/", o: ws.DialOptions{Header: http.Header{"sec-websocket-key": {"x"}}}},
	} {
		tc.o.Dial = func(context.Context, string, string) (net.Conn, error) {
			t.Errorf("Dial(%q) opens a connection", tc.url)
			return nil, io.EOF
		}
		if _, err := ws.Dial(t.Context(), tc.url, &tc.o); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("Dial(%q) = %v, want an error", tc.url, err)
		}
	}
}

// TestDialAnswers has servers answer all kinds of things; KEY stands for what the key makes.
func TestDialAnswers(t *testing.T) {
	const head = "HTTP/1.1 101 Switching Protocols\r\n"
	const fine = head + "upgrade: WebSocket\r\nConnection: keep-alive, upgrade\r\nSec-WebSocket-Accept: KEY\r\n"
	tests := []struct {
		name, answer, want string // want is part of the error, or the subprotocol
		ok                 bool
	}{
		{"proper", fine + "\r\n", "", true},
		{"chosen", fine + "Sec-WebSocket-Protocol: two\r\n\r\n", "two", true},
		{"after others", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n" + fine + "\r\n", "", true},
		{"with a frame", fine + "\r\n\x81\x00", "", true},
		{"too many before", strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 6) + fine + "\r\n", "too many", false},
		{"nothing", "", "EOF", false},
		{"nonsense", "SSH-2.0-OpenSSH\r\n", "malformed", false},
		{"cut off", fine, "EOF", false},
		{"too long", fine + "X: " + strings.Repeat("x", 70_000) + "\r\n\r\n", "longer than 65536", false},
		{"no upgrade", head + "Connection: upgrade\r\nSec-WebSocket-Accept: KEY\r\n\r\n", "upgrade to websocket", false},
		{"other upgrade", head + "Upgrade: h2c\r\nConnection: upgrade\r\nSec-WebSocket-Accept: KEY\r\n\r\n", "upgrade to websocket", false},
		{"no connection", head + "Upgrade: websocket\r\nSec-WebSocket-Accept: KEY\r\n\r\n", "upgrade the connection", false},
		{"no key", head + "Upgrade: websocket\r\nConnection: upgrade\r\n\r\n", "this key", false},
		{"other key", head + "Upgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n", "this key", false},
		{"extension", fine + "Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n", "extension", false},
		{"other protocol", fine + "Sec-WebSocket-Protocol: three\r\n\r\n", "protocol", false},
		{"two protocols", fine + "Sec-WebSocket-Protocol: one, two\r\n\r\n", "protocol", false},
		{"busy", "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 7\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat("busy", 10_000), "503", false},
		{"moved", "HTTP/1.1 302 Found\r\nLocation: ws://elsewhere/\r\n\r\n", "302", false},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			c, err := dialScript(t, []byte(tc.answer))
			switch {
			case tc.ok && (err != nil || c.Protocol() != tc.want):
				t.Errorf("Dial() = %v", err)
			case !tc.ok && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("Dial() = %v, want an error with %q", err, tc.want)
			}
			if e, ok := errors.AsType[*ws.DialError](err); ok != (tc.want == "503" || tc.want == "302") {
				t.Errorf("Dial() = %#v", err)
			} else if tc.want == "503" && (e.Header.Get("Retry-After") != "7" || len(e.Body) != 4096) {
				t.Errorf("Dial() tells %v and %d bytes, want Retry-After and 4096", e.Header, len(e.Body))
			}
		})
	}
}

// dialScript dials a server that answers as given.
func dialScript(t *testing.T, answer []byte) (*ws.Conn, error) {
	s := &script{answer: func(request []byte) []byte {
		return bytes.ReplaceAll(answer, []byte("KEY"), []byte(keyOf(t, request)))
	}}
	return ws.Dial(t.Context(), "ws://localhost/", &ws.DialOptions{
		Protocols: []string{"one", "two"},
		Dial:      func(context.Context, string, string) (net.Conn, error) { return s, nil },
	})
}

// TestDialTimeout dials a server that does not answer.
func TestDialTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		go io.Copy(io.Discard, far) //nolint:errcheck // it reads the request
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := ws.Dial(ctx, "ws://localhost:99/", &ws.DialOptions{Dial: func(_ context.Context, network, address string) (net.Conn, error) {
			if network != "tcp" || address != "localhost:99" {
				t.Errorf("dial(%q, %q)", network, address)
			}
			return near, nil
		}})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Dial() = %v, want %v", err, context.DeadlineExceeded)
		}
		if _, err := near.Read(nil); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("the connection is open: %v", err)
		}
	})
}

func ExampleAccept() {
	handler := func(w http.ResponseWriter, r *http.Request) {
		if err := ws.CheckHandshake(r); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		c, err := ws.Accept(w, r, nil)
		if err != nil {
			return
		}
		go func() {
			defer c.CloseNow()
			_, p, err := c.Read(context.Background())
			if err == nil {
				c.Write(context.Background(), ws.Text, append([]byte("hello "), p...)) //nolint:errcheck // Read tells
				_, _, err = c.Read(context.Background())
			}
			fmt.Println("server:", ws.CodeOf(err))
			c.Close(context.Background(), ws.CodeNormal, "") //nolint:errcheck // it has ended
		}()
	}
	s := httptest.NewServer(http.HandlerFunc(handler))
	defer s.Close()
	c, err := ws.Dial(context.Background(), "ws"+strings.TrimPrefix(s.URL, "http"), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	c.Write(context.Background(), ws.Text, []byte("you")) //nolint:errcheck // Read tells
	_, p, _ := c.Read(context.Background())
	fmt.Printf("client: %s\n", p)
	c.Close(context.Background(), ws.CodeGoingAway, "") //nolint:errcheck // it has ended
	// Output:
	// client: hello you
	// server: 1001
}
