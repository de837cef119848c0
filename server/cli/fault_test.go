package cli_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentd/store/storetest"
	"agentd/ws"
	"agentd/ws/wstest"
)

// TestStoppedServer stops the process for a while, as a debugger or a machine that sleeps does. Nobody notices but for
// the pause.
func TestStoppedServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "agentd.json"), watchConfig)
	write(t, filepath.Join(dir, "script.json"), watchScript)
	s := serve(t, dir)
	stream := s.request("POST", "/agents/a/stream", "", "Accept", "text/event-stream")
	defer stream.Body.Close()
	events := bufio.NewReader(stream.Body)
	if _, err := events.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	conn, err := wstest.Dial(t.Context(), "ws"+strings.TrimPrefix(s.url, "http")+"/ws", &wstest.DialOptions{Protocols: []string{"svc.protocol.v1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()

	s.signal(syscall.SIGSTOP)
	asked := make(chan *http.Response, 1)
	go func() { asked <- s.request("POST", "/agents/a/run", "") }()
	select {
	case <-asked:
		t.Error("a process that is stopped answers")
	case <-time.After(1500 * time.Millisecond):
	}
	s.signal(syscall.SIGCONT)

	if res := <-asked; res.StatusCode != 200 {
		t.Errorf("the request that was sent meanwhile = %s, want 200", res.Status)
	} else {
		res.Body.Close()
	}
	rest, err := io.ReadAll(events)
	if err != nil || !strings.Contains(string(rest), `"status":"completed"`) {
		t.Errorf("the stream ends with %v, %.200s; want the run completed", err, rest[max(0, len(rest)-200):])
	}
	if err := conn.Write(t.Context(), ws.Text, []byte(`{"v":"1","jsonrpc":"2.0","id":1,"method":"ping"}`)); err != nil {
		t.Fatal(err)
	}
	if _, frame, err := conn.Read(t.Context()); err != nil || string(frame) != `{"v":"1","kind":"pong"}` {
		t.Errorf("the socket says %s, %v; want a pong", frame, err)
	}
	s.signal(syscall.SIGTERM)
	s.wait().want(t, 0, "", "")
}

// TestForeignLock has another process hold SQLite's write lock. For less than five seconds the server waits; after that
// it says so, and reads go on. When the lock is free it goes on by itself, and the run that was under way, too.
func TestForeignLock(t *testing.T) {
	t.Parallel()
	dir := diskSite(t, t.TempDir())
	var cfg struct{ Storage struct{ Path string } }
	if err := json.Unmarshal([]byte(read(t, filepath.Join(dir, "agentd.json"))), &cfg); err != nil {
		t.Fatal(err)
	}
	s := serve(t, dir)
	exec := storetest.Another(t, cfg.Storage.Path)
	var held run
	s.call("POST", "/agents/holds/stream", "", &held)

	exec("BEGIN IMMEDIATE")
	free := time.AfterFunc(2*time.Second, func() { exec("ROLLBACK") })
	defer free.Stop()
	begun := time.Now()
	ids, status, refusal := s.acknowledge(10, 1)
	if took := time.Since(begun); status != 0 || took < time.Second {
		t.Errorf("while another process writes for 2 s, a run = %d %s after %v, want it taken then", status, refusal, took)
	}

	exec("BEGIN IMMEDIATE")
	write(t, filepath.Join(dir, "go"), "")
	_, status, refusal = s.acknowledge(10, 1)
	s.wantsDisk(status, refusal, "another process is writing", append(ids, held.RunID))
	exec("ROLLBACK")
	more, status, refusal := s.acknowledge(10, 1)
	if status != 0 {
		t.Errorf("when the lock is free a run = %d %s, want it taken", status, refusal)
	}
	s.wantsAll(append(append(ids, more...), held.RunID))
	s.signal(syscall.SIGTERM)
	s.wait().want(t, 0, "", "")
}
