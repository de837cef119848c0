// Package trace reads the spans of runs: which work was done when, as a part of which other work, and with which result.
package trace

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"agentd/server/message"
)

// Types of spans.
const (
	Run      = "agent.run"       // a run from its start to its end; of one that waited, with the time it waited
	Step     = "agent.step"      // a model call and the tool calls it asked for, or the calls that a person allowed
	Suspend  = "agent.suspend"   // from when a run began to wait until it was resumed or aborted
	Resume   = "agent.resume"    // the moment at which a run went on: after decisions or after a restart of the server
	Provider = "provider.stream" // one model's answer or failure
	Tool     = "tool.execute"    // one tool call, its retries included
	Approval = "tool.approval"   // from the request for an approval to its decision
	Handoff  = "agent.handoff"   // a child run that the conversation was handed to
)

// Statuses of spans.
const (
	OK        = "ok"
	Error     = "error"
	Cancelled = "cancelled"
)

// A Span is something that took time. Times are nanoseconds since 1970. A span is written when it has ended.
type Span struct {
	Type          string         `json:"type"`
	ID            string         `json:"id"`                // 16 hex digits; unique in the store
	TraceID       string         `json:"traceId,omitempty"` // 32 hex digits: the id of the root run without its dashes; not stored
	ParentID      string         `json:"parentId,omitempty"`
	Name          string         `json:"name"`
	Start         int64          `json:"startUnixNano"`
	End           int64          `json:"endUnixNano"`
	Status        string         `json:"status"`
	StatusMessage string         `json:"statusMessage,omitempty"`
	Attributes    map[string]any `json:"attributes,omitempty"`
	// Sensitivity says how far an attribute may be shown: public, internal or secret. An attribute without one counts
	// as internal.
	Sensitivity map[string]string `json:"sensitivityByAttribute,omitempty"`
	// Message is the index of the message that holds what was said in the span: a model's answer, or the outcome of a
	// tool call. It is stored in place of a copy; nil: there is none.
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

// TraceID is the trace id of a root run.
func TraceID(runID string) string { return strings.ReplaceAll(runID, "-", "") }

// Part is what a span of a run stands for: its id must be known before the span is written, so that others can name it
// as their parent.
type Part int

const (
	OfRun  Part = iota // number: 0
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

// runOf is the number of the run that a span belongs to, by the span's id. ok is false for a text that [ID] does not
// make.
func runOf(id string) (run int64, ok bool) {
	n, err := strconv.ParseUint(id, 16, 64)
	run, part, number := int64(n>>32|n>>30&3<<32|n>>24&0xf<<34), Part(n>>28&3), int(n&0xffffff)
	return run, err == nil && run > 0 && id == ID(run, part, number)
}

// Encode makes the stored form of a batch of spans.
func Encode(spans []Span) (json.RawMessage, error) { return message.Encode(spans) }
