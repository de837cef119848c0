package cli_test

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentd/server/health"
)

const filesSite = `{
	"auth": {"kind": "none"}, "storage": {"path": "data.db"}, "server": {"rateLimit": {"enabled": false}%s},
	"providers": {"p": {"kind": "scripted", "script": "script.json"}},
	"tools": {"look": {"kind": "exec", "description": "looks", "command": ["sh", "-c", "echo seen"], "sideEffect": "read-only"}},
	"agents": {
		"plain": {"kind": "llm", "provider": "p", "model": "m"},
		"user": {"kind": "llm", "provider": "p", "model": "user", "tools": ["look"]},
		"shout": {"kind": "exec", "command": ["tr", "a-z", "A-Z"]}
	}
}`

const filesScript = `{"turns": [
	{"when": {"model": "user", "step": 0}, "toolCalls": [{"name": "look", "args": {}}]},
	{"when": {"model": "user"}, "text": "{{lastTool}}"},
	{"text": "plain"}]}`

// serveWithFiles starts a server that may have so many files open.
func serveWithFiles(t *testing.T, files int, settings string) *listener {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "agentd.json"), fmt.Sprintf(filesSite, settings))
	write(t, filepath.Join(dir, "script.json"), filesScript)
	s := &listener{ready: filepath.Join(t.TempDir(), "ready.json")}
	s.process = command(t, dir, "start", "--port", "0", "--ready-file", s.ready)
	s.cmd.Path, s.cmd.Args = "/bin/sh", append([]string{"sh", "-c", fmt.Sprintf(`ulimit -n %d; exec "$0" "$@"`, files), binary}, s.cmd.Args[1:]...)
	s.process.start()
	s.url = s.await(s.ready)
	return s
}

// files is how many the server has open.
func (s *listener) files() int {
	s.t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	return len(all)
}

// A wired client has a connection that is open already.
type wired struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func (s *listener) wire() *wired { return s.wireFrom("127.0.0.1") }

func (s *listener) wireFrom(ip string) *wired {
	s.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
	conn, err := d.Dial("tcp", s.address())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(4 * patience)) //nolint:errcheck // reads and writes tell
	return &wired{s.t, conn, bufio.NewReader(conn)}
}

func (s *listener) address() string {
	_, rest, _ := strings.Cut(s.url, "://")
	at, _, _ := strings.Cut(rest, "/")
	return at
}

func (c *wired) ask(method, path, body string) (int, string) {
	c.t.Helper()
	if _, err := fmt.Fprintf(c.conn, "%s /v1%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body); err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	res, err := http.ReadResponse(c.in, nil)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	b, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	return res.StatusCode, string(b)
}

// run runs an agent and returns the run's id, its status and what it answered.
func (c *wired) run(agent string) (id, status, output string) {
	c.t.Helper()
	code, body := c.ask("POST", "/agents/"+agent+"/run", `{"input": "hello"}`)
	var told struct {
		RunID, Status, Error, Code string
		Result                     struct{ Output string }
	}
	if err := json.Unmarshal([]byte(body), &told); err != nil || told.RunID == "" {
		c.t.Fatalf("POST /agents/%s/run = %d %s: %v", agent, code, body, err)
	}
	return told.RunID, strings.TrimSpace(told.Status + " " + told.Code), strings.TrimSpace(told.Result.Output)
}

func (c *wired) health() (code int, status, message string) {
	time.Sleep(health.Interval) // what was found before is not what counts
	c.t.Helper()
	code, body := c.ask("GET", "/health", "")
	var doc struct {
		Checks struct {
			Connections struct{ Status, Message string }
		}
	}
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		c.t.Fatalf("GET /health = %d %s: %v", code, body, err)
	}
	return code, doc.Checks.Connections.Status, doc.Checks.Connections.Message
}

// flood opens connections, each of which asks once and stays. Nobody waits for the answers: there may be none.
func (s *listener) flood(n int) (conns []net.Conn) {
	s.t.Helper()
	for range n {
		conn, err := net.Dial("tcp", s.address())
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { conn.Close() })
		io.WriteString(conn, "GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n") //nolint:errcheck // it may be refused already
		conns = append(conns, conn)
	}
	return conns
}

// restful checks that the server computes for a part of the next second only.
func (s *listener) restful(when string) {
	s.t.Helper()
	before := processorTime(s.t, s.cmd.Process.Pid)
	<-time.After(time.Second)
	if used := processorTime(s.t, s.cmd.Process.Pid) - before; used > 500*time.Millisecond {
		s.t.Errorf("%s, the server computed for %v within a second", when, used)
	}
}

