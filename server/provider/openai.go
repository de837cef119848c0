package provider

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"agentd/server/fault"
	"agentd/server/outbound"
	"agentd/server/secret"
	"agentd/server/tracecontext"
)

// OpenAIOptions describe a server that speaks the chat completions protocol. Name, BaseURL, Timeout and IdleTimeout are required.
type OpenAIOptions struct {
	Name string
	// BaseURL is where the protocol begins: a path that ends in /v1 gets /chat/completions, one that ends in
	// /chat/completions stays, any other gets /v1/chat/completions. A query is kept.
	BaseURL     string
	APIKey      string            // without it, no Authorization header is sent
	Headers     map[string]string // sent with every request; they win over the provider's own
	Timeout     time.Duration     // until the answer's headers
	IdleTimeout time.Duration     // between bytes of the answer
	Retries     int               // further attempts after a temporary failure
	Prices      Prices            // nil = nothing is priced
	// Whole asks for each answer in one piece, for servers whose streams lack something, such as tool calls. Timeout is then
	// the limit for the complete answer.
	Whole bool
	// Transport makes the connections; nil = the provider makes one, which dials what BaseURL names and uses no proxy.
	Transport http.RoundTripper
	Outbound  *outbound.Guard // of the provider's own transport; nil = one without options
	Logger    *slog.Logger    // nil = silence
	// Known are secrets that are taken out of what is quoted of the server's answers, besides the key and the headers of this
	// provider; nil: there are none.
	Known *secret.Redactor
}

// OpenAI is a [Provider] that talks to a server with the chat completions protocol.
//
//	attempt -> answered: response
//	        -> refused a parameter (400, 422): leave it out, attempt again, remember it for the model
//	        -> failed in a way that may pass before the first delta: wait, attempt again, as often as Retries allows
//	        -> anything else: error
type OpenAI struct {
	o       OpenAIOptions // with defaults
	url     string
	headers http.Header // of every request
	secrets []string    // that a server may quote and nobody may see: the key, and the words of the configured headers

	mu      sync.Mutex          // guards refused
	refused map[string]omission // by model: what it is known to refuse, at most maxModels of them
}

// maxModels bounds what the provider remembers per model. Above it, it forgets everything and learns again.
const maxModels = 1000

// NewOpenAI makes a provider. It dials nothing. The error is a *fault.Error of kind config-invalid that lists every
// problem of the options.
//
// Reading an event takes up to 450 bytes of memory for each byte, which is for choices and parts that hold nothing.
func NewOpenAI(o OpenAIOptions) (*OpenAI, error) {
	headers, issues := outbound.Headers(o.Headers)
	base, err := url.Parse(o.BaseURL)
	if err != nil || base.Host == "" {
		issues = append(issues, fault.At("is not a URL", "baseUrl"))
	}
	if o.APIKey = strings.TrimSpace(o.APIKey); !outbound.HeaderValue(o.APIKey) {
		issues = append(issues, fault.At("leads to a key with control characters", "apiKeyRef"))
	}
	if issues != nil {
		return nil, fault.Invalid("The provider's options are not valid.", issues...)
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Transport == nil {
		own := o.Outbound.Transport("providers."+o.Name+".baseUrl", outbound.HostPort(base))
		own.DisableKeepAlives, own.MaxIdleConnsPerHost, own.IdleConnTimeout = false, 16, 90*time.Second
		o.Transport = own
	}
	p := &OpenAI{o: o, url: endpointOf(base).String(), refused: map[string]omission{}}
	p.headers = http.Header{"Content-Type": {"application/json"}, "Accept": {"text/event-stream, application/json"}, "User-Agent": {"agentd"}}
	if o.APIKey != "" {
		p.headers.Set("Authorization", "Bearer "+o.APIKey)
		p.secrets = []string{o.APIKey}
	}
	for name, value := range headers {
		p.headers[name] = value
		for word := range strings.FieldsSeq(value[0]) {
			if len(word) >= 8 { // shorter ones are no secrets
				p.secrets = append(p.secrets, word)
			}
		}
	}
	slices.SortFunc(p.secrets, func(a, b string) int { return len(b) - len(a) }) // one may be a part of a longer one
	return p, nil
}

// endpointOf finds the endpoint under a base URL.
func endpointOf(base *url.URL) *url.URL {
	u := *base
	u.Path, u.RawPath = strings.TrimRight(u.Path, "/"), strings.TrimRight(u.RawPath, "/")
	switch {
	case strings.HasSuffix(u.Path, "/chat/completions"):
		return &u
	case strings.HasSuffix(u.Path, "/v1"):
		return u.JoinPath("chat/completions")
	}
	return u.JoinPath("v1/chat/completions")
}

// Name is the id under which the configuration declares the provider.
func (p *OpenAI) Name() string { return p.o.Name }

// Close closes the idle connections. It does not disturb calls in flight.
func (p *OpenAI) Close() {
	if t, ok := p.o.Transport.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

// Stream implements [Provider].
func (p *OpenAI) Stream(ctx context.Context, req *Request, sink func(Delta)) (*Response, error) {
	spoke := false
	emit := func(d Delta) { spoke = true; sink(d) }
	log := tracecontext.Log(ctx, p.o.Logger).With("provider", p.o.Name, "model", req.Model, "run", req.Meta.RunID, "agent", req.Meta.AgentID,
		"step", req.Meta.StepNumber)

	p.mu.Lock()
	known := p.refused[req.Model]
	p.mu.Unlock()
	omit := known
	failures := 0
	for attempts := 1; ; attempts++ {
		res, refused, err := p.attempt(ctx, req, omit, emit)
		switch {
		case err == nil:
			if omit != known {
				p.remember(req.Model, omit)
			}
			return res, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case refused != 0 && !spoke:
			omit |= refused
			log.Info("model refused a parameter; trying without it", "parameter", refused, "error", err)
			continue
		case spoke || !slices.Contains(passing, err.Kind) || failures >= p.o.Retries:
			return nil, err
		}
		wait := backoff(failures, err.RetryAfter)
		failures++
		log.Warn("model call failed; trying again", "attempt", attempts, "wait", wait, "error", err)
		if !sleep(ctx, wait) {
			return nil, context.Cause(ctx)
		}
	}
}

func (p *OpenAI) remember(model string, o omission) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.refused) >= maxModels {
		clear(p.refused)
	}
	p.refused[model] |= o
}

// passing are the failures after which the same request can succeed a little later.
var passing = []*fault.Kind{fault.RateLimit, fault.Capacity, fault.Transient}

// maxWait bounds the wait before a retry, also the one that a server asks for.
const maxWait = 30 * time.Second

// backoff is the wait after failure n, counted from 0: 250 ms, doubled each time, of which a random half at most is
// taken off so that callers who failed together do not return together. It is never less than the server asked for.
func backoff(n int, asked time.Duration) time.Duration {
	d := min(250*time.Millisecond<<min(n, 10), maxWait)
	return min(max(d-rand.N(d/2), asked), maxWait)
}

// sleep waits and reports whether ctx lived through it.
func sleep(ctx context.Context, d time.Duration) bool {
	pause, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-pause.Done()
	return ctx.Err() == nil
}
