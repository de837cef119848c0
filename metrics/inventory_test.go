package metrics_test

import (
	"flag"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/metrics"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := "testdata/" + name
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is not what is generated now (run with -update to write it):\n%s", path, got)
	}
}

func TestInventory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := metrics.New("1.2.3")
		golden(t, "fresh.txt", string(in.Text()))

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
		golden(t, "used.txt", string(in.Text()))
		golden(t, "inventory.md", in.Markdown())
	})
}

func TestInventoryNames(t *testing.T) {
	for line := range strings.Lines(string(metrics.New("1").Text())) {
		if !strings.HasPrefix(line, "svc_") && !strings.HasPrefix(line, "# HELP svc_") && !strings.HasPrefix(line, "# TYPE svc_") {
			t.Errorf("line %q is of no svc_ family", line)
		}
	}
}
