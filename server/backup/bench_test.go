package backup_test

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"agentd/server/backup"
	"agentd/store"
	"agentd/store/storetest"
)

// BenchmarkBeside measures commits without a backup and beside backups that follow each other: p99-µs and most-µs.
func BenchmarkBeside(b *testing.B) {
	path := filepath.Join(b.TempDir(), "data.db")
	storetest.OpenAt(b, path).Close()
	storetest.Grow(b, path, 2000)
	db := storetest.OpenAt(b, path)
	for _, beside := range []bool{false, true} {
		b.Run(fmt.Sprintf("backup=%t", beside), func(b *testing.B) {
			ctx, stop := context.WithCancel(b.Context())
			var copies sync.WaitGroup
			if beside {
				copies.Go(func() {
					for ctx.Err() == nil {
						s := backup.Site{backup.Database: path}
						if err := s.Create(ctx, io.Discard, &backup.Manifest{}); err != nil && ctx.Err() == nil {
							b.Error(err)
							return
						}
					}
				})
			}
			var took []time.Duration
			for n := 0; b.Loop(); n++ {
				begun := time.Now()
				if err := db.Update(b.Context(), func(tx *store.Tx) error {
					return db.Sessions().Insert(tx, store.Session{ID: fmt.Sprintf("b%t%d-%d", beside, begun.UnixNano(), n)})
				}); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(begun))
			}
			stop()
			copies.Wait()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
			b.ReportMetric(float64(took[len(took)-1].Microseconds()), "most-µs")
		})
	}
}
