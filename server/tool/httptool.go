package tool

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/outbound"
	"agentd/server/secret"
	"agentd/server/tracecontext"
)

// HTTPOptions is what NewHTTP needs. Spec, Method and URL are required.
type HTTPOptions struct {
	Spec   Spec
	Method string // GET, HEAD, POST, PUT, PATCH or DELETE
	// URL is a template: {name} in its path or query stands for the argument of that name, escaped. Every argument of
	// the path must be there and not be empty; a pair of the query is left out when its argument is absent, and
	// repeated for each item of a list that is its only argument.
	URL     string
	Headers map[string]string // with secrets filled in; they go to the URL's own host only
	// Body is a template of a JSON body. A text that consists of {name} becomes the argument itself; if the argument is absent,
	// the member or item is left out. {name} inside a text becomes the argument as text. Without a Body, POST, PUT and PATCH
	// send an object of the arguments that the URL does not use, and the other methods send no body.
	Body       json.RawMessage
	AllowHosts []string          // host or host:port, besides the URL's own, that redirects may lead to
	MaxBytes   int64             // of the answer, unpacked; 32 MiB is the most
	Transport  http.RoundTripper // reports connections as package httptrace does; nil: a connection for each call, without proxy
	Known      *secret.Redactor  // secrets that are taken out of the part of an answer that an error shows; nil: there are none
	Outbound   *outbound.Guard   // makes the connections, where Transport is nil; nil: one without options
}

const (
	maxErrorBody  = 2 << 10 // of an answer that reports a failure, shown to the model
	maxRedirects  = 5
	maxRetryAfter = time.Hour
)

// NewHTTP makes a tool of an HTTP request, or returns config-invalid with all problems. It connects to nothing.
//
// The answer is JSON if it parses, an image if its type is one, else text. A status other than 2xx is an error with up to
// 2 KiB of the answer; 429 is rate_limited and honours Retry-After. Up to five redirects are followed, to the same
// host and port or to AllowHosts, never from https to http. Each request has the call's Key as its Idempotency-Key.
//
// The outcome is unknown when a request was begun and no complete answer came, or an answer of 408, 502 or 504, with which a
// server or a proxy says that it does not know either. Without a connection, nothing was done.
func NewHTTP(o HTTPOptions) (Tool, error) {
	o.MaxBytes = min(o.MaxBytes, maxOutput)
	t := &httpTool{o: o, sends: len(o.Body) > 0 || slices.Contains([]string{http.MethodPost, http.MethodPut, http.MethodPatch}, o.Method)}
	headers, issues := outbound.Headers(o.Headers, "Accept-Encoding")
	t.headers = http.Header{"Accept": {"application/json, text/*;q=0.9, */*;q=0.5"}, "User-Agent": {"agentd"}}
	maps.Copy(t.headers, headers)
	var err error
	if t.address, err = parseAddress(o.URL); err != nil {
		issues = append(issues, fault.At(err.Error(), "url"))
	}
	if len(o.Body) > 0 {
		d := json.NewDecoder(bytes.NewReader(o.Body))
		d.UseNumber()
		if err = d.Decode(&t.body); err != nil {
			issues = append(issues, fault.At("not JSON: "+err.Error(), "body"))
		}
	}
	issues = append(issues, undeclared(o.Spec.Input, o.URL, "url")...)
	issues = append(issues, undeclared(o.Spec.Input, string(o.Body), "body")...)
	if issues != nil {
		return nil, fault.Invalid("The http tool is not valid.", issues...)
	}
	t.allowed = []string{t.address.host}
	scheme, _, _ := strings.Cut(o.URL, ":")
	for _, host := range o.AllowHosts {
		t.allowed = append(t.allowed, outbound.HostPort(&url.URL{Scheme: scheme, Host: host}))
	}
	if o.Transport == nil {
		own := o.Outbound.Transport(t.setting(), t.allowed...)
		own.DisableCompression = false
		t.o.Transport = own
	}
	return t, nil
}

// undeclared reports the slots of a template that are no property of the schema: they are typing errors.
func undeclared(input json.RawMessage, template, field string) (issues []fault.Issue) {
	var schema struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if json.Unmarshal(input, &schema) != nil || schema.Properties == nil {
		return nil
	}
	for _, arg := range slots(template) {
		if _, ok := schema.Properties[arg]; !ok {
			issues = append(issues, fault.At(fmt.Sprintf("{%s} is not a property of the input", arg), field))
		}
	}
	return issues
}

type httpTool struct {
	o       HTTPOptions
	address *address
	headers http.Header
	sends   bool     // a body
	body    any      // its template; nil: it is the arguments that the URL does not use
	allowed []string // host:port
}

