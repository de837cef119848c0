package metrics_test

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"agentd/metrics"
)

func TestHistogram(t *testing.T) {
	var r metrics.Registry
	h := r.Histograms("h_seconds", "Help.", "x").With("a")
	for _, v := range []float64{0, 0.001, 0.0011, 0.05, 1800, 1800.1, math.Inf(1)} {
		h.Observe(v)
	}
	text := string(r.Text())
	for _, want := range []string{"# TYPE h_seconds histogram\n", `_bucket{x="a",le="0.001"} 2`, `_bucket{x="a",le="0.0025"} 3`, `_bucket{x="a",le="0.025"} 3`, `_bucket{x="a",le="0.05"} 4`,
		`_bucket{x="a",le="1"} 4`, `_bucket{x="a",le="1800"} 5`, `_bucket{x="a",le="+Inf"} 7`, `h_seconds_sum{x="a"} +Inf`, `h_seconds_count{x="a"} 7`} {
		if !strings.Contains(text, want) {
			t.Errorf("Text() lacks %s:\n%s", want, text)
		}
	}
	if n := testing.AllocsPerRun(100, func() { h.Observe(3) }); n != 0 {
		t.Errorf("Observe() allocates %v times, want none", n)
	}
}

// The first label of a family is bounded by its values, so that the others keep theirs.
func TestFirstLabelIsBounded(t *testing.T) {
	var r metrics.Registry
	c := r.Counters("c_total", "Help.", "agent", "status")
	for i := range metrics.MaxValues + 50 {
		c.With(fmt.Sprint("a", i), "completed").Inc()
		c.With(fmt.Sprint("a", i), "failed").Add(2)
	}
	c.With("a0", "aborted").Inc()
	text := string(r.Text())
	for _, want := range []string{`agent="other",status="completed"} 50`, `agent="other",status="failed"} 100`, `agent="a999",status="failed"} 2`, `agent="a0",status="aborted"} 1`} {
		if !strings.Contains(text, want) {
			t.Errorf("Text() lacks %s", want)
		}
	}
	if strings.Contains(text, `"a1000"`) {
		t.Errorf("Text() has more than %d agents", metrics.MaxValues)
	}
}

func TestProcess(t *testing.T) {
	in := metrics.New("1")
	in.Process()
	got := map[string]float64{}
	for line := range strings.Lines(string(in.Text())) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name != "#" {
			got[name], _ = strconv.ParseFloat(value, 64)
		}
	}
	for name, least := range map[string]float64{"process_cpu_seconds_total": 0.0001, "process_start_time_seconds": 1.7e9, "process_open_fds": 3, "process_max_fds": 64,
		"process_virtual_memory_bytes": 1 << 20, "process_resident_memory_bytes": 1 << 20, "go_goroutines": 2, "go_memstats_heap_alloc_bytes": 1 << 10, "go_memstats_sys_bytes": 1 << 20} {
		if v, ok := got[name]; !ok || v < least {
			t.Errorf("%s = %v, want at least %v", name, v, least)
		}
	}
	if _, ok := got["go_gc_cycles_total_gc_cycles_total"]; !ok {
		t.Error("there is no number of garbage collections")
	}
	if v := got["process_virtual_memory_bytes"]; v < got["process_resident_memory_bytes"] {
		t.Errorf("%v bytes are resident of %v", got["process_resident_memory_bytes"], v)
	}
	if fds, err := os.ReadDir("/proc/self/fd"); err != nil || float64(len(fds)) > got["process_open_fds"]+3 {
		t.Errorf("process_open_fds = %v, want about %d, %v", got["process_open_fds"], len(fds), err)
	}
}

// BenchmarkScrape is the exposition of a server with 1000 agents, tools and models.
func BenchmarkScrape(b *testing.B) {
	in := metrics.New("1")
	in.Process()
	for i := range 1000 {
		name := fmt.Sprint("name-", i)
		for _, status := range []string{"completed", "failed", "aborted"} {
			in.RunsByAgent.With(name, status).Inc()
		}
		in.ToolCalls.With(name, "success").Inc()
		in.ProviderTokens.With(name, "input").Inc()
		in.ProviderLatency.With(name).Observe(1)
	}
	b.ReportAllocs()
	for b.Loop() {
		b.SetBytes(int64(len(in.Text())))
	}
}
