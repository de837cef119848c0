// Package client calls the API of a server: requests, downloads, and streams of events that resume after a lost connection.
package client

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

	"agentd/server/fault"
	"agentd/server/id"
	"agentd/server/message"
)

const (
	dialPatience   = 5 * time.Second
	answerPatience = 60 * time.Second // until the first byte of an answer
	maxRefusal     = 1 << 20          // of an answer that is an error
	maxAnswer      = 256 << 20        // of another, or of one event: it may hold the whole state of a run
)

// Options say which API to call, and how.
type Options struct {
	URL   string // of the API, such as https://host/v1
	Token string // empty: none is sent
	// Dial makes the connections; nil: by the URL's host and port.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Certificate is the PEM file of the only certificate that is accepted, whatever name it is for; empty: the system's trust.
	Certificate string
	// Keyed sends an Idempotency-Key with each request that changes something.
	Keyed bool
	// Hints are what to do about errors of the server, by their kind, in the place of what the server advises.
	Hints map[*fault.Kind]string
	// Again sends a request with a key again when its connection is lost: the server is known to carry it out once.
	Again bool
}

// Client is the API of one server. It is safe for concurrent use.
type Client struct {
	http http.Client
	o    Options
}

// New prepares to call a server. It dials nothing.
func New(o Options) (*Client, error) {
	if o.Dial == nil {
		o.Dial = (&net.Dialer{Timeout: dialPatience}).DialContext
	}
	transport := &http.Transport{DialContext: o.Dial, ResponseHeaderTimeout: answerPatience} // no proxy: it would get the token
	if o.Certificate != "" {
		only, err := trust(o.Certificate)
		if err != nil {
			return nil, fault.New(fault.ServerUnreachable, "The server's certificate cannot be read: %v.", err).Because(err)
		}
		transport.TLSClientConfig = only
	}
	return &Client{o: o, http: http.Client{Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}, nil
}

// Locate returns the options for a server by the address in its lock file. A server that listens on all addresses is
// called on loopback, and one that listens on a Unix socket through that.
func Locate(address string) (Options, error) {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		socket, base, _ := strings.Cut(path, "#")
		return Options{URL: "http://localhost" + base, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: dialPatience}).DialContext(ctx, "unix", socket)
		}}, nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return Options{}, fault.New(fault.ServerUnreachable, "The lock file names %q, which is not an address of a server.", address)
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil && ip.IsUnspecified() {
		loopback := "127.0.0.1"
		if ip.Is6() {
			loopback = "::1"
		}
		u.Host = net.JoinHostPort(loopback, u.Port())
	}
	return Options{URL: strings.TrimSuffix(u.String(), "/")}, nil
}

// trust accepts the certificate of a file, and no other.
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

// URL is the URL of the API.
func (c *Client) URL() string { return c.o.URL }

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Call sends a document, or none when body is nil, and reads the answer into another, unless that is nil.
func (c *Client) Call(ctx context.Context, method, path string, body, to any) error {
	var sent []byte
	if body != nil {
		var err error
		if sent, err = message.Encode(body); err != nil {
			return err
		}
	}
	return c.Post(ctx, method, path, "application/json", sent, to)
}

// Post is [Client.Call] for a body that is encoded already.
func (c *Client) Post(ctx context.Context, method, path, mediaType string, body []byte, to any) error {
	res, err := c.Send(ctx, method, path, body, http.Header{"Accept": {"application/json"}, "Content-Type": {mediaType}})
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if to == nil {
		return nil
	}
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return c.unreachable(err)
	}
	if err := json.Unmarshal(b, to); err != nil {
		return fault.New(fault.ServerUnreachable, "The answer from %s is not that of an agentd server.", c.o.URL).Because(err)
	}
	return nil
}

// Download writes an answer of JSON Lines as it comes.
func (c *Client) Download(ctx context.Context, method, path string, w io.Writer) error {
	res, err := c.Send(ctx, method, path, nil, http.Header{"Accept": {"application/x-ndjson"}})
	if err != nil {
		return err
	}
	defer res.Body.Close()
	from := &sourceReader{r: res.Body}
	if _, err = io.Copy(w, from); from.err != nil {
		return fault.New(fault.ServerUnreachable, "The answer of the server at %s broke off: %v.", c.o.URL, fault.Innermost(from.err)).
			Because(err).Advise("Run the command again; its output is incomplete.")
	}
	return err
}

// sourceReader remembers why it could not be read any further.
type sourceReader struct {
	r   io.Reader
	err error
}

func (s *sourceReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

// A request whose connection is lost is sent again after so long, each time twice as long.
const (
	lostWait     = 100 * time.Millisecond
	lostWaitMost = 3 * time.Second
)

// Send sends a request with a header, which it keeps, and returns an answer with a status below 300. The error is the
// server's own, server-unreachable, or the cause of ctx.
func (c *Client) Send(ctx context.Context, method, path string, body []byte, header http.Header) (*http.Response, error) {
	effect := method != http.MethodGet
	if effect && c.o.Keyed {
		header.Set("Idempotency-Key", id.New())
	}
	lost := false
	for wait := lostWait; ; wait *= 2 {
		res, err := c.once(ctx, method, path, body, header)
		lost = lost || wasLost(err)
		again := effect && c.o.Again && lost && (fault.Is(err, fault.ServerUnreachable) || fault.Is(err, fault.IdempotencyInFlight))
		if !again || wait > lostWaitMost {
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
	f, ok := errors.AsType[*fault.Error](err)
	if !ok || f.Kind != fault.ServerUnreachable || f.Cause == nil {
		return false
	}
	op, ok := errors.AsType[*net.OpError](f.Cause)
	timed, isTimed := errors.AsType[net.Error](f.Cause)
	return !(ok && op.Op == "dial") && !(isTimed && timed.Timeout())
}

func (c *Client) once(ctx context.Context, method, path string, body []byte, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.o.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = header
	if c.o.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.o.Token)
	}
	res, err := c.http.Do(req)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, c.unreachable(err)
	case res.StatusCode >= 300:
		defer res.Body.Close()
		return nil, c.refusal(res)
	}
	return res, nil
}

// refusal is the error that the server has answered with.
func (c *Client) refusal(res *http.Response) error {
	var doc struct {
		Error, Message, Hint string
		Issues               []fault.Issue
	}
	b, _ := io.ReadAll(io.LimitReader(res.Body, maxRefusal))
	if json.Unmarshal(b, &doc) != nil || doc.Error == "" {
		return fault.New(fault.ServerUnreachable, "The server at %s is not agentd: status %d.", c.o.URL, res.StatusCode).
			Advise("Check which process listens there.")
	}
	e := fault.Told(doc.Error, doc.Message, doc.Hint)
	e.Issues = doc.Issues
	if hint := c.o.Hints[e.Kind]; hint != "" {
		e.Advise(hint)
	}
	return e
}

func (c *Client) unreachable(err error) error {
	return fault.New(fault.ServerUnreachable, "The server at %s does not answer: %v.", c.o.URL, fault.Innermost(err)).Because(err)
}
