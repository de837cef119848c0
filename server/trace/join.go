package trace

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"agentd/server/message"
	"agentd/server/transcript"
	"agentd/store"
)

// joiner completes spans with what the transcripts hold of them. It is for the spans of one page.
type joiner struct {
	runs  *store.Runs
	calls map[int64]map[int]store.Call // of each run, by the index of the tool message
	asked map[int64]asked              // of each run, the one that was read last: its calls come one after the other
	bytes int                          // of messages read so far
}

func newJoiner(runs *store.Runs) *joiner {
	return &joiner{runs: runs, calls: map[int64]map[int]store.Call{}, asked: map[int64]asked{}}
}

// asked is a message in which a model asks for calls.
type asked struct {
	index int
	args  map[string]json.RawMessage // by the id of the call
}

// event is the entry of a replay for a span.
func (j *joiner) event(ctx context.Context, f *found, raw bool) (ReplayEvent, error) {
	if raw {
		record, err := j.record(ctx, f)
		return ReplayEvent{Type: ReplaySpan, Span: &record, Sanitized: new(false)}, err
	}
	record, reason := Sanitize(&f.Span)
	if reason != "" {
		return ReplayEvent{Type: ReplaySkipped, Reason: reason, SpanID: f.ID}, nil
	}
	return ReplayEvent{Type: ReplaySpan, Span: &record, Sanitized: new(true)}, nil
}

// record is the span with what was said in it: of a model's answer the attributes output.text and output.toolCalls, of a
// tool call tool.arguments and, of its outcome, tool.result or tool.error, and tool.contentParts. A message that is no
// longer there adds nothing.
func (j *joiner) record(ctx context.Context, f *found) (SpanRecord, error) {
	out := recordOf(&f.Span)
	if f.Message == nil {
		return out, nil
	}
	var said map[string]any
	err := j.runs.View(ctx, func(tx *store.Tx) error {
		stored, err := j.runs.Message(tx, f.run, *f.Message)
		if err != nil {
			return err
		}
		j.bytes += len(stored.Body)
		msg, outcome, err := transcript.Decode(stored)
		if err != nil {
			return err
		}
		if outcome == nil {
			said = saidByModel(msg)
			return nil
		}
		said = saidByTool(outcome)
		args, err := j.arguments(tx, f.run, *f.Message)
		if args != nil {
			said["tool.arguments"] = args
		}
		return err
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return out, err
	}
	if len(said) > 0 {
		out.Attributes = maps.Clone(out.Attributes)
		maps.Copy(out.Attributes, said)
	}
	return out, nil
}

func saidByModel(m message.Message) map[string]any {
	said := map[string]any{}
	if text := m.Content.String(); text != "" {
		said["output.text"] = text
	}
	if m.ToolCalls != nil {
		said["output.toolCalls"] = m.ToolCalls
	}
	return said
}

// toolError is an outcome that is an error.
type toolError struct {
	Kind         message.ErrorKind    `json:"kind"`
	Message      string               `json:"message"`
	Hint         string               `json:"hint,omitempty"`
	Recoverable  bool                 `json:"recoverable"`
	RecoveryHint message.RecoveryHint `json:"recoveryHint,omitempty"`
}

func saidByTool(o *message.Outcome) map[string]any {
	if o.Failed() {
		return map[string]any{"tool.error": toolError{o.Kind, o.Message, o.Hint, o.Recoverable, o.RecoveryHint}}
	}
	said := map[string]any{"tool.result": nil}
	switch {
	case o.ResultHandle != nil: // too large for the transcript
		said["tool.result"] = o.ResultHandle
	case len(o.Output) > 0:
		said["tool.result"] = o.Output
	}
	if o.ContentParts != nil {
		said["tool.contentParts"] = o.ContentParts
	}
	return said
}

// arguments finds what a call was asked for with, by the tool message that answers it: the ids that models give to their
// calls may repeat within a run. It is nil when there is no such call.
func (j *joiner) arguments(tx *store.Tx, run int64, answered int) (json.RawMessage, error) {
	if j.calls[run] == nil {
		list, err := j.runs.Calls(tx, run)
		if err != nil {
			return nil, err
		}
		byAnswer := map[int]store.Call{}
		for _, c := range list {
			if c.Answered >= 0 {
				byAnswer[c.Answered] = c
			}
		}
		j.calls[run] = byAnswer
	}
	call, ok := j.calls[run][answered]
	if !ok {
		return nil, nil
	}
	if a, ok := j.asked[run]; ok && a.index == call.Asked {
		return a.args[call.ID], nil
	}
	stored, err := j.runs.Message(tx, run, call.Asked)
	if err != nil {
		return nil, err
	}
	j.bytes += len(stored.Body)
	msg, _, err := transcript.Decode(stored)
	if err != nil {
		return nil, err
	}
	a := asked{call.Asked, map[string]json.RawMessage{}}
	for _, c := range slices.Backward(msg.ToolCalls) { // of two with one id, the first counts
		a.args[c.ID] = c.Args
	}
	j.asked[run] = a
	return a.args[call.ID], nil
}
