package runstate_test

import (
	"encoding/json"
	"strings"
	"testing"

	"agentd/server/message"
	"agentd/server/runstate"
)

// bare is a State that has no methods.
type bare runstate.State

// BenchmarkEncode compares what a state costs when it is written as it is, and through Plain, with a struct that has
// no methods at all.
func BenchmarkEncode(b *testing.B) {
	for _, size := range []struct {
		name  string
		steps int
	}{{"1step", 1}, {"100steps", 100}} {
		s := busy(size.steps)
		for _, tc := range []struct {
			name  string
			value func() any
		}{
			{"bare", func() any { return bare(s) }},
			{"Plain", s.Plain},
			{"State", func() any { return s }},
		} {
			b.Run(size.name+"/"+tc.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					encode(b, struct {
						State any `json:"state"`
					}{tc.value()})
				}
			})
		}
	}
}

func BenchmarkRead(b *testing.B) {
	data := encode(b, busy(100))
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		read(b, data)
	}
}

// busy is a run that calls a tool in every step.
func busy(steps int) runstate.State {
	s := runstate.State{
		Version: runstate.Version, ID: "run_1", AgentID: "clerk", CurrentAgentID: "clerk", SessionID: "s", Status: "completed",
		PendingApprovals: []message.Approval{}, Handoffs: []runstate.Handoff{}, StartedAt: "2026-01-02T03:04:05.000Z",
	}
	call := message.ToolCall{ID: "c1", Name: "pay", Args: json.RawMessage(`{"invoice":12,"to":"a supplier of paper"}`)}
	outcome := message.Outcome{ToolCallID: "c1", ToolName: "pay", Output: json.RawMessage(`{"paid":true,"note":"booked for Monday"}`), DurationMS: 12}
	for i := range steps {
		s.Messages = append(s.Messages,
			message.Message{Role: message.User, Content: message.Text(strings.Repeat("Pay the next invoice, please. ", 5))},
			message.Message{Role: message.Assistant, ToolCalls: []message.ToolCall{call}, AgentID: "clerk"},
			message.Message{Role: message.Tool, ToolCallID: "c1", Content: message.Text(string(outcome.Output))})
		s.Steps = append(s.Steps, runstate.Step{
			StepNumber: i + 1, StartedAt: s.StartedAt, EndedAt: s.StartedAt, AgentID: "clerk", Usage: &message.Usage{PromptTokens: 40, TotalTokens: 40},
			ToolCalls: []runstate.CompletedCall{{Call: call, Outcome: outcome, StepNumber: i + 1}},
		})
	}
	return s
}
