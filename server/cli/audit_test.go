package cli_test

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const auditedConfig = `{"server": {"port": 0, "rateLimit": {"enabled": false}}, "auth": {"pepperRef": "file:pepper"}, "storage": {"path": "data.db"},
	"audit": {"enabled": true, "passphraseRef": "file:phrase", "checkpoint": {"entries": 20}},
	"agents": {"shout": {"kind": "exec", "command": ["tr", "a-z", "A-Z"]}}}`

func audited(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	write(t, filepath.Join(dir, "agentd.json"), auditedConfig)
	write(t, filepath.Join(dir, "pepper"), "0123456789abcdef0123456789ABCDEF")
	write(t, filepath.Join(dir, "phrase"), "correct horse battery staple\n")
	return dir
}

func adminToken(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(here(t, "token", "create", "--scope", "admin:*").want(t, 0, "svc_live_v1_", "").stdout)
}

// auditReport is what `agentd audit verify --json` tells.
type auditReport struct {
	OK      bool
	Entries int64
	Broken  *struct {
		Seq    int64
		Reason string
	}
	Contents    bool
	Checkpoints int
}

func TestAuditCommands(t *testing.T) {
	dir := audited(t)
	t.Chdir(dir)
	here(t, "audit", "verify").want(t, 1, "", "Switch `audit.enabled` on and start the server")
	srv := serve(t, dir)
	srv.token = adminToken(t)
	agents := func() {
		if status := srv.call("GET", "/agents", "", nil); status != 200 {
			t.Errorf("GET /agents = %d, want 200", status)
		}
	}
	for range 30 {
		agents()
	}
	// Beside the server that runs.
	var report auditReport
	here(t, "audit", "verify", "--json").want(t, 0, `"ok": true`, "").decode(t, &report)
	if report.Entries < 31 || !report.Contents {
		t.Errorf("audit verify = %+v, want the requests", report)
	}
	here(t, "audit", "list", "--limit", "2", "--action", "http:request").want(t, 0, "/v1/agents", "")
	here(t, "token", "create", "--scope", "agents:read", "--json").want(t, 0, `"raw"`, "")
	here(t, "audit", "list", "--limit", "1", "--action", "token:create").want(t, 0, "token:", "")
	here(t, "audit", "prune", "--before", "1h", "--json").want(t, 0, `"deleted": 0`, "")
	here(t, "audit", "prune", "--before", time.Now().Add(time.Hour).Format(time.RFC3339), "--retain", "20").want(t, 0, "Deleted ", "")
	agents() // the server goes on after what the others appended
	here(t, "audit", "verify").want(t, 0, "whole", "")
	srv.signal(syscall.SIGTERM)
	srv.wait().want(t, 0, "", "")

	key := write(t, "key.pem", here(t, "audit", "key").want(t, 0, "BEGIN PUBLIC KEY", "").stdout)
	here(t, "audit", "verify", "--public-key", key, "--json").want(t, 0, `"prunedThrough"`, "").decode(t, &report)
	if report.Checkpoints == 0 {
		t.Errorf("audit verify = %+v, want checkpoints", report)
	}
	exported := here(t, "audit", "export").want(t, 0, `"action":"audit:prune"`, "").stdout
	here(t, "audit", "export", "-o", "out.csv", "--format", "csv").want(t, 0, "", "")
	if rows := strings.Count(read(t, "out.csv"), "\n"); rows != strings.Count(exported, "\n")+1 {
		t.Errorf("audit export: %d lines of CSV, want one more than of JSON", rows)
	}
	if fi, err := os.Stat("out.csv"); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("out.csv has mode %v, %v; want 0600", fi.Mode(), err)
	}

	// A copy elsewhere, without the configuration.
	copyDir := t.TempDir()
	for _, name := range []string{"audit.db", "audit.db.checkpoints", "key.pem", "phrase"} {
		write(t, filepath.Join(copyDir, name), read(t, name))
	}
	t.Chdir(copyDir)
	here(t, "audit", "verify", "--file", "audit.db", "--public-key", "key.pem").want(t, 0, "links only", "")
	here(t, "audit", "verify", "--file", "audit.db", "--passphrase-ref", "file:phrase").want(t, 0, "links and contents", "")
	here(t, "audit", "list", "--file", "audit.db").want(t, 1, "", "there is no passphrase")
	write(t, "wrong", "guess")
	here(t, "audit", "list", "--file", "audit.db", "--passphrase-ref", "file:wrong").want(t, 1, "", "audit-passphrase-wrong")
	here(t, "audit", "verify", "--file", "audit.db", "--public-key", "phrase").want(t, 2, "", "it is not PEM")
	here(t, "audit", "prune", "--file", "audit.db").want(t, 2, "", "--before")
	here(t, "audit", "export", "--format", "xml").want(t, 2, "", "want one of jsonl, csv")

	db, err := sql.Open("sqlite", "audit.db")
	if err != nil {
		t.Fatal(err)
	}
	var last int64
	if err := db.QueryRow("SELECT max(seq) FROM audit_log").Scan(&last); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("DELETE FROM audit_log WHERE seq = ?", last-3); err != nil {
		t.Fatal(err)
	}
	db.Close()
	here(t, "audit", "verify", "--file", "audit.db").want(t, 1, fmt.Sprintf("BROKEN at entry %d (missing)", last-3), "")
	here(t, "audit", "verify", "--file", "audit.db", "--json").want(t, 1, `"ok": false`, "").decode(t, &report)
	if report.Broken == nil || report.Broken.Seq != last-3 || report.Broken.Reason != "missing" {
		t.Errorf("audit verify = %+v, want it broken at %d", report, last-3)
	}
}

