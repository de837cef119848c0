package stream

import (
	"context"
	"errors"
	"iter"
	"slices"

	"agentd/server/hub"
)

// follower is one subscription of a client. It belongs to the client's writer from attach on. Before, while begin still
// runs, the writer uses held, lost and over only, and begin uses none of them.
type follower struct {
	feed *Feed
	id   string // of the subscription
	sub  *hub.Sub

	attached bool
	lost     error // why nothing comes any more; known before attach
	live     bool  // the replay is done
	over     bool  // nothing more is shown
	leaving  bool  // the client has ended it; guarded by the client's mu

	pos     hub.Position // of the latest entry that was shown
	eventID string       // its id
	unknown bool         // the cursor was, and no marker has said so yet
	missed  int          // events that are gone, and that no marker has counted yet
	marked  bool         // the marker of what was replayed is past: each further hole has its own
	stored  bool         // the ring does not hold everything after the cursor
	ring    []*hub.Entry // what the ring held when the subscription began
	held    []*hub.Entry // what has come since
	status  string       // the lifecycle status to end with

	next func() (*hub.Entry, error, bool) // of the replay under way
	stop func()
}

// begin attaches to the subject, after the client's cursor. It returns how many events will be replayed, and the id of
// the last of them.
func (f *follower) begin(ctx context.Context, h *hub.Hub, q *hub.Queue, cursor string) (replayed int, snapshot string, err error) {
	if cursor != "" && f.feed.Resolve != nil {
		pos, ok, err := f.feed.Resolve(ctx, cursor)
		if err != nil {
			return 0, "", err
		}
		f.pos, f.unknown = pos, !ok
	}
	f.sub, f.ring = h.Subscribe(f.feed.Subject, q, f)
	defer func() {
		if err != nil {
			f.sub.Close()
		}
	}()
	at := -1 // of the cursor, in the ring
	if cursor != "" {
		at = slices.IndexFunc(f.ring, func(e *hub.Entry) bool { return e.ID == cursor })
		if f.feed.Resolve == nil || at >= 0 && f.ring[at].Aside {
			f.pos, f.unknown = before(f.ring[:at+1])
			f.unknown = f.unknown || f.feed.Replay != nil && f.pos == (hub.Position{})
		}
	}
	f.stored = !f.covered()
	asides := slices.DeleteFunc(slices.Clone(f.ring[:at+1]), func(e *hub.Entry) bool { return !e.Aside }) // the client has had them
	f.ring = slices.DeleteFunc(f.ring, func(e *hub.Entry) bool {
		if e.Aside {
			return slices.Contains(asides, e)
		}
		return !e.Pos.After(f.pos)
	})
	if f.stored {
		first := ordered(f.ring)
		if replayed, snapshot, err = f.feed.Backlog(ctx, f.pos, first); err != nil {
			return 0, "", err
		}
	}
	if n := len(f.ring); n > 0 {
		replayed, snapshot = replayed+n, f.ring[n-1].ID
	}
	return replayed, snapshot, nil
}

// before returns the position of the latest of the entries that have one; the zero one when all are asides. Without entries it
// is unknown.
func before(entries []*hub.Entry) (pos hub.Position, unknown bool) {
	for _, e := range slices.Backward(entries) {
		if !e.Aside {
			return e.Pos, false
		}
	}
	return pos, len(entries) == 0
}

// ordered returns the first of the entries that has a position; nil when there is none.
func ordered(entries []*hub.Entry) *hub.Entry {
	for _, e := range entries {
		if !e.Aside {
			return e
		}
	}
	return nil
}

// whole reports whether the client's cursor is the last event of a run that has ended.
func (f *follower) whole(ctx context.Context) (bool, error) {
	if f.feed.Ended == nil || f.feed.Backlog == nil || f.pos == (hub.Position{}) {
		return false, nil
	}
	if status, err := f.feed.Ended(ctx); err != nil || status == "" {
		return false, err
	}
	// What ended the run is stored, though perhaps not published yet.
	left, _, err := f.feed.Backlog(ctx, f.pos, nil)
	return left == 0, err
}

