package stream_test

import (
	"context"
	"fmt"
	"testing"

	"agentd/server/hub"
	"agentd/server/stream"
)

// TestAsides: entries of runs that move beside those which give a subject its order are shown in the order in which they come,
// and a client that returns gets those that it has not had, once.
func TestAsides(t *testing.T) {
	aside := func(epoch int64, seq int) *hub.Entry {
		e := entry(seq, 0, "")
		e.Pos.Epoch, e.ID, e.Aside = epoch, fmt.Sprintf("w%d.%d", epoch, seq), true
		return e
	}
	stored := stream.Feed{
		Resolve: func(_ context.Context, cursor string) (pos hub.Position, ok bool, err error) {
			n, _ := fmt.Sscanf(cursor, "%d.0", &pos.Seq)
			pos.Epoch = 1
			return pos, n == 1, nil
		},
		Replay: func(_ context.Context, after hub.Position, yield func(*hub.Entry) error) error {
			for i := after.Seq + 1; i <= 3; i++ {
				if err := yield(entry(i, 0, "")); err != nil {
					return err
				}
			}
			return nil
		},
		Backlog: func(context.Context, hub.Position, *hub.Entry) (int, string, error) { return 0, "", nil },
		Whole:   func(first *hub.Entry) bool { return first.Pos.Seq == 1 },
	}
	all := []string{"1.0", "w7.1", "2.0", "w5.9", "3.0", "w7.2"}
	for _, tt := range []struct {
		name  string
		feed  stream.Feed
		since string
		want  []string
	}{
		{"from the beginning", stored, "", all},
		{"after one of the order", stored, "2.0", []string{"w5.9", "3.0", "w7.2"}},
		{"after an aside of a run before", stored, "w5.9", []string{"3.0", "w7.2"}},
		{"after the last", stored, "w7.2", nil},
		{"after one that is gone", stored, "w7.0", append(append([]string{}, all...), "replay-marker")},
		{"of a subject without an order of its own", stream.Feed{}, "w5.9", []string{"3.0", "w7.2"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, stream.Options{}, func(r *rig) {
				r.feeds[subject] = tt.feed
				for _, e := range []*hub.Entry{entry(1, 0, ""), aside(7, 1), entry(2, 0, ""), aside(5, 9), entry(3, 0, ""), aside(7, 2)} {
					r.hub.Publish(subject, e)
				}
				p := r.dial()
				p.subscribe(subject, tt.since)
				p.wants(tt.want...)
				r.hub.Publish(subject, aside(5, 10))
				r.hub.Publish(subject, entry(4, 0, ""))
				p.wants("w5.10", "4.0")
			})
		})
	}
}

// TestAsidesOnly: a subject on which runs move side by side, and nothing else, continues after any of its entries.
func TestAsidesOnly(t *testing.T) {
	inBubble(t, stream.Options{}, func(r *rig) {
		for i, epoch := range []int64{9, 4, 9, 2} {
			e := entry(i+1, 0, "")
			e.Pos.Epoch, e.ID, e.Aside = epoch, fmt.Sprintf("w%d", i+1), true
			r.hub.Publish(subject, e)
		}
		p := r.dial()
		p.subscribe(subject, "w2")
		p.wants("w3", "w4")
		p = r.dial()
		p.subscribe(subject, "")
		p.wants("w1", "w2", "w3", "w4")
	})
}
