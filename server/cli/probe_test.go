package cli_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestProbes asks the program whether it lives and is ready from the begin of its start to its end. It is alive as long as it listens, and ready
// once, from the end of its start to the signal to stop; while it waits for a run, it answers.
func TestProbes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "agentd.json"), `{"auth": {"kind": "none"}, "storage": {"path": "data.db"}, "server": {"socket": {"path": "s"}, "shutdown": {"drainTimeoutMs": 60000}},
		"agents": {"program": {"kind": "exec", "command": ["sh", "-c", "until [ -e go ]; do sleep 0.05; done; echo done"]}}}`)
	socket := filepath.Join(dir, "s")
	p := spawn(t, dir, nil, nil, "start")
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	ask := func(method, path string) (status int, body string) { // 0: nobody listens
		req, err := http.NewRequestWithContext(t.Context(), method, "http://localhost/v1"+path, nil)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		res, err := client.Do(req)
		if err != nil {
			return 0, ""
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			return 0, ""
		}
		return res.StatusCode, string(b)
	}
	probe := func(name string) (int, string) { return ask("GET", "/health/"+name) }
	// What /health/live says, all the time.
	var lives, ended atomic.Bool
	watched := make(chan error, 1)
	go func() {
		for !ended.Load() {
			switch status, body := probe("live"); {
			case status == 200:
				lives.Store(true)
			case status != 0 || lives.Load() && !ended.Load():
				watched <- fmt.Errorf("GET /health/live = %d %s", status, body)
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
		watched <- nil
	}()
	eventually(t, "ready", func() bool {
		status, body := probe("ready")
		if status != 0 && status != 200 && (status != 503 || !strings.Contains(body, `"starting"`)) {
			t.Fatalf("GET /health/ready = %d %s, want 503 and starting, or 200", status, body)
		}
		return status == 200
	})
	status, body := ask("POST", "/agents/program/stream")
	var begun run
	if err := json.Unmarshal([]byte(body), &begun); err != nil || status != http.StatusAccepted {
		t.Fatalf("POST /agents/program/stream = %d %s", status, body)
	}
	p.signal(syscall.SIGTERM)
	eventually(t, "draining", func() bool {
		status, body := probe("ready")
		if status != 200 && status != 503 {
			t.Fatalf("GET /health/ready = %d %s while a run is under way", status, body)
		}
		return status == 503
	})
	time.Sleep(300 * time.Millisecond)
	if status, body := probe("ready"); status != 503 {
		t.Errorf("GET /health/ready = %d %s of a server that drains, want 503", status, body)
	}
	if status, body := ask("GET", "/runs/"+begun.RunID+"/state"); !strings.Contains(body, `"status":"running"`) {
		t.Errorf("the state of the run = %d %s, want running", status, body)
	}
	ended.Store(true) // what follows ends the listener
	if err := <-watched; err != nil || !lives.Load() {
		t.Error(err)
	}
	write(t, filepath.Join(dir, "go"), "")
	p.wait().want(t, 0, "", "")
	if status, _ := probe("live"); status != 0 {
		t.Errorf("GET /health/live = %d after the end", status)
	}
}
