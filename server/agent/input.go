package agent

import (
	"encoding/json"

	"agentd/server/message"
	"agentd/server/run"
)

// Input is a part of [journal.Form]: the form is text, json or messages.
func (form) Input(as string, input json.RawMessage) ([]message.Message, error) {
	if as == "messages" {
		var list []message.Message
		if json.Unmarshal(input, &list) != nil {
			var one message.Message
			if err := json.Unmarshal(input, &one); err != nil {
				return nil, err
			}
			list = []message.Message{one}
		}
		for i := range list { // whose they are is not for the caller to say
			m := &list[i]
			if m.Role == message.Developer {
				m.Role = message.System
			}
			m.Caller, m.Withheld = m.Role == message.System, false
		}
		return list, nil
	}
	text := string(input)
	if as == "text" {
		if err := json.Unmarshal(input, &text); err != nil {
			return nil, err
		}
	}
	return []message.Message{{Role: message.User, Content: message.Text(text)}}, nil
}

// inputOf returns the input of a run as JSON.
func inputOf(r *run.Run) json.RawMessage {
	for _, e := range r.Record.Messages {
		if e.Message.Role != message.User {
			continue
		}
		if r.Row.InputForm == "json" {
			return json.RawMessage(e.Message.Content.Text)
		}
		b, _ := message.Encode(e.Message.Content.Text)
		return b
	}
	return json.RawMessage(`""`)
}