// setting is the field of the configuration that names the tool's host.
func (t *httpTool) setting() string { return "tools." + t.o.Spec.Name + ".url" }

func (t *httpTool) Spec() Spec { return t.o.Spec }

func (t *httpTool) Execute(ctx context.Context, call Call) (Result, error) {
	var p progress
	req, err := t.request(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: p.connected}), call)
	if err != nil {
		return Result{}, err
	}
	client := http.Client{Transport: t.o.Transport, CheckRedirect: func(req *http.Request, via []*http.Request) error {
		p.begun.Store(false)
		return t.checkRedirect(req, via)
	}}
	resp, err := client.Do(req)
	if err != nil {
		return Result{}, t.unreached(ctx, err, &p)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return Result{}, t.refused(resp)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, t.o.MaxBytes+1))
	switch {
	case int64(len(body)) > t.o.MaxBytes: // the server has said that it succeeded
		return Result{}, &Error{Kind: message.InvalidOutput, Message: fmt.Sprintf("The server answered %d, and the answer has more than %d bytes.", resp.StatusCode, t.o.MaxBytes),
			Hint: strings.TrimSpace("Ask for less at once. " + t.warning())}
	case err != nil && ctx.Err() != nil:
		return Result{}, context.Cause(ctx)
	case err != nil:
		return Result{}, &Error{Message: "The answer broke off.", Hint: t.warning(), Unknown: true}
	}
	return t.result(resp, body)
}

func (t *httpTool) request(ctx context.Context, call Call) (*http.Request, error) {
	args, err := parseArguments(call.Args)
	if err != nil {
		return nil, err
	}
	u, err := t.address.fill(args)
	if err != nil {
		return nil, err
	}
	var body io.Reader
	if t.sends {
		sent, _ := fillBody(t.body, args)
		if t.body == nil {
			for _, name := range slots(t.o.URL) {
				delete(args, name)
			}
			sent = args
		}
		b, err := message.Encode(sent)
		if err != nil {
			return nil, invalidInput("The arguments do not make a JSON body.", "")
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, t.o.Method, u.String(), body)
	if err != nil {
		return nil, invalidInput("The arguments do not make a valid request.", "")
	}
	req.Header = t.headers.Clone()
	tracecontext.From(ctx).Inject(req.Header)
	if t.sends && req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if call.Key != "" && req.Header.Get("Idempotency-Key") == "" {
		// Written so that net/http does not know it: it would take the header as leave to send the request again when
		// a connection breaks, also to servers that ignore it. Names of headers are the same in any case.
		req.Header["idempotency-key"] = []string{call.Key}
	}
	return req, nil
}

// warning is the hint after a failure that may have come too late.
func (t *httpTool) warning() string {
	if t.o.Spec.Repeatable() {
		return ""
	}
	return mayHaveHappened
}

// progress is how far the requests of a call have got. Redirects make several requests.
type progress struct {
	begun atomic.Bool // the latest request has a connection, over which it is sent
	any   atomic.Bool // one of the requests had
}

func (p *progress) connected(httptrace.GotConnInfo) {
	p.begun.Store(true)
	p.any.Store(true)
}

// unreached is the error for a request without an answer. It shows neither the URL nor its arguments.
func (t *httpTool) unreached(ctx context.Context, err error, p *progress) error {
	if refused, ok := errors.AsType[*Error](err); ok { // a redirect
		return refused
	}
	e := &Error{NotBegun: !p.any.Load()}
	if refused, ok := errors.AsType[*fault.Error](err); ok {
		e.Kind, e.Message, e.Hint = message.CapabilityBlocked, refused.Message, refused.Hint
		return e
	}
	begun := p.begun.Load()
	op, dial := errors.AsType[*net.OpError](err)
	cert, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	switch {
	case ctx.Err() != nil && begun:
		return context.Cause(ctx)
	case context.Cause(ctx) == errTimeout:
		e.Kind, e.Message = message.Timeout, "The server could not be reached in time."
	case ctx.Err() != nil:
		e.Kind, e.Message = message.AbortedCall, "The call was aborted before it began."
	case dial && op.Op == "dial":
		e.Message = "The server could not be reached" + outbound.Reason(err) + "."
	case untrusted:
		e.Message = "The server's certificate is not trusted: " + cert.Err.Error() + "."
	case !begun:
		e.Message = "The server could not be connected to."
	default:
		e.Message, e.Hint, e.Unknown = "The server did not answer, or not in HTTP.", t.warning(), true
	}
	return e
}
