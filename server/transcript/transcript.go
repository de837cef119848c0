// Package transcript turns stored messages into the messages that they stand for.
package transcript

import (
	"encoding/json"

	"agentd/server/message"
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
