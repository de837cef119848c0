package health_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/health"
	"agentd/server/shape"
)

func always(r health.Result) health.Check {
	return func(context.Context) health.Result { return r }
}

func encode(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatalf("Marshal(%+v): %v", v, err)
	}
	return string(b)
}

func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := health.New("0.7.0", time.Now(), slog.New(slog.DiscardHandler))
		r.Register("storage", always(health.Result{Status: health.OK, Fields: shape.Object{"walSizeBytes", 4152, "warnThresholdBytes", 52428800}}))
		r.Register("triggers", always(health.Result{Status: health.Warn, Message: `two "late"`, Fields: shape.Object{"active", 2}}))
		r.Register("replayBuffer", always(health.Result{Status: health.OK, Fields: shape.Object{"eventsBuffered", 0}}))
		r.Register("later", always(health.Result{Status: health.OK}))
		r.Register("also", always(health.Result{Status: health.OK, Fields: shape.Object{}}))
		<-time.After(812*time.Second + 999*time.Millisecond)

		got, code := r.Report(t.Context())
		want := `{"status":"degraded","version":"0.7.0","uptimeSeconds":812,"checks":{` +
			`"storage":{"status":"ok","walSizeBytes":4152,"warnThresholdBytes":52428800},` +
			`"triggers":{"status":"warn","message":"two \"late\"","active":2},` +
			`"replayBuffer":{"status":"ok","eventsBuffered":0},` +
			`"later":{"status":"ok"},"also":{"status":"ok"}}}`
		if encode(t, got) != want || code != http.StatusOK {
			t.Errorf("Report() = %s, %d\nwant %s, 200", encode(t, got), code, want)
		}
		if !json.Valid(got.Checks.OpenAPISchema()) {
			t.Errorf("OpenAPISchema() = %s, want JSON", got.Checks.OpenAPISchema())
		}
	})
}

func TestRollup(t *testing.T) {
	for _, tc := range []struct {
		name   string
		found  []health.Status
		status string
		code   int
	}{
		{"no checks", nil, "ok", 200},
		{"all ok", []health.Status{health.OK, health.OK}, "ok", 200},
		{"one warns", []health.Status{health.OK, health.Warn, health.OK}, "degraded", 200},
		{"one fails", []health.Status{health.OK, health.Fail, health.Warn}, "failing", 503},
		{"warns, then fails", []health.Status{health.Warn, health.Fail}, "failing", 503},
		{"zero value", []health.Status{""}, "failing", 503},
		{"unknown", []health.Status{"fine"}, "failing", 503},
	} {
		r := health.New("1", time.Now(), slog.New(slog.DiscardHandler))
		for i, s := range tc.found {
			r.Register(string(rune('a'+i)), always(health.Result{Status: s}))
		}
		if got, code := r.Report(t.Context()); got.Status != tc.status || code != tc.code {
			t.Errorf("%s: Report() = %s, %d, want %s, %d", tc.name, got.Status, code, tc.status, tc.code)
		}
	}
}

func TestPanicFails(t *testing.T) {
	for name, check := range map[string]health.Check{"panic": func(context.Context) health.Result { panic("password hunter2") }, "nil check": nil} {
		var log bytes.Buffer
		r := health.New("1", time.Now(), slog.New(slog.NewTextHandler(&log, nil)))
		r.Register("x", check)
		got, _ := r.Report(t.Context())
		if want := `{"x":{"status":"fail","message":"The check panicked; see the server's log."}}`; encode(t, got.Checks) != want {
			t.Errorf("%s: checks = %s, want %s", name, encode(t, got.Checks), want)
		}
		if r.Wait(); !strings.Contains(log.String(), "check=x") {
			t.Errorf("%s: the log is %q, want the check in it", name, log.String())
		}
	}
}

const late = `"message":"The check did not answer in time."`

func TestSlowChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := health.New("1", time.Now(), slog.New(slog.DiscardHandler))
		r.Register("quick", always(health.Result{Status: health.OK}))
		r.Register("obedient", func(ctx context.Context) health.Result {
			<-ctx.Done()
			return health.Result{Status: health.OK, Message: "late all the same"}
		})
		release := make(chan bool)
		var calls atomic.Int32
		r.Register("deaf", func(context.Context) health.Result {
			calls.Add(1)
			<-release
			return health.Result{Status: health.OK}
		})

		began := time.Now()
		got, code := r.Report(t.Context())
		text := encode(t, got)
		if took := time.Since(began); took != health.Timeout || code != 503 || strings.Count(text, late) != 2 || !strings.Contains(text, `"quick":{"status":"ok"}`) {
			t.Errorf("Report() = %s, %d after %v, want both slow checks to fail after %v", text, code, took, health.Timeout)
		}
		// A check that hangs is not started again: it costs one goroutine, not one for each probe.
		for range 5 {
			r.Report(t.Context())
		}
		if calls.Load() != 1 {
			t.Errorf("calls of a check that hangs = %d, want 1", calls.Load())
		}
		close(release)
		r.Wait()
		if got, _ := r.Report(t.Context()); !strings.Contains(encode(t, got), `"deaf":{"status":"ok"}`) {
			t.Errorf("Report() after the check recovered = %s, want it ok", encode(t, got))
		}
		r.Wait()
	})
}

func TestProbesShareOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := health.New("1", time.Now(), slog.New(slog.DiscardHandler))
		var mu sync.Mutex
		calls, running, most := 0, 0, 0
		work := func(context.Context) health.Result {
			mu.Lock()
			calls++
			running++
			most = max(most, running)
			mu.Unlock()
			<-time.After(time.Second)
			mu.Lock()
			running--
			mu.Unlock()
			return health.Result{Status: health.OK}
		}
		r.Register("a", work)
		r.Register("b", work)

		// The probe that starts the calls gives up; the others are answered by the same calls.
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if got, code := r.Report(ctx); code != 503 || strings.Count(encode(t, got), late) != 2 {
			t.Errorf("Report() of a probe that gave up = %s, %d, want both checks late", encode(t, got), code)
		}
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if got, code := r.Report(t.Context()); code != 200 {
					t.Errorf("Report() = %s, %d, want 200", encode(t, got), code)
				}
			})
		}
		wg.Wait()
		r.Wait()
		if calls != 2 || most != 2 {
			t.Errorf("calls = %d, at most %d at once; want 2 and 2: each check once, both together", calls, most)
		}
	})
}

// Probes that come often cost one call in a second, and see a change after that.
func TestResultsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := health.New("1", time.Now(), slog.New(slog.DiscardHandler))
		calls := 0
		r.Register("a", func(context.Context) health.Result {
			calls++
			return health.Result{Status: map[bool]health.Status{true: health.OK, false: health.Fail}[calls == 1]}
		})
		for range 100 {
			if got, code := r.Report(t.Context()); code != 200 || calls != 1 {
				t.Fatalf("Report() within an interval = %s, %d after %d calls, want the first result", encode(t, got), code, calls)
			}
			<-time.After(health.Interval / 101)
		}
		<-time.After(health.Interval / 100)
		if got, code := r.Report(t.Context()); code != 503 || calls != 2 || len(got.Failing) != 1 || got.Failing[0] != "a" {
			t.Errorf("Report() after an interval = %s, %d, failing %v after %d calls; want another call", encode(t, got), code, got.Failing, calls)
		}
	})
}
