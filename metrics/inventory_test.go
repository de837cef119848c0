package metrics_test

import (
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
		<-time.After(90*time.Second + 900*time.Millisecond)
		golden.Check(t, "testdata/used.txt", string(in.Text()))
	})
}

func TestInventoryNames(t *testing.T) {
	for line := range strings.Lines(string(metrics.New("1").Text())) {
		if !strings.HasPrefix(line, "svc_") && !strings.HasPrefix(line, "# HELP svc_") && !strings.HasPrefix(line, "# TYPE svc_") {
			t.Errorf("line %q is of no svc_ family", line)
		}
	}
}
