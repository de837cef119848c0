package agent

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"agentd/server/event"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/run"
	"agentd/server/span"
	"agentd/server/tool"
	"agentd/store"
)

// llm is the driver of runs that a model drives.
type llm struct{ *LLM }

// Known is a part of [run.Caller].
func (a llm) Known(c *store.Call) bool {
	_, agent := a.agentTool(c.Name)
	_, known := a.Tools.Get(c.Name)
	return known && agent == (c.Child != "")
}

// Doubt is a part of [run.Caller].
func (a llm) Doubt(c *store.Call) run.Doubt { return a.calls().Doubt(c.Name) }

// Terms is a part of [run.Caller].
func (a llm) Terms(r *run.Run, p journal.Approval) journal.Approval {
	// By the clock, not the run's time: that stays ahead when the clock is set back.
	return a.calls().Terms(p, r.Row.StartedBy, time.Now().UnixMilli())
}

// Edit is a part of [run.Caller].
func (a llm) Edit(c *store.Call, args json.RawMessage) (json.RawMessage, error) {
	return a.calls().Edit(c.ID, c.Name, args)
}

// Answer is a part of [run.Caller].
func (a llm) Answer(r *run.Run, c *store.Call, output json.RawMessage) run.Settled {
	return settled(a.Tools.Settle(c.Name, tool.Call{RunID: r.ID(), ID: c.ID}, tool.Result{Output: output}))
}

// Label is a part of [run.Caller].
func (a llm) Label(c *store.Call) string { return a.callee(c).label() }

// Forwards is a part of [run.Caller].
func (a llm) Forwards(typ string) bool {
	switch a.Forward {
	case "none":
		return false
	case "all":
		return true
	}
	return event.ForChildren(typ)
}

// Job is a part of [run.Caller].
func (a llm) Job(r *run.Run, c store.Call, args json.RawMessage) (j run.Job, err error) {
	if t, ok := a.Tools.Get(c.Name); ok {
		j.Sequential = t.Spec().Sequential
	}
	if c.Child == "" {
		call := a.call(r, c, args)
		j.Admit = func(ctx context.Context, wait func() error) (func(), *message.Outcome) {
			return a.Tools.Admit(ctx, c.Name, call, wait)
		}
		j.Do = func(ctx context.Context) run.Settled { return settled(a.Tools.Execute(ctx, c.Name, call)) }
		return j, nil
	}
	t := a.callee(&c)
	j.Child = &run.ChildSpec{Owner: t.agent, Form: "text"}
	if path := holders(r.Record); c.Index == 0 && len(path) > 1 { // see follow
		kept, _ := message.Encode(path[1:])
		j.Child.Slots = map[store.Slot]json.RawMessage{store.HoldersSlot: kept}
	}
	switch {
	case t.handoff:
		j.Span, j.Child.Form = span.Handoff, "messages"
		var shown []message.Message
		if shown, err = Transcript(r.Record, r.Row.Messages); err == nil {
			j.Child.Input, err = message.Encode(a.Filter.apply(shown, t.agent))
		}
	case args != nil && a.Known(&c):
		var in struct{ Input string }
		if err = json.Unmarshal(args, &in); err == nil {
			j.Child.Input, err = message.Encode(in.Input)
		}
	}
	return j, err
}

func settled(s tool.Settled) run.Settled {
	out := run.Settled{Outcome: s.Outcome, Unknown: s.Unknown, Waits: s.Waits}
	if b := s.Spill; b != nil {
		out.Spill = &store.Spill{Name: b.Name, MediaType: b.MediaType, Data: b.Data}
	}
	return out
}

// call makes the call of a tool. Live output and progress are published as they come, from any goroutine.
func (a llm) call(r *run.Run, c store.Call, args json.RawMessage) tool.Call {
	chunks := 0
	var mu sync.Mutex // guards chunks: tools may report from several goroutines
	return tool.Call{
		RunID: r.Row.ID, AgentID: r.Row.Owner, SessionID: r.Row.Session, UserID: r.Row.User, Payer: r.Payer(), StepNumber: c.Step, ID: c.ID,
		Key: r.Key(&c), Waited: r.Waited(c.Index), Args: args,
		Progress: func(current, total float64, note string) {
			r.Transient(event.New(event.ToolProgress, struct {
				ToolName   string  `json:"toolName"`
				ToolCallID string  `json:"toolCallId"`
				Current    float64 `json:"current"`
				Total      float64 `json:"total,omitempty"`
				Message    string  `json:"message,omitempty"`
				StepNumber int     `json:"stepNumber"`
				TS         int64   `json:"ts"`
			}{c.Name, c.ID, current, total, note, c.Step, time.Now().UnixMilli()}))
		},
		Stream: func(chunk tool.Chunk) {
			mu.Lock()
			defer mu.Unlock()
			r.Transient(event.New(event.ToolPartial, chunkFields{c.Name, c.ID, wire(chunk), chunks, c.Step, time.Now().UnixMilli()}))
			chunks++
		},
	}
}

// chunkFields is the payload of tool.execute.partial.
type chunkFields struct {
	ToolName   string `json:"toolName"`
	ToolCallID string `json:"toolCallId"`
	Chunk      any    `json:"chunk"`
	ChunkIndex int    `json:"chunkIndex"`
	StepNumber int    `json:"stepNumber"`
	TS         int64  `json:"ts"`
}

// wire is a chunk as clients see it: with the members of its kind, all of them.
func wire(c tool.Chunk) any {
	switch c.Kind {
	case tool.Image:
		return struct {
			Kind      string        `json:"kind"`
			Data      message.Bytes `json:"data"`
			MediaType string        `json:"mediaType"`
		}{c.Kind, message.Bytes{Enc: "base64", Data: c.Data}, c.MediaType}
	case tool.JSONDelta:
		value := c.Value
		if !json.Valid(value) { // a result that is made of it will fail for that; the event must not
			value = json.RawMessage("null")
		}
		return struct {
			Kind  string          `json:"kind"`
			Path  string          `json:"path"`
			Value json.RawMessage `json:"value"`
		}{c.Kind, c.Path, value}
	}
	return struct {
		Kind string `json:"kind"`
		Text string `json:"text"`
	}{c.Kind, c.Text}
}
