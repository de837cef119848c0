package backup_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"agentd/server/backup"
	"agentd/store"
	"agentd/store/storetest"
)

// asProcess names the database of which the test binary makes a backup, instead of testing.
const asProcess = "AGENTD_TEST_BACKUP_OF"

func TestMain(m *testing.M) {
	path := os.Getenv(asProcess)
	if path == "" {
		os.Exit(m.Run())
	}
	if err := create(path, path+".tar"); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// create makes a backup of a database as the command does, and replaces the last one.
func create(path, to string) error {
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := (backup.Site{backup.Database: path}).Create(context.Background(), backup.Paced(f, path), &backup.Manifest{}); err != nil {
		return err
	}
	return f.Sync()
}

// grown is a database with so many runs.
func grown(b *testing.B, runs int) string {
	path := filepath.Join(b.TempDir(), "data.db")
	storetest.OpenAt(b, path).Close()
	storetest.Grow(b, path, runs)
	return path
}

// BenchmarkBeside measures commits, one each millisecond, without a backup and beside processes that make one after the
// other: p99-µs and most-µs.
func BenchmarkBeside(b *testing.B) {
	path := grown(b, 100_000)
	db := storetest.OpenAt(b, path)
	for _, beside := range []bool{false, true} {
		b.Run(fmt.Sprintf("backup=%t", beside), func(b *testing.B) {
			ctx, stop := context.WithCancel(b.Context())
			var copies sync.WaitGroup
			if beside {
				copies.Go(func() {
					for ctx.Err() == nil {
						c := exec.CommandContext(ctx, os.Args[0])
						c.Env = append(os.Environ(), asProcess+"="+path)
						if out, err := c.CombinedOutput(); err != nil && ctx.Err() == nil {
							b.Errorf("the backup: %v, %s", err, out)
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
				time.Sleep(time.Millisecond)
			}
			stop()
			copies.Wait()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
			b.ReportMetric(float64(took[len(took)-1].Microseconds()), "most-µs")
		})
	}
}

// BenchmarkCreate compares a backup with a plain copy of the database that is durable, too.
func BenchmarkCreate(b *testing.B) {
	path := grown(b, 500_000)
	info, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	for name, fn := range map[string]func(path, to string) error{"copy": plain, "backup": create} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(info.Size())
			for b.Loop() {
				if err := fn(path, path+".copy"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func plain(path, to string) error {
	from, err := os.Open(path)
	if err != nil {
		return err
	}
	defer from.Close()
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, from); err != nil {
		return err
	}
	return f.Sync()
}
