package agent

import (
	"encoding/json"
	"time"

	"agentd/server/fault"
	"agentd/server/provider"
	"agentd/server/run"
	"agentd/store"
)

// A Tape records the model calls of one run. It returns the stored form of a model call after one more attempt, which
// replaces what it returned for the same step before.
type Tape func(Attempt) (json.RawMessage, error)

// An Attempt is one model's answer to a request, or its failure.
type Attempt struct {
	*LLM
	Model    Model
	Request  *provider.Request
	Begun    time.Time
	Next     int                // index of the answer in the run
	Response *provider.Response // nil: there is no answer
	Failure  *fault.Error       // set when there is no answer, redacted; nil for a call that was ended from outside
}

// record passes an attempt to the tape. The next commit stores the result: that of the answer, of the fallback, or of the
// run's end.
func (l *loop) record(model Model, req *provider.Request, begun time.Time, res *provider.Response, err error) {
	if l.tape == nil {
		l.tape = l.NewTape()
	}
	a := Attempt{LLM: l.LLM, Model: model, Request: req, Begun: begun, Next: l.Row.Messages}
	switch {
	case err == nil:
		a.Response = res
	case l.Context().Err() == nil:
		f := fault.Of(err)
		a.Failure = fault.New(f.Kind, "%s", l.Redact(f.Message))
	}
	step := req.Meta.StepNumber
	body, err := l.tape(a)
	if err != nil { // only a tool's schema could be at fault, and that was compiled
		l.Log().Error("a model call could not be recorded", "run", l.Row.ID, "step", step, "error", err)
		return
	}
	l.Later(func(m *run.Move) { m.Exchanges = append(m.Exchanges, store.Exchange{Step: step, Body: body}) })
}
