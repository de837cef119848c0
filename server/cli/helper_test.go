package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentd/server/cli"
)

// patience is how long a test waits for something that must happen. It ends only tests that fail.
const patience = time.Minute

var binary string // the program, built once

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "agentd-cli")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "agentd")
	// The build cache keeps what go run has linked, and cp takes the place of running it.
	if out, err := exec.Command("go", "run", "-exec", "cp", "agentd", binary).CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the program: %v\n%s", err, out)
		os.Exit(1)
	}
	// Most of these tests wait for processes: more of them than there are cores run side by side.
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(3*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// often is how often a test does what it does at random moments: all times with AGENTD_TEST_ROUNDS=all, as CI sets it.
func often(all, mostly int) int {
	if os.Getenv("AGENTD_TEST_ROUNDS") == "all" {
		return all
	}
	return mostly
}

// A said is what a command line came to.
type said struct {
	line           string
	code           int
	stdout, stderr string
}

// here carries out a command line in this process.
func here(t *testing.T, args ...string) said { return with(t, t.Context(), "", nil, args...) }

func with(t *testing.T, ctx context.Context, stdin string, env []string, args ...string) said {
	t.Helper()
	var out, err bytes.Buffer
	s := said{line: "agentd " + strings.Join(args, " ")}
	s.code = cli.Main(ctx, args, strings.NewReader(stdin), &out, &err, env)
	s.stdout, s.stderr = out.String(), err.String()
	return s
}

// want checks the exit code, and that both streams have what is given.
func (s said) want(t *testing.T, code int, stdout, stderr string) said {
	t.Helper()
	if s.code != code || !strings.Contains(s.stdout, stdout) || !strings.Contains(s.stderr, stderr) {
		t.Errorf("%s = %d, want %d; stdout, want %q in it:\n%s\nstderr, want %q in it:\n%s", s.line, s.code, code, stdout, s.stdout, stderr, s.stderr)
	}
	return s
}

// decode reads stdout as one JSON document.
func (s said) decode(t *testing.T, to any) {
	t.Helper()
	if err := json.Unmarshal([]byte(s.stdout), to); err != nil {
		t.Fatalf("%s: stdout is no JSON document: %v\n%s", s.line, err, s.stdout)
	}
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// eventually asks until the answer is yes.
func eventually(t *testing.T, what string, yes func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(patience); !yes(); {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%s has not come to pass", what)
		}
	}
}

// A process is the program, running.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout buffer
	stderr buffer
	done   chan struct{}
}

// buffer is what a process has written so far.
type buffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// spawn starts the program in a folder. It is killed at the end of the test if it still runs.
func spawn(t *testing.T, dir string, stdin io.Reader, env []string, args ...string) *process {
	t.Helper()
	p := command(t, dir, args...)
	p.cmd.Stdin, p.cmd.Env = stdin, append(p.cmd.Env, env...)
	return p.start()
}

// spawnTo is spawn with a stdout that the test reads or closes itself.
func spawnTo(t *testing.T, dir string, stdout *os.File, args ...string) *process {
	t.Helper()
	p := command(t, dir, args...)
	p.cmd.Stdout = stdout
	return p.start()
}

func command(t *testing.T, dir string, args ...string) *process {
	p := &process{t: t, cmd: exec.Command(binary, args...), done: make(chan struct{})}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, &p.stdout, &p.stderr
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	return p
}

func (p *process) start() *process {
	p.t.Helper()
	t := p.t
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.cmd.Wait(); close(p.done) }()
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.done
	})
	return p
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// wait waits for the end.
func (p *process) wait() said {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("%v has not ended; stderr:\n%s", p.cmd.Args, p.stderr.String())
	}
	return said{strings.Join(p.cmd.Args[1:], " "), p.cmd.ProcessState.ExitCode(), p.stdout.String(), p.stderr.String()}
}

// A listener is a server, running.
type listener struct {
	*process
	url   string // of the API
	token string
	ready string // the ready file
}

// serve starts a server in a folder and waits until it is ready.
func serve(t *testing.T, dir string, args ...string) *listener {
	t.Helper()
	s := &listener{ready: filepath.Join(t.TempDir(), "ready.json")}
	s.process = spawn(t, dir, nil, nil, append([]string{"start", "--port", "0", "--ready-file", s.ready}, args...)...)
	s.url = s.process.await(s.ready)
	return s
}

// rest waits until no run is in progress.
func (s *listener) rest() {
	s.process.t.Helper()
	eventually(s.process.t, "the end of all runs", func() bool {
		for _, status := range []string{"running", "pending"} {
			res := s.request("GET", "/runs?limit=1&status="+status, "")
			body, err := io.ReadAll(res.Body)
			if res.Body.Close(); err != nil || !strings.Contains(string(body), `"runs":[]`) {
				return false
			}
		}
		return true
	})
}

// await waits for the ready file and returns the URL of the API.
func (p *process) await(ready string) string {
	p.t.Helper()
	var at struct {
		Host string
		Port int
		PID  int
	}
	eventually(p.t, "the ready file", func() bool {
		b, err := os.ReadFile(ready)
		if errors.Is(err, os.ErrNotExist) {
			select {
			case <-p.done:
				p.t.Fatalf("%v ended before it was ready:\n%s", p.cmd.Args, p.stderr.String())
			default:
			}
			return false
		}
		if err := errors.Join(err, json.Unmarshal(b, &at)); err != nil {
			p.t.Fatalf("the ready file %q: %v; want it whole at once", b, err)
		}
		return true
	})
	if at.Host != "127.0.0.1" || at.Port == 0 || at.PID != p.cmd.Process.Pid {
		p.t.Errorf("the ready file tells %+v, want 127.0.0.1, a port and process %d", at, p.cmd.Process.Pid)
	}
	return fmt.Sprintf("http://%s:%d/v1", at.Host, at.Port)
}

// request sends a request and returns the answer, whose body the caller closes.
func (s *listener) request(method, path, body string, header ...string) *http.Response {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if s.token != "" {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	return res
}

// call sends a request, reads its JSON answer and returns the status.
func (s *listener) call(method, path, body string, to any) int {
	s.t.Helper()
	res := s.request(method, path, body)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && to != nil {
		err = json.Unmarshal(b, to)
	}
	if err != nil {
		s.t.Fatalf("%s %s = %d %s: %v", method, path, res.StatusCode, b, err)
	}
	return res.StatusCode
}

type run struct{ RunID, AgentID, Status string }

// runs lists the runs, newest first.
func (s *listener) runs() []run {
	s.t.Helper()
	var list struct{ Runs []run }
	if status := s.call("GET", "/runs", "", &list); status != http.StatusOK {
		s.t.Fatalf("GET /runs = %d", status)
	}
	return list.Runs
}

// token makes an administrator's token with the program.
func token(t *testing.T, dir string) string {
	t.Helper()
	s := spawn(t, dir, nil, nil, "token", "create", "--scope", "admin:*").wait().want(t, 0, "svc_live_v1_", "")
	return strings.TrimSpace(s.stdout)
}

// status is the status of a run.
func (s *listener) status(runID string) string {
	s.t.Helper()
	var run struct{ Status string }
	s.call("GET", "/runs/"+runID+"/state", "", &run)
	return run.Status
}
