package provider_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/provider"
)

// pipes is a network of in-memory connections, on which a synctest bubble can sleep.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
	dials atomic.Int32
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	p.dials.Add(1)
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return here, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

// serve runs a real HTTP server on the network until the test ends and returns a transport that reaches only it.
func serve(t *testing.T, network *pipes, h http.Handler) *http.Transport {
	t.Helper()
	srv := &http.Server{Handler: h}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(network) }()
	tr := &http.Transport{DialContext: network.dial, DisableCompression: true}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		srv.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve() = %v, want ErrServerClosed", err)
		}
	})
	return tr
}

// A reply is what the server answers to one request.
type reply struct {
	status int // 0 = 200
	header map[string]string
	body   string
	then   func(w http.ResponseWriter, r *http.Request) // after the body was flushed
}

// A server answers requests with replies in turn and keeps what it was sent.
type server struct {
	t       *testing.T
	replies []reply
	bodies  []map[string]json.RawMessage
	network *pipes
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	var body map[string]json.RawMessage
	if err := json.Unmarshal(b, &body); err != nil {
		s.t.Errorf("request body %s: %v", b, err)
	}
	s.bodies = append(s.bodies, body)
	if len(s.bodies) > len(s.replies) {
		s.t.Errorf("request %d came, want only %d", len(s.bodies), len(s.replies))
		w.WriteHeader(http.StatusTeapot)
		return
	}
	rep := s.replies[len(s.bodies)-1]
	for k, v := range rep.header {
		w.Header().Set(k, v)
	}
	if rep.status != 0 {
		w.WriteHeader(rep.status)
	}
	io.WriteString(w, rep.body)
	if rep.then != nil {
		w.(http.Flusher).Flush()
		rep.then(w, r)
	}
}

// newServer starts a server and a provider that talks to it.
func newServer(t *testing.T, change func(*provider.OpenAIOptions), replies ...reply) (*server, *provider.OpenAI) {
	t.Helper()
	s := &server{t: t, replies: replies, network: newPipes()}
	o := provider.OpenAIOptions{Name: "local", BaseURL: "http://model.test/v1", Timeout: 2 * time.Minute, IdleTimeout: time.Minute, Retries: 3,
		Transport: serve(t, s.network, s)}
	if change != nil {
		change(&o)
	}
	p, err := provider.NewOpenAI(o)
	if err != nil {
		t.Fatalf("NewOpenAI() = %v", err)
	}
	return s, p
}

// exchange is a transport that answers every request with one body, without any network.
type exchange func(*http.Request) (*http.Response, error)

func (f exchange) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func answering(body io.Reader) exchange {
	return func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Body: io.NopCloser(body), Request: r}, nil
	}
}

// sse makes a stream of events, [DONE] included.
func sse(chunks ...string) string {
	return "data: " + strings.Join(chunks, "\n\ndata: ") + "\n\ndata: [DONE]\n\n"
}

func hello() *provider.Request {
	return &provider.Request{Model: "m", Messages: []message.Message{{Role: message.User, Content: message.Text("hello")}}}
}

func ignore(provider.Delta) {}

// say is a chunk with text, and with a finish reason if one is given.
func say(text string, finish ...string) string {
	chunk := map[string]any{"delta": map[string]any{"content": text}}
	if finish != nil {
		chunk["finish_reason"] = finish[0]
	}
	b, _ := message.Encode(map[string]any{"choices": []any{chunk}})
	return string(b)
}

func asError(t *testing.T, err error) *fault.Error {
	t.Helper()
	e, ok := errors.AsType[*fault.Error](err)
	if !ok {
		t.Fatalf("error %v (%T) is no *fault.Error", err, err)
	}
	return e
}
