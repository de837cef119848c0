package tool

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"agentd/server/message"
)

// SessionSearchName is the name of the tool that [NewSessionSearch] makes.
const SessionSearchName = "session_search"

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
	return Func(Spec{
		Name:        SessionSearchName,
		Description: "Searches the earlier messages of this conversation, also those that are no longer in view.",
		Input: json.RawMessage(`{"type":"object","properties":{"query":{"type":"string","minLength":1,"maxLength":500,` +
			`"description":"words to look for"},"limit":{"type":"integer","minimum":1,"maximum":50,"description":"10 when absent"}},` +
			`"required":["query"],"additionalProperties":false}`),
		SideEffect: ReadOnly,
	}, func(ctx context.Context, call Call) (Result, error) { return searchSession(ctx, sessions, call) })
}

func searchSession(ctx context.Context, sessions SessionSearcher, call Call) (Result, error) {
	var args struct {
		Query string
		Limit *json.Number
	}
	if err := json.Unmarshal(call.Args, &args); err != nil {
		return Result{}, invalidInput(err.Error(), "")
	}
	if strings.TrimSpace(args.Query) == "" {
		return Result{}, invalidInput("The query is blank.", "Give one or more words to look for.")
	}
	if call.SessionID == "" {
		return Result{}, &Error{Message: "This run belongs to no session, so there are no earlier messages to search.",
			Hint: "Answer without earlier messages."}
	}
	found, err := sessions.SearchSession(ctx, call.SessionID, args.Query, int(count(args.Limit, defaultHits)))
	if err != nil {
		return Result{}, err
	}
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
	return JSON(struct {
		Hits []hit `json:"hits"`
	}{hits})
}
