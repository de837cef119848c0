package provider

import (
	"cmp"
	"encoding/json"
	"math"
	"strings"

	"agentd/server/message"
)

// A chunk is one event of a stream, or the whole answer of a server that does not stream.
type chunk struct {
	Model   text            `json:"model"`
	Choices []choice        `json:"choices"`
	Usage   *wireUsage      `json:"usage"`
	Error   json.RawMessage `json:"error"`
	Object  text            `json:"object"`
}

type choice struct {
	Index        count  `json:"index"`
	Delta        delta  `json:"delta"`
	Message      *delta `json:"message"`
	FinishReason text   `json:"finish_reason"`
}

type delta struct {
	Content          text       `json:"content"`
	ReasoningContent text       `json:"reasoning_content"`
	Reasoning        text       `json:"reasoning"`
	ToolCalls        []fragment `json:"tool_calls"`
}

// A fragment is a piece of a tool call.
type fragment struct {
	Index    *count `json:"index"`
	ID       text   `json:"id"`
	Function struct {
		Name      text     `json:"name"`
		Arguments argument `json:"arguments"`
	} `json:"function"`
}

type wireUsage struct {
	Prompt        count `json:"prompt_tokens"`
	Completion    count `json:"completion_tokens"`
	Total         count `json:"total_tokens"`
	PromptDetails struct {
		Cached *count `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionDetails struct {
		Reasoning *count `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

// thought is the reasoning of a delta. Servers name it in one way or the other; those that do both repeat it.
func (d *delta) thought() string { return string(cmp.Or(d.ReasoningContent, d.Reasoning)) }

// usage takes the reasoning out of the completion, of which the protocol makes it a part. It is left in where the
// numbers show that the server counts it beside the completion already.
func (w *wireUsage) usage() message.Usage {
	u := message.Usage{PromptTokens: int64(w.Prompt), CompletionTokens: int64(w.Completion), TotalTokens: int64(w.Total)}
	if cached := w.PromptDetails.Cached; cached != nil {
		u.CachedReadTokens = int64(*cached)
	}
	if r := w.CompletionDetails.Reasoning; r != nil {
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
	*t = ""
	switch c := b[0]; {
	case c == '"':
		return json.Unmarshal(b, (*string)(t))
	case c == '-' || c >= '0' && c <= '9':
		*t = text(b)
	case c == '[':
		var parts []struct{ Type, Text any } // not text: lists in lists would be read again at each level
		if json.Unmarshal(b, &parts) != nil {
			return nil
		}
		var all strings.Builder
		for _, p := range parts {
			if s, ok := p.Text.(string); ok && p.Type == "text" {
				all.WriteString(s)
			}
		}
		*t = text(all.String())
	}
	return nil
}

// argument is a piece of the JSON text of a call's arguments. Some servers send the arguments themselves.
type argument string

func (a *argument) UnmarshalJSON(b []byte) error {
	switch *a = ""; {
	case b[0] == '"':
		return json.Unmarshal(b, (*string)(a))
	case string(b) != "null":
		*a = argument(b)
	}
	return nil
}

// count is a number of tokens, or an index. Anything that is not a number is 0, so that odd bookkeeping does not cost
// an answer.
type count int64

func (c *count) UnmarshalJSON(b []byte) error {
	var f float64
	*c = 0
	if json.Unmarshal(b, &f) == nil && f > 0 {
		*c = count(min(f, math.MaxInt32))
	}
	return nil
}
