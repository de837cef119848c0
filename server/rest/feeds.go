package rest

import (
	"context"
	"time"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/server/stream"
)

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
