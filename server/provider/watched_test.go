package provider_test

import (
	"context"
	"errors"
	"testing"

	"agentd/server/fault"
	"agentd/server/provider"
)

// ending is a provider whose calls end with an error, or without.
type ending struct{ err error }

func (ending) Name() string { return "p" }

func (e *ending) Stream(context.Context, *provider.Request, func(provider.Delta)) (*provider.Response, error) {
	return &provider.Response{}, e.err
}

func TestWatched(t *testing.T) {
	inner := &ending{}
	w := &provider.Watched{Provider: inner}
	left, leave := context.WithCancel(t.Context())
	leave()
	for i, step := range []struct {
		ctx  context.Context
		err  error
		n    int
		code string
	}{
		{t.Context(), nil, 0, ""},
		{t.Context(), fault.New(fault.Transient, "Down."), 1, "transient"},
		{t.Context(), fault.New(fault.Unauthorized, "No."), 2, "unauthorized"},
		{left, errors.New("the caller left"), 2, "unauthorized"},
		{t.Context(), fault.New(fault.RateLimit, "Slower."), 3, "rate-limit"},
		{t.Context(), fault.New(fault.ContextLength, "Too long."), 0, ""}, // the provider answers
		{t.Context(), fault.New(fault.Capacity, "Busy."), 1, "capacity"},
		{t.Context(), nil, 0, ""},
	} {
		inner.err = step.err
		if _, err := w.Stream(step.ctx, nil, nil); err != step.err {
			t.Errorf("Stream() = %v, want %v", err, step.err)
		}
		if n, code := w.Failures(); n != step.n || code != step.code {
			t.Errorf("step %d: Failures() = %d, %q, want %d, %q", i, n, code, step.n, step.code)
		}
	}
}
