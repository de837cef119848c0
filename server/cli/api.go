package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"agentd/server/config"
	"agentd/server/fault"
	"agentd/server/id"
	"agentd/server/message"
)

const (
	dialPatience   = 5 * time.Second
	answerPatience = 60 * time.Second // until the first byte of an answer
	maxRefusal     = 1 << 20          // of an answer that tells an error
	maxAnswer      = 256 << 20        // of another, or of one event: it may hold the whole state of a run
)

const needsToken = "Set AGENTD_TOKEN, or the variable that --token-env names, to a token of that server; `agentd token create` makes one."

// An api is the API of a server that holds the store.
type api struct {
	client    *http.Client
	transport *http.Transport
	base      string
	token     string // empty: none
	keyed     bool   // requests carry keys
	honoured  bool   // and the server is known to honour them
}

// dial prepares to call the server at an address of the lock file. It sends nothing yet. The configuration is that
// server's.
func dial(address, token string, cfg *config.Config) (*api, error) {
	base, socket, err := reachable(address)
	if err != nil {
		return nil, err
	}
	a := newAPI(base, token)
	a.keyed = cfg.Server.Idempotency.Enabled
	a.honoured = a.keyed
	if socket != "" {
		dialer := &net.Dialer{Timeout: dialPatience}
		a.transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		}
	}
	if file := cfg.Server.TLS.CertFile; file != "" {
		if a.transport.TLSClientConfig, err = trust(cfg.Resolve(file)); err != nil {
			return nil, fault.New(fault.ServerUnreachable, "The server's certificate cannot be read: %v.", err).Because(err)
		}
	}
	return a, nil
}

// newAPI is the API at a URL.
func newAPI(base, token string) *api {
	dialer := &net.Dialer{Timeout: dialPatience}
	transport := &http.Transport{DialContext: dialer.DialContext, ResponseHeaderTimeout: answerPatience} // no proxy: it would get the token
	return &api{base: base, token: token, transport: transport, client: &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// trust accepts the very certificate that the server's configuration names, whatever name it is for: the server is met
// by an address of this machine.
func trust(file string) (*tls.Config, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s is not PEM", file)
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, // replaced by the comparison below
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 || !bytes.Equal(s.PeerCertificates[0].Raw, block.Bytes) {
				return errors.New("the certificate is not the one that server.tls.certFile names")
			}
			return nil
		},
	}, nil
}

func (a *api) close() error {
	a.client.CloseIdleConnections()
	return nil
}

// call sends a document, or none when body is nil, and reads the answer into another, unless that is nil.
func (a *api) call(ctx context.Context, method, path string, body, to any) error {
	var sent []byte
	if body != nil {
		var err error
		if sent, err = message.Encode(body); err != nil {
			return err
		}
	}
	res, err := a.do(ctx, method, path, sent, "")
	if err != nil {
		return err
	}
	return a.read(res, to)
}

// read reads an answer into a document, unless that is nil.
func (a *api) read(res *http.Response, to any) error {
	defer res.Body.Close()
	if to == nil {
		return nil
	}
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return a.unreachable(err)
	}
	if err := json.Unmarshal(b, to); err != nil {
		return fault.New(fault.ServerUnreachable, "What answers at %s does not speak as agentd does.", a.base).Because(err)
	}
	return nil
}

// do sends a request whose answer may be events, those after a cursor if there is one. The error is the server's own,
// or server-unreachable.
func (a *api) do(ctx context.Context, method, path string, body []byte, cursor string) (*http.Response, error) {
	header := http.Header{"Accept": {"text/event-stream, application/json"}}
	if cursor != "" {
		header.Set("Last-Event-ID", cursor)
	}
	return a.send(ctx, method, path, body, header)
}

// A request whose connection is lost is sent again after so long, each time twice as long.
const (
	lostWait     = 100 * time.Millisecond
	lostWaitMost = 3 * time.Second
)

// send sends a request with a header, which it keeps. The error is the server's own, or server-unreachable.
//
// One that changes something carries a key. Where the server is known to honour keys, it is sent again when the
// connection is lost before its answer comes, and still happens once.
func (a *api) send(ctx context.Context, method, path string, body []byte, header http.Header) (*http.Response, error) {
	effect := method != http.MethodGet
	if effect && a.keyed {
		header.Set("Idempotency-Key", id.New())
	}
	if !effect || !a.honoured {
		return a.once(ctx, method, path, body, header)
	}
	lost := false
	for wait := lostWait; ; wait *= 2 {
		res, err := a.once(ctx, method, path, body, header)
		lost = lost || wasLost(err)
		if again := lost && (fault.Is(err, fault.ServerUnreachable) || fault.Is(err, fault.IdempotencyInFlight)); !again || wait > lostWaitMost {
			return res, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// wasLost reports whether a connection broke after it had been made, so that the server may have got the request.
func wasLost(err error) bool {
	var f *fault.Error
	if !errors.As(err, &f) || f.Kind != fault.ServerUnreachable || f.Cause == nil {
		return false
	}
	var op *net.OpError
	if errors.As(f.Cause, &op) && op.Op == "dial" {
		return false
	}
	var timed net.Error
	return !errors.As(f.Cause, &timed) || !timed.Timeout()
}

func (a *api) once(ctx context.Context, method, path string, body []byte, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = header
	if a.token != "" {
		req.Header.Set("Authorization", "Bearer "+a.token)
	}
	res, err := a.client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, a.unreachable(err)
	}
	if res.StatusCode >= 300 {
		defer res.Body.Close()
		return nil, a.refusal(res)
	}
	return res, nil
}

// innermost is the last part of a network error, without addresses that were told already.
func innermost(err error) error {
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return err
}

// refusal is the server's error as it told it.
func (a *api) refusal(res *http.Response) error {
	var doc failure
	b, _ := io.ReadAll(io.LimitReader(res.Body, maxRefusal))
	if json.Unmarshal(b, &doc) != nil || doc.Error == "" {
		return fault.New(fault.ServerUnreachable, "What answers at %s is no agentd: status %d.", a.base, res.StatusCode).
			Advise("Check which process listens there.")
	}
	e := fault.Told(doc.Error, doc.Message, doc.Hint)
	e.Issues = doc.Issues
	if e.Kind == fault.AuthRequired {
		e.Advise(needsToken)
	}
	return e
}

func (a *api) unreachable(err error) error {
	return fault.New(fault.ServerUnreachable, "The server at %s does not answer: %v.", a.base, innermost(err)).Because(err)
}

// reachable is the address with a host that can be dialled: a server that listens everywhere is met on loopback. For a
// Unix socket it is its path, too.
func reachable(address string) (base, socket string, err error) {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		socket, base, _ = strings.Cut(path, "#")
		return "http://localhost" + base, socket, nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", "", fault.New(fault.ServerUnreachable, "The lock file names %q, which is no address of a server.", address)
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil && ip.IsUnspecified() {
		loopback := "127.0.0.1"
		if ip.Is6() {
			loopback = "::1"
		}
		u.Host = net.JoinHostPort(loopback, u.Port())
	}
	return strings.TrimSuffix(u.String(), "/"), "", nil
}
