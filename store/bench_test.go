package store_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"agentd/store"
	"agentd/store/storetest"
)

// BenchmarkApply measures durable run starts (run and one event) with several callers waiting at once.
func BenchmarkApply(b *testing.B) {
	for _, callers := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			db := storetest.Open(b)
			var id atomic.Int64
			b.SetParallelism(callers / 2) // two cores
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					c := newRun(fmt.Sprintf("%032d", id.Add(1)))
					c.Run.Events = 1
					c.Events = []store.Event{{Seq: 1, Type: "agent.start", At: 1, Message: -1, Payload: []byte(`{"type":"agent.start"}`)}}
					if err := db.Update(b.Context(), func(tx *store.Tx) error { _, err := db.Runs().Apply(tx, &c); return err }); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
		})
	}
}

// BenchmarkGet measures point reads of runs: of one, and of many, whose pages the caches do not hold.
func BenchmarkGet(b *testing.B) {
	for _, runs := range []int{1, 20_000} {
		b.Run(fmt.Sprintf("runs=%d", runs), func(b *testing.B) {
			db := storetest.Open(b)
			err := db.Update(b.Context(), func(tx *store.Tx) error {
				for i := range runs {
					c := newRun(fmt.Sprint("run-", i))
					c.Run.Usage = []byte(`"` + strings.Repeat("x", 500) + `"`)
					if _, err := db.Runs().Apply(tx, &c); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := db.Checkpoint(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := db.Runs().Get(b.Context(), fmt.Sprint("run-", rand.IntN(runs))); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

// BenchmarkThreadStep measures one step of a thread, as a driver commits it: the run's row with an event and a batch of spans,
// the thread's, a step of 100 bytes, one task ended and one begun. It reports how much the database grows, beside a value of
// 1 MiB.
func BenchmarkThreadStep(b *testing.B) {
	path := filepath.Join(b.TempDir(), "data.db")
	db, err := store.Open(b.Context(), store.Options{Path: path, Durability: "normal"})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	run := newRun("w")
	run.Run.Kind = store.Workflow
	t := newThread(1, "w", "t")
	t.Values = []store.ThreadValue{{Key: "big", Value: []byte(`"` + strings.Repeat("x", 1<<20) + `"`)}}
	commit := func() {
		err := db.Update(b.Context(), func(tx *store.Tx) error {
			n, err := db.Runs().Apply(tx, &run)
			if run.Run.N = n; err != nil {
				return err
			}
			return db.Threads().Apply(tx, &t)
		})
		if err != nil {
			b.Fatal(err)
		}
		run.Run.Version, run.Run.Was, t.Thread.Version = run.Run.Version+1, store.Running, t.Thread.Version+1
	}
	size := func() int64 {
		if _, err := db.Checkpoint(b.Context()); err != nil {
			b.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			b.Fatal(err)
		}
		return info.Size()
	}
	commit()
	before, steps := size(), 0
	body := []byte(`"` + strings.Repeat("y", 98) + `"`)
	b.ReportAllocs()
	for b.Loop() {
		steps++
		run.Run.Events, run.Run.Spans = steps, steps
		run.Events = []store.Event{{Seq: steps, Type: "workflow.step.end", At: 1, Message: -1, Payload: []byte(`{"type":"workflow.step.end","stepNumber":1}`)}}
		run.Spans = []store.SpanBatch{{First: steps - 1, Body: []byte(`[{"name":"task"}]`)}}
		t.Thread.Step, t.Thread.Tasks, t.Values, t.Ended = steps, steps+1, nil, []int{steps - 1}
		t.Steps = []store.ThreadStep{{Step: steps, Run: 1, Events: steps, Spans: steps, Task: steps, Node: "a", Status: "completed", At: 1, Body: body}}
		t.Tasks = []store.ThreadTask{{ID: steps, Body: body}}
		commit()
	}
	b.ReportMetric(float64(size()-before)/float64(steps), "bytes/step")
}
