package server_test

import (
	"strings"
	"testing"
	"time"

	"agentd/server/config"
)

// TestBlockedThreads: the health check and the metric count a thread that is due under another version, until it is resumed.
func TestBlockedThreads(t *testing.T) {
	const flow = `{"workflows": {"nap": {"version": "1", "start": "s", "nodes": {"s": {"kind": "sleep", "forMs": 1500, "next": "end"}}}}}`
	r := newRig(t, flow, nil)
	now := func(check, metric string) {
		t.Helper()
		for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
			health, metrics := r.do("GET", "/v1/health", "", "").body, r.do("GET", "/v1/metrics", r.admin, "").body
			if strings.Contains(health, check) && strings.Contains(metrics, "\nsvc_workflow_threads_blocked "+metric+"\n") {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("health %s, metrics %s; want %s and %s", health, metrics, check, metric)
			}
		}
	}
	const well, blocked = `"workflowTimers":{"status":"ok","blockedThreads":0}`, `"blockedThreads":1`
	now(well, "0")
	if a := r.do("POST", "/v1/workflows/nap/execute", r.admin, `{"threadId":"t"}`); a.StatusCode != 202 {
		t.Fatal(a.body)
	}
	r.stop()
	other, err := config.Parse([]byte(strings.Replace(flow, `"1"`, `"2"`, 1)), config.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	r.cfg.Workflows = other.Workflows
	r.start()
	now(blocked, "1")
	if a := r.do("POST", "/v1/workflows/nap/resume", r.admin, `{"threadId":"t","allowVersionMismatch":true}`); a.StatusCode != 202 {
		t.Fatal(a.body)
	}
	now(well, "0")
}
