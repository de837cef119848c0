// Package transcript restores the messages of a transcript from their stored, shortened form.
package transcript

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"

	"agentd/server/message"
	"agentd/store"
)

// A stored tool message is the outcome of its call. Other programs write outcomes in other words; Told keeps their message.
type answer struct {
	*message.Outcome
	Told *message.Message `json:"told,omitempty"`
}

// Body is the stored form of a message, and Decode its inverse. o is the outcome that a tool message reports, nil for all
// other messages.
func Body(msg message.Message, o *message.Outcome) (json.RawMessage, error) {
	if o == nil {
		return message.Encode(msg)
	}
	stored := answer{Outcome: o}
	if !reflect.DeepEqual(msg, Answer(o)) {
		stored.Told = &msg
	}
	return message.Encode(stored)
}

// Decode reads a stored message. A tool message is stored as the outcome of its call, which is returned too.
func Decode(m store.Message) (message.Message, *message.Outcome, error) {
	if m.Role != string(message.Tool) {
		var msg message.Message
		err := json.Unmarshal(m.Body, &msg)
		return msg, nil, err
	}
	stored := answer{Outcome: new(message.Outcome)}
	if err := json.Unmarshal(m.Body, &stored); err != nil {
		return message.Message{}, nil, err
	}
	o := stored.Outcome
	if stored.Told != nil {
		return *stored.Told, o, nil
	}
	return Answer(o), o, nil
}

// Outcome is the outcome that a tool message reports, if nothing else is known of the call; nil for all other messages.
func Outcome(msg message.Message, toolName string) *message.Outcome {
	if msg.Role != message.Tool {
		return nil
	}
	o := &message.Outcome{ToolCallID: msg.ToolCallID, ToolName: toolName, ContentParts: msg.Content.Parts}
	if o.ContentParts == nil {
		o.Output, _ = message.Encode(msg.Content.Text)
	}
	return o
}

// Answer is the tool message that reports an outcome to a model.
func Answer(o *message.Outcome) message.Message {
	return message.Message{Role: message.Tool, ToolCallID: o.ToolCallID, Content: message.Text(message.Render(o))}
}

// Tokens estimates how many tokens a message takes in a model's context.
func Tokens(m message.Message) int {
	size := message.Estimate(m.Content.String())
	for _, c := range m.ToolCalls {
		size += message.Estimate(string(c.Args))
	}
	return size + 4
}

// ID is the id of a stored message: msg-<number of its run in base 36>-<its index>.
func ID(run int64, index int) string {
	return "msg-" + strconv.FormatInt(run, 36) + "-" + strconv.Itoa(index)
}

// ParseID takes apart an id that [ID] has made; ok is false for every other text.
func ParseID(id string) (run int64, index int, ok bool) {
	number, place, _ := strings.Cut(strings.TrimPrefix(id, "msg-"), "-")
	run, err := strconv.ParseInt(number, 36, 64)
	if err != nil {
		return 0, 0, false
	}
	index, err = strconv.Atoi(place)
	return run, index, err == nil && run > 0 && index >= 0 && id == ID(run, index)
}
