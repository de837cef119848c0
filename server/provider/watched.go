package provider

import (
	"context"
	"slices"
	"sync"

	"agentd/server/fault"
)

// Watched is a provider that remembers how its latest calls ended.
type Watched struct {
	Provider

	mu       sync.Mutex // guards the fields below
	failures int
	last     *fault.Kind
}

// down are the failures that are the provider's own, and no matter of a request.
var down = []*fault.Kind{fault.RateLimit, fault.Capacity, fault.Transient, fault.Unauthorized, fault.OutboundDenied}

// Stream is [Provider.Stream]. A call that its caller gave up does not count.
func (w *Watched) Stream(ctx context.Context, req *Request, sink func(Delta)) (*Response, error) {
	res, err := w.Provider.Stream(ctx, req, sink)
	if err != nil && ctx.Err() != nil {
		return res, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures, w.last = w.failures+1, nil
	if err != nil {
		w.last = fault.Of(err).Kind
	}
	if !slices.Contains(down, w.last) {
		w.failures = 0
	}
	return res, err
}

// Failures is how many of the latest calls failed in a row because of the provider, and the code of the last failure.
func (w *Watched) Failures() (n int, code string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failures > 0 {
		code = w.last.Code
	}
	return w.failures, code
}
