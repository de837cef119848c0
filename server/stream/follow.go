package stream

import (
	"context"
	"errors"
	"iter"
	"slices"

	"agentd/server/hub"
)

// A phase is how far a subscription has come. Each yields what it has and goes on to the next:
//
//	stored -> ring -> (marker) -> held -> live
//	                                \---> last -> (lifecycle)   when the run has ended already
type phase int

const (
	stored phase = iota // durable events that the ring does not reach back to
	ring                // what the ring held when the subscription began
	held                // what has come since
	last                // what is stored of an ended run and was never published here
	live
)

// follower is one subscription of a client. It belongs to the client's writer from attach on. Before, while begin is
// still under way, the writer uses held, lost and over only, and begin none of them.
type follower struct {
	feed *Feed
	id   string // of the subscription
	sub  *hub.Sub

	attached bool
	lost     error // why nothing comes any more; known before attach

	phase   phase
	pos     hub.Position // of the latest entry that was yielded
	eventID string       // its id
	unknown bool         // the cursor was, and the client has not been told yet
	missed  int          // transient events that are gone, which the client has not been told of yet
	ring    []*hub.Entry
	held    []*hub.Entry
	status  string // the lifecycle status to end with
	checked bool   // whether the run has ended
	over    bool   // nothing more is to be shown

	next func() (*hub.Entry, error, bool) // of the replay under way
	stop func()
}

// begin attaches to the subject, after the client's cursor. It returns how many events are going to be replayed, and
// the id of the last of them.
func (f *follower) begin(ctx context.Context, h *hub.Hub, q *hub.Queue, cursor string) (replayed int, snapshot string, err error) {
	if cursor != "" && f.feed.Resolve != nil {
		pos, ok, err := f.feed.Resolve(ctx, cursor)
		if err != nil {
			return 0, "", err
		}
		f.pos, f.unknown = pos, !ok
	}
	f.sub, f.ring = h.SubscribeTo(f.feed.Subject, q, f)
	defer func() {
		if err != nil {
			f.sub.Close()
		}
	}()
	if cursor != "" && f.feed.Resolve == nil {
		at := slices.IndexFunc(f.ring, func(e *hub.Entry) bool { return e.ID == cursor })
		if f.unknown = at < 0; !f.unknown {
			f.pos = f.ring[at].Pos
		}
	}
	f.phase = stored
	if f.covered() {
		f.phase = ring
	}
	f.ring = slices.DeleteFunc(f.ring, func(e *hub.Entry) bool { return !e.Pos.After(f.pos) })
	if f.phase == stored {
		var first *hub.Entry
		if len(f.ring) > 0 {
			first = f.ring[0]
		}
		if replayed, snapshot, err = f.feed.Backlog(ctx, f.pos, first); err != nil {
			return 0, "", err
		}
	}
	if n := len(f.ring); n > 0 {
		replayed, snapshot = replayed+n, f.ring[n-1].ID
	}
	return replayed, snapshot, nil
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

// covered reports whether the ring holds everything after the position to begin from.
func (f *follower) covered() bool {
	if f.feed.Replay == nil {
		return true
	}
	if len(f.ring) == 0 {
		return false
	}
	if f.pos == (hub.Position{}) {
		return f.feed.Whole(f.ring[0])
	}
	return slices.ContainsFunc(f.ring, func(e *hub.Entry) bool { return e.Pos == f.pos })
}

// errEnough ends a replay whose rest nobody wants.
var errEnough = errors.New("stream: enough")

// fetch yields the next durable event after the position; nil when there is none.
func (f *follower) fetch(ctx context.Context) (*hub.Entry, error) {
	if f.next == nil {
		after := f.pos
		f.next, f.stop = iter.Pull2(func(yield func(*hub.Entry, error) bool) {
			err := f.feed.Replay(ctx, after, func(e *hub.Entry) error {
				if !yield(e, nil) {
					return errEnough
				}
				return nil
			})
			if err != nil && !errors.Is(err, errEnough) {
				yield(nil, err)
			}
		})
	}
	e, err, ok := f.next()
	if !ok || err != nil {
		f.drop()
	}
	return e, err
}

// drop ends the replay under way.
func (f *follower) drop() {
	if f.stop != nil {
		f.stop()
		f.next, f.stop = nil, nil
	}
}

// close detaches the follower. It must not be called while fetch runs.
func (f *follower) close() {
	f.over = true
	f.drop()
	if f.sub != nil {
		f.sub.Close()
	}
	f.ring, f.held = nil, nil
}

// pull yields the next entry that is not live, or nil and the phase that was left. The function take is called for what
// has been published meanwhile, which it adds to held.
func (f *follower) pull(ctx context.Context, take func()) (e *hub.Entry, left phase, err error) {
	switch at := f.phase; at {
	case stored, last:
		if take(); f.over {
			return nil, at, nil
		}
		e, err := f.fetch(ctx)
		if err != nil {
			return nil, at, err
		}
		// From here the ring goes on or, where that was empty, what is held. Either has what is not stored, too.
		if e != nil && (at == last || !reached(f.ring, e) && !reached(f.held, e)) {
			return e, at, nil
		}
		f.drop()
		f.phase++
		return nil, at, nil
	case ring:
		if e := pop(&f.ring); e != nil {
			return e, at, nil
		}
		f.phase = held
		return nil, at, nil
	case held:
		if e := pop(&f.held); e != nil {
			return e, at, nil
		}
		if !f.checked && f.feed.Ended != nil {
			f.checked = true
			status, err := f.feed.Ended(ctx)
			if err != nil {
				return nil, at, err
			}
			// What ended the run is committed, though perhaps not published yet. All that came before it waits.
			f.status = status
			take()
			return f.pull(ctx, take)
		}
		f.phase = live
		if f.status != "" {
			f.phase = last
		}
		return nil, at, nil
	}
	return nil, live, nil
}

// gap is how many transient events came between the latest entry that was yielded and e.
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
	}
	return max(n-had, 0)
}

// reached reports whether entries begin at e or before it.
func reached(entries []*hub.Entry, e *hub.Entry) bool {
	return len(entries) > 0 && !entries[0].Pos.After(e.Pos)
}

func pop(entries *[]*hub.Entry) *hub.Entry {
	if len(*entries) == 0 {
		*entries = nil
		return nil
	}
	e := (*entries)[0]
	(*entries)[0] = nil
	*entries = (*entries)[1:]
	return e
}
