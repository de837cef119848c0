package rest

import (
	"context"
	"net/http"

	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/server/gate"
	"agentd/server/session"
	"agentd/store"
)

// Session is a conversation of a user with an agent.
type Session session.Record

// sessionOf is the wire form of a session.
func sessionOf(v store.Session) Session { return Session(session.RecordOf(v)) }

// SessionAnswer wraps one session.
type SessionAnswer struct {
	Session Session `json:"session"`
}

// SessionList is the answer of GET /sessions.
type SessionList struct {
	Sessions []Session `json:"sessions"`
}

// sessionListOf is the wire form of sessions.
func sessionListOf(stored []store.Session) SessionList {
	list := SessionList{Sessions: []Session{}}
	for _, v := range stored {
		list.Sessions = append(list.Sessions, sessionOf(v))
	}
	return list
}

// SessionMessages is the answer of GET /sessions/{id}/messages.
type SessionMessages struct {
	SessionID string            `json:"sessionId"`
	Messages  []session.Message `json:"messages"`
}

// SessionHandoffs is the answer of GET /sessions/{id}/handoffs.
type SessionHandoffs struct {
	SessionID string            `json:"sessionId"`
	Handoffs  []session.Handoff `json:"handoffs"`
}

// SessionBody asks for a session.
type SessionBody struct {
	UserID    string   `json:"userId" check:"required"`
	AgentID   string   `json:"agentId" check:"required"`
	SessionID string   `json:"sessionId,omitempty" check:"1.." doc:"1 to 128 characters of A-Z a-z 0-9 _ -. Default: the server chooses an id."`
	Title     string   `json:"title,omitempty" check:"1.."`
	Tags      []string `json:"tags,omitempty"`
}

type sessionInput struct {
	ID string `path:"id"`
}

// Sessions is the routes of sessions.
type Sessions struct {
	Sessions *session.Service
	Runs     *Runs
	Keys     *gate.Keys // nil: an Idempotency-Key is not looked at
	Events   string     // the path of the event streams' parent, "/sessions"
	Version  string
}

// Routes are the rows of the table.
func (a *Sessions) Routes() []Route {
	routes := []Route{
		{Method: "GET", Path: "/sessions", Access: "sessions:read", Summary: "List the sessions, newest first, at most 1000.",
			Endpoint: call(http.StatusOK, func(ctx context.Context, _ Call, in struct {
				UserID  string `query:"userId"`
				AgentID string `query:"agentId"`
			}) (SessionList, error) {
				stored, err := a.Sessions.List(ctx, in.UserID, in.AgentID)
				return sessionListOf(stored), err
			})},
		{Method: "POST", Path: "/sessions", Access: "sessions:write", Action: audit.SessionCreate, Target: "session", Summary: "Create a session.",
			Errors: []*fault.Kind{fault.SessionExists},
			Endpoint: call(http.StatusCreated, func(ctx context.Context, c Call, in struct{ Body SessionBody }) (SessionAnswer, error) {
				b := in.Body
				v, err := a.Sessions.Create(ctx, store.Session{ID: b.SessionID, User: b.UserID, Agent: b.AgentID, Title: b.Title, Tags: b.Tags, Maker: c.Principal.Lineage()},
					func(tx *store.Tx, v store.Session) error {
						c.createdSession(v.ID)
						return c.Keep(tx, store.KeyRecord{Session: v.ID, Status: http.StatusCreated}, SessionAnswer{sessionOf(v)})
					})
				return SessionAnswer{sessionOf(v)}, err
			})},
		{Method: "GET", Path: "/sessions/{id}", Access: "sessions:read:{id}", Summary: "Show a session.",
			Errors: []*fault.Kind{fault.SessionNotFound},
			Endpoint: call(http.StatusOK, func(ctx context.Context, _ Call, in sessionInput) (SessionAnswer, error) {
				v, err := a.Sessions.Get(ctx, in.ID)
				return SessionAnswer{sessionOf(v)}, err
			})},
		{Method: "DELETE", Path: "/sessions/{id}", Access: "sessions:write:{id}", Action: audit.SessionDelete, Target: "session:{id}",
			Summary:  "Erase a session with its runs and messages.",
			Errors:   []*fault.Kind{fault.SessionNotFound, fault.SessionBusy},
			Endpoint: call(http.StatusNoContent, a.eraseSession)},
		{Method: "POST", Path: "/sessions/{id}/close", Access: "sessions:write:{id}", Action: audit.SessionClose, Target: "session:{id}",
			Summary: "Close a session, so that retention may delete it. A later message opens it again.",
			Errors:  []*fault.Kind{fault.SessionNotFound, fault.SessionBusy},
			Endpoint: call(http.StatusOK, func(ctx context.Context, c Call, in sessionInput) (SessionAnswer, error) {
				v, err := a.Sessions.Close(ctx, in.ID, func(tx *store.Tx, v store.Session) error {
					return c.Keep(tx, store.KeyRecord{Session: v.ID, Status: http.StatusOK}, SessionAnswer{sessionOf(v)})
				})
				return SessionAnswer{sessionOf(v)}, err
			})},
		{Method: "GET", Path: "/sessions/{id}/messages", Access: "sessions:read:{id}",
			Summary: "List the newest messages of a session, oldest first. The list is empty for an unknown session.",
			Endpoint: call(http.StatusOK, func(ctx context.Context, _ Call, in struct {
				ID    string `path:"id"`
				Limit int    `query:"limit" check:"1..1000" doc:"Default 1000."`
			}) (SessionMessages, error) {
				msgs, err := a.Sessions.Messages(ctx, in.ID, in.Limit)
				return SessionMessages{SessionID: in.ID, Messages: msgs}, err
			})},
		{Method: "GET", Path: "/sessions/{id}/handoffs", Access: "sessions:read:{id}",
			Summary: "List the newest hand-offs of a session, oldest first, at most 1000. The list is empty for an unknown session.",
			Endpoint: call(http.StatusOK, func(ctx context.Context, _ Call, in sessionInput) (SessionHandoffs, error) {
				list, err := a.Sessions.Handoffs(ctx, in.ID)
				return SessionHandoffs{SessionID: in.ID, Handoffs: list}, err
			})},
	}
	routes = append(routes, a.archiveRoutes()...)
	if a.Runs.SSE {
		routes = append(routes, a.eventRoute())
	}
	return routes
}

// createdSession says in the audit chain which session a request has created.
func (c Call) createdSession(id string) {
	c.Request.Concerns("", id)
	c.Request.Did("session:"+id, nil)
}

func (a *Sessions) eraseSession(ctx context.Context, c Call, in sessionInput) (none, error) {
	err := a.Runs.Engine.EraseSession(ctx, in.ID, func(tx *store.Tx) error { return c.Keep(tx, store.KeyRecord{Status: http.StatusNoContent}, nil) })
	if err == nil && a.Keys != nil {
		a.Keys.Forget()
	}
	return none{}, err
}
