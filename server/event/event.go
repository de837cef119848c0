// Package event defines events: their types, payloads, subjects and ids.
//
// The catalogue in catalogue.go is the one list of types that agents emit. A durable event is numbered and stored with
// its run. A transient event (a delta) lives only in the replay ring; a later durable event holds all of its content.
package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"agentd/server/message"
)

// An Event is one thing that happened in a run. Payload is the whole JSON object, its "type" member included, as
// clients see it. Payloads are shared between subscribers and must not be changed.
type Event struct {
	Type    string
	Payload json.RawMessage
}

// New encodes an event of the given type from the members of fields, a struct or a map. It panics if they do not encode as
// a JSON object: fields are ours, not the caller's.
func New(typ string, fields any) Event {
	head := string(message.AppendText([]byte(`{"type":`), typ))
	if fields == nil {
		return Event{Type: typ, Payload: json.RawMessage(head + "}")}
	}
	payload, err := message.EncodeAfter(head, fields)
	if err != nil || payload[len(head)] != '{' {
		panic(fmt.Sprintf("event: fields of %s are not an object: %s, %v", typ, payload, err))
	}
	if payload[len(head)] = ','; len(payload) == len(head)+len("{}") {
		payload = append(payload[:len(head)], '}')
	}
	return Event{Type: typ, Payload: payload}
}

// Delta is New with one member, which is a text.
func Delta(typ, member, text string) Event {
	b := make([]byte, 0, len(`{"type":"","":""}`)+len(typ)+len(member)+len(text))
	b = message.AppendText(append(b, `{"type":`...), typ)
	b = message.AppendText(append(b, ','), member)
	b = message.AppendText(append(b, ':'), text)
	return Event{Type: typ, Payload: append(b, '}')}
}

// Parse reads an event that somebody else wrote: an object with a "type", which becomes an SSE field. It needs at most 64
// bytes of memory for each byte of the payload.
func Parse(payload []byte) (Event, error) {
	payload = bytes.TrimSpace(payload)
	if len(payload) == 0 || payload[0] != '{' {
		return Event{}, errors.New("an event is a JSON object")
	}
	var members map[string]json.RawMessage // a struct would take "Type" for "type"
	if err := json.Unmarshal(payload, &members); err != nil {
		return Event{}, fmt.Errorf("an event is a JSON object: %w", err)
	}
	var typ string
	if json.Unmarshal(members["type"], &typ) != nil || !isWord(typ, 64, "._-:") {
		return Event{}, errors.New(`an event has a "type": 1 to 64 characters of A-Z a-z 0-9 . _ - :`)
	}
	return Event{Type: typ, Payload: bytes.Clone(payload)}, nil
}

// isWord reports whether s is 1 to most of A-Z a-z 0-9 and the others.
func isWord(s string, most int, others string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && strings.IndexByte(others, c) < 0 {
			return false
		}
	}
	return len(s) > 0 && len(s) <= most
}
