package external

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"agentd/server/agent"
	"agentd/server/fault"
	"agentd/server/outbound"
	"agentd/server/secret"
	"agentd/server/tracecontext"
)

// HTTPOptions is what NewHTTP needs. ID, URL, Timeout and MaxOutput are required.
type HTTPOptions struct {
	ID        string
	URL       string            // http or https
	Headers   map[string]string // sent with every request
	Stream    string            // "" for one JSON answer, "sse" for an event stream
	HMACKey   []byte            // signs the requests when not empty
	Timeout   time.Duration     // of a whole run
	MaxOutput int64             // bytes of an answer's body
	Transport http.RoundTripper // nil: the guard's, which uses no proxy and keeps no connection open
	Known     *secret.Redactor  // secrets that are taken out of the part of an answer that an error shows; nil: there are none
	Outbound  *outbound.Guard   // makes the connections, where Transport is nil; nil: one without options
}

// HTTP is an agent behind a URL. A run is one POST of {runId, agentId, sessionId?, userId?, input, messages} with
// the run's id as Idempotency-Key; redirects are not followed. The answer is {output, usage?} or an event stream
// that ends with an event of type "result"; see [HTTPOptions]. A server cannot resume a run, neither after a restart of
// this process nor after an approval, so HTTP is a Streamer and no Resumer.
//
// With a key, X-Timestamp is the time in Unix seconds and X-Signature is "sha256=" and the hex HMAC-SHA256 of the
// timestamp, a dot and the body.
type HTTP struct {
	o      HTTPOptions
	header http.Header
}

var _ agent.Streamer = (*HTTP)(nil)

// NewHTTP makes an agent, or returns config-invalid with all that is wrong. It dials nothing.
func NewHTTP(o HTTPOptions) (*HTTP, error) {
	header, issues := outbound.Headers(o.Headers, "Accept", "Content-Type", "Idempotency-Key", "X-Signature", "X-Timestamp")
	u, err := url.Parse(o.URL)
	if err != nil || u.Host == "" {
		issues = append(issues, fault.At("is not a URL", "url"))
	}
	if issues != nil {
		return nil, fault.Invalid("The http agent is not valid.", issues...)
	}
	header.Set("Content-Type", "application/json")
	header.Set("Accept", "application/json")
	if o.Stream == "sse" {
		header.Set("Accept", "text/event-stream")
	}
	if o.Transport == nil {
		o.Transport = o.Outbound.Transport("agents."+o.ID+".url", outbound.HostPort(u))
	}
	return &HTTP{o, header}, nil
}

// ID is the agent's id.
func (a *HTTP) ID() string { return a.o.ID }

// Run is Stream without the events.
func (a *HTTP) Run(ctx context.Context, in agent.Input) (agent.Result, error) {
	return a.Stream(ctx, in, discard{})
}

// Stream posts the input and gives the events of the answer to out; without "sse" there are none. The result's
// output is the server's JSON.
func (a *HTTP) Stream(ctx context.Context, in agent.Input, out agent.Sink) (agent.Result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, a.o.Timeout, timedOut(a.o.Timeout))
	defer cancel()
	req, err := a.request(ctx, in)
	if err != nil {
		return agent.Result{}, err
	}
	resp, err := a.o.Transport.RoundTrip(req)
	if err != nil {
		if ctx.Err() != nil {
			return agent.Result{}, context.Cause(ctx)
		}
		if refused, ok := errors.AsType[*fault.Error](err); ok {
			return agent.Result{}, refused
		}
		return agent.Result{}, fault.New(fault.AgentUnreachable, "The agent's server could not be reached%s.", outbound.Reason(err)).Because(err)
	}
	defer resp.Body.Close()
	result, err := a.answer(resp, out)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return result, err
}

func (a *HTTP) request(ctx context.Context, in agent.Input) (*http.Request, error) {
	r, err := requestOf(in)
	if err != nil {
		return nil, err
	}
	body, err := r.encode()
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.o.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = a.header.Clone()
	tracecontext.From(ctx).Inject(req.Header)
	req.Header.Set("Idempotency-Key", in.RunID)
	if len(a.o.HMACKey) > 0 {
		now := strconv.FormatInt(time.Now().Unix(), 10)
		mac := hmac.New(sha256.New, a.o.HMACKey)
		mac.Write([]byte(now + "."))
		mac.Write(body)
		req.Header.Set("X-Timestamp", now)
		req.Header.Set("X-Signature", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	}
	return req, nil
}

func (a *HTTP) answer(resp *http.Response, out agent.Sink) (agent.Result, error) {
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return agent.Result{}, a.refused(resp)
	}
	in := body{http.MaxBytesReader(nil, resp.Body, a.o.MaxOutput), a.o.MaxOutput}
	if a.o.Stream == "sse" {
		if media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); media != "text/event-stream" {
			return agent.Result{}, fault.New(fault.AgentProtocol, "The agent's answer is %q, not text/event-stream.", outbound.Line(media, 80))
		}
		result, err := relay(events(in), out, false)
		if err == errNoResult {
			err = cutOff()
		}
		return result, err
	}
	data, err := io.ReadAll(in)
	if err != nil {
		return agent.Result{}, err
	}
	var result agent.Result
	members, err := object(data)
	if err == nil {
		result, err = resultOf(members)
	}
	if err != nil {
		return agent.Result{}, fault.New(fault.AgentProtocol, "The agent's answer %v.", err)
	}
	return result, nil
}

// body reads an answer of at most MaxOutput bytes. Its errors, but for io.EOF, are faults.
type body struct {
	io.Reader
	limit int64
}

func (b body) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	_, over := errors.AsType[*http.MaxBytesError](err)
	switch {
	case err == nil, err == io.EOF:
	case over:
		err = tooLarge(b.limit)
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = cutOff()
	default:
		err = fault.New(fault.AgentUnreachable, "The connection to the agent's server broke.").Because(err)
	}
	return n, err
}

func cutOff() error {
	return fault.New(fault.AgentProtocol, "The agent's answer ended without a result.")
}

// refused is the error for an answer that is no success: its status and the beginning of its body.
func (a *HTTP) refused(resp *http.Response) error {
	const shown = 300 // characters
	head, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	status := strings.TrimSpace(strconv.Itoa(resp.StatusCode) + " " + http.StatusText(resp.StatusCode))
	err := fault.New(fault.AgentProtocol, "The agent's server answered %s", status)
	if text := outbound.Line(a.o.Known.Piece(string(head)), shown); text != "" {
		err.Message += ": " + text
	} else {
		err.Message += "."
	}
	if resp.StatusCode < 400 {
		err.Advise("Set `url` to the agent's final address; agentd follows no redirects.")
	}
	return err
}
