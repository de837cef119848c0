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

// statuses are the HTTP statuses that say what the problem is. Others below 500 leave it to the words.
var statuses = map[int]*fault.Kind{
	http.StatusTooManyRequests: fault.RateLimit, http.StatusServiceUnavailable: fault.Capacity, 529: fault.Capacity,
	http.StatusUnauthorized: fault.Unauthorized, http.StatusForbidden: fault.Unauthorized, http.StatusRequestTimeout: fault.Transient,
}

// phrases are the words with which servers say what the problem is; the first row that matches counts. An answer's status can
// mean what the rows without request say, so they count only where there is none.
var phrases = []struct {
	kind    *fault.Kind
	request bool
	words   []string
}{
	{fault.ContextLength, true, []string{"context length", "context_length", "maximum context", "context window", "context size", "context_size",
		"too many tokens", "prompt is too long", "input is too long", "reduce the length"}},
	{fault.ContentFilter, true, []string{"content_filter", "content_policy", "responsibleaipolicy"}},
	{fault.RateLimit, false, []string{"rate_limit", "rate limit", "quota", "resource_exhausted"}},
	{fault.Capacity, false, []string{"overloaded", "capacity"}},
	{fault.Unauthorized, false, []string{"authentication", "api_key", "permission", "unauthorized"}},
	{fault.InvalidRequest, false, []string{"invalid_request", "invalid_argument", "badrequest", "bad_request"}},
}

// kind classifies a problem by the HTTP status of the answer, or, where the answer had begun and status is 0, by the
// words of the problem. What a server says in the middle of an answer is usually about itself, so it passes.
func (p problem) kind(status int) *fault.Kind {
	if kind := statuses[status]; kind != nil || status >= 500 {
		return cmp.Or(kind, fault.Transient)
	}
	for _, row := range phrases {
		if (row.request || status == 0) && containsAny(p.words, row.words) {
			return row.kind
		}
	}
	if status != 0 {
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
		s = strings.ReplaceAll(s, secret, "[redacted]")
	}
	return outbound.Line(keyLike.ReplaceAllString(s, "[redacted]"), maxMessage)
}

// maxAsked bounds the wait that a server may ask for.
const maxAsked = 24 * time.Hour
