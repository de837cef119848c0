package recording

import (
	"cmp"
	"encoding/json"
	"time"

	"agentd/server/agent"
	"agentd/server/message"
	"agentd/server/provider"
	"agentd/server/tool"
)

// An exchange is the stored form of a model call of a recorded run: what the transcript does not hold. The answer itself, its
// usage and the outcomes of its calls are in the transcript, with which [Export] joins it.
type exchange struct {
	Step       int       `json:"-"`
	Provider   string    `json:"provider"` // of the last attempt, and so is Model
	Model      string    `json:"model"`
	Failed     []Attempt `json:"failed,omitempty"`
	SHA256     string    `json:"sha256"`          // of the request
	Messages   int       `json:"messages"`        // in the request
	First      int       `json:"first"`           // index of the input's first message in the run
	Next       int       `json:"next"`            // index of the answer in the run
	Terms      *Terms    `json:"terms,omitempty"` // nil: those of the exchange before
	Reasoning  string    `json:"reasoning,omitempty"`
	Finish     string    `json:"finish,omitempty"` // empty: there was no answer
	Cut        bool      `json:"cut,omitempty"`    // the call was ended from outside
	At         int64     `json:"at"`
	DurationMS int64     `json:"durationMs"`
}

// NewTape makes the tape of a run; see [agent.LLM]. After a restart of the server a new tape continues.
func NewTape() agent.Tape {
	var x exchange // that of the latest step
	var terms string
	var begun time.Time
	return func(a agent.Attempt) (json.RawMessage, error) {
		if step := a.Request.Meta.StepNumber; x.Step != step {
			asked := requestOf(a.Request, a.Tools)
			begun = a.Begun
			x = exchange{Step: step, SHA256: asked.Hash(a.Request.Meta.RunID), Messages: len(asked.Messages), Next: a.Next, At: begun.UnixMilli()}
			if a.Instructions != "" {
				x.First = 1
			}
			if now := hashOf(asked.Terms); now != terms {
				terms, x.Terms = now, &asked.Terms
			}
		}
		x.Provider, x.Model, x.DurationMS = a.Model.Provider.Name(), a.Model.Model, time.Since(begun).Milliseconds()
		switch f := a.Failure; {
		case a.Response != nil:
			x.Reasoning, x.Finish = a.Response.Reasoning, string(cmp.Or(a.Response.Finish, provider.FinishStop))
		case f != nil:
			x.Failed = append(x.Failed, Attempt{x.Provider, x.Model, f.Kind.Code, f.Message})
		default:
			x.Cut = true
		}
		return message.Encode(x)
	}
}

// requestOf is a provider's request in the form of the file. tools have the side effects; they may be nil.
func requestOf(req *provider.Request, tools *tool.Set) Request {
	q := Request{Messages: req.Messages, Terms: Terms{ToolChoice: req.ToolChoice.Mode, Temperature: req.Temperature, MaxTokens: req.MaxTokens}}
	if req.ToolChoice.Tool != "" {
		q.ToolChoice = "tool:" + req.ToolChoice.Tool
	}
	for _, s := range req.Tools {
		t := Tool{Name: s.Name, Description: s.Description, Input: s.Input}
		if len(s.Input) > 0 {
			t.InputSHA256 = hashOf(s.Input)
		}
		if tools != nil {
			if known, ok := tools.Get(s.Name); ok {
				t.SideEffect = string(cmp.Or(known.Spec().SideEffect, tool.SideEffecting))
			}
		}
		q.Tools = append(q.Tools, t)
	}
	if o := req.Output; o != nil {
		q.Output = &Output{Schema: o.Schema}
	}
	return q
}
