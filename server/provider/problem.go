package provider

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"agentd/server/fault"
	"agentd/server/outbound"
)

// A problem is what an error body says, in whichever dialect.
type problem struct {
	message string
	words   string // message, type, code and parameter in lower case, to search in
	status  int    // HTTP status that the body itself names; 0 if none
}

// readProblem understands {"error":{...}}, {"error":"text"}, {"message":...} and {"detail":...}, also as the only
// element of a list. Any other text is its own message, unless it is a page for browsers.
func readProblem(body []byte) problem {
	body = bytes.TrimSpace(body)
	var list []json.RawMessage
	if json.Unmarshal(body, &list) == nil && len(list) > 0 {
		body = list[0]
	}
	var outer struct {
		Error, Detail json.RawMessage
	}
	switch err := json.Unmarshal(body, &outer); {
	case err != nil && bytes.HasPrefix(body, []byte("<")):
		return problem{}
	case err != nil:
		return problem{message: string(body), words: strings.ToLower(string(body))}
	}
	inner := body
	if len(outer.Error) > 0 && string(outer.Error) != "null" {
		inner = outer.Error
	}
	var said struct {
		Message, Type, Code, Param, Status text
	}
	_ = json.Unmarshal(inner, (*text)(&said.Message)) // the error is the text itself
	_ = json.Unmarshal(inner, &said)
	message := cmp.Or(string(said.Message), detail(outer.Detail))
	p := problem{
		message: message,
		words:   strings.ToLower(strings.Join([]string{message, string(said.Type), string(said.Code), string(said.Param), string(said.Status)}, "\n")),
	}
	if code, err := strconv.Atoi(string(said.Code)); err == nil && code >= 400 && code <= 599 {
		p.status = code
	}
	return p
}

// detail reads the errors of a web framework that many model servers are built with: a text, or a list of places
// with messages.
func detail(raw json.RawMessage) string {
	var places []struct {
		Loc []any
		Msg string
	}
	if json.Unmarshal(raw, &places) != nil {
		var s text
		_ = json.Unmarshal(raw, &s)
		return string(s)
	}
	var parts []string
	for _, p := range places {
		if n := len(p.Loc); n > 0 {
			p.Msg = fmt.Sprintf("%v: %s", p.Loc[n-1], p.Msg)
		}
		parts = append(parts, p.Msg)
	}
	return strings.Join(parts, "; ")
}

// overflow are the words with which servers say that a conversation is too long.
var overflow = []string{
	"context length", "context_length", "maximum context", "context window", "context size", "context_size",
	"too many tokens", "prompt is too long", "input is too long", "reduce the length",
}

var filtered = []string{"content_filter", "content_policy", "responsibleaipolicy"}

// kind classifies a problem by the HTTP status of the answer, or, where the answer had begun and status is 0, by the
// words of the problem. What a server says in the middle of an answer is usually about itself, so it passes.
func (p problem) kind(status int) *fault.Kind {
	switch {
	case status == http.StatusTooManyRequests:
		return fault.RateLimit
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return fault.Unauthorized
	case status == http.StatusServiceUnavailable || status == 529:
		return fault.Capacity
	case status >= 500 || status == http.StatusRequestTimeout:
		return fault.Transient
	case containsAny(p.words, overflow):
		return fault.ContextLength
	case containsAny(p.words, filtered):
		return fault.ContentFilter
	case status != 0:
		return fault.InvalidRequest
	case containsAny(p.words, []string{"rate_limit", "rate limit", "quota", "resource_exhausted"}):
		return fault.RateLimit
	case containsAny(p.words, []string{"overloaded", "capacity"}):
		return fault.Capacity
	case containsAny(p.words, []string{"authentication", "api_key", "permission", "unauthorized"}):
		return fault.Unauthorized
	case containsAny(p.words, []string{"invalid_request", "invalid_argument", "badrequest", "bad_request"}):
		return fault.InvalidRequest
	}
	return fault.Transient
}

// maxMessage bounds what is quoted of a server's message, in characters.
const maxMessage = 300

// keyLike is what looks like a credential in a server's message, which may quote the one that it was sent.
var keyLike = regexp.MustCompile(`(?i)\bbearer\s+[^\s"']+|\b(sk|pk|gsk|xai)[-_][\w*.-]{6,}`)

// quotable makes one short line of a server's message, without secrets.
func quotable(s string, secrets []string) string {
	for _, secret := range secrets {
		if secret != "" {
			s = strings.ReplaceAll(s, secret, "[redacted]")
		}
	}
	return outbound.Line(keyLike.ReplaceAllString(s, "[redacted]"), maxMessage)
}

// maxAsked bounds the wait that a server may ask for.
const maxAsked = 24 * time.Hour
