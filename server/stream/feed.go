package stream

import (
	"context"

	"agentd/server/event"
	"agentd/server/hub"
)

// Feed is the source of a subscription: a subject's live events and, where they are stored, earlier ones.
type Feed struct {
	Subject string
	// Resolve finds the position of the client's cursor; ok is false when the cursor is unknown. Nil: the ring knows all
	// cursors.
	Resolve func(ctx context.Context, cursor string) (pos hub.Position, ok bool, err error)
	// Replay yields durable events after a position, oldest first; after the zero position, all that a client without a
	// cursor gets. Nil: there are none.
	Replay func(ctx context.Context, after hub.Position, yield func(*hub.Entry) error) error
	// Backlog counts what Replay would yield before the given entry, or at all when that is nil, and names the last.
	Backlog func(ctx context.Context, after hub.Position, before *hub.Entry) (n int, last string, err error)
	// Whole reports whether a ring that begins with this entry holds all that Replay would yield for the zero position.
	Whole func(first *hub.Entry) bool
	// Ended returns the lifecycle status to end with after the replay; "" to stay. Nil: to stay.
	Ended func(ctx context.Context) (string, error)
	// Answer restricts a client that may not read the run's agent to the answer; see [event.InAnswer].
	Answer bool
	// EndOnPause ends the subscription also when the run waits for an approval.
	EndOnPause bool
}

// OfRun is the feed of one run on a subject that shows nothing else. Events counts the run's durable events: a client that
// has seen more has seen another history, as after a backup was restored.
func OfRun(subject event.Subject, view event.View, number int64, events func(context.Context) (int, error), f Feed) Feed {
	f.Subject = subject.String()
	f.Resolve = func(ctx context.Context, cursor string) (hub.Position, bool, error) {
		c, ok := event.ParseCursor(cursor)
		if !ok || c.View != view || c.Run != subject.Run {
			return hub.Position{}, false, nil
		}
		n, err := events(ctx)
		if err != nil || c.Seq > n {
			return hub.Position{}, false, err
		}
		return hub.Position{Epoch: number, Seq: c.Seq, Sub: c.Sub}, true, nil
	}
	f.Whole = func(first *hub.Entry) bool { return first.Pos.Seq == 1 && first.Pos.Sub == 0 }
	return f
}
