package store_test

import (
	"fmt"
	"math/rand/v2"
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
