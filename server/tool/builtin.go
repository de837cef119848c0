package tool

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	_ "time/tzdata"

	"agentd/server/message"
)

// builtin makes a tool of a function that gets the arguments, which the schema has checked, and returns what encodes as JSON.
func builtin[A any](spec Spec, run func(context.Context, Call, A) (any, error)) Tool {
	return Func(spec, func(ctx context.Context, call Call) (Result, error) {
		var args A
		if err := json.Unmarshal(call.Args, &args); err != nil {
			return Result{}, invalidInput(err.Error(), "")
		}
		answer, err := run(ctx, call, args)
		if err != nil {
			return Result{}, err
		}
		return JSON(answer)
	})
}

func invalidInput(text, hint string) *Error {
	return &Error{Kind: message.InvalidInput, Message: text, Hint: hint}
}

// NewClock makes a tool that returns the current time: {zone?} gives {time, weekday, unix, zone}. Zones are those that the host
// has; on a host without them, those that the binary holds.
func NewClock() Tool {
	return builtin(Spec{
		Name:        "clock",
		Description: "Tells the current date and time, in UTC or in an IANA time zone such as Europe/Paris.",
		Input: json.RawMessage(`{"type":"object","properties":{"zone":{"type":"string","maxLength":64,` +
			`"description":"IANA name of a time zone; UTC when absent"}},"additionalProperties":false}`),
		SideEffect: ReadOnly,
	}, func(_ context.Context, _ Call, args struct{ Zone string }) (any, error) {
		zone, err := time.LoadLocation(args.Zone)
		if err != nil || args.Zone == "Local" { // which is no IANA name: the host decides what it means
			return nil, invalidInput(fmt.Sprintf("There is no time zone %.80q.", args.Zone), "Use an IANA name such as America/New_York, or UTC.")
		}
		at := time.Now().In(zone)
		return struct {
			Time    string `json:"time"` // RFC 3339
			Weekday string `json:"weekday"`
			Unix    int64  `json:"unix"`
			Zone    string `json:"zone"`
		}{at.Format(time.RFC3339), at.Weekday().String(), at.Unix(), zone.String()}, nil
	})
}

// NewCalculator makes a tool that computes: {expression} gives {result, exact}. The result is a decimal number as
// text. It is exact as long as only + - * / %, whole powers, abs, min, max, floor, ceil, round and roots of squares
// are used and its digits end; else it is rounded to 15 digits, or to 20 where only its digits do not end. An
// expression has at most 1000 characters, 100 levels, and numbers of at most 4096 bits.
func NewCalculator() Tool {
	return builtin(Spec{
		Name: "calculator",
		Description: "Computes an arithmetic expression exactly where that is possible. Operators: + - * / % (remainder, with the sign of " +
			"the dividend) ^ (power, right to left) and parentheses. Functions: sqrt abs floor ceil ln log10, round(x) or " +
			"round(x, digits), min and max of any number of values. Constants: pi, e. Write numbers without separators.",
		Input: json.RawMessage(`{"type":"object","properties":{"expression":{"type":"string","minLength":1,"maxLength":1000,` +
			`"description":"for example (19.99 * 3 + 4.50) * 1.19"}},"required":["expression"],"additionalProperties":false}`),
		SideEffect: Pure,
	}, func(_ context.Context, _ Call, args struct{ Expression string }) (any, error) {
		v, err := evaluate(args.Expression)
		if err != nil {
			return nil, err
		}
		result, exact := v.text()
		return struct {
			Result string `json:"result"`
			Exact  bool   `json:"exact"`
		}{result, exact}, nil
	})
}

// A SessionSearcher finds the newest messages of a session that hold a text, newest first.
type SessionSearcher interface {
	SearchSession(ctx context.Context, sessionID, query string, limit int) ([]SessionHit, error)
}

// A SessionHit is a message that was found.
type SessionHit struct {
	Role    message.Role
	AgentID string // of assistant messages
	Text    string // a snippet; at most 500 characters of it are shown
	At      time.Time
}

const (
	maxSnippet  = 500
	defaultHits = 10
)

// NewSessionSearch makes a tool that searches the messages of the call's session: {query, limit?} gives
// {hits: [{role, agentId?, text, at}]}. A call without a session fails.
func NewSessionSearch(sessions SessionSearcher) Tool {
	return builtin(Spec{
		Name:        "session_search",
		Description: "Searches the earlier messages of this conversation, also those that are no longer in view.",
		Input: json.RawMessage(`{"type":"object","properties":{"query":{"type":"string","minLength":1,"maxLength":500,` +
			`"description":"words to look for"},"limit":{"type":"integer","minimum":1,"maximum":50,"description":"10 when absent"}},` +
			`"required":["query"],"additionalProperties":false}`),
		SideEffect: ReadOnly,
	}, func(ctx context.Context, call Call, args struct {
		Query string
		Limit *json.Number
	}) (any, error) {
		if strings.TrimSpace(args.Query) == "" {
			return nil, invalidInput("The query is blank.", "Give one or more words to look for.")
		}
		if call.SessionID == "" {
			return nil, &Error{Message: "This run belongs to no session, so there are no earlier messages to search.",
				Hint: "Answer without earlier messages."}
		}
		found, err := sessions.SearchSession(ctx, call.SessionID, args.Query, int(count(args.Limit, defaultHits)))
		type hit struct {
			Role    message.Role `json:"role"`
			AgentID string       `json:"agentId,omitempty"`
			Text    string       `json:"text"`
			At      string       `json:"at"`
		}
		hits := make([]hit, 0, len(found))
		for _, h := range found {
			hits = append(hits, hit{h.Role, h.AgentID, firstRunes(h.Text, maxSnippet), message.Time(h.At)})
		}
		return struct {
			Hits []hit `json:"hits"`
		}{hits}, err
	})
}
