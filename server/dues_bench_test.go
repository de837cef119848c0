package server_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentd/server"
	"agentd/server/agent"
	"agentd/server/config"
	"agentd/triggers"
)

// BenchmarkDues starts the runs of 10 000 triggers that are due at one time, which end at once. Times are since the due: last-start-ms
// is when the last run was committed, settled-ms when the end of the last one was accounted for, and cpu-ms what
// all of it took, which a busy machine changes least.
//
//	go test ./server -run '^$' -bench Dues -benchtime 3x
func BenchmarkDues(b *testing.B) {
	const n = 10_000
	var started, settled, spent time.Duration
	for b.Loop() {
		cfg := config.Default()
		cfg.Dir, cfg.Auth.Kind, cfg.Server.Port = b.TempDir(), "none", 0
		cfg.Storage.Path = filepath.Join(cfg.Dir, "data.db")
		srv, err := server.New(server.Options{Config: cfg})
		if err != nil {
			b.Fatal(err)
		}
		if err := srv.Agents().Register(agent.Registration{ID: "noop", Agent: noop{}}); err != nil {
			b.Fatal(err)
		}
		for i := range n {
			if err := srv.Triggers().Declare(fmt.Sprintf("t%05d", i), triggers.Declaration{Kind: triggers.IntervalKind, EveryMs: 15_000, Agent: "noop"}); err != nil {
				b.Fatal(err)
			}
		}
		at, err := srv.Start(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		next, err := srv.Triggers().Next("t00000", 1)
		if err != nil || len(next) != 1 {
			b.Fatal(next, err)
		}
		due := next[0]
		time.Sleep(time.Until(due))
		before := cpu(b)
		for want := fmt.Sprintf(`svc_triggers_fires_total{status="success",trigger_id="other"} %d`, n); !strings.Contains(metricsOf(b, at.String()), want); {
			if time.Since(due) > 14*time.Second {
				b.Fatalf("not all runs ended: %+v", srv.Triggers().Status())
			}
			time.Sleep(100 * time.Millisecond)
		}
		settled, spent = time.Since(due), cpu(b)-before
		for i := range n {
			page, _, err := srv.Triggers().Firings(b.Context(), fmt.Sprintf("t%05d", i), 0, 1)
			if err != nil || len(page) != 1 {
				b.Fatal(page, err)
			}
			fired, _ := time.Parse(time.RFC3339, page[0].At)
			started = max(started, fired.Sub(due))
		}
		if err := srv.Shutdown(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(started.Milliseconds()), "last-start-ms")
	b.ReportMetric(float64(spent.Milliseconds()), "cpu-ms")
	b.ReportMetric(float64(settled.Milliseconds()), "settled-ms")
}

func metricsOf(b *testing.B, addr string) string {
	resp, err := http.Get("http://" + addr + "/v1/metrics")
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		b.Fatal(resp.Status, err)
	}
	return string(text)
}
