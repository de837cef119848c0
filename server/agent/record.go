package agent

import (
	"cmp"
	"time"

	"agentd/server/cassette"
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/provider"
	"agentd/server/run"
	"agentd/server/tool"
	"agentd/store"
)

// Exchange is how a model call of a recorded run is kept: what the transcript does not tell. The answer itself, its
// usage and the outcomes of its calls are in the transcript, which package recording joins with this.
type Exchange struct {
	Step       int                `json:"-"`
	Provider   string             `json:"provider"` // of the last attempt, and so is Model
	Model      string             `json:"model"`
	Failed     []cassette.Attempt `json:"failed,omitempty"`
	SHA256     string             `json:"sha256"`          // of the request
	Messages   int                `json:"messages"`        // in the request
	First      int                `json:"first"`           // index of the input's first message in the run
	Next       int                `json:"next"`            // index of the answer in the run
	Terms      *cassette.Terms    `json:"terms,omitempty"` // nil: those of the exchange before
	Reasoning  string             `json:"reasoning,omitempty"`
	Finish     string             `json:"finish,omitempty"` // empty: there was no answer
	Cut        bool               `json:"cut,omitempty"`    // the call was ended from outside
	At         int64              `json:"at"`
	DurationMS int64              `json:"durationMs"`
}

// A tape records the model calls of one run. Its zero value has recorded nothing.
type tape struct {
	step  int // that the exchange belongs to
	begun time.Time
	open  Exchange
	terms string // hash of those that were told last
}

// record keeps an attempt of a model call, which goes into the next commit: that of the answer, of the fallback, or of
// the run's end. A later attempt of the same step replaces it.
func (l *loop) record(model Model, req *provider.Request, begun time.Time, res *provider.Response, err error) {
	t := &l.tape
	if step := req.Meta.StepNumber; t.step != step {
		asked := RequestOf(req, l.Tools)
		t.step, t.begun = step, begun
		t.open = Exchange{SHA256: asked.Hash(l.Row.ID), Messages: len(req.Messages), Next: l.Row.Messages, At: begun.UnixMilli()}
		if l.Instructions != "" {
			t.open.First = 1
		}
		if terms := cassette.Hash(asked.Terms); terms != t.terms {
			t.terms, t.open.Terms = terms, &asked.Terms
		}
	}
	x := &t.open
	x.Provider, x.Model, x.DurationMS = model.Provider.Name(), model.Model, time.Since(t.begun).Milliseconds()
	switch {
	case err == nil:
		x.Reasoning, x.Finish = res.Reasoning, string(cmp.Or(res.Finish, provider.FinishStop))
	case l.Context().Err() != nil:
		x.Cut = true
	default:
		x.Failed = append(x.Failed, l.attempt(x.Provider, x.Model, err))
	}
	body, err := message.Encode(x)
	if err != nil { // only a tool's schema could be at fault, and that was compiled
		l.Log().Error("a model call could not be recorded", "run", l.Row.ID, "step", t.step, "error", err)
		return
	}
	due := store.Exchange{Step: t.step, Body: body}
	l.Later(func(m *run.Move) { m.Exchanges = append(m.Exchanges, due) })
}

func (l *loop) attempt(by, model string, err error) cassette.Attempt {
	f := fault.Of(err)
	return cassette.Attempt{Provider: by, Model: model, Code: f.Kind.Code, Message: l.Redact(f.Message)}
}

// RequestOf is a request as cassettes tell it. The tools tell what side effects there are; they may be nil.
func RequestOf(req *provider.Request, tools *tool.Set) cassette.Request {
	q := cassette.Request{Messages: req.Messages, Terms: cassette.Terms{ToolChoice: req.ToolChoice.Mode, Temperature: req.Temperature, MaxTokens: req.MaxTokens}}
	if req.ToolChoice.Tool != "" {
		q.ToolChoice = "tool:" + req.ToolChoice.Tool
	}
	for _, s := range req.Tools {
		t := cassette.Tool{Name: s.Name, Description: s.Description, Input: s.Input}
		if len(s.Input) > 0 {
			t.InputSHA256 = cassette.Hash(s.Input)
		}
		if tools != nil {
			if known, ok := tools.Get(s.Name); ok {
				t.SideEffect = string(cmp.Or(known.Spec().SideEffect, tool.SideEffecting))
			}
		}
		q.Tools = append(q.Tools, t)
	}
	if o := req.Output; o != nil {
		q.Output = &cassette.Output{Description: o.Description, Schema: o.Schema}
	}
	return q
}
