package provider

import (
	"cmp"
	"encoding/json"
	"strings"

	"agentd/server/message"
)

// A chunk is one event of a stream, or the whole answer of a server that does not stream.
type chunk struct {
	Model   text
	Choices []choice
	Usage   *wireUsage
	Failed  bool // it reports a problem, in one of the forms that servers use
}

type choice struct {
	Index        count
	Delta        delta
	Message      *delta
	FinishReason text
}

type delta struct {
	Content          text
	ReasoningContent text
	Reasoning        text
	ToolCalls        []fragment
}

// A fragment is a piece of a tool call. Arguments is a piece of the JSON text of its arguments.
type fragment struct {
	Index     *count
	ID        text
	Name      text
	Arguments string
}

type wireUsage struct {
	Prompt, Completion, Total count
	Cached, Reasoning         *count
}

// thought is the reasoning of a delta. Servers name it in one way or the other; those that do both repeat it.
func (d *delta) thought() string { return string(cmp.Or(d.ReasoningContent, d.Reasoning)) }

// usage takes the reasoning out of the completion, of which the protocol makes it a part. It is left in where the
// numbers show that the server counts it beside the completion already.
func (w *wireUsage) usage() message.Usage {
	u := message.Usage{PromptTokens: int64(w.Prompt), CompletionTokens: int64(w.Completion), TotalTokens: int64(w.Total)}
	if cached := w.Cached; cached != nil {
		u.CachedReadTokens = int64(*cached)
	}
	if r := w.Reasoning; r != nil {
		reasoning := int64(*r)
		u.ReasoningTokens = &reasoning
		beside := u.TotalTokens == u.PromptTokens+u.CompletionTokens+reasoning
		if !beside && reasoning <= u.CompletionTokens {
			u.CompletionTokens -= reasoning
		}
	}
	if u.TotalTokens == 0 {
		u.TotalTokens = u.PromptTokens + u.CompletionTokens + message.Value(u.ReasoningTokens)
	}
	return u
}

// text is a JSON string. In its place servers also send null, which is empty, a number, which is its digits, or a
// list of parts, of which the texts count.
type text string

func (t *text) UnmarshalJSON(b []byte) error {
	if *t = textOf(b); b[0] == '"' {
		return json.Unmarshal(b, (*string)(t))
	}
	return nil
}

// textOf is what any value but a string stands for.
func textOf(b []byte) text {
	switch c := b[0]; {
	case c == '-' || c >= '0' && c <= '9':
		return text(b)
	case c == '[':
		var parts []struct{ Type, Text any } // not text: lists in lists would be read again at each level
		if json.Unmarshal(b, &parts) != nil {
			return ""
		}
		var all strings.Builder
		for _, p := range parts {
			if s, ok := p.Text.(string); ok && p.Type == "text" {
				all.WriteString(s)
			}
		}
		return text(all.String())
	}
	return ""
}

// count is a number of tokens, or an index. Anything that is not a number is 0, so that odd bookkeeping does not cost
// an answer.
type count int64
