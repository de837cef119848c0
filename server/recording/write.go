package recording

import (
	"cmp"
	"io"
	"slices"
	"time"

	"agentd/server/jsonlines"
	"agentd/server/message"
)

// Write writes the recording as a file, and sets the kinds of its lines. Whatever belongs to one step lies together:
// the approvals that began it, its model call, its tool calls. The error is that of w.
func (r *Recording) Write(w io.Writer) error {
	r.Meta.Kind, r.Meta.Format, r.Meta.Version, r.Meta.MinRuntimeVersion = "meta", Format, Version, "0.1.0"
	out := jsonlines.NewWriter(w, r.Meta)
	if r.Input != nil {
		r.Input.Kind = "input"
		out.Write(r.Input)
	}
	type line struct {
		step  int
		value any
	}
	var lines []line
	for i := range r.Approvals {
		a := &r.Approvals[i]
		a.Kind = "approval"
		lines = append(lines, line{a.StepNumber, a})
	}
	for i := range r.ModelCalls {
		c := &r.ModelCalls[i]
		c.Kind = "model-call"
		lines = append(lines, line{c.StepNumber, c})
	}
	for i := range r.ToolCalls {
		c := &r.ToolCalls[i]
		c.Kind = "tool-call"
		lines = append(lines, line{c.StepNumber, c})
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.step, b.step) })
	for _, l := range lines {
		out.Write(l.value)
	}
	if r.Result != nil {
		r.Result.Kind = "result"
		out.Write(r.Result)
	}
	return out.Close(Footer{Kind: "footer", RecordCount: out.Lines + 2, ToolCallCount: len(r.ToolCalls), Checksum: out.Checksum(),
		WrittenAtISO: message.Time(time.Now())})
}
