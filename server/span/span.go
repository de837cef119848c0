// Package span makes the spans of runs: which work a run did when, as a part of which other work, and with which result.
package span

import (
	"fmt"
	"strconv"

	"agentd/server/message"
)

// Types of spans.
const (
	Run      = "agent.run"       // a run from its start to its end, the time that it waited included
	Step     = "agent.step"      // a model call and the tool calls it asked for, or the calls that a person allowed
	Suspend  = "agent.suspend"   // from when a run began to wait until it was resumed or aborted
	Resume   = "agent.resume"    // the moment at which a run continued: after decisions, a timer or a restart of the server
	Provider = "provider.stream" // one model's answer or failure
	Tool     = "tool.execute"    // one tool call, its retries included
	Approval = "tool.approval"   // from the request for an approval to its decision
	Handoff  = "agent.handoff"   // a child run that received the conversation
)

// Statuses of spans.
const (
	OK        = "ok"
	Error     = "error"
	Cancelled = "cancelled"
)

// A Span is something that took time. Times are nanoseconds since 1970. A span is written when it ends.
type Span struct {
	Type          string         `json:"type"`
	ID            string         `json:"id"`                // 16 hex digits; unique in the store
	TraceID       string         `json:"traceId,omitempty"` // 32 hex digits, see [Trace]; not stored
	ParentID      string         `json:"parentId,omitempty"`
	Name          string         `json:"name"`
	Start         int64          `json:"startUnixNano"`
	End           int64          `json:"endUnixNano"`
	Status        string         `json:"status"`
	StatusMessage string         `json:"statusMessage,omitempty"`
	Attributes    map[string]any `json:"attributes,omitempty"`
	// Sensitivity is who may see an attribute: public, internal or secret. An attribute without one counts as internal.
	Sensitivity map[string]string `json:"sensitivityByAttribute,omitempty"`
	// Message is the index of the message with a model's answer or with the outcome of a tool call; nil: there is none. A
	// span refers to the message instead of copying it.
	Message *int `json:"message,omitempty"`
}

// Public sets an attribute that may be shown to everybody who may see sanitised traces. Zero values are left out.
func (s *Span) Public(name string, value any) {
	if s.set(name, value) {
		if s.Sensitivity == nil {
			s.Sensitivity = map[string]string{}
		}
		s.Sensitivity[name] = "public"
	}
}

// Internal sets an attribute that only raw traces show. Zero values are left out.
func (s *Span) Internal(name string, value any) { s.set(name, value) }

func (s *Span) set(name string, value any) bool {
	switch value {
	case nil, "", 0, int64(0), false:
		return false
	}
	if s.Attributes == nil {
		s.Attributes = map[string]any{}
	}
	s.Attributes[name] = value
	return true
}

// Used sets the public attributes of what a model used.
func (s *Span) Used(u message.Usage) {
	s.Public("usage.promptTokens", u.PromptTokens)
	s.Public("usage.completionTokens", u.CompletionTokens)
	if u.Cost != nil {
		s.Public("usage.cost", u.Cost.Amount)
	}
}

// Part is what a span of a run stands for. A span that can be a parent has an id that follows from its place, because
// its children are written before it.
type Part int

const (
	OfRun  Part = iota // number: 0; of the spans of its model calls, from 1
	OfStep             // number: the step's
	OfCall             // number: the call's index in the journal
	Other              // number: any that is not used twice
)

// ID is the id of a span: the run's number in the store, the part and its number, which is below 1<<24, as every index in
// a run is. Bits of the run's number past the 32nd are where part and number leave some free, so ids differ up to run
// 1<<38.
func ID(run int64, part Part, number int) string {
	return fmt.Sprintf("%08x%x%07x", uint32(run), int64(part)|run>>32&3<<2, int64(number&0xffffff)|run>>34&0xf<<24)
}

// RunOf returns the number of the run that a span belongs to, by the span's id. ok is false for a text that [ID] does
// not make.
func RunOf(id string) (run int64, ok bool) {
	n, err := strconv.ParseUint(id, 16, 64)
	run, part, number := int64(n>>32|n>>30&3<<32|n>>24&0xf<<34), Part(n>>28&3), int(n&0xffffff)
	return run, err == nil && run > 0 && id == ID(run, part, number)
}
