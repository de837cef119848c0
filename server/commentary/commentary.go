// Package commentary finds the JSON text of trace events that leaked into what people read, and marks or removes it.
//
// A model may echo its own tool call in its answer, and a tool may return a trace of another agent. [Sanitiser.Payload]
// looks for such text in the strings of an event's payload; what the payload itself is made of, it leaves alone. Seven
// patterns, of which a text matches one when it is, in this order:
//
//	{ "type" : "<name of an event>"    with JavaScript's white space between the tokens, or none
//	as few characters as possible, and the marker of the pattern, if it has one
//	as few characters as possible, and }
//
// So "type" has to be the first key, and the match ends at the first brace, even if that ends an inner object. The
// Sanitiser treats all matches of the first pattern, then all of the second, and so on:
//
//	wrap   puts each in an envelope: between <<<commentary>>> and <<</commentary>>>. It leaves envelopes that are there
//	       already as they are, and no match reaches across an envelope or a closing mark. So a match has no closing
//	       mark in it, and nobody can break out of an envelope by writing one.
//	strip  removes them. Envelopes are text like any other, so that nobody can hide behind one. Where the removal
//	       joins the halves of another match, strip removes that one too; it empties a string that still has matches
//	       after eight passes.
//
// Both are idempotent. Each takes time and memory in proportion to the payload: at most 32 bytes for each byte.
package commentary

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"

	"agentd/server/message"
)

// A Policy is what a Sanitiser does with commentary. The zero Policy is Wrap.
type Policy string

// The policies.
const (
	Wrap        Policy = "wrap"
	Strip       Policy = "strip"
	PassThrough Policy = "pass-through" // nothing
)

// A Sanitiser treats the payloads of some types of events. It is safe for concurrent use.
type Sanitiser struct {
	policy Policy
	types  map[string]bool
}

// New makes a Sanitiser for events of the types in applyTo; with none, it treats nothing. It panics on an unknown policy.
func New(policy Policy, applyTo []string) *Sanitiser {
	s := &Sanitiser{policy: cmp.Or(policy, Wrap), types: map[string]bool{}}
	switch s.policy {
	case PassThrough:
		return s
	case Wrap, Strip:
	default:
		panic(fmt.Sprintf("commentary: unknown policy %q", policy))
	}
	for _, typ := range applyTo {
		s.types[typ] = true
	}
	return s
}

// A Decision describes why and how a payload was changed.
type Decision struct {
	EventType      string
	Policy         Policy
	Reasons        []string // labels of the patterns that matched, each once, in the order of the patterns
	MatchedPattern string   // the first of Reasons
	SHA256Before   string   // of the payload's JSON text, in lower-case hexadecimal digits
	SHA256After    string
}

// Payload treats the strings in an event's payload, at any depth, but not the keys of objects. Where there is nothing
// to treat, and where the payload is not valid JSON, it returns the same slice and nil. Otherwise it returns a new one,
// in which every byte outside of the strings with a match is as it was. Those strings are encoded again: they may have other
// escapes than before for the same text.
func (s *Sanitiser) Payload(eventType string, payload json.RawMessage) (json.RawMessage, *Decision) {
	if !s.types[eventType] || !suspicious(payload) {
		return payload, nil
	}
	after, found := s.rewrite(payload)
	if found == 0 || !json.Valid(payload) {
		return payload, nil
	}
	d := &Decision{
		EventType: eventType, Policy: s.policy, Reasons: found.reasons(),
		SHA256Before: fmt.Sprintf("%x", sha256.Sum256(payload)), SHA256After: fmt.Sprintf("%x", sha256.Sum256(after)),
	}
	d.MatchedPattern = d.Reasons[0]
	return after, d
}

// suspicious reports whether a string of the JSON text raw can hold "type" with its quotes, as every match does. There,
// a quote is written \" or \u0022, and each of the letters as it is or as \u00xx.
func suspicious(raw []byte) bool {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 || len(raw)-i < len(`\u00xx`) {
			return false
		}
		switch raw = raw[i+1:]; {
		case raw[0] == '"' && bytes.HasPrefix(raw, []byte(`"type\"`)), raw[0] == 'u' && raw[1] == '0' && raw[2] == '0':
			return true
		}
		raw = raw[1:] // it may be the second of two backslashes
	}
}

// named reports whether a JSON string can hold the name of an event, whose letters are written as they are or as \u00xx.
func named(raw []byte) bool {
	return bytes.Contains(raw, []byte(`\u00`)) ||
		slices.ContainsFunc(patterns[:], func(p pattern) bool { return bytes.Contains(raw, []byte(p.name[1:])) })
}

// rewrite treats the strings of a JSON text. It finds nothing in a text that is not valid, or what comes out is of no use.
func (s *Sanitiser) rewrite(payload []byte) (after []byte, found matched) {
	treat := wrap
	if s.policy == Strip {
		treat = strip
	}
	copied := 0
	for at := 0; ; {
		quote := bytes.IndexByte(payload[at:], '"')
		if quote < 0 {
			break
		}
		start := at + quote
		if at = stringEnd(payload, start); at < 0 {
			return nil, 0
		}
		var text string
		if raw := payload[start:at]; !suspicious(raw) || !named(raw) || isKey(payload[at:]) || json.Unmarshal(raw, &text) != nil {
			continue
		}
		if text, m := treat(text); m != 0 {
			encoded, _ := message.Encode(text)
			after = append(append(after, payload[copied:start]...), encoded...)
			copied, found = at, found|m
		}
	}
	if found == 0 {
		return nil, 0
	}
	return append(after, payload[copied:]...), found
}

// stringEnd returns where the JSON string that begins at start ends; -1 if it does not.
func stringEnd(raw []byte, start int) int {
	for at := start + 1; at < len(raw); at++ {
		switch raw[at] {
		case '"':
			return at + 1
		case '\\':
			at++
		}
	}
	return -1
}

// isKey reports whether the string before rest is the key of a member.
func isKey(rest []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(rest, " \t\r\n"), []byte(":"))
}