// covered reports whether the ring holds everything after the cursor.
func (f *follower) covered() bool {
	switch {
	case f.feed.Replay == nil:
		return true
	case ordered(f.ring) == nil:
		return false
	case f.pos == (hub.Position{}):
		return f.feed.Whole(ordered(f.ring))
	}
	return slices.ContainsFunc(f.ring, func(e *hub.Entry) bool { return !e.Aside && e.Pos == f.pos })
}

// close detaches the follower. It must not be called while pull runs.
func (f *follower) close() {
	f.over = true
	if f.stop != nil {
		f.stop()
		f.next, f.stop = nil, nil
	}
	if f.sub != nil {
		f.sub.Close()
	}
	f.ring, f.held = nil, nil
}

// pull yields the next entry of the replay, or nil where a marker belongs if events are missing. The caller must have
// taken before what was published meanwhile. There are no more once all that has come since is shown.
func (f *follower) pull(c *client) (e *hub.Entry, err error, more bool) {
	if f.next == nil {
		f.next, f.stop = iter.Pull2(f.replay(c))
	}
	return f.next()
}

// errEnough ends a replay whose rest nobody wants.
var errEnough = errors.New("stream: enough")

// replay yields what precedes the live entries, in this order: durable events that the ring does not reach back to, the
// ring, a marker, what has come since; and, if the run has ended, what is stored of it and was never published here.
func (f *follower) replay(c *client) iter.Seq2[*hub.Entry, error] {
	return func(yield func(*hub.Entry, error) bool) {
		wanted := true
		stored := func(enough func(*hub.Entry) bool) bool {
			err := f.feed.Replay(c.ctx, f.pos, func(e *hub.Entry) error {
				if enough(e) {
					return errEnough
				}
				if wanted = yield(e, nil); !wanted {
					return errEnough
				}
				return nil
			})
			if wanted && err != nil && !errors.Is(err, errEnough) {
				wanted = yield(nil, err)
			}
			return wanted
		}
		came := func() bool {
			for wanted && len(f.held) > 0 {
				e := pop(&f.held)
				c.hold(e, -1)
				wanted = yield(e, nil)
			}
			return wanted
		}
		// The ring or, where that is empty, what is held also has what is not stored.
		if f.stored && !stored(func(e *hub.Entry) bool { return reached(f.ring, e) || reached(f.held, e) }) {
			return
		}
		for len(f.ring) > 0 {
			if !yield(pop(&f.ring), nil) {
				return
			}
		}
		if !yield(nil, nil) || !came() || f.feed.Ended == nil {
			return
		}
		status, err := f.feed.Ended(c.ctx)
		// What ended the run is committed, though perhaps not published yet. All that precedes it waits.
		if !yield(nil, err) || !came() || status == "" || !stored(func(*hub.Entry) bool { return false }) {
			return
		}
		f.status = status
	}
}

// gap is how many events came between the latest entry that was shown and e: transient ones, and those that are deleted.
func (f *follower) gap(e *hub.Entry) int {
	n, had := e.Before, 0
	if e.Pos.Sub > 0 {
		n = e.Pos.Sub - 1
	}
	// What came since one durable event is counted by the next one or by the transient ones themselves.
	if since := e.Pos.Seq; e.Pos.Epoch == f.pos.Epoch {
		if e.Pos.Sub == 0 {
			since--
		}
		if f.pos.Seq == since {
			had = f.pos.Sub
		}
		n += since - f.pos.Seq
	}
	return max(n-had, 0)
}

// reached reports whether entries begin at e or before it.
func reached(entries []*hub.Entry, e *hub.Entry) bool {
	first := ordered(entries)
	return first != nil && !first.Pos.After(e.Pos)
}

// pop takes the first entry.
func pop(entries *[]*hub.Entry) *hub.Entry {
	e := (*entries)[0]
	(*entries)[0] = nil
	if *entries = (*entries)[1:]; len(*entries) == 0 {
		*entries = nil
	}
	return e
}