// TestOutOfFiles has clients take all files that the server may have open. Those who are connected are answered, what
// needs a file fails for that, and all is well again when the clients have gone.
func TestOutOfFiles(t *testing.T) {
	t.Parallel()
	const files = 256
	s := serveWithFiles(t, files, `, "maxConnections": 100000`)
	eventually(t, "the warning of a limit that is too high", func() bool {
		return strings.Contains(s.stderr.String(), "server.maxConnections is 100000, and the process may have 256 files open")
	})
	inside := s.wire()
	if _, status, output := inside.run("shout"); status != "completed" || output != "HELLO" {
		t.Fatalf("before, a program's run is %s with %q", status, output)
	}
	inside.run("user")

	flood := s.flood(2 * files)
	eventually(t, "the end of all files", func() bool { return s.files() >= files })
	eventually(t, "the line in the log", func() bool {
		return strings.Contains(s.stderr.String(), "connections wait: the process cannot open more files")
	})
	s.restful("without a file")
	if code, status, message := inside.health(); code != 503 || status != "fail" || !strings.Contains(message, "files") {
		t.Errorf("without a file, health is %d, and connections tells %s %q", code, status, message)
	}
	ends := map[string]string{} // of runs
	for agent, want := range map[string]string{"plain": "completed", "user": "completed", "shout": "failed overloaded"} {
		id, status, output := inside.run(agent)
		if ends[id] = strings.Fields(status)[0]; status != want {
			t.Errorf("without a file, a run of %s is %s, want %s", agent, status, want)
		}
		if agent == "user" && !strings.Contains(output, "too many open files") {
			t.Errorf("without a file, a tool's program gives %q", output)
		}
	}
	for range 50 { // the log of the store grows meanwhile, and is folded in
		id, status, _ := inside.run("plain")
		if ends[id] = status; status != "completed" {
			t.Fatalf("without a file, a run is %s", status)
		}
	}
	if n := strings.Count(s.stderr.String(), "connections wait"); n > 3 {
		t.Errorf("the log tells %d times that connections wait", n)
	}

	for _, conn := range flood {
		conn.Close()
	}
	began := time.Now()
	late := s.wire()
	if _, status, output := late.run("shout"); status != "completed" || output != "HELLO" {
		t.Errorf("when the flood has gone, a program's run is %s with %q", status, output)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("when the flood has gone, a new client is served after %v", took)
	}
	eventually(t, "health", func() bool { code, status, _ := late.health(); return code == 200 && status == "ok" })
	s.signal(syscall.SIGKILL)
	s.wait()
	s = serve(t, s.cmd.Dir)
	for id, want := range ends {
		if got := s.status(id); got != want {
			t.Errorf("after a restart, the run %s is %s, want %s", id, got, want)
		}
	}
}

// TestConnectionsLeaveFiles floods a server that has the default limit from one address: programs start all the same, and a
// client of another address keeps its connection.
func TestConnectionsLeaveFiles(t *testing.T) {
	t.Parallel()
	const files = 256
	s := serveWithFiles(t, files, "")
	inside := s.wireFrom("127.0.0.2")
	inside.run("plain")
	flood := s.flood(2 * files)
	s.restful("beside a flood")
	for range 10 {
		if _, status, output := inside.run("shout"); status != "completed" || output != "HELLO" {
			t.Fatalf("beside a flood, a program's run is %s with %q", status, output)
		}
	}
	if n := s.files(); n > 3*files/4 || n < files/4 {
		t.Errorf("beside a flood, %d of %d files are open", n, files)
	}
	if code, status, message := inside.health(); code != 200 || status != "ok" {
		t.Errorf("beside a flood, health is %d, and connections tells %s %q", code, status, message)
	}
	if code, body := s.wire().ask("GET", "/health", ""); code != 200 {
		t.Errorf("beside a flood of idle connections, a new client gets %d %s", code, body)
	}
	for _, conn := range flood {
		conn.Close()
	}
	s.signal(syscall.SIGTERM)
	s.wait().want(t, 0, "", "")
}

// With TLS, a connection too many is closed: it would not understand an answer.
func TestMaxConnectionsWithTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certificate(t, dir, "one.example")
	p := startAt(t, dir, `{"maxConnections": 1, "tls": {"certFile": "cert.pem", "keyFile": "key.pem"}}`)
	_, rest, _ := strings.Cut(p.stderr.String(), "https://")
	address, _, _ := strings.Cut(rest, "/")
	dial := func() (*tls.Conn, error) { return tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true}) } //nolint:gosec // who serves is known
	first, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dial(); err == nil {
		t.Error("a connection too many is accepted")
	}
	first.Close()
	eventually(t, "room for another", func() bool {
		conn, err := dial()
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	p.signal(syscall.SIGTERM)
	p.wait().want(t, 0, "", "")
}
