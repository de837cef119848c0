package rest

import (
	"context"
	"strconv"
	"time"

	"agentd/server/agent"
	"agentd/server/audit"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/server/stream"
	"agentd/store"
)

// Feeds are what subjects show.
type Feeds struct {
	Engine *agent.Engine
	Audit  *audit.Log    // nil: there is none
	Keep   time.Duration // for which the hub keeps events
}

// Of is what a subject shows. A subject that names no run or session that exists here has only what will be
// published on it.
func (f *Feeds) Of(ctx context.Context, s event.Subject) (stream.Feed, error) {
	plain := stream.Feed{Subject: s.String()}
	switch s.Kind {
	case event.SessionEvents:
		return f.session(s.Owner), nil
	case event.AuditEvents:
		if f.Audit != nil {
			return f.audit(), nil
		}
	case event.AgentRunEvents, event.WorkflowRunEvents, event.SessionRunEvents:
		row, err := f.Engine.Find(ctx, s.Run)
		if fault.Is(err, fault.RunNotFound) {
			return plain, nil
		}
		if err != nil {
			return plain, err
		}
		view, shows := event.RunView, s == event.OfRun(row.Kind, row.Owner, row.ID)
		if s.Kind == event.SessionRunEvents { // which shows a child run through its parent's events
			view, shows = event.SessionRunView, row.Session == s.Owner && row.Parent == 0
		}
		if !shows {
			return plain, nil
		}
		return f.run(s, view, row.N), nil
	}
	return plain, nil
}

// run shows one run on its own subject.
func (f *Feeds) run(s event.Subject, view event.View, number int64) stream.Feed {
	events := func(ctx context.Context) (int, error) {
		row, err := f.Engine.Find(ctx, s.Run)
		if err != nil {
			return 0, err
		}
		return row.Events, nil
	}
	return stream.OfRun(s, view, number, events, stream.Feed{
		Replay: func(ctx context.Context, after hub.Position, yield func(*hub.Entry) error) error {
			return f.Engine.Replay(ctx, s.Run, view, after.Seq, yield)
		},
		Backlog: func(ctx context.Context, after hub.Position, before *hub.Entry) (int, string, error) {
			return f.Engine.Backlog(ctx, s.Run, view, after.Seq, before)
		},
		Ended: func(ctx context.Context) (string, error) {
			row, err := f.Engine.Find(ctx, s.Run)
			if err != nil || !row.Status.Terminal() {
				return "", err
			}
			return string(row.Status), nil
		},
	})
}

// session shows all runs of a session; a client without a cursor gets those that were made within the time for
// which the ring keeps events.
func (f *Feeds) session(id string) stream.Feed {
	since := time.Now().Add(-f.Keep).UnixMilli()
	return stream.Feed{
		Subject: event.OfSession(id).String(),
		Resolve: func(ctx context.Context, text string) (hub.Position, bool, error) {
			c, ok := event.ParseCursor(text)
			if !ok || c.View != event.SessionView {
				return hub.Position{}, false, nil
			}
			row, err := f.Engine.Find(ctx, c.Run)
			if fault.Is(err, fault.RunNotFound) || err == nil && (row.Session != id || row.Parent != 0 || row.Kind == store.Workflow || c.Seq > row.Events) {
				return hub.Position{}, false, nil
			}
			if err != nil {
				return hub.Position{}, false, err
			}
			return hub.Position{Epoch: row.N, Seq: c.Seq, Sub: c.Sub}, true, nil
		},
		Replay: func(ctx context.Context, after hub.Position, yield func(*hub.Entry) error) error {
			return f.Engine.ReplaySession(ctx, id, after, since, yield)
		},
		Backlog: func(ctx context.Context, after hub.Position, before *hub.Entry) (int, string, error) {
			return f.Engine.SessionBacklog(ctx, id, after, since, before)
		},
		Whole: func(*hub.Entry) bool { return false },
	}
}

// audit shows the entries as they come and, after a cursor, those since.
func (f *Feeds) audit() stream.Feed {
	return stream.Feed{
		Subject: event.Subject{Kind: event.AuditEvents}.String(),
		Resolve: func(_ context.Context, cursor string) (hub.Position, bool, error) {
			seq, ok := place(cursor, 10)
			if !ok || seq > f.Audit.Head().Size {
				return hub.Position{}, false, nil
			}
			return hub.Position{Epoch: 1, Seq: int(seq)}, true, nil
		},
		Replay: func(ctx context.Context, after hub.Position, yield func(*hub.Entry) error) error {
			if after == (hub.Position{}) {
				return nil
			}
			for e, err := range f.Audit.Entries(ctx, audit.Query{From: int64(after.Seq) + 1}) {
				if err == nil {
					err = yield(AuditEntry(e.Seq, e.Line(nil)))
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
		Backlog: func(_ context.Context, after hub.Position, before *hub.Entry) (int, string, error) {
			last := int(f.Audit.Head().Size)
			if before != nil {
				last = before.Pos.Seq - 1
			}
			if after == (hub.Position{}) || last <= after.Seq {
				return 0, "", nil
			}
			return last - after.Seq, strconv.Itoa(last), nil
		},
		Whole: func(*hub.Entry) bool { return true },
	}
}
