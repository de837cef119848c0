package server_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"agentd/server/webhook"
)

const notifySecret = "whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"

// receiver keeps what it is sent, and answers the first attempt of each notification with a status.
type receiver struct {
	*httptest.Server
	mu   sync.Mutex
	ids  []string // of every attempt
	good []map[string]any
}

func newReceiver(t *testing.T, first int) *receiver {
	v, err := webhook.New(webhook.Scheme{Name: webhook.Standard}, []byte(notifySecret))
	if err != nil {
		t.Fatal(err)
	}
	r := &receiver{}
	tried := map[string]bool{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body) //nolint:errcheck // a part does not verify
		r.mu.Lock()
		defer r.mu.Unlock()
		id := req.Header.Get("webhook-id")
		if _, err := v.Verify(req.Header, body); err != nil {
			t.Errorf("Verify(%s) = %v, want nil", id, err)
		}
		r.ids = append(r.ids, id)
		if !tried[id] && first != 200 {
			tried[id] = true
			w.WriteHeader(first)
			return
		}
		var v map[string]any
		if err := json.Unmarshal(body, &v); err != nil {
			t.Error(err)
		}
		r.good = append(r.good, v)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) delivered() []map[string]any {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]map[string]any{}, r.good...)
}

// TestNotify delivers the ends of runs to three receivers: one that takes everything, one that fails each first attempt, and one
// that never answers, which holds up nobody.
func TestNotify(t *testing.T) {
	good, failing := newReceiver(t, 200), newReceiver(t, 503)
	stop := make(chan struct{})
	stalled := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		select {
		case <-stop:
		case <-req.Context().Done():
		}
	}))
	t.Cleanup(stalled.Close)
	t.Cleanup(func() { close(stop) })
	declare := func(address string) string {
		return fmt.Sprintf(`{"on": ["run.completed", "run.failed"], "url": %q, "secretRefs": ["file:hook"]}`, address)
	}
	r := newRig(t, `{"notify": [`+declare(stalled.URL)+`,`+declare(good.URL)+`,`+declare(failing.URL)+`],
		"providers": {"p": {"kind": "scripted", "script": "turns.json"}},
		"agents": {"a": {"kind": "llm", "provider": "p", "model": "m"}}}`, fstest.MapFS{"turns.json": {Data: []byte(`{"turns": [{"text": "fine"}]}`)}, "hook": {Data: []byte(notifySecret), Mode: 0o600}})
	for range 3 {
		if ans := r.do("POST", "/v1/agents/a/run", r.admin, `{"input": "secret question"}`); ans.StatusCode != http.StatusOK {
			t.Fatalf("POST /agents/a/run = %d %s, want 200", ans.StatusCode, ans.body)
		}
	}
	for begun := time.Now(); len(good.delivered()) < 3 || len(failing.delivered()) < 3; time.Sleep(10 * time.Millisecond) {
		if time.Since(begun) > patience {
			t.Fatalf("delivered %d and %d, want 3 each", len(good.delivered()), len(failing.delivered()))
		}
	}
	for i, v := range good.delivered() {
		data := v["data"].(map[string]any)
		if v["sequence"] != float64(i+1) || v["type"] != "run.completed" || data["status"] != "completed" || data["owner"] != "a" {
			t.Errorf("notification %d = %v, want run.completed of a, in order", i, v)
		}
		if text, _ := json.Marshal(v); strings.Contains(string(text), "question") || strings.Contains(string(text), "fine") { //nolint:errcheck // it was JSON
			t.Errorf("notification %s holds what a person or a model wrote", text)
		}
	}
	failing.mu.Lock()
	defer failing.mu.Unlock()
	attempts := map[string]int{}
	for _, id := range failing.ids {
		attempts[id]++
	}
	for id, n := range attempts {
		if n != 2 || len(attempts) != 3 {
			t.Errorf("%s had %d attempts of %d ids, want 2 of 3", id, n, len(attempts))
		}
	}
}
