package server_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"agentd/server/webhook"
	"agentd/store/storetest"
)

// An inbox is a receiver of notifications.
type inbox struct {
	*httptest.Server
	mu     sync.Mutex
	status int
	got    []map[string]any // the bodies
	traces []string
}

func newInbox(t *testing.T) *inbox {
	in := &inbox{status: 204}
	verifier, err := webhook.New(webhook.Scheme{Name: webhook.Standard}, []byte(rigSecret))
	if err != nil {
		t.Fatal(err)
	}
	in.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		var body map[string]any
		if _, err := verifier.Verify(r.Header, text); err != nil {
			t.Errorf("%s: %v", text, err)
		} else if err := json.Unmarshal(text, &body); err != nil {
			t.Error(err)
		}
		in.mu.Lock()
		defer in.mu.Unlock()
		in.got, in.traces = append(in.got, body), append(in.traces, r.Header.Get("Traceparent"))
		w.WriteHeader(in.status)
	}))
	t.Cleanup(in.Close)
	return in
}

func (in *inbox) answer(status int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.status = status
}

// wait waits for a notification whose body, as JSON, has a text.
func (in *inbox) wait(t *testing.T, want string) (trace string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		in.mu.Lock()
		for i, body := range in.got {
			if text, _ := json.Marshal(body); strings.Contains(string(text), want) {
				in.mu.Unlock()
				return in.traces[i]
			}
		}
		all := slices.Clone(in.got)
		in.mu.Unlock()
		if time.Now().After(end) {
			t.Fatalf("no notification has %s: %v", want, all)
		}
	}
}

// A server reports what happens in it: an approval with its arguments where a template asks for them, the end of a run, missed dues,
// a check that fails and a broken chain. People list, retry and test.
func TestNotifications(t *testing.T) {
	t.Parallel()
	in, slack := newInbox(t), newInbox(t)
	r := newRig(t, fmt.Sprintf(`{"audit": {"enabled": true, "path": "audit.db", "passphraseRef": "file:pepper"},
		"providers": {"p": {"kind": "scripted", "script": "s.json"}},
		"tools": {"pay": {"kind": "exec", "description": "pays", "command": ["true"], "approval": "always"}},
		"agents": {"payer": {"kind": "llm", "provider": "p", "model": "m", "tools": ["pay"]}},
		"triggers": {"often": {"kind": "interval", "everyMs": 1000, "agent": "payer", "disabled": true}},
		"notify": [
			{"on": ["approval.requested", "run.failed", "trigger.missed", "health.failing", "audit.broken"], "url": "%s/in?key=private", "secretRefs": ["file:pepper"]},
			{"on": ["approval.requested"], "agents": ["payer"], "url": "%s/", "secretRefs": ["file:pepper"], "template": {"text": "pay ${ arguments.to }?"}}]}`, in.URL, slack.URL),
		fstest.MapFS{"s.json": {Data: []byte(`{"turns": [{"when": {"step": 0}, "toolCalls": [{"name": "pay", "args": {"to": "ann"}}]}, {"text": "Done."}]}`)}})
	in.answer(500)
	r.do("POST", "/v1/agents/payer/run", r.admin, `{"input":"pay"}`, "Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	slack.wait(t, `{"text":"pay ann?"}`)
	if trace := in.wait(t, `"type":"approval.requested"`); !strings.HasPrefix(trace, "00-0af7651916cd43dd8448eb211c80319c-") || strings.Contains(trace, "b7ad6b7169203331") {
		t.Errorf("traceparent %q, want the trace of the request", trace)
	}
	in.mu.Lock()
	if text := fmt.Sprint(in.got); strings.Contains(text, "ann") {
		t.Errorf("notifications hold what a model wrote: %s", text)
	}
	in.mu.Unlock()
	in.answer(410)
	r.do("POST", "/v1/agents/payer/run", r.admin, `{"input":"pay"}`)
	r.says(`"outbox":{"status":"warn","message":"A receiver of notifications has answered 410`)
	list := r.do("GET", "/v1/notifications?state=dead", r.admin, "")
	dead, err := find(list.body, ".notifications[0].id")
	if err != nil || !strings.Contains(list.body, "it answered 410") || strings.Contains(list.body, "private") || strings.Contains(list.body, "ann") {
		t.Fatalf("GET /notifications = %s, %v", list.body, err)
	}
	if ans := r.do("POST", "/v1/notifications/test", r.admin, ""); !strings.Contains(ans.body, `"ok":false,"status":410,"failure":"it answered 410"`) || !strings.Contains(ans.body, `"ok":true,"status":204`) {
		t.Errorf("POST /notifications/test = %s", ans.body)
	}
	in.answer(200)
	if ans := r.do("POST", "/v1/notifications/retry", r.admin, fmt.Sprintf(`{"ids": [%q]}`, dead)); ans.StatusCode != 200 || !strings.Contains(ans.body, `"retried":1`) {
		t.Errorf("POST /notifications/retry = %s", ans.body)
	}
	r.eventually("GET", "/v1/notifications?state=delivered", "", func(a answer) bool { return strings.Contains(a.body, fmt.Sprint(dead)) })
	for body, want := range map[string]string{`{}`: "config-invalid", `{"ids": ["msg_none"]}`: "not-found", `{"target": "none"}`: "not-found",
		fmt.Sprintf(`{"ids": [%q]}`, dead): "notification-delivered", fmt.Sprintf(`{"ids": [%q], "target": "x"}`, dead): "config-invalid"} {
		if ans := r.do("POST", "/v1/notifications/retry", r.admin, body); ans.code() != want {
			t.Errorf("POST /notifications/retry %s = %s, want %s", body, ans.body, want)
		}
	}
	r.eventually("GET", "/v1/metrics", "", func(a answer) bool {
		return strings.Contains(a.body, `attempts_total{outcome="success"`) && strings.Contains(a.body, `attempts_total{outcome="error"`) && !strings.Contains(a.body, "svc_notify_dead_total 0\n")
	})
	r.do("POST", "/v1/triggers/often/enable", r.admin, "")
	r.stop()
	storetest.Behind(t, filepath.Join(filepath.Dir(r.cfg.Resolve(r.cfg.Storage.Path)), "audit.db"), "UPDATE audit_log SET ts = ts + 1 WHERE seq = 2")
	time.Sleep(2500 * time.Millisecond)
	r.start()
	in.wait(t, `"type":"trigger.missed"`)
	in.wait(t, `"starts":"payer"`)
	r.do("POST", "/v1/audit/verify", r.admin, "")
	in.wait(t, `"type":"audit.broken"`)
	in.wait(t, `"check":"audit"`)
}
