// Package event is what an event is: its type, its payload, the subject it is published on and its id there.
//
// The catalogue in catalogue.go is the one list of types that agents emit. A type is durable, then it is numbered
// and kept with its run, or transient (a delta), then it lives in the replay ring only and a later durable event
// holds all that it said.
package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"agentd/server/message"
)

// An Event is one thing that happened in a run. Payload is the whole JSON object, its "type" member included, as
// clients see it. Payloads are shared between subscribers and must not be changed.
type Event struct {
	Type    string
	Payload json.RawMessage
}

// New encodes an event of the given type from the members of fields, a struct or a map that encodes as a JSON
// object. It panics on what does not encode so: fields are ours, not the caller's.
func New(typ string, fields any) Event {
	body := []byte("{}")
	if fields != nil {
		var err error
		if body, err = message.Encode(fields); err != nil || len(body) < 2 || body[0] != '{' {
			panic(fmt.Sprintf("event: fields of %s are no object: %s, %v", typ, body, err))
		}
	}
	head := append([]byte(`{"type":`), quote(typ)...)
	if string(body) == "{}" {
		return Event{Type: typ, Payload: append(head, '}')}
	}
	return Event{Type: typ, Payload: append(append(head, ','), body[1:]...)}
}

// Parse reads an event that somebody else wrote. The payload must be an object with a non-empty string "type" of
// at most 64 visible ASCII characters (it becomes an SSE field). Its members are read one by one, for which 64 bytes of
// memory may be needed for each byte.
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
	if json.Unmarshal(members["type"], &typ) != nil || !validType(typ) {
		return Event{}, errors.New(`an event has a "type": 1 to 64 characters of A-Z a-z 0-9 . _ - :`)
	}
	return Event{Type: typ, Payload: bytes.Clone(payload)}, nil
}

func validType(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' && c != ':' {
			return false
		}
	}
	return len(s) > 0 && len(s) <= 64
}

func quote(s string) []byte {
	b, _ := message.Encode(s)
	return b
}
