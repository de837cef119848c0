package ws

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// DialOptions are what a client chooses. Zero values take the defaults.
type DialOptions struct {
	Options
	Protocols []string    // the subprotocols to offer, in order of preference
	Header    http.Header // further fields of the request, such as Authorization; none of the handshake

	// Dial opens the TCP connection. Default: that of a net.Dialer. No proxy is ever used.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	TLS  *tls.Config // for wss; the server name is that of the URL if it has none
}

// DialError is an answer to a handshake that is not 101.
type DialError struct {
	Status int
	Header http.Header
	Body   []byte // the first 4 KiB of it at most
}

func (e *DialError) Error() string {
	return fmt.Sprintf("ws: dial: the server answers %d %s", e.Status, http.StatusText(e.Status))
}

const (
	maxAnswer     = 64 << 10 // bytes of the header of an answer to a handshake, with those of answers that precede it
	maxAnswerBody = 4 << 10
	maxInterim    = 5 // answers that precede it, as 103 does
)

// Dial opens a connection to a ws or wss URL. The context limits the handshake only. Nil options are the zero ones.
//
// The error is a *DialError if the server answers otherwise than with 101. What Protocol tells is one of those offered, or
// "" if the server has chosen none, which the protocol allows.
func Dial(ctx context.Context, rawURL string, o *DialOptions) (*Conn, error) {
	if o == nil {
		o = &DialOptions{}
	}
	key := make([]byte, 16)
	rand.Read(key) //nolint:errcheck // it never fails
	r, err := opening(ctx, rawURL, base64.StdEncoding.EncodeToString(key), o)
	if err != nil {
		return nil, fmt.Errorf("ws: dial: %w", err)
	}
	nc, err := connect(ctx, r.URL, o)
	if err != nil {
		return nil, fmt.Errorf("ws: dial: %w", err)
	}
	leave := context.AfterFunc(ctx, func() { nc.Close() }) //nolint:errcheck // it is of no use
	c, err := shakeHands(nc, r, o)
	if !leave() && err == nil {
		err = fmt.Errorf("ws: dial: %w", context.Cause(ctx))
	} else if _, answered := errors.AsType[*DialError](err); err != nil && !answered {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		err = fmt.Errorf("ws: dial: %w", err)
	}
	if err != nil {
		nc.Close() //nolint:errcheck // see above
		return nil, err
	}
	return c, nil
}

// opening makes the request (section 4.1).
func opening(ctx context.Context, rawURL, key string, o *DialOptions) (*http.Request, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, err
	}
	switch {
	case u.Scheme != "ws" && u.Scheme != "wss":
		return nil, fmt.Errorf("the scheme %q is neither ws nor wss", u.Scheme)
	case u.Host == "" || u.Hostname() == "":
		return nil, errors.New("the URL has no host")
	case u.Fragment != "" || strings.Contains(rawURL, "#"): // section 3
		return nil, errors.New("the URL has a fragment")
	case u.User != nil:
		return nil, errors.New("the URL has credentials, which belong into a header")
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, rawURL, nil)
	if err != nil {
		return nil, err
	}
	for name, values := range o.Header {
		if isHandshakeField(name) {
			return nil, fmt.Errorf("the field %s belongs to the handshake", name)
		}
		if strings.EqualFold(name, "Host") && len(values) > 0 {
			r.Host = values[0]
			continue
		}
		r.Header[http.CanonicalHeaderKey(name)] = slices.Clone(values)
	}
	if r.Header.Get("User-Agent") == "" {
		r.Header["User-Agent"] = nil // keeps net/http from sending its own
	}
	r.Header.Set("Upgrade", "websocket")
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set(headerVersion, "13")
	r.Header.Set(headerKey, key)
	if len(o.Protocols) > 0 {
		r.Header.Set(headerProtocol, strings.Join(o.Protocols, ", "))
		if offered, err := Protocols(r.Header); err != nil || !slices.Equal(offered, o.Protocols) {
			return nil, errors.New("the protocols are not different tokens")
		}
	}
	return r, nil
}

// connect opens the connection, with TLS for wss.
func connect(ctx context.Context, u *url.URL, o *DialOptions) (net.Conn, error) {
	dial, port := o.Dial, u.Port()
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	if port == "" {
		port = map[string]string{"ws": "80", "wss": "443"}[u.Scheme]
	}
	nc, err := dial(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil || u.Scheme == "ws" {
		return nc, err
	}
	config := o.TLS.Clone()
	if config == nil {
		config = &tls.Config{}
	}
	if config.ServerName == "" {
		config.ServerName = u.Hostname()
	}
	config.NextProtos = []string{"http/1.1"}
	tc := tls.Client(nc, config)
	if err := tc.HandshakeContext(ctx); err != nil {
		nc.Close() //nolint:errcheck // it is of no use
		return nil, err
	}
	return tc, nil
}

// shakeHands sends the request and checks the answer (section 4.1, from "Once the client's opening handshake has been sent").
func shakeHands(nc net.Conn, r *http.Request, o *DialOptions) (*Conn, error) {
	if err := r.Write(nc); err != nil {
		return nil, err
	}
	limit := &io.LimitedReader{R: nc, N: maxAnswer}
	br := bufio.NewReader(limit)
	var answer *http.Response
	for i := 0; ; i++ {
		var err error
		if answer, err = http.ReadResponse(br, r); err != nil {
			if limit.N == 0 {
				err = fmt.Errorf("the header of the answer is longer than %d bytes", maxAnswer)
			}
			return nil, err
		}
		if answer.StatusCode == http.StatusSwitchingProtocols || answer.StatusCode >= 200 {
			break
		}
		if i == maxInterim {
			return nil, errors.New("too many answers that precede the one")
		}
	}
	if answer.StatusCode != http.StatusSwitchingProtocols {
		limit.N = 2 * maxAnswerBody
		body, _ := io.ReadAll(io.LimitReader(answer.Body, maxAnswerBody)) // in part is better than not
		return nil, &DialError{answer.StatusCode, answer.Header, body}
	}
	protocol, err := checkAnswer(answer.Header, r.Header.Get(headerKey), o.Protocols)
	if err != nil {
		return nil, err
	}
	early, err := br.Peek(br.Buffered())
	if err != nil {
		return nil, err
	}
	if err := nc.SetDeadline(time.Time{}); err != nil {
		return nil, err
	}
	return newConn(nc, early, true, protocol, o.Options), nil
}

// checkAnswer checks the header of an answer with 101, and returns the subprotocol.
func checkAnswer(h http.Header, key string, offered []string) (string, error) {
	switch {
	case len(h.Values("Upgrade")) != 1 || !strings.EqualFold(h.Get("Upgrade"), "websocket"): // item 2
		return "", errors.New("the answer does not upgrade to websocket")
	case !hasToken(h, "Connection", "upgrade"): // item 3
		return "", errors.New("the answer does not upgrade the connection")
	case len(h.Values(headerAccept)) != 1 || h.Get(headerAccept) != acceptValue(key): // item 4
		return "", errors.New("the answer is not to this key")
	case len(h.Values(headerExtensions)) > 0: // item 5
		return "", errors.New("the answer has an extension that was not offered")
	}
	chosen := h.Values(headerProtocol)
	if len(chosen) == 0 {
		return "", nil
	}
	if len(chosen) != 1 || !slices.Contains(offered, chosen[0]) { // item 6
		return "", errors.New("the answer has a protocol that was not offered")
	}
	return chosen[0], nil
}