// TestAuditNeedsPassphrase refuses to start, with the kinds that others rely on.
func TestAuditNeedsPassphrase(t *testing.T) {
	dir := audited(t)
	t.Chdir(dir)
	for edit, want := range map[string]string{
		`"passphraseRef": "file:phrase", `:                             "pre-bind-encryption-required",
		`"passphraseRef": "file:phrase"->"passphraseRef": "file:none"`: "pre-bind-secret-unresolvable",
		`"checkpoint"->"cipher": "rc4", "checkpoint"`:                  "config-invalid",
	} {
		old, now, _ := strings.Cut(edit, "->")
		write(t, "agentd.json", strings.Replace(auditedConfig, old, now, 1))
		here(t, "start").want(t, 1, "", want)
	}
	write(t, "agentd.json", auditedConfig)
	here(t, "token", "create", "--scope", "admin:*").want(t, 0, "svc_live_v1_", "")
	write(t, "phrase", "another")
	here(t, "start").want(t, 1, "", "audit-passphrase-wrong")
}

// TestAuditSurvivesKill kills the server while it answers: every answer that was had is in the chain, which is whole, and
// every effect has its entry and every entry its effect.
func TestAuditSurvivesKill(t *testing.T) {
	dir := audited(t)
	t.Chdir(dir)
	for round := range often(20, 4) {
		srv := serve(t, dir)
		srv.token = adminToken(t)
		var answered sync.Map
		var n atomic.Int64
		var clients sync.WaitGroup
		for c := range 8 {
			method, path, body := "GET", "/agents", ""
			switch c {
			case 0:
				method, path, body = "POST", "/agents/shout/stream", `{"input": "x"}`
			case 1, 2, 3:
				method, path, body = "POST", "/sessions", `{"userId": "u", "agentId": "shout"}`
			}
			clients.Go(func() {
				for i := 0; ; i++ {
					id := fmt.Sprintf("r%d-%d-%d", round, c, i)
					req, _ := http.NewRequest(method, srv.url+path, strings.NewReader(body))
					req.Header.Set("Authorization", "Bearer "+srv.token)
					req.Header.Set("X-Request-Id", id)
					res, err := http.DefaultClient.Do(req)
					if err != nil {
						return
					}
					res.Body.Close()
					answered.Store(id, true)
					n.Add(1)
				}
			})
		}
		eventually(t, "some answers", func() bool { return n.Load() > int64(50*(round%4+1)) })
		srv.signal(syscall.SIGKILL)
		clients.Wait()
		srv.wait()
		here(t, "audit", "verify").want(t, 0, "whole", "")
		requests, made := map[string]int{}, map[string]int{}
		for line := range strings.Lines(here(t, "audit", "export").want(t, 0, "", "").stdout) {
			var e struct {
				Action, Target string
				Metadata       struct{ RequestID string }
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatal(err)
			}
			switch e.Action {
			case "http:request":
				requests[e.Metadata.RequestID]++
			case "session:create", "run:start":
				made[e.Target]++
			}
		}
		answered.Range(func(id, _ any) bool {
			if n := requests[id.(string)]; n != 1 {
				t.Errorf("the request %s was answered and is in the chain %d times, want once", id, n)
			}
			return true
		})
		for _, id := range stored(t, "SELECT 'session:' || id FROM sessions UNION ALL SELECT 'run:' || id FROM runs") {
			if made[id]--; made[id] != 0 {
				t.Errorf("%s is stored, and there are %d entries for it, want one", id, made[id]+1)
			}
			delete(made, id)
		}
		for id := range made {
			t.Errorf("there is an entry for %s, which is not stored", id)
		}
	}
}

// stored are the texts that a query finds in data.db.
func stored(t *testing.T, query string) (list []string) {
	t.Helper()
	db, err := sql.Open("sqlite", "data.db")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.Query(query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			t.Fatal(err)
		}
		list = append(list, text)
	}
	return list
}
