package gate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/server/gate"
)

func openAudit(t *testing.T) *audit.Log {
	t.Helper()
	l, err := audit.Open(t.Context(), audit.Options{Path: filepath.Join(t.TempDir(), "audit.db"), Passphrase: []byte("secret")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// entries tells the http:request entries of a chain: status and decision.
func entries(t *testing.T, l *audit.Log) (list []string) {
	t.Helper()
	page, _, err := l.List(context.Background(), audit.Query{Limit: 1000, Action: "http:request"})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range page {
		var m struct {
			Method string
			Status json.Number
		}
		if err := json.Unmarshal(e.Metadata, &m); err != nil {
			t.Fatal(err)
		}
		list = append(list, m.Method+" "+e.Target+" "+m.Status.String()+" "+string(e.Decision))
	}
	return list
}

// TestAudit sees, from inside each handler and from the answer, that the entry comes before the first byte.
func TestAudit(t *testing.T) {
	l := openAudit(t)
	g := gate.New(gate.Options{BasePath: "/v1", Audit: gate.Audit{Log: l}})
	count := 0
	handle(g, "GET /v1/small", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "small") })
	handle(g, "GET /v1/nothing", func(http.ResponseWriter, *http.Request) {})
	handle(g, "POST /v1/failed", func(w http.ResponseWriter, r *http.Request) {
		g.Fail(w, r, fault.New(fault.StorageFailed, "No."))
	})
	handle(g, "GET /v1/panics", func(http.ResponseWriter, *http.Request) { panic("oh") })
	handle(g, "GET /v1/cut", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "half")
		http.NewResponseController(w).Flush() //nolint:errcheck
		g.Fail(w, r, errors.New("the rest is gone"))
	})
	handle(g, "GET /v1/changed", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "half")
		g.Fail(w, r, errors.New("the rest is gone"))
	})
	handle(g, "GET /v1/large", func(w http.ResponseWriter, _ *http.Request) {
		for range 3 {
			io.WriteString(w, strings.Repeat("x", 40<<10))
		}
		count = len(entries(t, l))
		io.WriteString(w, "end")
	})
	handle(g, "GET /v1/stream", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "first")
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Errorf("Flush() = %v", err)
		}
		count = len(entries(t, l))
	})
	handle(g, "GET /v1/hijack", func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Errorf("Hijack() = %v", err)
			return
		}
		count = len(entries(t, l))
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
		c.Close()
	})
	handle(g, "GET /outside", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "out") })
	srv := httptest.NewServer(g)
	defer srv.Close()
	srv.Client().Transport.(*http.Transport).DisableKeepAlives = true // or it sends again what was cut
	var want []string
	for _, tc := range []struct {
		method, path string
		status       int
		body, entry  string
		within       bool // the handler has seen its own entry
	}{
		{"GET", "/v1/small", 200, "small", "200 success", false},
		{"GET", "/v1/nothing", 200, "", "200 success", false},
		{"HEAD", "/v1/small", 200, "", "200 success", false},
		{"GET", "/v1/absent?token=secret", 404, "*", "404 not-found", false},
		{"DELETE", "/v1/small", 405, "*", "405 denied", false},
		{"POST", "/v1/failed", 503, "*", "503 error", false},
		{"GET", "/v1/panics", 500, "*", "500 error", false},
		{"GET", "/v1/cut", 200, "half", "200 success", false},
		{"GET", "/v1/changed", 500, "*", "500 error", false},
		{"GET", "/v1/large", 200, strings.Repeat("x", 120<<10) + "end", "200 success", true},
		{"GET", "/v1/stream", 200, "first", "200 success", true},
		{"GET", "/v1/hijack", 200, "hi", "200 success", true},
		{"GET", "/outside", 200, "out", "", false},
		{"OPTIONS", "/v1/small", 405, "*", "405 denied", false},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tc.method, srv.URL+tc.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		status, body := 0, ""
		if res, err := srv.Client().Do(req); err == nil {
			b, _ := io.ReadAll(res.Body)
			res.Body.Close()
			status, body = res.StatusCode, string(b)
		}
		if status != tc.status || tc.body != "*" && body != tc.body {
			t.Errorf("%s %s = %d %.60q, want %d %.60q", tc.method, tc.path, status, body, tc.status, tc.body)
		}
		if path, _, _ := strings.Cut(tc.path, "?"); tc.entry != "" {
			want = append(want, tc.method+" "+path+" "+tc.entry)
		}
		if got := entries(t, l); strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Fatalf("after %s %s the entries are\n%s\nwant\n%s", tc.method, tc.path, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if tc.within && count != len(want) {
			t.Errorf("within %s there were %d entries, want %d: before the first byte", tc.path, count, len(want))
		}
	}
}

