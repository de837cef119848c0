package server_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
)

// longExport is a session export of so many bytes at least that no connection buffers it.
func longExport(size int) string {
	var b strings.Builder
	b.WriteString(`{"kind":"meta","version":"1.0","format":"svc-session-export"}` + "\n" +
		`{"kind":"session","id":"long","userId":"u","agentId":"echo","createdAt":"2026-01-01T00:00:00Z"}` + "\n")
	n := 0
	for text := strings.Repeat("x", 20_000); b.Len() < size; {
		n++
		fmt.Fprintf(&b, `{"kind":"message","sessionId":"long","sequence":%d,"createdAt":"2026-01-01T00:00:00Z","message":{"role":"user","content":%q}}`+"\n", n, text)
	}
	fmt.Fprintf(&b, `{"kind":"footer","recordCount":%d,"messageCount":%d,"handoffCount":0,"agentCount":0}`, n+3, n)
	return b.String()
}

// Clients that stop reading in the middle of an export keep nobody from anything, and an export that cannot be
// completed does not end as if it were whole.
func TestExportToSlowClients(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{"server": {"maxBodyBytes": 50000000}}`, nil)
	if ans := r.do("POST", "/v1/sessions/import", r.admin, longExport(12<<20)); ans.StatusCode != http.StatusCreated {
		t.Fatalf("POST /v1/sessions/import = %d %s, want 201", ans.StatusCode, ans.body)
	}
	var open []*exchange
	for i := range 10 { // more than the store has connections
		x := r.send("POST", "/v1/sessions/long/export", r.admin, "", [...]string{"Accept: application/x-ndjson", "Accept: application/json"}[i%2])
		defer x.close()
		if _, err := io.ReadFull(x.response(t).Body, make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		open = append(open, x)
	}
	for _, path := range []string{"/v1/sessions/long", "/v1/runs", "/v1/health"} {
		if ans := r.do("GET", path, r.admin, ""); ans.StatusCode != http.StatusOK {
			t.Errorf("GET %s while exports stand still = %d %s, want 200", path, ans.StatusCode, ans.body)
		}
	}
	if ans := r.do("DELETE", "/v1/sessions/long", r.admin, ""); ans.StatusCode != http.StatusNoContent {
		t.Errorf("DELETE while exports stand still = %d %s, want 204", ans.StatusCode, ans.body)
	}
	if fi, err := os.Stat(r.cfg.Resolve(r.cfg.Storage.Path) + "-wal"); err != nil || fi.Size() > 0 {
		t.Errorf("the write-ahead log after the erasure: %v, %v; want it empty, since no export reads an old state", fi, err)
	}
	for _, x := range open {
		rest, err := io.ReadAll(x.response(t).Body)
		if !errors.Is(err, io.ErrUnexpectedEOF) || strings.Contains(string(rest), "footer") {
			t.Errorf("the export of an erased session ends with %v after %d bytes, want it cut off", err, len(rest))
		}
	}
}

func TestImportIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{}`, nil)
	if ans := r.do("POST", "/v1/sessions/import", r.admin, longExport(5<<20)); ans.StatusCode != http.StatusRequestEntityTooLarge || ans.code() != "body-too-large" {
		t.Errorf("POST /v1/sessions/import of 5 MiB = %d %s, want 413 body-too-large", ans.StatusCode, ans.body)
	}
}
