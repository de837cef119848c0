package server_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"agentd/ws"
)

// eventually asks until the answer is as wanted.
func (r *rig) eventually(method, path, body string, wanted func(answer) bool) answer {
	r.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		ans := r.do(method, path, r.admin, body)
		if wanted(ans) {
			return ans
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%s %s = %d %s, and nothing else within %v", method, path, ans.StatusCode, ans.body, patience)
		}
	}
}

// running waits for a run that goes, and returns its id.
func (r *rig) running() string {
	r.t.Helper()
	ans := r.eventually("GET", "/v1/runs?status=running", "", func(ans answer) bool { return strings.Contains(ans.body, "runId") })
	id, err := find(ans.body, ".runs[0].runId")
	if err != nil {
		r.t.Fatal(err)
	}
	return id
}

// While the server stops, what goes may finish and be read, and nothing new begins.
func TestDrainingRefusesNewWork(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{}`, nil)
	waiting := r.send("POST", "/v1/agents/hold/run", r.admin, "")
	defer waiting.close()
	id := r.running()
	conn, err := r.dial(bearer(r.admin), subprotocol)
	if err != nil {
		t.Fatal(err)
	}
	open := newSocket(conn)
	defer open.close()

	stopped := make(chan error, 1)
	srv := r.srv
	go func() { stopped <- srv.Shutdown(context.Background()) }()
	r.srv = nil

	refused := r.eventually("POST", "/v1/agents/echo/run", "", func(ans answer) bool { return ans.StatusCode != http.StatusOK })
	if refused.StatusCode != http.StatusServiceUnavailable || refused.code() != "server-draining" || refused.Header.Get("Retry-After") == "" {
		t.Errorf("POST run = %d %s, Retry-After %q; want 503 server-draining and a time to wait", refused.StatusCode, refused.body, refused.Header.Get("Retry-After"))
	}
	for _, path := range []string{"/v1/agents/echo/stream", "/v1/agents/nobody/stream"} {
		if ans := r.do("POST", path, r.admin, "{broken"); ans.code() != "server-draining" {
			t.Errorf("POST %s = %d %s, want server-draining", path, ans.StatusCode, ans.body)
		}
	}
	if _, err := r.dial(bearer(r.admin), subprotocol); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("a WebSocket = %v, want 503", err)
	}
	if problem := open.silent(); problem != "" {
		t.Errorf("a WebSocket that was there before: %s, want it to go on", problem)
	}
	for _, path := range []string{"/v1/agents", "/v1/runs/" + id + "/state", "/v1/sessions", "/v1/health"} {
		if ans := r.do("GET", path, r.admin, ""); ans.StatusCode != http.StatusOK {
			t.Errorf("GET %s = %d %s, want 200", path, ans.StatusCode, ans.body)
		}
	}
	if ans := r.do("GET", "/v1/health/ready", "", ""); ans.StatusCode != 503 || !strings.Contains(ans.body, `{"status":"draining"}`) {
		t.Errorf("GET /v1/health/ready = %d %s, want 503 and draining", ans.StatusCode, ans.body)
	}
	if ans := r.do("GET", "/v1/health/live", "", ""); ans.StatusCode != 200 {
		t.Errorf("GET /v1/health/live = %d %s, want 200", ans.StatusCode, ans.body)
	}
	r.release()
	if ans := waiting.whole(t); ans.StatusCode != http.StatusOK || !strings.Contains(ans.body, "released") {
		t.Errorf("POST run = %d %s, want its answer", ans.StatusCode, ans.body)
	}
	if err := <-stopped; err != nil {
		t.Errorf("Shutdown() = %v, want none", err)
	}
	if _, err := open.next(); ws.CodeOf(err) != 4007 {
		t.Errorf("the WebSocket ends with %v, want 4007", err)
	}
}

// A client that leaves does not stop its run.
func TestRunOutlivesItsClient(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"run", "stream"} {
		t.Run(kind, func(t *testing.T) {
			r := newRig(t, `{}`, nil)
			x := r.send("POST", "/v1/agents/hold/"+kind, r.admin, "", "Accept: text/event-stream")
			id := r.running()
			if kind == "stream" {
				x.response(t)
			}
			x.close()
			// The server has noticed when it has counted the request.
			counted := fmt.Sprintf(`svc_http_requests_total{method="POST",route="/v1/agents/{id}/%s"`, kind)
			r.eventually("GET", "/v1/metrics", "", func(ans answer) bool { return strings.Contains(ans.body, counted) })
			r.release()
			r.eventually("GET", "/v1/runs/"+id+"/state", "", func(ans answer) bool {
				status, err := find(ans.body, ".status")
				if err == nil && status != "running" && status != "completed" {
					t.Fatalf("the run is %s, want it completed", status)
				}
				return status == "completed"
			})
		})
	}
}
