package rest

import (
	"context"
	"net/http"
	"reflect"

	"agentd/auth"
	"agentd/server/audit"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/gate"
	"agentd/server/openapi"
	"agentd/server/stream"
)

// sse is a row whose answer is the events of a feed.
func sse[In interface{ after() string }](streams *stream.Service, row Route, feed func(context.Context, Call, In) (stream.Feed, error)) Route {
	row.Method = "GET"
	row.Summary += " The stream resumes after `Last-Event-ID`, also after a restart."
	row.Answers = append([]openapi.Response{{Status: 200, Type: reflect.TypeFor[stream.Frame](), ContentType: "text/event-stream", Description: "Event frames."}}, row.Answers...)
	row.Endpoint = streamed(func(w http.ResponseWriter, r *http.Request, c Call, in In) error {
		f, err := feed(r.Context(), c, in)
		if err != nil {
			return err
		}
		if last := in.after(); last != "" && r.Header.Get("Last-Event-ID") == "" {
			r.Header.Set("Last-Event-ID", last)
		}
		return streams.ServeSSE(w, r, c.Principal, f)
	})
	return row
}

// seenAll is the answer to a client that has seen the end of a run.
var seenAll = []openapi.Response{{Status: 204, Description: "The run has ended, and `Last-Event-ID` is its last event: no further events follow."}}

// resume is what a browser, which can set no header, sends in the query.
type resume struct {
	Ticket      string `query:"ticket" check:"1.." doc:"A single-use ticket of POST /session/ws-ticket, instead of a token."`
	LastEventID string `query:"lastEventId" check:"1.." doc:"As the header Last-Event-ID, which takes precedence."`
}

func (q resume) after() string { return q.LastEventID }

type watchRun struct {
	RunID string `path:"runId"`
	resume
}

type watchSession struct {
	ID string `path:"id"`
	resume
}

type watchSubject struct {
	Subject string `query:"subject" doc:"As for a subscription over WebSocket, such as session:ID/events."`
	resume
}

func (a *Runs) eventRoutes() []Route {
	return []Route{
		sse(a.Streams, Route{Path: "/events", Access: Anyone, Action: audit.Subscribe, Target: "events", Answers: seenAll, Errors: []*fault.Kind{fault.ScopeDenied},
			Summary: "Stream the events of a subject as Server-Sent Events, to a token that may subscribe to it."},
			a.watchSubject),
		sse(a.Streams, Route{Path: "/runs/{runId}/events", Access: "agents:read:" + ofOwner, Answers: seenAll,
			Summary: "Stream a run's events as Server-Sent Events: first all durable ones, then new ones, until a lifecycle frame."},
			func(_ context.Context, c Call, in watchRun) (stream.Feed, error) {
				return a.Feeds.run(event.OfRun(c.Run.Kind, c.Run.Owner, c.Run.ID), event.RunView, c.Run.Number), nil
			}),
	}
}

// watchSubject finds the feed of a subject for those who may subscribe to it over WebSocket.
func (a *Runs) watchSubject(ctx context.Context, c Call, in watchSubject) (stream.Feed, error) {
	s, err := event.ParseSubject(in.Subject)
	if err != nil {
		return stream.Feed{}, err
	}
	c.Request.On(s.String(), map[string]any{"transport": "sse"})
	scope, err := auth.ParseScope(s.Scope())
	if err == nil {
		err = gate.Covered(c.Principal, scope)
	}
	if err != nil {
		return stream.Feed{}, err
	}
	return a.Feeds.Of(ctx, s)
}

func (a *Sessions) eventRoute() Route {
	return sse(a.Runs.Streams, Route{Path: a.Events + "/{id}/events", Access: "sessions:read:{id}", Errors: []*fault.Kind{fault.SessionNotFound},
		Summary: "Stream the events of all runs of a session as Server-Sent Events."},
		func(_ context.Context, _ Call, in watchSession) (stream.Feed, error) {
			if !event.ValidID(in.ID) {
				return stream.Feed{}, fault.New(fault.SessionNotFound, "No session can have this id.")
			}
			return a.Runs.Feeds.session(in.ID), nil
		})
}
