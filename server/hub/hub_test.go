package hub_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/hub"
)

func entry(i int) *hub.Entry {
	return &hub.Entry{Pos: hub.Position{Epoch: 1, Seq: i}, ID: fmt.Sprint(i), Type: "t", Payload: []byte(`{}`)}
}

// A reader is a subscription with a queue for it alone.
type reader struct {
	*hub.Sub
	queue *hub.Queue
	some  chan struct{}
	rest  error // why nothing comes any more
}

func read(h *hub.Hub, subject string, limit int) (*reader, []*hub.Entry) {
	r := &reader{some: make(chan struct{}, 1)}
	r.queue = hub.NewQueue(limit, math.MaxInt, func() {
		select {
		case r.some <- struct{}{}:
		default:
		}
	})
	var ring []*hub.Entry
	r.Sub, ring = h.Subscribe(subject, r.queue, r)
	return r, ring
}

// next returns what waits, or waits for something.
func (r *reader) next(ctx context.Context) (entries []*hub.Entry, err error) {
	for r.rest == nil {
		overflow := r.queue.Drain(func(d hub.Delivery) {
			if d.Entry == nil {
				r.rest = d.Sub.Err()
			} else {
				entries = append(entries, d.Entry)
			}
		})
		if r.rest = cmp.Or(r.rest, overflow); len(entries) > 0 {
			return entries, nil
		}
		if r.rest == nil {
			select {
			case <-r.some:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
	return nil, r.rest
}

func TestReplayAndLiveHaveNeitherGapNorDouble(t *testing.T) {
	h := hub.New(hub.Options{MaxEvents: 10_000})
	const total = 5000
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range total {
			h.Publish("s", entry(i+1))
		}
	})
	for range 8 {
		wg.Go(func() {
			sub, got := read(h, "s", total)
			defer sub.Close()
			for len(got) < total {
				more, err := sub.next(t.Context())
				if err != nil {
					t.Errorf("Next: %v", err)
					return
				}
				got = append(got, more...)
			}
			for i, e := range got {
				if e.Pos.Seq != i+1 {
					t.Errorf("entry %d has seq %d", i, e.Pos.Seq)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestBounds(t *testing.T) {
	h := hub.New(hub.Options{MaxEvents: 3, MaxBytes: 1 << 20, TotalBytes: 2000})
	for i := range 10 {
		h.Publish("a", entry(i+1))
	}
	_, got := read(h, "a", 1)
	if len(got) != 3 || got[0].Pos.Seq != 8 {
		t.Errorf("ring of 3 holds %d entries from %d, want 3 from 8", len(got), got[0].Pos.Seq)
	}
	for i := range 50 {
		h.Publish(fmt.Sprint("b", i), entry(1))
	}
	if st := h.Stats(); st.Bytes > 2000 || st.Events > 10 {
		t.Errorf("Stats = %+v, want at most 2000 bytes", st)
	}
}

func TestSlowSubscriberIsCutOffAlone(t *testing.T) {
	h := hub.New(hub.Options{})
	slow, _ := read(h, "s", 2)
	good, _ := read(h, "s", 10)
	for i := range 5 {
		h.Publish("s", entry(i+1))
	}
	if _, err := slow.next(t.Context()); !errors.Is(err, hub.ErrOverflow) {
		t.Errorf("Next of the slow one = %v, want ErrOverflow", err)
	}
	if got, err := good.next(t.Context()); err != nil || len(got) != 5 {
		t.Errorf("Next of the good one = %d entries, %v; want 5", len(got), err)
	}
	slow.Close()
	good.Close()
	if st := h.Stats(); st.Subscriptions != 0 {
		t.Errorf("Stats after Close = %+v", st)
	}
}

func TestExpiryAndClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := hub.New(hub.Options{TTL: time.Minute})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- h.Run(ctx, 10*time.Second) }()
		h.Publish("s", entry(1))
		<-time.After(30 * time.Second)
		h.Publish("s", entry(2))
		<-time.After(45 * time.Second)
		if st := h.Stats(); st.Events != 1 {
			t.Errorf("Stats after 75 s = %+v, want the second entry only", st)
		}
		sub, _ := read(h, "other", 1)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
		if _, err := sub.next(t.Context()); !errors.Is(err, hub.ErrClosed) {
			t.Errorf("Next after the end = %v, want ErrClosed", err)
		}
	})
}

func TestDropForgets(t *testing.T) {
	h := hub.New(hub.Options{})
	sub, _ := read(h, "s", 1)
	h.Publish("s", entry(1))
	h.Drop("s")
	if _, got := read(h, "s", 1); len(got) != 0 {
		t.Errorf("a dropped subject still holds %d entries", len(got))
	}
	if got, _ := sub.next(t.Context()); len(got) != 1 {
		t.Errorf("Next = %d entries, want the one delivered before", len(got))
	}
	if _, err := sub.next(t.Context()); !errors.Is(err, hub.ErrErased) {
		t.Errorf("Next of a dropped subject = %v, want ErrErased", err)
	}
	sub.Close()
}

// TestPurgeForgetsRuns: of a subject that several runs share, the entries of some go; subscribers stay.
func TestPurgeForgetsRuns(t *testing.T) {
	h := hub.New(hub.Options{})
	sub, _ := read(h, "s", 10)
	for run := range int64(4) {
		e := entry(int(run) + 1)
		e.Pos.Epoch = run
		h.Publish("s", e)
	}
	before := h.Stats()
	h.Purge("s", map[int64]bool{1: true, 3: true})
	h.Purge("unknown", map[int64]bool{1: true})
	_, got := read(h, "s", 10)
	if len(got) != 2 || got[0].Pos.Epoch != 0 || got[1].Pos.Epoch != 2 {
		t.Errorf("a purged subject holds %d entries, want those of the runs 0 and 2", len(got))
	}
	if s := h.Stats(); s.Events != 2 || s.Bytes != before.Bytes/2 {
		t.Errorf("after Purge there are %d events of %d bytes, want 2 of %d", s.Events, s.Bytes, before.Bytes/2)
	}
	sub.next(t.Context()) //nolint:errcheck // what was published before
	e := entry(5)
	e.Pos.Epoch = 4
	h.Publish("s", e)
	if got, err := sub.next(t.Context()); err != nil || len(got) != 1 {
		t.Errorf("a subscriber gets %d entries after Purge, %v, want 1", len(got), err)
	}
	h.Purge("s", map[int64]bool{0: true, 2: true, 4: true})
	if s := h.Stats(); s.Events != 0 || s.Bytes != 0 {
		t.Errorf("after Purge of all runs there are %d events of %d bytes", s.Events, s.Bytes)
	}
	sub.Close()
}

func BenchmarkPublish(b *testing.B) {
	for _, n := range []int{0, 100, 1000} {
		b.Run(fmt.Sprintf("subscribers=%d", n), func(b *testing.B) {
			h := hub.New(hub.Options{})
			ctx, cancel := context.WithCancel(b.Context())
			var wg sync.WaitGroup
			for range n {
				sub, _ := read(h, "s", 1<<30)
				wg.Go(func() {
					for {
						if _, err := sub.next(ctx); err != nil {
							return
						}
					}
				})
			}
			payload := make([]byte, 200)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				h.Publish("s", &hub.Entry{Pos: hub.Position{Epoch: 1, Seq: i}, Payload: payload})
			}
			cancel()
			wg.Wait()
		})
	}
}

// BenchmarkPublishBesideSilentWatchers publishes on a subject of a full hub that so many watch others of, where nothing happens.
func BenchmarkPublishBesideSilentWatchers(b *testing.B) { // G4
	for _, n := range []int{0, 100_000} {
		b.Run(fmt.Sprintf("watchers=%d", n), func(b *testing.B) {
			h := hub.New(hub.Options{TotalBytes: 1 << 20})
			queue := hub.NewQueue(1<<30, math.MaxInt, func() {})
			payload := make([]byte, 200)
			publish := func(i int) {
				h.Publish(fmt.Sprint("s", i%100), &hub.Entry{Pos: hub.Position{Epoch: 1, Seq: i}, Payload: payload})
			}
			for i := range n {
				h.Subscribe(fmt.Sprint("silent", i), queue, nil)
			}
			for i := range 10_000 {
				publish(i)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				publish(i)
			}
		})
	}
}
