package provider

import "strings"

// An omission is a set of parameters that a model is not sent because it refused them.
type omission uint8

const (
	maxTokens omission = 1 << iota
	temperature
	streamOptions
	responseFormat
)

// repairs are the parameters of the protocol that some models refuse.
var repairs = [...]struct {
	omission omission
	member   string   // of the body
	named    []string // a refusal of the parameter holds one of these
	because  []string // and, where not empty, one of these; without them the value is bad and not the parameter
}{
	{omission: maxTokens, member: "max_tokens", named: []string{"max_tokens"}},
	{omission: temperature, member: "temperature", named: []string{"temperature"},
		because: []string{"support", "deprecated", "permitted", "allowed", "unrecognized", "unknown", "unexpected"}},
	{omission: streamOptions, member: "stream_options", named: []string{"stream_options"}},
	{omission: responseFormat, member: "response_format", named: []string{"response_format", "json_schema"}},
}

// String names the parameters, for the log.
func (o omission) String() string {
	var names []string
	for _, r := range repairs {
		if o&r.omission != 0 {
			names = append(names, r.member)
		}
	}
	return strings.Join(names, ",")
}

// refusedBy finds the first parameter of the body that a refusal names; 0 if there is none. The refusal's text is in lower
// case. A parameter that was taken out is not found again, which bounds the number of repairs.
func refusedBy(refusal string, body map[string]any) omission {
	for _, r := range repairs {
		if _, sent := body[r.member]; sent && containsAny(refusal, r.named) && (r.because == nil || containsAny(refusal, r.because)) {
			return r.omission
		}
	}
	return 0
}

// apply takes the parameters out of a body. The limit on tokens stays under its newer name.
func (o omission) apply(body map[string]any) {
	for _, r := range repairs {
		value, sent := body[r.member]
		if o&r.omission == 0 || !sent {
			continue
		}
		delete(body, r.member)
		if r.omission == maxTokens {
			body["max_completion_tokens"] = value
		}
	}
}

func containsAny(s string, words []string) bool {
	for _, w := range words {
		if strings.Contains(s, w) {
			return true
		}
	}
	return false
}
