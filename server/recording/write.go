package recording

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
	"time"

	"agentd/server/message"
)

// Write writes the recording as a file, and sets the kinds of its lines. Whatever belongs to one step lies together:
// the approvals that began it, its model call, its tool calls. The error is that of w.
func (r *Recording) Write(w io.Writer) error {
	out := &lineWriter{w: bufio.NewWriterSize(w, 64<<10), sum: sha256.New()}
	r.Meta.Kind, r.Meta.Format, r.Meta.Version, r.Meta.MinRuntimeVersion = "meta", Format, Version, "0.1.0"
	out.line(r.Meta)
	if r.Input != nil {
		r.Input.Kind = "input"
		out.body(r.Input)
	}
	approvals, models, tools := r.Approvals, r.ModelCalls, r.ToolCalls
	for len(approvals)+len(models)+len(tools) > 0 {
		switch step := nextStep(approvals, models, tools); {
		case len(approvals) > 0 && approvals[0].StepNumber == step:
			approvals[0].Kind = "approval"
			out.body(approvals[0])
			approvals = approvals[1:]
		case len(models) > 0 && models[0].StepNumber == step:
			models[0].Kind = "model-call"
			out.body(models[0])
			models = models[1:]
		default:
			tools[0].Kind = "tool-call"
			out.body(tools[0])
			tools = tools[1:]
		}
	}
	if r.Result != nil {
		r.Result.Kind = "result"
		out.body(r.Result)
	}
	out.line(Footer{Kind: "footer", RecordCount: out.records + 2, ToolCallCount: len(r.ToolCalls),
		Checksum: "sha256:" + hex.EncodeToString(out.sum.Sum(nil)), WrittenAtISO: message.Time(time.Now())})
	if out.err == nil {
		out.err = out.w.Flush()
	}
	return out.err
}

// nextStep is the lowest step that a line is left of.
func nextStep(approvals []Approval, models []ModelCall, tools []ToolCall) int {
	step := int(^uint(0) >> 1)
	if len(approvals) > 0 {
		step = min(step, approvals[0].StepNumber)
	}
	if len(models) > 0 {
		step = min(step, models[0].StepNumber)
	}
	if len(tools) > 0 {
		step = min(step, tools[0].StepNumber)
	}
	return step
}

// lineWriter writes lines until the first error, which it keeps.
type lineWriter struct {
	w       *bufio.Writer
	sum     hash.Hash // of the body
	records int       // of the body
	err     error
}

func (o *lineWriter) line(v any) []byte {
	if o.err != nil {
		return nil
	}
	b, err := message.Encode(v)
	if err == nil {
		b = append(b, '\n')
		_, err = o.w.Write(b)
	}
	o.err = err
	return b
}

func (o *lineWriter) body(v any) {
	o.sum.Write(o.line(v))
	o.records++
}
