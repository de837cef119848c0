// Package transcript turns stored messages into the messages that they stand for.
package transcript

import (
	"encoding/json"
	"strconv"
	"strings"

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
