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
)

// HTTPOptions is what NewHTTP needs. ID and URL are required.
type HTTPOptions struct {
	ID        string
	URL       string            // http or https, without user and password
	Headers   map[string]string // sent with every request
	Stream    string            // "" for one JSON answer, "sse" for an event stream
	HMACKey   []byte            // signs the requests when not empty
	Timeout   time.Duration     // of a whole run; 0 is DefaultTimeout
	MaxOutput int64             // bytes of an answer's body; 0 is DefaultMaxOutput
	Transport http.RoundTripper // nil: one of its own, that uses no proxy and keeps no connection open
	// Redact takes known secrets out of the beginning of an answer that is shown in an error; nil: there are none.
	Redact   func(string) string
	Outbound *outbound.Guard // makes the connections, where Transport is nil; nil: one without options
}

// HTTP is an agent behind a URL. A run is one POST of {runId, agentId, sessionId?, userId?, input, messages} with
// the run's id as Idempotency-Key; redirects are not followed. The answer is {output, usage?} or an event stream
// that ends with an event of type "result"; see [HTTPOptions]. A server cannot go on with a run after a restart of
// this process, nor after an approval, so HTTP is a Streamer and no Resumer.
//
// With a key, X-Timestamp is the time in Unix seconds and X-Signature is "sha256=" and the hex HMAC-SHA256 of the
// timestamp, a dot and the body.
type HTTP struct {
	id        string
	url       *url.URL
	header    http.Header
	stream    bool
	key       []byte
	limits    limits
	transport http.RoundTripper
	redact    func(string) string
}

var _ agent.Streamer = (*HTTP)(nil)

// ours are the headers that a configuration cannot set.
var ours = []string{"Accept", "Content-Type", "Idempotency-Key", "X-Signature", "X-Timestamp"}

// NewHTTP makes an agent, or returns config-invalid with all that is wrong. It dials nothing.
func NewHTTP(opts HTTPOptions) (*HTTP, error) {
	limits, issues := limitsOf(opts.Timeout, opts.MaxOutput)
	issues = append(issues, idIssues(opts.ID)...)
	u, err := url.Parse(opts.URL)
	switch {
	case err != nil:
		issues = append(issues, fault.At("is not a URL", "url"))
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		issues = append(issues, fault.At("is not an http or https URL with a host", "url"))
	case u.User != nil:
		issues = append(issues, fault.At("holds a user; send an Authorization header instead", "url"))
	}
	if opts.Stream != "" && opts.Stream != "sse" {
		issues = append(issues, fault.At(`is neither "" nor "sse"`, "stream"))
	}
	header, unfit := outbound.Headers(opts.Headers, ours...)
	issues = append(issues, unfit...)
	if issues != nil {
		return nil, fault.Invalid("The http agent is not valid.", issues...)
	}
	header.Set("Content-Type", "application/json")
	header.Set("Accept", "application/json")
	if opts.Stream == "sse" {
		header.Set("Accept", "text/event-stream")
	}
	transport := opts.Transport
	if transport == nil {
		transport = opts.Outbound.Transport("agents."+opts.ID+".url", outbound.HostPort(u))
	}
	return &HTTP{opts.ID, u, header, opts.Stream == "sse", bytes.Clone(opts.HMACKey), limits, transport, orSame(opts.Redact)}, nil
}

// ID is the agent's id.
func (a *HTTP) ID() string { return a.id }

// Run is Stream without the events.
func (a *HTTP) Run(ctx context.Context, in agent.Input) (agent.Result, error) {
	return a.Stream(ctx, in, discard{})
}

// Stream posts the input and gives the events of the answer to out; without "sse" there are none. The result's
// output is the server's JSON.
func (a *HTTP) Stream(ctx context.Context, in agent.Input, out agent.Sink) (agent.Result, error) {
	ctx, cancel := a.limits.within(ctx)
	defer cancel()
	req, err := a.request(ctx, in)
	if err != nil {
		return agent.Result{}, err
	}
	resp, err := a.transport.RoundTrip(req)
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
	body, err := requestOf(in).encode()
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = a.header.Clone()
	req.Header.Set("Idempotency-Key", in.RunID)
	if len(a.key) > 0 {
		now := strconv.FormatInt(time.Now().Unix(), 10)
		mac := hmac.New(sha256.New, a.key)
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
	body := &capped{wire{resp.Body}, a.limits.maxOutput, a.limits.tooLarge()}
	if a.stream {
		if media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); media != "text/event-stream" {
			return agent.Result{}, fault.New(fault.AgentProtocol, "The agent's answer is %q, not text/event-stream.", outbound.Line(media, 80))
		}
		result, err := relay("event", newEvents(body).next, out, false)
		if err == errNoResult {
			err = cutOff()
		}
		return result, err
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return agent.Result{}, err
	}
	members, err := object(data)
	if err != nil {
		return agent.Result{}, fault.New(fault.AgentProtocol, "The agent's answer %v.", err)
	}
	result, err := resultOf(members)
	if err != nil {
		return agent.Result{}, fault.New(fault.AgentProtocol, "The agent's answer %v.", err)
	}
	return result, nil
}

// wire is a body whose read errors, but for io.EOF, are faults.
type wire struct{ io.Reader }

func (w wire) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	switch {
	case err == nil, err == io.EOF:
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
	if text := outbound.Line(a.redact(string(head)), shown); text != "" {
		err.Message += ": " + text
	} else {
		err.Message += "."
	}
	if resp.StatusCode < 400 {
		err.Advise("Give the agent's final `url`; redirects are not followed.")
	}
	return err
}
