package retention_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"agentd/retention"
	"agentd/store"
	"agentd/store/storetest"
)

// grow writes so many runs of a thousand batches of spans each. Of ten runs, one has not ended; of ten batches of each run, one is
// young. It returns how many batches a sweep with a window of 30 days deletes.
func grow(r *rig, runs int) (old int64) {
	now := time.Now()
	for i := range runs {
		r.run(fmt.Sprint("r", i), now.Add(-40*day), func(c *store.Change) {
			if i%10 == 0 {
				c.Run.Status = store.Suspended
			}
		})
		if i%10 != 0 {
			old += 900
		}
	}
	storetest.Behind(r, r.db.Path(), fmt.Sprintf(`WITH RECURSIVE i(k) AS (SELECT 0 UNION ALL SELECT k + 1 FROM i WHERE k < %d)
		INSERT INTO spans (key, at, body) SELECT ((1 + k / 1000) << 24) + k %% 1000, %d + k %% 1000 + CASE WHEN k %% 10 = 0 THEN %d ELSE 0 END,
		'[{"name":"a span of an ordinary length"}]' FROM i`, runs*1000-1, ms(now.Add(-40*day)), (39*day).Milliseconds()))
	return old
}

// others makes changes as runs do, in four goroutines, until done is closed, and returns how long each took.
func (r *rig) others(name string, done <-chan struct{}) (took []time.Duration) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			c := store.Change{Run: store.Run{ID: fmt.Sprint(name, g), Kind: "agent", Owner: "a", Current: "a", Status: store.Running, InputForm: "text",
				Usage: json.RawMessage("{}"), Models: json.RawMessage("{}"), Created: ms(time.Now())}}
			for seq := 1; ; seq++ {
				select {
				case <-done:
					return
				case <-time.After(5 * time.Millisecond):
				}
				c.Events = []store.Event{{Seq: seq, Type: "a", Message: -1, Payload: []byte(`{"text":"something that happened"}`)}}
				begun := time.Now()
				err := r.db.Update(r.Context(), func(tx *store.Tx) error {
					n, err := r.db.Runs().Apply(tx, &c)
					if c.Run.N == 0 {
						c.Run.N = n
					}
					return err
				})
				if err != nil {
					r.Error(err)
					return
				}
				c.Run.Version, c.Run.Was = c.Run.Version+1, store.Running
				mu.Lock()
				took = append(took, time.Since(begun))
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return took
}

func p99(took []time.Duration) float64 {
	slices.Sort(took)
	return float64(took[len(took)*99/100].Microseconds()) / 1000
}

// What is old is deleted, and all of it, while others write; nothing open is.
func TestSweepBesideOthers(t *testing.T) {
	r := newRig(t, retention.Settings{SpansDays: 30})
	old := grow(r, 20)
	done := make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() { r.others("w", done) })
	s, err := retention.New(r.o).Sweep(t.Context(), false)
	close(done)
	others.Wait()
	if err != nil || s.Results[0].Deleted != old {
		t.Errorf("Sweep = %+v, %v, want %d deleted", s.Results, err, old)
	}
	for n, want := range map[int64]int{1: 1000, 2: 100, 11: 1000, 20: 100} {
		if got := len(r.spans(n, time.Now())); got != want {
			t.Errorf("run %d has %d batches of spans, want %d", n, got, want)
		}
	}
}

// BenchmarkSweep sweeps a million batches of spans, of which 810 000 are old, for a minute while others write. It reports the 99th
// percentile of the time that a write takes, in slices alone and in slices beside the sweep, which alternate, so that other load on
// the machine is in both.
func BenchmarkSweep(b *testing.B) {
	const slices, slice = 12, 5 * time.Second
	for b.Loop() {
		b.StopTimer()
		r := newRig(b, retention.Settings{SpansDays: 30})
		old := grow(r, 1000)
		d := retention.New(r.o)
		var took [2][]time.Duration
		var deleted int64
		b.StartTimer()
		for n := range 2 * slices {
			ctx, cancel := context.WithTimeout(b.Context(), slice)
			var sweep sync.WaitGroup
			if n%2 == 1 {
				sweep.Go(func() {
					s, err := d.Sweep(ctx, false)
					if err != nil && ctx.Err() == nil {
						b.Error(err)
					}
					deleted += s.Results[0].Deleted
				})
			}
			took[n%2] = append(took[n%2], r.others(fmt.Sprint("w", n, "-"), ctx.Done())...)
			sweep.Wait()
			cancel()
		}
		b.StopTimer()
		if deleted == 0 || deleted > old {
			b.Fatalf("the sweep has deleted %d of %d", deleted, old)
		}
		alone, beside := p99(took[0]), p99(took[1])
		b.ReportMetric(alone, "ms-p99-alone")
		b.ReportMetric(beside, "ms-p99-beside")
		b.ReportMetric(beside/alone, "times")
		b.ReportMetric(float64(deleted)/(slices*slice).Seconds(), "rows/s")
		r.db.Close()
		b.StartTimer()
	}
}
