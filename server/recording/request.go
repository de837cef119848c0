package recording

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"

	"agentd/server/message"
)

// A Request is what a model was asked, without who was asked and on whose behalf.
type Request struct {
	Messages []message.Message `json:"messages"`
	Terms
}

// Terms are what a model is asked with, beside the messages.
type Terms struct {
	Tools       []Tool   `json:"tools,omitempty"`
	ToolChoice  string   `json:"toolChoice,omitempty"` // required, none or tool:<name>; empty: the model decides
	Temperature *float64 `json:"temperature,omitempty"`
	MaxTokens   int      `json:"maxTokens,omitempty"`
	Output      *Output  `json:"output,omitempty"`
}

// Tool is a tool as a model sees it. It does not see SideEffect.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Input       json.RawMessage `json:"input,omitempty"`
	InputSHA256 string          `json:"inputSha256,omitempty"`
	SideEffect  string          `json:"sideEffectClass,omitempty"`
}

// Output is the form that an answer must have.
type Output struct {
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"schema,omitempty"`
}

// thisRun stands for the id of the run itself in what is compared.
const thisRun = "{run}"

// Hash is the SHA-256, in hex, of the request as the model sees it, with [thisRun] in the place of the run's ids.
func (r *Request) Hash(runIDs ...string) string {
	q := *r
	q.Messages, q.Tools = append([]message.Message{}, r.Messages...), slices.Clone(r.Tools)
	for i := range q.Messages {
		q.Messages[i] = seen(q.Messages[i])
	}
	for i := range q.Tools {
		q.Tools[i].SideEffect = ""
	}
	return digest(canonical(q, runIDs...))
}

// seen is a message as far as a model sees it: models do not see which of several agents or users speaks.
func seen(m message.Message) message.Message {
	m.AgentID, m.UserID = "", ""
	return m
}

// hash is the SHA-256, in hex, of a value's JSON with sorted keys.
func hashOf(v any) string { return digest(canonical(v)) }

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// canonical is the JSON of a value, with sorted keys and without white space, and with [thisRun] in the place of the given
// ids. It is empty for a value that does not encode.
func canonical(v any, runIDs ...string) []byte {
	b, err := message.Encode(v)
	if err != nil {
		return nil
	}
	var x any
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber() // the digits stay as they are
	if dec.Decode(&x) != nil {
		return nil
	}
	if b, err = message.Encode(x); err != nil {
		return nil
	}
	for _, id := range runIDs {
		if id != "" {
			b = bytes.ReplaceAll(b, []byte(id), []byte(thisRun))
		}
	}
	return b
}

// delta compares the messages of a request with those of the one before: the number of messages that are the same from the
// beginning, and the rest.
func delta(before, now []message.Message) (kept int, rest []message.Message) {
	for kept < min(len(before), len(now)) && bytes.Equal(canonical(before[kept]), canonical(now[kept])) {
		kept++
	}
	return kept, now[kept:]
}

// Request rebuilds the request of a call from that of the call before it; of the first one, from the zero value.
func (c *ModelCall) Request(before Request) Request {
	kept := before.Messages[:min(c.Kept, len(before.Messages))]
	return Request{slices.Concat(kept, c.Messages), *cmp.Or(c.Terms, &before.Terms)}
}
