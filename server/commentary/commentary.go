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
// So "type" has to be the first key, and the match ends at the first brace, though that may be one of an inner object.
// All matches of the first pattern are treated, then all of the second, and so on. What becomes of a match:
//
//	wrap   it is put in an envelope: between <<<commentary>>> and <<</commentary>>>. What was in an envelope before is
//	       left as it is, and no match reaches across an envelope or a closing mark. So what is wrapped has no closing
//	       mark in it, and nobody can break out of an envelope by writing one.
//	strip  it is removed. Envelopes are text like any other, so that nobody can hide behind one. Where the removal
//	       joins the halves of another match, that one is removed too; a string that still has matches after that was
//	       done eight times over is emptied.
//
// Both are done when they are done once: a second time changes nothing. Each takes time and memory in proportion to the
// payload: at most 32 bytes for each byte.
package commentary

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// A Policy says what becomes of commentary. The zero Policy is Wrap.
type Policy string

// The policies.
const (
	Wrap        Policy = "wrap"
	Strip       Policy = "strip"
	PassThrough Policy = "pass-through" // nothing: it stays as it is
)

// A Sanitiser treats the payloads of some types of events. It is safe for concurrent use.
type Sanitiser struct {
	policy Policy
	types  map[string]bool
}

// New makes a Sanitiser for events of the types in applyTo; with none, it treats nothing. It panics on a policy that
// is none.
func New(policy Policy, applyTo []string) *Sanitiser {
	s := &Sanitiser{policy: policy, types: map[string]bool{}}
	switch policy {
	case PassThrough:
		return s
	case "":
		s.policy = Wrap
	case Wrap, Strip:
	default:
		panic(fmt.Sprintf("commentary: %q is no policy", policy))
	}
	for _, typ := range applyTo {
		s.types[typ] = true
	}
	return s
}

// A Decision tells that a payload was changed, and why.
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
// in which every byte that is not part of a match or of an envelope is as it was.
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
		SHA256Before: digest(payload), SHA256After: digest(after),
	}
	d.MatchedPattern = d.Reasons[0]
	return after, d
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
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

// rewrite treats the strings of a JSON text. The text need not be valid, but then what comes out is of no use.
func (s *Sanitiser) rewrite(payload []byte) (after []byte, found matched) {
	copied := 0
	for at := 0; ; {
		quote := bytes.IndexByte(payload[at:], '"')
		if quote < 0 {
			break
		}
		start := at + quote + 1
		length := bodyLength(payload[start:])
		if length < 0 {
			break
		}
		end := start + length
		at = end + 1
		body := payload[start:end]
		if !suspicious(body) || isKey(payload[at:]) {
			continue
		}
		treat := wrap
		if s.policy == Strip {
			treat = strip
		}
		if body, m := treat(body); m != 0 {
			after = append(after, payload[copied:start]...)
			after = append(after, body...)
			copied = end
			found |= m
		}
	}
	if found == 0 {
		return nil, 0
	}
	return append(after, payload[copied:]...), found
}

// bodyLength is the length of a string's body, up to its closing quote; -1 where there is none.
func bodyLength(raw []byte) int {
	for at := 0; ; at++ {
		quote := bytes.IndexByte(raw[at:], '"')
		if quote < 0 {
			return -1
		}
		at += quote
		escapes := at
		for escapes > 0 && raw[escapes-1] == '\\' {
			escapes--
		}
		if (at-escapes)%2 == 0 {
			return at
		}
	}
}

// isKey reports whether the string before rest is the key of a member.
func isKey(rest []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(rest, " \t\r\n"), []byte(":"))
}