// TestAuditUnavailable closes the chain: no answer leaves that should have been recorded.
func TestAuditUnavailable(t *testing.T) {
	for _, trailing := range []bool{false, true} {
		l := openAudit(t)
		g := gate.New(gate.Options{BasePath: "/v1", Audit: gate.Audit{Log: l, Trailing: trailing}})
		handle(g, "/v1/small", func(w http.ResponseWriter, _ *http.Request) {
			gate.JSON(w, 201, map[string]string{"secret": "x"})
			io.WriteString(w, "more")
		})
		handle(g, "GET /v1/large", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "80000")
			if _, err := io.WriteString(w, strings.Repeat("x", 80000)); err == nil {
				t.Error("Write() of an answer that cannot be recorded = nil, want an error")
			}
			io.WriteString(w, "more")
		})
		handle(g, "GET /v1/stream", func(w http.ResponseWriter, _ *http.Request) {
			if err := http.NewResponseController(w).Flush(); err == nil {
				t.Error("Flush() of an answer that cannot be recorded = nil, want an error")
			}
		})
		handle(g, "GET /v1/hijack", func(w http.ResponseWriter, _ *http.Request) {
			if _, _, err := http.NewResponseController(w).Hijack(); err == nil {
				t.Error("Hijack() for an answer that cannot be recorded = nil, want an error")
			}
		})
		handle(g, "GET /outside", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "out") })
		l.Close()
		srv := httptest.NewServer(g)
		for _, path := range []string{"/v1/small", "/v1/large", "/v1/stream", "/v1/hijack"} {
			res, err := srv.Client().Get(srv.URL + path)
			if err != nil {
				t.Errorf("GET %s = %v", path, err)
				continue
			}
			b, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || res.StatusCode != 503 || !strings.HasPrefix(string(b), `{"error":"audit-unavailable"`) || res.Header.Get("Retry-After") != "5" {
				t.Errorf("GET %s = %d %q, %v; want 503 audit-unavailable", path, res.StatusCode, b, err)
			}
		}
		res, err := srv.Client().Get(srv.URL + "/outside")
		if err != nil || res.StatusCode != 200 {
			t.Errorf("GET /outside = %v, %v; want it answered", res, err)
		}
		res.Body.Close()
		srv.Close()
	}
}

// TestAuditConcerns has endpoints tell what their requests are about, before and after their answers begin.
func TestAuditConcerns(t *testing.T) {
	l := openAudit(t)
	g := gate.New(gate.Options{BasePath: "/v1", Audit: gate.Audit{Log: l}})
	handle(g, "POST /v1/plain", func(w http.ResponseWriter, r *http.Request) {})
	handle(g, "POST /v1/start", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "begun")
		gate.Of(r).Concerns("r1", "s1")
		gate.Of(r).Fact("decisions", []any{map[string]any{"granted": true}})
	})
	handle(g, "POST /v1/refused", func(w http.ResponseWriter, r *http.Request) {
		gate.Of(r).Concerns("r2", "")
		g.Fail(w, r, fault.New(fault.RunConflict, "No."))
	})
	handle(g, "POST /v1/stream", func(w http.ResponseWriter, r *http.Request) {
		gate.Of(r).Concerns("r3", "")
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Errorf("Flush() = %v", err)
		}
		gate.Of(r).Concerns("late", "late")
	})
	handle(g, "/outside", func(w http.ResponseWriter, r *http.Request) { gate.Of(r).Concerns("r4", "") })
	srv := httptest.NewServer(g)
	defer srv.Close()
	for _, path := range []string{"/v1/plain", "/v1/start", "/v1/refused", "/v1/stream", "/outside"} {
		res, err := srv.Client().Post(srv.URL+path, "application/json", nil)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
	}
	gate.Of(httptest.NewRequest("POST", "/v1/start", nil)).Concerns("nobody", "listens")
	page, _, err := l.List(t.Context(), audit.Query{})
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, e := range page {
		var m struct{ Decisions json.RawMessage }
		if err := json.Unmarshal(e.Metadata, &m); err != nil {
			t.Fatal(err)
		}
		about := audit.Context{}
		if e.Context != nil {
			about = *e.Context
		}
		got += fmt.Sprintf("%s %s %+v %s\n", e.Target, e.Decision, about, m.Decisions)
	}
	want := `/v1/plain success {RunID: SessionID: ToolName:}
/v1/start success {RunID:r1 SessionID:s1 ToolName:} [{"granted":true}]
/v1/refused denied {RunID:r2 SessionID: ToolName:}
/v1/stream success {RunID:r3 SessionID: ToolName:}
`
	if got = strings.ReplaceAll(got, " \n", "\n"); got != want {
		t.Errorf("the entries are\n%s\nwant\n%s", got, want)
	}
}
