package rest

import (
	"context"
	"net/http"
	"reflect"
	"time"

	"agentd/auth"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/gate"
	"agentd/server/hub"
	"agentd/server/openapi"
	"agentd/server/stream"
)

// eventsRoute streams any subject, to those who may subscribe to it over WebSocket.
func (a *API) eventsRoute() Route {
	return Route{Method: "GET", Path: "/events", Access: Anyone(),
		Summary: "Stream the events of a subject as Server-Sent Events, to a token that may subscribe to it. The stream resumes after `Last-Event-ID`, also after a restart.",
		Errors:  []*fault.Kind{fault.ScopeDenied},
		Answers: []openapi.Response{{Status: 200, Type: reflect.TypeFor[stream.Frame](), ContentType: "text/event-stream", Description: "Event frames; a lifecycle frame ends the stream of a run."},
			{Status: 204, Description: "The run has ended, and `Last-Event-ID` is its last event: there is nothing to come back for."}},
		Endpoint: streamed(func(w http.ResponseWriter, r *http.Request, c Call, in struct {
			Subject     string `query:"subject" doc:"As for a subscription over WebSocket, such as session:ID/events."`
			Ticket      string `query:"ticket" min:"1" doc:"A single-use ticket of POST /session/ws-ticket, instead of a token."`
			LastEventID string `query:"lastEventId" min:"1" doc:"As the header Last-Event-ID, which comes first."`
		}) error {
			s, err := event.ParseSubject(in.Subject)
			if err != nil {
				return err
			}
			scope, err := auth.ParseScope(s.Scope())
			if err == nil {
				err = gate.Covered(c.Principal, scope)
			}
			if err != nil {
				return err
			}
			c.Request.Fact("subject", s.String())
			feed, err := a.Feed(r.Context(), s)
			if err != nil {
				return err
			}
			resumeAfter(r, in.LastEventID)
			return a.Streams.ServeSSE(w, r, c.Principal, feed)
		})}
}

// Feed is what a subject shows. A subject that names no run or session that exists here has only what will be
// published on it.
func (a *API) Feed(ctx context.Context, s event.Subject) (stream.Feed, error) {
	plain := stream.Feed{Subject: s.String()}
	switch s.Kind {
	case event.SessionEvents:
		return a.sessionFeed(s.Owner), nil
	case event.AuditEvents:
		if a.Audit != nil {
			return a.auditFeed(), nil
		}
	case event.AgentRunEvents, event.SessionRunEvents:
		row, err := a.Engine.Find(ctx, s.Run)
		if fault.Is(err, fault.RunNotFound) {
			return plain, nil
		}
		if err != nil {
			return plain, err
		}
		view, owner := event.RunView, row.Owner
		if s.Kind == event.SessionRunEvents {
			view, owner = event.SessionRunView, row.Session
		}
		// Another's run is not shown, and a child's is shown on its session as its parent tells it.
		if owner != s.Owner || view == event.SessionRunView && row.Parent != 0 {
			return plain, nil
		}
		return a.runFeed(s, view, row.N), nil
	}
	return plain, nil
}

// runFeed shows one run on a subject of its own.
func (a *API) runFeed(s event.Subject, view event.View, number int64) stream.Feed {
	events := func(ctx context.Context) (int, error) {
		row, err := a.Engine.Find(ctx, s.Run)
		if err != nil {
			return 0, err
		}
		return row.Events, nil
	}
	return stream.OfRun(s, view, number, events, stream.Feed{
		Replay: func(ctx context.Context, after hub.Position, yield func(*hub.Entry) error) error {
			return a.Engine.Replay(ctx, s.Run, view, after.Seq, yield)
		},
		Backlog: func(ctx context.Context, after hub.Position, before *hub.Entry) (int, string, error) {
			return a.Engine.Backlog(ctx, s.Run, view, after.Seq, before)
		},
		Ended: func(ctx context.Context) (string, error) {
			row, err := a.Engine.Find(ctx, s.Run)
			if err != nil || !row.Status.Terminal() {
				return "", err
			}
			return string(row.Status), nil
		},
	})
}

// sessionFeed shows all runs of a session; a client without a cursor gets those that were made within the time for
// which the ring keeps events.
func (a *API) sessionFeed(session string) stream.Feed {
	since := time.Now().Add(-a.BufferTTL).UnixMilli()
	return stream.Feed{
		Subject: event.OfSession(session).String(),
		Resolve: func(ctx context.Context, text string) (hub.Position, bool, error) {
			c, ok := event.ParseCursor(text)
			if !ok || c.View != event.SessionView {
				return hub.Position{}, false, nil
			}
			row, err := a.Engine.Find(ctx, c.Run)
			if fault.Is(err, fault.RunNotFound) || err == nil && (row.Session != session || row.Parent != 0 || c.Seq > row.Events) {
				return hub.Position{}, false, nil
			}
			if err != nil {
				return hub.Position{}, false, err
			}
			return hub.Position{Epoch: row.N, Seq: c.Seq, Sub: c.Sub}, true, nil
		},
		Replay: func(ctx context.Context, after hub.Position, yield func(*hub.Entry) error) error {
			return a.Engine.ReplaySession(ctx, session, after, since, yield)
		},
		Backlog: func(ctx context.Context, after hub.Position, before *hub.Entry) (int, string, error) {
			return a.Engine.SessionBacklog(ctx, session, after, since, before)
		},
		Whole: func(*hub.Entry) bool { return false },
	}
}
