package provider

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/outbound"
	"agentd/server/sse"
	"agentd/server/tracecontext"
)

// maxErrorBody bounds what is read of a refusal, in bytes.
const maxErrorBody = 64 << 10

// attempt makes one HTTP request. When the error is a refusal of a parameter that can be left out, it names it.
func (p *OpenAI) attempt(parent context.Context, req *Request, omit omission, sink func(Delta)) (*Response, omission, *fault.Error) {
	body, err := wireBody(req, omit, p.o.Whole)
	if err != nil {
		return nil, 0, fault.New(fault.InvalidRequest, "the request cannot be sent to %s: %v", p.o.Name, err)
	}
	payload, err := message.Encode(body)
	if err != nil {
		return nil, 0, fault.New(fault.InvalidRequest, "the request cannot be encoded: a schema is not valid JSON").Because(err)
	}
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	silence := time.AfterFunc(p.o.Timeout, func() { cancel(errSilent) })
	defer silence.Stop()
	hr, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(payload))
	if err != nil {
		return nil, 0, fault.New(fault.InvalidRequest, "the request to %s cannot be made", p.o.Name).Because(err)
	}
	hr.Header = p.headers.Clone()
	tracecontext.From(ctx).Inject(hr.Header)
	resp, err := p.o.Transport.RoundTrip(hr) // which follows no redirect: that would carry the transcript and the key elsewhere
	silence.Stop()
	if err != nil {
		if context.Cause(ctx) == errSilent {
			return nil, 0, fault.New(fault.Transient, "%s did not answer within %v", p.o.Name, p.o.Timeout)
		}
		if refused, ok := errors.AsType[*fault.Error](err); ok {
			return nil, 0, fault.New(fault.OutboundDenied, "%s was not contacted. %s", p.o.Name, refused.Message).Advise(refused.Hint).Because(refused)
		}
		return nil, 0, fault.New(fault.Transient, "%s could not be reached%s", p.o.Name, outbound.Reason(err)).Because(err)
	}
	defer resp.Body.Close()
	in := &meter{body: resp.Body, left: maxAnswer, silence: silence, wait: p.o.IdleTimeout}

	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		said, _ := io.ReadAll(io.LimitReader(in, maxErrorBody)) // a part of it is better than nothing
		refused, e := p.failure(readProblem(said), resp.StatusCode, body)
		e.RetryAfter = outbound.RetryAfter(resp.Header, maxAsked)
		return nil, refused, e
	}

	a := &answer{messages: req.Messages, sink: sink, model: req.Model}
	trouble, err := receive(ctx, in, a)
	switch {
	case trouble != nil:
		refused, e := p.failure(*trouble, trouble.status, body)
		return nil, refused, e
	case err == nil:
	case context.Cause(ctx) == errSilent:
		return nil, 0, fault.New(fault.Transient, "%s sent nothing for %v", p.o.Name, p.o.IdleTimeout)
	case errors.Is(err, errTooLarge) || errors.Is(err, sse.ErrTooLong):
		return nil, 0, fault.New(fault.Unknown, "the answer of %s is too large", p.o.Name).Because(err)
	default:
		return nil, 0, fault.New(fault.Transient, "the answer of %s broke off or cannot be read", p.o.Name).Because(err)
	}
	res := a.response()
	if res.Usage.TotalTokens == 0 {
		res.Usage = estimate(req, res)
	}
	if res.Usage.Cost = p.o.Prices.Cost(req.Model, res.Usage); res.Usage.Cost == nil {
		res.Usage.Cost = p.o.Prices.Cost(res.Model, res.Usage)
	}
	return res, 0, nil
}

// failure makes an error of what the server said, and names the parameter of the body that it refused, if it did.
func (p *OpenAI) failure(trouble problem, status int, body map[string]any) (omission, *fault.Error) {
	e := fault.New(trouble.kind(status), "%s reported an error", p.o.Name)
	if status != 0 {
		e.Message = fmt.Sprintf("%s answered %d", p.o.Name, status)
	}
	said := quotable(p.o.Known.Piece(trouble.message), p.secrets)
	switch {
	case status >= 300 && status <= 399:
		said = "redirects are not followed; check baseUrl"
	case said == "":
		said = strings.ToLower(http.StatusText(status))
	}
	if said != "" {
		e.Message += ": " + said
	}
	if e.Kind != fault.InvalidRequest {
		return 0, e
	}
	return refusedBy(trouble.words, body), e
}
