// Package transcript turns stored messages into the messages that they stand for.
package transcript

import (
	"encoding/json"

	"agentd/server/message"
	"agentd/server/provider"
	"agentd/server/tool"
	"agentd/store"
)

// Decode reads a stored message. A tool message is stored as the outcome of its call, which is returned too.
func Decode(m store.Message) (message.Message, *message.Outcome, error) {
	if m.Role != string(message.Tool) {
		var msg message.Message
		err := json.Unmarshal(m.Body, &msg)
		return msg, nil, err
	}
	o := new(message.Outcome)
	if err := json.Unmarshal(m.Body, o); err != nil {
		return message.Message{}, nil, err
	}
	return Answer(o), o, nil
}

// Answer is the tool message that tells a model of an outcome.
func Answer(o *message.Outcome) message.Message {
	return message.Message{Role: message.Tool, ToolCallID: o.ToolCallID, Content: message.Text(tool.Render(o))}
}

// Tokens estimates how many tokens a message takes in a model's context.
func Tokens(m message.Message) int {
	size := provider.Estimate(m.Content.String())
	for _, c := range m.ToolCalls {
		size += provider.Estimate(string(c.Args))
	}
	return size + 4
}
