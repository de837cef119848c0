package audit_test

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentd/server/audit"
)

// BenchmarkAppend measures durable appends with so many callers at once, with each cipher, next to the hash alone.
func BenchmarkAppend(b *testing.B) {
	for _, cipher := range []string{"chacha20", "aes256gcm"} {
		for _, callers := range []int{1, 16, 64, 256} {
			b.Run(fmt.Sprintf("%s/callers=%d", cipher, callers), func(b *testing.B) {
				l := openLog(b, audit.Options{Cipher: cipher, Durability: "full"})
				var left atomic.Int64
				left.Store(int64(b.N))
				b.ReportAllocs()
				b.ResetTimer()
				var wg sync.WaitGroup
				for range callers {
					wg.Go(func() {
						for i := left.Add(-1); i >= 0; i = left.Add(-1) {
							if err := l.Append(context.Background(), record(int(i))); err != nil {
								b.Error(err)
							}
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "entries/s")
			})
		}
	}
	b.Run("noted", func(b *testing.B) {
		l := openLog(b, audit.Options{})
		b.ReportAllocs()
		for i := range b.N {
			if err := l.Note(b.Context(), record(i)); err != nil {
				b.Fatal(err)
			}
		}
		if err := l.Append(b.Context(), record(0)); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "entries/s")
	})
	b.Run("hash-only", func(b *testing.B) {
		text := make([]byte, 330)
		for b.Loop() {
			sha256.Sum256(text)
		}
	})
}

// fill notes so many entries and makes them durable.
func fill(tb testing.TB, l *audit.Log, n int) {
	tb.Helper()
	for i := range n {
		if err := l.Note(context.Background(), record(i)); err != nil {
			tb.Fatal(err)
		}
	}
	if err := l.Append(context.Background(), record(n)); err != nil {
		tb.Fatal(err)
	}
}

// BenchmarkVerify measures entries per second: of a verification, of one that checks links only, and, as the ceiling, of
// a bare scan of the rows that hashes as many bytes.
func BenchmarkVerify(b *testing.B) {
	const n = 200_000
	l := openLog(b, audit.Options{})
	fill(b, l, n)
	links, err := audit.Open(b.Context(), audit.Options{Path: l.Path(), ReadOnly: true})
	if err != nil {
		b.Fatal(err)
	}
	defer links.Close()
	rate := func(b *testing.B) {
		b.ReportMetric(float64(b.N)*n/b.Elapsed().Seconds(), "entries/s")
	}
	for name, l := range map[string]*audit.Log{"whole": l, "links": links} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if v := verify(b, l, audit.Verification{}); !v.OK {
					b.Fatalf("Verify() = %+v", v)
				}
			}
			rate(b)
		})
	}
	b.Run("ceiling", func(b *testing.B) {
		db, err := sql.Open("sqlite", l.Path())
		if err != nil {
			b.Fatal(err)
		}
		defer db.Close()
		for b.Loop() {
			rows, err := db.Query("SELECT seq, ts, prev_hash, hash, sealed FROM audit_log ORDER BY seq")
			if err != nil {
				b.Fatal(err)
			}
			var seq, ts int64
			var prev, hash, sealed sql.RawBytes
			for rows.Next() {
				if err := rows.Scan(&seq, &ts, &prev, &hash, &sealed); err != nil {
					b.Fatal(err)
				}
				sha256.Sum256(sealed)
			}
			rows.Close()
		}
		rate(b)
	})
}

// TestVerifyInConstantMemory walks many entries, and with -bench Million a million of them.
func TestVerifyInConstantMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("many entries take a while")
	}
	verifyMany(t, 60_000)
}

func BenchmarkVerifyMillion(b *testing.B) {
	for b.Loop() {
		b.ReportMetric(float64(verifyMany(b, 1_000_000))/(1<<20), "MiB")
	}
}

// verifyMany verifies a chain of n entries and returns by how many bytes the heap has grown meanwhile.
func verifyMany(t testing.TB, n int) int64 {
	t.Helper()
	l := openLog(t, audit.Options{Durability: "normal"})
	fill(t, l, n-1)
	runtime.GC()
	var before, peak runtime.MemStats
	runtime.ReadMemStats(&before)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			var now runtime.MemStats
			runtime.ReadMemStats(&now)
			peak.HeapAlloc = max(peak.HeapAlloc, now.HeapAlloc)
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	}()
	v := verify(t, l, audit.Verification{})
	close(stop)
	<-done
	if !v.OK || v.Count != int64(n) {
		t.Errorf("Verify() = %+v, want %d good entries", v, n)
	}
	grown := int64(peak.HeapAlloc) - int64(before.HeapAlloc)
	if grown > 16<<20 {
		t.Errorf("verifying took %d MiB, want at most 16", grown>>20)
	}
	return grown
}
