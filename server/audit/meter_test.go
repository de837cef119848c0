package audit_test

import (
	"context"
	"encoding/csv"
	"errors"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/metrics"
	"agentd/server/audit"
	"agentd/server/audit/export"
	"agentd/store/storetest"
)

// reading is a value of an exposition; ok is false when it has none.
func reading(t *testing.T, in *metrics.Inventory, series string) (v float64, ok bool) {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` (.*)$`).FindSubmatch(in.Text())
	if m == nil {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	return v, true
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := metrics.New("1")
		l := openLog(t, audit.Options{Metrics: in, Checkpoints: audit.Checkpoints{Interval: time.Minute}})
		want := func(when string, values map[string]float64) {
			t.Helper()
			for series, want := range values {
				if got, ok := reading(t, in, series); !ok || got != want {
					t.Errorf("%s: %s = %v (%t), want %v", when, series, got, ok, want)
				}
			}
		}
		want("at first", map[string]float64{"svc_audit_chain_entries": 0, "svc_audit_checkpoint_entries": 0, "svc_audit_writable": 1, "svc_audit_uncovered_seconds": 0})
		if v, ok := reading(t, in, "svc_audit_checkpoint_age_seconds"); ok {
			t.Errorf("svc_audit_checkpoint_age_seconds = %v before there is a checkpoint, want no sample", v)
		}
		<-time.After(time.Hour) // without an entry, no checkpoint is overdue
		want("after an idle hour", map[string]float64{"svc_audit_uncovered_seconds": 0})
		appendMany(t, l, 1, 10)
		<-time.After(30 * time.Second)
		want("before a checkpoint", map[string]float64{"svc_audit_chain_entries": 10, "svc_audit_entries_total": 10, "svc_audit_append_duration_seconds_count": 10,
			"svc_audit_append_failures_total": 0, "svc_audit_checkpoint_entries": 0, "svc_audit_uncovered_seconds": 30})

		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- l.Run(ctx) }()
		<-time.After(time.Minute + 10*time.Second)
		synctest.Wait()
		want("after a checkpoint", map[string]float64{"svc_audit_checkpoint_entries": 10, "svc_audit_checkpoint_age_seconds": 10, "svc_audit_uncovered_seconds": 0})
		appendMany(t, l, 11, 11)
		<-time.After(20 * time.Second)
		want("after one more", map[string]float64{"svc_audit_chain_entries": 11, "svc_audit_checkpoint_entries": 10, "svc_audit_uncovered_seconds": 20})

		for range 5 {
			l.Denied(t.Context(), audit.Denial{Code: "auth-invalid", From: netip.MustParsePrefix("10.0.0.1/32")})
		}
		verify(t, l, audit.Verification{})
		verify(t, l, audit.Verification{To: 3})
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := l.Verify(gone, audit.Verification{}); !errors.Is(err, context.Canceled) {
			t.Errorf("Verify(cancelled) = %v, want that", err)
		}
		stop()
		<-done
		want("at last", map[string]float64{`svc_audit_denials_total{entry="own"}`: 1, `svc_audit_denials_total{entry="shared"}`: 4,
			`svc_audit_verifications_total{result="whole"}`: 2, `svc_audit_verifications_total{result="broken"}`: 0, `svc_audit_verifications_total{result="error"}`: 1})
	})
}

// TestMetricsOfBrokenChain tells a chain that is broken, and one whose checkpoints were written before.
func TestMetricsOfBrokenChain(t *testing.T) {
	l := openLog(t, audit.Options{})
	path := l.Path()
	appendMany(t, l, 1, 5)
	closeLog(t, l)
	storetest.Behind(t, path, "DELETE FROM audit_log WHERE seq = 3")
	in := metrics.New("1")
	l = openLog(t, audit.Options{Path: path, Metrics: in})
	if v := verify(t, l, audit.Verification{}); v.OK {
		t.Fatalf("Verify() = %+v, want it broken", v)
	}
	for series, want := range map[string]float64{`svc_audit_verifications_total{result="broken"}`: 1, "svc_audit_checkpoint_entries": 5, "svc_audit_chain_entries": 5} {
		if got, ok := reading(t, in, series); !ok || got != want {
			t.Errorf("%s = %v (%t), want %v", series, got, ok, want)
		}
	}
	if age, ok := reading(t, in, "svc_audit_checkpoint_age_seconds"); !ok || age < 0 || age > 600 {
		t.Errorf("svc_audit_checkpoint_age_seconds = %v (%t), want the time since the file was written", age, ok)
	}
}

// TestFormulas exports texts that a spreadsheet would calculate.
func TestFormulas(t *testing.T) {
	l := openLog(t, audit.Options{})
	texts := []string{"=1+2", "+1", "-1", "@SUM(1)", "\t=1", "\r=1", "'=1", "plain", "a=1", "=HYPERLINK(\"http://x\",\"y\")\n"}
	for _, text := range texts {
		if err := l.Append(t.Context(), audit.Record{Actor: audit.Actor{Kind: "token", ID: "x", Label: text}, Action: "a", Target: text, Decision: audit.Success}); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	if _, err := export.Write(t.Context(), l, &out, export.CSV, 0, 0); err != nil {
		t.Fatal(err)
	}
	rows := rowsOf(t, out.String())[1:]
	for i, text := range texts {
		for _, column := range []int{4, 6} {
			got := rows[i][column]
			if got != "" && strings.Contains("=+-@\t\r", got[:1]) {
				t.Errorf("Export(csv) of %q has %q, which is a formula", text, got)
			}
			if strings.TrimPrefix(got, "'") != text {
				t.Errorf("Export(csv) of %q has %q, want at most an apostrophe more", text, got)
			}
		}
	}
}

func rowsOf(t *testing.T, text string) [][]string {
	t.Helper()
	rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// TestKey tells the public key of RFC 8032 section 7.1, test 1, as OpenSSL does.
func TestKey(t *testing.T) {
	const text = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n-----END PUBLIC KEY-----\n"
	public, err := audit.ParseKey([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want := audit.Key{Algorithm: "Ed25519", WriterID: "agentd-21fe31dfa154a261", PublicKeyPEM: text,
		Fingerprint: "sha256:06e3fd8fda29bb60ab59557de61edb0aecdb231134be30e75b455f8e1b792fa9"}
	if got := audit.KeyOf(public); got != want {
		t.Errorf("KeyOf() = %+v, want %+v", got, want)
	}
}
