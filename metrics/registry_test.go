package metrics_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"agentd/metrics"
)

func TestText(t *testing.T) {
	var r metrics.Registry
	c := r.Counters("c_total", `Backslash \ and`+"\nnewline, \"quoted\".", "zone", "area")
	c.With("b", "2").Inc()
	c.With("a", "2").Add(0.25)
	c.With("a", "2").Add(2)
	c.With(`q"\`+"\n", "\xff").Inc()
	r.Gauges("empty", "No samples.", "x")
	r.Gauge("unset", "Never set.")
	r.Counter("zero_total", "Starts at zero.")
	g := r.Gauges("g", "Numbers.", "n")
	for i, v := range []float64{math.Inf(1), math.Inf(-1), math.NaN(), 0, -3, 1e15, 1e300, 0.1, 52428800} {
		g.With(fmt.Sprint(i)).Set(v)
	}
	want := `# HELP c_total Backslash \\ and\nnewline, "quoted".
# TYPE c_total counter
c_total{area="2",zone="a"} 2.25
c_total{area="2",zone="b"} 1
c_total{area="` + "\uFFFD" + `",zone="q\"\\\n"} 1
# HELP empty No samples.
# TYPE empty gauge
# HELP unset Never set.
# TYPE unset gauge
# HELP zero_total Starts at zero.
# TYPE zero_total counter
zero_total 0
# HELP g Numbers.
# TYPE g gauge
g{n="0"} +Inf
g{n="1"} -Inf
g{n="2"} NaN
g{n="3"} 0
g{n="4"} -3
g{n="5"} 1000000000000000
g{n="6"} 1e+300
g{n="7"} 0.1
g{n="8"} 52428800
`
	if got := string(r.Text()); got != want {
		t.Errorf("Text() = %s\nwant %s", got, want)
	}
	if got := string(new(metrics.Registry).Text()); got != "" {
		t.Errorf("Text() of nothing = %q, want nothing", got)
	}
}

func TestCounterOnlyGrows(t *testing.T) {
	var r metrics.Registry
	c := r.Counter("c_total", "Help.")
	for _, n := range []float64{1, -1, 0, math.NaN(), math.Inf(-1), 0.5} {
		c.Add(n)
	}
	if want := "\nc_total 1.5\n"; !strings.Contains(string(r.Text()), want) {
		t.Errorf("Text() = %s, want %q in it", r.Text(), want)
	}
}

func TestSampledGauge(t *testing.T) {
	for _, tc := range []struct {
		name   string
		sample func() (float64, error)
		want   string
	}{
		{"value", func() (float64, error) { return 7, nil }, "g 7\n"},
		{"failing", func() (float64, error) { return 7, errors.New("gone") }, ""},
		{"nil", nil, ""},
	} {
		var r metrics.Registry
		r.Gauge("g", "Help.").Sample(tc.sample)
		r.Counter("after_total", "The families after it are still printed.").Inc()
		got, found := strings.CutPrefix(string(r.Text()), "# HELP g Help.\n# TYPE g gauge\n")
		got, after, _ := strings.Cut(got, "#")
		if !found || got != tc.want || !strings.HasSuffix(after, "after_total 1\n") {
			t.Errorf("%s: Text() = %s, want the sample %q and the next family", tc.name, r.Text(), tc.want)
		}
	}
}

func TestSummary(t *testing.T) {
	for _, tc := range []struct {
		name string
		n    int // observes 1, 2, ... n
		want string
	}{
		{"none", 0, "s_sum 0\ns_count 0\n"},
		{"one", 1, "s{quantile=\"0.5\"} 1\ns{quantile=\"0.95\"} 1\ns_sum 1\ns_count 1\n"},
		{"two", 2, "s{quantile=\"0.5\"} 1\ns{quantile=\"0.95\"} 2\ns_sum 3\ns_count 2\n"},
		{"hundred", 100, "s{quantile=\"0.5\"} 50\ns{quantile=\"0.95\"} 95\ns_sum 5050\ns_count 100\n"},
		{"a window", 1024, "s{quantile=\"0.5\"} 512\ns{quantile=\"0.95\"} 973\ns_sum 524800\ns_count 1024\n"},
		// The last 1024 of 2000 are 977 to 2000.
		{"more than a window", 2000, "s{quantile=\"0.5\"} 1488\ns{quantile=\"0.95\"} 1949\ns_sum 2001000\ns_count 2000\n"},
	} {
		var r metrics.Registry
		s := r.Summary("s", "Help.")
		s.Observe(math.NaN())
		for i := range tc.n {
			s.Observe(float64(i + 1))
		}
		if want := "# HELP s Help.\n# TYPE s summary\n" + tc.want; string(r.Text()) != want {
			t.Errorf("%s: Text() = %s, want %s", tc.name, r.Text(), want)
		}
	}
}

func TestSeriesAreBounded(t *testing.T) {
	var r metrics.Registry
	c := r.Counters("c_total", "Help.", "a", "b")
	const extra = 50
	for range 2 {
		for i := range metrics.MaxSeries + extra {
			c.With("x", fmt.Sprint(i)).Inc()
		}
	}
	text := string(r.Text())
	if got, want := strings.Count(text, "\nc_total{"), metrics.MaxSeries+1; got != want {
		t.Errorf("series = %d, want %d", got, want)
	}
	if want := fmt.Sprintf(`c_total{a="other",b="other"} %d`, 2*extra); !strings.Contains(text, want) {
		t.Errorf("Text() lacks %s", want)
	}
	if want := `c_total{a="x",b="0"} 2`; !strings.Contains(text, want) {
		t.Errorf("Text() lacks %s", want)
	}
}

func TestWrongNumberOfLabelValuesPanics(t *testing.T) {
	for _, values := range [][]string{nil, {"1", "2"}} {
		var r metrics.Registry
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("With(%q) of one label did not panic", values)
				}
			}()
			r.Counters("x", "Help.", "a").With(values...)
		}()
	}
}

func TestConcurrentUse(t *testing.T) {
	in := metrics.New("1.2.3")
	const workers, rounds = 8, 500
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range rounds {
				in.RunsTotal.With("completed").Inc()
				in.ToolCalls.With(fmt.Sprint(i%40), "ok").Inc()
				in.RunDuration.Observe(float64(i))
				in.InflightRuns.Set(float64(w))
				if i%100 == 0 {
					in.Text()
				}
			}
		})
	}
	wg.Wait()
	text := string(in.Text())
	for _, want := range []string{
		fmt.Sprintf("svc_agent_runs_total{status=\"completed\"} %d\n", workers*rounds),
		fmt.Sprintf("svc_agent_run_duration_seconds_count %d\n", workers*rounds),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("Text() lacks %q", want)
		}
	}
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	in := metrics.New("1.2.3")
	route, status := "POST /agents/{id}/run", "200"
	if got := testing.AllocsPerRun(100, func() { in.HTTPRequests.With(route, "POST", status).Inc() }); got != 0 {
		t.Errorf("With().Inc() allocates %v times, want 0", got)
	}
}

func BenchmarkInc(b *testing.B) {
	var r metrics.Registry
	c := r.Counters("c_total", "Help.", "route", "status")
	b.Run("With", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			c.With("GET /runs/{runId}/state", "200").Inc()
		}
	})
	b.Run("bound", func(b *testing.B) {
		b.ReportAllocs()
		bound := c.With("GET /runs/{runId}/state", "200")
		for b.Loop() {
			bound.Inc()
		}
	})
}

// Whatever a label value is, its series is one line that reads back as the value: cut, and with its broken bytes
// replaced.
func FuzzLabelValue(f *testing.F) {
	for _, s := range []string{"", "plain", `a"b\c` + "\nd", "\xff\xfe", "\x00", strings.Repeat("é", 150), strings.Repeat("x", 199) + "é"} {
		f.Add(s)
	}
	unescape := strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\"`, `"`)
	f.Fuzz(func(t *testing.T, in string) {
		var r metrics.Registry
		r.Counters("c_total", "Help.", "v").With(in).Inc()
		text := string(r.Text())
		line, ok := strings.CutPrefix(text, "# HELP c_total Help.\n# TYPE c_total counter\n")
		line, ok2 := strings.CutSuffix(line, "\"} 1\n")
		value, ok3 := strings.CutPrefix(line, `c_total{v="`)
		if !ok || !ok2 || !ok3 || strings.Contains(value, "\n") {
			t.Fatalf("Text() with %q = %q, want one sample in one line", in, text)
		}
		switch got := unescape.Replace(value); {
		case len(got) > metrics.MaxLabelValue:
			t.Errorf("value of %q has %d bytes, want at most %d", in, len(got), metrics.MaxLabelValue)
		case len(in) <= metrics.MaxLabelValue/3: // a broken byte can become three
			if want := strings.ToValidUTF8(in, "\uFFFD"); got != want {
				t.Errorf("value of %q reads back as %q, want %q", in, got, want)
			}
		case utf8.ValidString(in):
			if !strings.HasPrefix(in, got) || len(got) < min(len(in), metrics.MaxLabelValue-3) {
				t.Errorf("value of %q reads back as %q, want as much of it as fits", in, got)
			}
		}
	})
}
