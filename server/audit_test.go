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

// TestAuditOnFullDisk fills the disk of the chain: entries wait in the database. Health warns after a second. After ten, it
// fails, and nothing is answered that must be recorded. Both recover by themselves, and no entry is lost.
func TestAuditOnFullDisk(t *testing.T) {
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("a small disk cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(disk, syscall.MNT_DETACH) })
	settings := fmt.Sprintf(`{"audit": {"enabled": true, "passphraseRef": "file:pepper", "path": %q}}`, filepath.Join(disk, "audit.db"))
	inBubble(t, settings, func(t *testing.T, at *pipes, token string) {
		client := at.client()
		defer client.CloseIdleConnections()
		expect := func(method, path string, status int, want string) {
			t.Helper()
			req, err := http.NewRequest(method, "http://localhost/v1"+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+token)
			if got, body := answered(t, client, req); got != status || !strings.Contains(body, want) {
				t.Errorf("%s %s = %d %s, want %d %s", method, path, got, body, status, want)
			}
		}
		fill(t, filepath.Join(disk, "fill"))
		for range 300 { // more than the room that is left in the files of the chain
			expect("POST", "/agents/echo/run", 200, "completed")
		}
		time.Sleep(5 * time.Second)
		expect("GET", "/agents", 200, "echo")
		expect("GET", "/health", 200, `"audit":{"status":"warn"`)
		time.Sleep(6 * time.Second)
		expect("GET", "/agents", 503, "audit-unavailable")
		expect("POST", "/agents/echo/run", 503, "audit-unavailable")
		expect("GET", "/health", 503, `"audit":{"status":"fail"`)
		if err := os.Remove(filepath.Join(disk, "fill")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		expect("GET", "/agents", 200, "echo")
		expect("GET", "/health", 200, `"audit":{"status":"ok"`)
		expect("POST", "/audit/verify", 200, `"ok":true,"count":604`) // server:start, auth:granted, two of each run, two lists
	})
}

// fill writes a file until its disk is full.
func fill(t *testing.T, name string) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	for full := make([]byte, 4096); err == nil; {
		_, err = f.Write(full)
	}
	f.Close()
}

// answered sends a request, and returns the status and the body of its answer.
func answered(t *testing.T, client *http.Client, req *http.Request) (int, string) {
	t.Helper()
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
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
		fill(t, filepath.Join(disk, "fill"))
		client := at.client()
		defer client.CloseIdleConnections()
		get := func(path string) string {
			t.Helper()
			req, err := http.NewRequest("GET", "http://localhost/v1"+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+token)
			_, body := answered(t, client, req)
			return body
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
		if err := os.Remove(filepath.Join(disk, "fill")); err != nil {
			t.Fatal(err)
		}
		check(`"audit":{"status":"ok"`)
		if got := get("/metrics"); !strings.Contains(got, "\nsvc_audit_writable 1\n") || !strings.Contains(got, "\nsvc_audit_checkpoint_age_seconds ") {
			t.Errorf("GET /metrics = %s, want the chain writable, and when its checkpoint was signed", got)
		}
	})
}
