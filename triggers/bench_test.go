package triggers_test

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"agentd/server/id"
	"agentd/store"
	"agentd/store/storetest"
	"agentd/triggers"
)

// BenchmarkStart declares and loads 100 000 cron triggers that the store knows: what they add to a start.
func BenchmarkStart(b *testing.B) {
	const n = 100_000
	path := filepath.Join(b.TempDir(), "data.db")
	load := func() (*store.DB, *triggers.Engine, time.Duration) {
		db := storetest.OpenAt(b, path)
		begun := time.Now()
		e := triggers.New(triggers.Options{Store: db.Triggers()})
		for i := range n {
			d := triggers.Declaration{Kind: triggers.CronKind, Spec: fmt.Sprintf("%d %d * * *", i%60, i/60%24), Agent: "a"}
			if err := e.Declare(fmt.Sprintf("t%06d", i), d); err != nil {
				b.Fatal(err)
			}
		}
		if err := e.Load(context.Background(), false); err != nil {
			b.Fatal(err)
		}
		return db, e, time.Since(begun)
	}
	db, _, first := load()
	db.Close()
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var took time.Duration
	status := time.Hour
	var bytes uint64
	for b.Loop() {
		before := heap()
		db, e, t := load()
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		begun := time.Now()
		go func() { done <- e.Run(ctx) }()
		for e.Status().Active == 0 || !e.Status().Running {
			time.Sleep(time.Millisecond)
		}
		took += t + time.Since(begun)
		bytes = heap() - before
		for range 20 { // the shortest, because others may disturb it
			begun = time.Now()
			e.Status()
			status = min(status, time.Since(begun))
		}
		cancel()
		<-done
		runtime.KeepAlive(e)
		db.Close()
	}
	b.ReportMetric(float64(took.Milliseconds())/float64(b.N), "start-ms")
	b.ReportMetric(float64(status.Microseconds()), "status-µs")
	b.ReportMetric(float64(first.Milliseconds()), "first-ms")
	b.ReportMetric(float64(bytes)/(1<<20), "MiB")
}

// BenchmarkDues fires 10 000 triggers that are due at one second.
func BenchmarkDues(b *testing.B) {
	const n = 10_000
	for b.Loop() {
		db := storetest.OpenAt(b, filepath.Join(b.TempDir(), id.New()))
		var started atomic.Int64
		var last atomic.Int64
		e := triggers.New(triggers.Options{Store: db.Triggers(), Start: func(ctx context.Context, s triggers.Start) (string, error) {
			run := id.New()
			err := db.Runs().Update(ctx, func(tx *store.Tx) error { return s.Also(tx, run, store.Running) })
			last.Store(time.Now().UnixMilli())
			started.Add(1)
			return run, err
		}})
		for i := range n {
			if err := e.Declare(fmt.Sprintf("t%05d", i), triggers.Declaration{Kind: triggers.IntervalKind, EveryMs: 5000, Agent: "a"}); err != nil {
				b.Fatal(err)
			}
		}
		if err := e.Load(context.Background(), false); err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- e.Run(ctx) }()
		s, _ := e.Get("t00000")
		due, _ := time.Parse(time.RFC3339, s.NextFireAt)
		for started.Load() < n {
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
		<-done
		b.ReportMetric(float64(last.Load()-due.UnixMilli()), "last-ms")
		db.Close()
	}
}
