package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentd/ws"
	"agentd/ws/wstest"
)

const auditedServer = `{"audit": {"enabled": true, "passphraseRef": "file:pepper"}}`

// auditWatch watches audit/events over a WebSocket.
type auditWatch struct {
	t    *testing.T
	conn *wstest.Conn
}

func (r *rig) watchAudit(t *testing.T, since string) *auditWatch {
	t.Helper()
	conn, err := r.dial(bearer(r.admin), "svc.protocol.v1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.CloseNow() })
	initialize(t, conn)
	params := `{"subject":"audit/events"}`
	if since != "" {
		params = fmt.Sprintf(`{"subject":"audit/events","sinceEventId":%q}`, since)
	}
	if err := conn.Write(t.Context(), ws.Text, []byte(`{"v":"1","jsonrpc":"2.0","id":1,"method":"subscription.subscribe","params":`+params+`}`)); err != nil {
		t.Fatal(err)
	}
	return &auditWatch{t, conn}
}

func initialize(t *testing.T, conn *wstest.Conn) {
	t.Helper()
	if err := conn.Write(t.Context(), ws.Text, []byte(`{"v":"1","jsonrpc":"2.0","id":0,"method":"initialize","params":{"clientInfo":{"name":"test","version":"1"}}}`)); err != nil {
		t.Fatal(err)
	}
	if _, text, err := conn.Read(t.Context()); err != nil || !strings.Contains(string(text), `"result"`) {
		t.Fatalf("initialize = %s, %v; want a result", text, err)
	}
}

// next is the next entry.
func (s *auditWatch) next() (id string, action string) {
	s.t.Helper()
	for {
		ctx, cancel := context.WithTimeout(s.t.Context(), patience)
		_, text, err := s.conn.Read(ctx)
		cancel()
		if err != nil {
			s.t.Fatal(err)
		}
		var frame struct {
			Kind, Type, EventID string
			Payload             struct {
				Type  string
				Entry struct {
					Seq    int64
					Action string
				}
			}
		}
		if err := json.Unmarshal(text, &frame); err != nil {
			s.t.Fatalf("%s: %v", text, err)
		}
		if frame.Kind == "event" {
			if frame.Payload.Type != "audit.entry" || fmt.Sprint(frame.Payload.Entry.Seq) != frame.EventID {
				s.t.Errorf("event %s, want an audit.entry whose id is its number", text)
			}
			return frame.EventID, frame.Payload.Entry.Action
		}
	}
}

// TestAuditIsLive sees entries as they come and, after a restart, those since the last one that was seen.
func TestAuditIsLive(t *testing.T) {
	t.Parallel()
	r := newRig(t, auditedServer, nil)
	live := r.watchAudit(t, "")
	first, _ := live.next() // the start, or the upgrade
	_, raw := r.mint(0, "agents:read")
	actions := ""
	last := first
	for !strings.HasSuffix(actions, "token:create http:request ") {
		id, action := live.next()
		actions, last = actions+action+" ", id
	}
	r.stop()
	r.start()
	r.do("GET", "/v1/agents", raw, "")
	resumed := r.watchAudit(t, last)
	for i, want := range []string{"server:stop", "server:start", "auth:granted", "http:request"} {
		if id, action := resumed.next(); id != fmt.Sprint(seqOf(t, last)+int64(i)+1) || action != want {
			t.Errorf("after %s, %s %s comes as number %d, want %s", last, id, action, i+1, want)
		}
	}
	if refused, err := r.dial(bearer(raw), "svc.protocol.v1"); err != nil {
		t.Error(err)
	} else {
		defer refused.CloseNow()
		initialize(t, refused)
		refused.Write(t.Context(), ws.Text, []byte(`{"v":"1","jsonrpc":"2.0","id":1,"method":"subscription.subscribe","params":{"subject":"audit/events"}}`)) //nolint:errcheck // the read tells
		if _, text, err := refused.Read(t.Context()); err != nil || !strings.Contains(string(text), "error") {
			t.Errorf("subscribing without audit:read = %s, %v; want an error", text, err)
		}
	}
}

func seqOf(t *testing.T, id string) (n int64) {
	t.Helper()
	if _, err := fmt.Sscan(id, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestAuditOnFullDisk fills the disk of the chain: nothing is answered that must be recorded, health fails, and both
// recover by themselves.
func TestAuditOnFullDisk(t *testing.T) {
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("a small disk cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(disk, syscall.MNT_DETACH) })
	r := newRig(t, fmt.Sprintf(`{"audit": {"enabled": true, "passphraseRef": "file:pepper", "wait": "writes", "path": %q}}`, filepath.Join(disk, "audit.db")), nil)
	answered := 0
	ans := r.do("GET", "/v1/agents", r.admin, "")
	for ; ans.StatusCode == 200 && answered < 20_000; answered++ {
		ans = r.do("GET", "/v1/agents", r.admin, "")
	}
	if ans.StatusCode != 503 || ans.code() != "audit-unavailable" {
		t.Fatalf("GET /agents after %d on a full disk = %d %s, want 503 audit-unavailable", answered, ans.StatusCode, ans.body)
	}
	for range 3 {
		if ans := r.do("POST", "/v1/agents/echo/run", r.admin, "{}"); ans.StatusCode != 503 {
			t.Errorf("POST on a full disk = %d %s, want 503", ans.StatusCode, ans.body)
		}
	}
	if ans := r.do("GET", "/v1/health", "", ""); ans.StatusCode != 503 || !strings.Contains(ans.body, `"audit":{"status":"fail"`) {
		t.Errorf("GET /health on a full disk = %d %s, want 503 and audit failing", ans.StatusCode, ans.body)
	}
	if err := syscall.Mount("tmpfs", disk, "tmpfs", syscall.MS_REMOUNT, "size=50m"); err != nil {
		t.Fatal(err)
	}
	if ans := r.do("GET", "/v1/agents", r.admin, ""); ans.StatusCode != 200 {
		t.Errorf("GET /agents once there is room = %d %s, want 200", ans.StatusCode, ans.body)
	}
	if ans := r.do("GET", "/v1/health", "", ""); ans.StatusCode != 200 {
		t.Errorf("GET /health once there is room = %d %s, want 200", ans.StatusCode, ans.body)
	}
	ans = r.do("POST", "/v1/audit/verify", r.admin, "")
	var v struct{ Verify struct{ Count int } }
	if err := json.Unmarshal([]byte(ans.body), &v); err != nil || !strings.Contains(ans.body, `"ok":true`) || v.Verify.Count < answered {
		t.Errorf("POST /audit/verify = %s, want it whole with at least %d entries", ans.body, answered)
	}
}

// TestCheckpointOverdue fills the disk of the checkpoints: health tells of it until there is room again.
func TestCheckpointOverdue(t *testing.T) {
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("a small disk cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(disk, syscall.MNT_DETACH) })
	settings := fmt.Sprintf(`{"audit": {"enabled": true, "passphraseRef": "file:pepper", "checkpoint": {"path": %q}}}`, filepath.Join(disk, "heads"))
	inBubble(t, settings, func(t *testing.T, at *pipes, token string) {
		fill, err := os.Create(filepath.Join(disk, "fill"))
		if err != nil {
			t.Fatal(err)
		}
		defer fill.Close()
		for full := make([]byte, 4096); err == nil; {
			_, err = fill.Write(full)
		}
		client := at.client()
		defer client.CloseIdleConnections()
		get := func(path string) string {
			t.Helper()
			req, err := http.NewRequest("GET", "http://localhost/v1"+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+token)
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			body, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatal(err)
			}
			return string(body)
		}
		check := func(want string) {
			t.Helper()
			get("/agents")              // leaves an entry to cover
			time.Sleep(5 * time.Minute) // a checkpoint is due after one
			if got := get("/health"); !strings.Contains(got, want) {
				t.Errorf("GET /health = %s, want %s", got, want)
			}
		}
		check(`"audit":{"status":"warn"`)
		if err := os.Remove(fill.Name()); err != nil {
			t.Fatal(err)
		}
		fill.Close()
		check(`"audit":{"status":"ok"`)
		if got := get("/metrics"); !strings.Contains(got, "\nsvc_audit_writable 1\n") || !strings.Contains(got, "\nsvc_audit_checkpoint_age_seconds ") {
			t.Errorf("GET /metrics = %s, want the chain writable, and when its checkpoint was signed", got)
		}
	})
}
