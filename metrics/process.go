package metrics

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	runtimemetrics "runtime/metrics"
	"syscall"
	"time"
)

// started is the start of the process, or a moment after it.
var started = time.Now()

// Process declares the metrics that every process has, under the names by which dashboards know them.
func (in *Inventory) Process() {
	in.Sampled("counter", "process_cpu_seconds_total", "Total user and system CPU time of the process, in seconds.", func() (float64, error) {
		var u syscall.Rusage
		err := syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9, err
	})
	in.Sampled("gauge", "process_start_time_seconds", "Start time of the process, in seconds since 1970.", func() (float64, error) {
		return float64(started.UnixMilli()) / 1000, nil
	})
	in.Sampled("gauge", "process_open_fds", "Open file descriptors.", func() (float64, error) {
		dir, err := os.Open("/proc/self/fd")
		if err != nil {
			return 0, err
		}
		defer dir.Close()
		names, err := dir.Readdirnames(-1)
		return float64(len(names) - 1), err // without the one that reads
	})
	in.Sampled("gauge", "process_max_fds", "File descriptors that the process may have open.", func() (float64, error) {
		var limit syscall.Rlimit
		err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)
		return float64(limit.Cur), err
	})
	pages := func(of int) func() (float64, error) {
		return func() (float64, error) {
			var n [2]float64
			text, err := os.ReadFile("/proc/self/statm")
			if err == nil {
				_, err = fmt.Fscan(bytes.NewReader(text), &n[0], &n[1])
			}
			return n[of] * float64(os.Getpagesize()), err
		}
	}
	in.Sampled("gauge", "process_virtual_memory_bytes", "Virtual memory of the process.", pages(0))
	in.Sampled("gauge", "process_resident_memory_bytes", "Resident memory of the process.", pages(1))

	in.Gauges("go_info", "Always 1; the label holds the version of Go.", "version").With(runtime.Version()).Set(1)
	for _, row := range []struct{ kind, name, help, source string }{
		{"gauge", "go_goroutines", "Goroutines that exist.", "/sched/goroutines:goroutines"},
		{"gauge", "go_memstats_heap_alloc_bytes", "Bytes of live and not yet freed objects.", "/memory/classes/heap/objects:bytes"},
		{"gauge", "go_memstats_sys_bytes", "Memory that the Go runtime has from the system.", "/memory/classes/total:bytes"},
		{"counter", "go_gc_cycles_total_gc_cycles_total", "Completed garbage collections.", "/gc/cycles/total:gc-cycles"},
	} {
		in.Sampled(row.kind, row.name, row.help, func() (float64, error) {
			sample := [1]runtimemetrics.Sample{{Name: row.source}}
			runtimemetrics.Read(sample[:])
			if sample[0].Value.Kind() != runtimemetrics.KindUint64 {
				return 0, fmt.Errorf("the Go runtime has no %s", row.source)
			}
			return float64(sample[0].Value.Uint64()), nil
		})
	}
}
