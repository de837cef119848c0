// Package provider talks to models: servers that speak the chat completions protocol, and scripts that act as one.
//
// A [Provider] turns a [Request] into deltas as they come and one [Response] at the end. It holds no conversation:
// every call carries the whole transcript. A call that fails returns a
// *fault.Error, whose kind shows whether another try or another model could help.
package provider

import (
	"context"
	"encoding/json"
	"unicode/utf8"

	"agentd/server/message"
)

// A Provider answers requests with a model. It is safe for concurrent use.
type Provider interface {
	// Name is the id under which the configuration declares the provider.
	Name() string

	// Stream calls the model and gives what it says to sink, in order and on the calling goroutine; the time that
	// sink takes counts against no timeout. The response holds everything that sink was given, and is returned only
	// if the model finished.
	//
	// The error is a *fault.Error, or the cause of ctx's end if that came first. What was given to sink before an error
	// is not taken back. req is read, never changed.
	Stream(ctx context.Context, req *Request, sink func(Delta)) (*Response, error)
}

// A Request is one call of a model.
type Request struct {
	Model       string
	Messages    []message.Message
	Tools       []ToolSpec
	ToolChoice  ToolChoice
	Temperature *float64    // nil = the model's own
	MaxTokens   int         // most tokens to answer with; 0 = the model's own limit
	Output      *OutputSpec // the form of the answer; nil = text
	Meta        Meta
}

// A ToolSpec is a tool as a model sees it.
type ToolSpec struct {
	Name        string
	Description string
	Input       json.RawMessage // JSON Schema of the arguments
}

// A ToolChoice says whether the model calls tools. The zero value leaves it to the model.
type ToolChoice struct {
	Mode string // "" (the model decides), "required" (at least one call) or "none"
	Tool string // when not empty, the one tool that the model must call; Mode is then ignored
}

// An OutputSpec is the form that the answer's text must have: one JSON value.
type OutputSpec struct {
	Name   string
	Schema json.RawMessage // JSON Schema
}

// Meta says on whose behalf a call is made. It is for logs only and never sent.
type Meta struct {
	RunID, AgentID string
	StepNumber     int
}

// A DeltaKind says what a delta adds to.
type DeltaKind int

const (
	TextDelta      DeltaKind = iota + 1 // Text is more of the answer
	ReasoningDelta                      // Text is more of the reasoning
	CallStart                           // a tool call begins: CallID and ToolName, no Text
	CallDelta                           // Text is more of the arguments' JSON of call CallID
)

// A Delta is a piece of an answer.
type Delta struct {
	Kind             DeltaKind
	Text             string
	CallID, ToolName string // both set in CallStart and CallDelta
}

// A FinishReason says why the model stopped.
type FinishReason string

const (
	FinishStop          FinishReason = "stop"
	FinishLength        FinishReason = "length"
	FinishToolCalls     FinishReason = "tool-calls"
	FinishContentFilter FinishReason = "content-filter"
)

// A Response is the answer of a model that finished. The ids of its tool calls are 1 to 128 characters of
// A-Z a-z 0-9 _ . : - and differ from each other and from those in the request's messages.
type Response struct {
	Text      string
	Reasoning string
	ToolCalls []message.ToolCall // in the order in which the model began them
	// Incomplete is the first call that the answer's end cut off; nil if there is none. Calls that were cut off are
	// not in ToolCalls.
	Incomplete *Incomplete
	Finish     FinishReason
	Usage      message.Usage // estimated where the server reports none; Cost where the model has a price
	Model      string        // as the server names it; the request's where it does not
}

// An Incomplete is a tool call whose arguments were cut off.
type Incomplete struct {
	CallID     string
	ToolName   string // empty if even the name was cut off
	ArgsPrefix string
}

func tokens(chars int) int { return (chars + 3) / 4 }

// imageTokens is what an image is estimated at: one of 1024 by 1024 pixels in high detail, as OpenAI counts them (four tiles
// of 170 tokens, and 85).
const imageTokens = 765

// estimate guesses the usage of a call from the lengths of what was sent and received, so that budgets hold also where a
// server reports none.
func estimate(req *Request, res *Response) message.Usage {
	read, images := 0, 0
	for _, m := range req.Messages {
		read += utf8.RuneCountInString(m.Content.String())
		for _, c := range m.ToolCalls {
			read += len(c.Name) + utf8.RuneCount(c.Args)
		}
		for _, p := range m.Content.Parts {
			if _, ok := p.Media(); ok {
				images++
			}
		}
	}
	for _, t := range req.Tools {
		read += len(t.Name) + utf8.RuneCountInString(t.Description) + utf8.RuneCount(t.Input)
	}
	written := utf8.RuneCountInString(res.Text)
	for _, c := range res.ToolCalls {
		written += len(c.Name) + utf8.RuneCount(c.Args)
	}
	if res.Incomplete != nil {
		written += utf8.RuneCountInString(res.Incomplete.ArgsPrefix)
	}
	u := message.Usage{PromptTokens: int64(tokens(read) + images*imageTokens), CompletionTokens: int64(tokens(written)), Estimated: true}
	if res.Reasoning != "" {
		u.ReasoningTokens = new(int64(message.Estimate(res.Reasoning)))
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens + message.Value(u.ReasoningTokens)
	return u
}
