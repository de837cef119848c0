package provider

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"agentd/server/fault"
	"agentd/server/outbound"
)

// OpenAI is a [Provider] that talks to a server with the chat completions protocol.
//
//	attempt -> answered: response
//	        -> refused a parameter (400, 422): leave it out, attempt again, remember it for the model
//	        -> failed in a way that may pass before the first delta: wait, attempt again, as often as Retries allows
//	        -> anything else: error
type OpenAI struct {
	o       OpenAIOptions // with defaults
	url     string
	headers http.Header
	client  http.Client

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
	endpoint, err := endpointOf(o.BaseURL)
	if err != nil {
		issues = append(issues, fault.At(err.Error(), "baseUrl"))
	}
	if o.APIKey = strings.TrimSpace(o.APIKey); !outbound.HeaderValue(o.APIKey) {
		issues = append(issues, fault.At("leads to a key with control characters", "apiKeyRef"))
	}
	if issues != nil {
		return nil, fault.Invalid("The provider's options are not valid.", issues...)
	}
	o.Timeout, o.IdleTimeout = cmp.Or(o.Timeout, DefaultTimeout), cmp.Or(o.IdleTimeout, DefaultIdleTimeout)
	o.Retries = cmp.Or(o.Retries, new(DefaultRetries))
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	p := &OpenAI{o: o, url: endpoint.String(), headers: headers, refused: map[string]omission{}}
	p.client = http.Client{
		Transport: o.Transport,
		// A redirect would carry the transcript and the key to an address that nobody configured.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if o.Transport == nil {
		own := o.Outbound.Transport("providers."+o.Name+".baseUrl", outbound.HostPort(endpoint))
		own.DisableKeepAlives, own.MaxIdleConnsPerHost, own.IdleConnTimeout = false, 16, 90*time.Second
		p.client.Transport = own
	}
	return p, nil
}

// Name is the id under which the configuration declares the provider.
func (p *OpenAI) Name() string { return p.o.Name }

// Close gives back the idle connections of the provider's own transport. Calls in flight are not disturbed.
func (p *OpenAI) Close() {
	if p.o.Transport == nil {
		p.client.CloseIdleConnections()
	}
}

// Stream implements [Provider].
func (p *OpenAI) Stream(ctx context.Context, req *Request, sink func(Delta)) (*Response, error) {
	spoke := false
	emit := func(d Delta) { spoke = true; sink(d) }
	log := p.o.Logger.With("provider", p.o.Name, "model", req.Model, "run", req.Meta.RunID, "agent", req.Meta.AgentID, "step", req.Meta.StepNumber)

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
			res.Attempts = attempts
			return res, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case refused != 0 && !spoke:
			omit |= refused
			log.Info("model refused a parameter; trying without it", "parameter", refused, "error", err)
			continue
		case spoke || !slices.Contains(passing, err.Kind) || failures >= *p.o.Retries:
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
	if d <= 0 || ctx.Err() != nil {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
