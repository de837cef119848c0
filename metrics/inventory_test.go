package metrics_test

import (
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/metrics"
	"agentd/server/golden"
)

func TestInventory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := metrics.New("1.2.3")
		golden.Check(t, "testdata/fresh.txt", string(in.Text()))

		in.RunsTotal.With("completed").Add(2)
		in.RunsTotal.With("failed").Inc()
		in.RunDuration.Observe(0.12)
		in.RunDuration.Observe(0.4)
		in.WALSize.Sample(func() (float64, error) { return 4152, nil })
		in.ReplayBufferEvents.Set(17)
		in.InflightRuns.Set(1)
		in.ToolCalls.With("search", "ok").Inc()
		in.ToolCalls.With("search", "timeout").Inc()
		in.ProviderTokens.With("m-1", "input").Add(1200)
		in.ProviderTokens.With("m-1", "output").Add(64)
		in.ProviderCost.With("m-1").Add(0.0123)
		in.HTTPRequests.With("/agents/{id}/run", "POST", "200").Inc()
		in.HTTPDuration.Observe(0.5)
		in.HTTPLatency.Observe(0.5)
		in.ProviderLatency.With("m-1").Observe(2)
		<-time.After(90*time.Second + 900*time.Millisecond)
		golden.Check(t, "testdata/used.txt", string(in.Text()))
	})
}

// The format allows such names only, and each once; colons are left to recording rules.
func TestInventoryNames(t *testing.T) {
	help := regexp.MustCompile(`^# HELP (svc_[a-z0-9_]+) \S`)
	seen := map[string]bool{}
	for line := range strings.Lines(string(metrics.New("1").Text())) {
		if !strings.HasPrefix(line, "# HELP ") {
			continue
		}
		m := help.FindStringSubmatch(line)
		if m == nil || seen[m[1]] || seen[strings.TrimSuffix(strings.TrimSuffix(m[1], "_sum"), "_count")] {
			t.Fatalf("line %q is of no svc_ family with a help text, or its name is there twice", line)
		}
		seen[m[1]] = true
	}
	row := regexp.MustCompile("^\\| `[a-z0-9_]+` \\| (counter|gauge|summary|histogram) \\| (-|(`[a-z][a-z_]*`(, )?)+) \\| .+ \\|\n$")
	for line := range strings.Lines(strings.SplitN(metrics.New("1").Markdown(), "\n", 3)[2]) {
		if !row.MatchString(line) {
			t.Errorf("row %q has a label that the format does not allow", line)
		}
	}
}
