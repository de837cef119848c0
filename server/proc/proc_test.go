package proc_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentd/server/proc"
)

// The test binary is also the server and the program of TestProgramsDieWithTheServer.
func TestMain(m *testing.M) {
	switch os.Getenv("PROC_TEST_ROLE") {
	case "server":
		program := proc.Command{Argv: []string{os.Args[0]}, Env: []string{"PROC_TEST_ROLE=program", "PROC_TEST_SOCKET=" + os.Getenv("PROC_TEST_SOCKET")}}
		if os.Getenv("PROC_TEST_BELOW") != "" {
			program.Argv = sh(`"$0" & echo up; wait`)
			program.Argv = append(program.Argv, os.Args[0])
		}
		p, err := proc.Start(context.Background(), program)
		if err != nil {
			panic(err)
		}
		if os.Getenv("PROC_TEST_BELOW") == "2" {
			replaceWarden()
			if _, err := net.Dial("unix", os.Getenv("PROC_TEST_SOCKET")); err != nil {
				panic(err)
			}
		}
		p.Wait()
	case "program":
		conn, err := net.Dial("unix", os.Getenv("PROC_TEST_SOCKET"))
		if err != nil {
			panic(err)
		}
		conn.Write([]byte("hello"))
		select {}
	default:
		os.Exit(m.Run())
	}
}

// signal is what ended a program; 0: it exited.
func signal(s proc.Status) syscall.Signal {
	if ws := s.Sys().(syscall.WaitStatus); ws.Signaled() {
		return ws.Signal()
	}
	return 0
}

func sh(script string) []string { return []string{"/bin/sh", "-c", script} }

func run(t *testing.T, ctx context.Context, c proc.Command) (string, proc.Status, error) {
	t.Helper()
	p, err := proc.Start(ctx, c)
	if err != nil {
		t.Fatalf("Start(%q): %v", c.Argv, err)
	}
	out, _ := io.ReadAll(p)
	status, err := p.Wait()
	return string(out), status, err
}

func TestRun(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tool.sh"), []byte("#!/bin/sh\necho here\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PROC_TEST_SECRET", "not for children")
	long := strings.Repeat("x", 100_000)
	for _, tc := range []struct {
		name        string
		c           proc.Command
		out, status string
		stderr      string
	}{
		{"output", proc.Command{Argv: sh("echo hi")}, "hi\n", "exit status 0", ""},
		{"status", proc.Command{Argv: sh("echo no >&2; exit 3")}, "", "exit status 3", "no\n"},
		{"signal", proc.Command{Argv: sh("kill -9 $$")}, "", "signal: killed", ""},
		{"input", proc.Command{Argv: sh("cat"), Input: []byte(long)}, long, "exit status 0", ""},
		{"input that nobody reads", proc.Command{Argv: sh("exit 0"), Input: []byte(long)}, "", "exit status 0", ""},
		{"input is a file that ends", proc.Command{Argv: sh("cat; cat; echo more >&0 || echo no"), Input: []byte("in ")}, "in no\n", "exit status 0",
			"/bin/sh: 1: echo: echo: I/O error\n"},
		{"no input", proc.Command{Argv: sh("cat")}, "", "exit status 0", ""},
		{"empty environment", proc.Command{Argv: []string{"/usr/bin/env"}}, "", "exit status 0", ""},
		{"environment", proc.Command{Argv: []string{"/usr/bin/env"}, Env: []string{"A=1"}}, "A=1\n", "exit status 0", ""},
		{"path of the server", proc.Command{Argv: []string{"cat"}, Env: []string{"PATH=/nowhere"}}, "", "exit status 0", ""},
		{"relative to the folder", proc.Command{Argv: []string{"./tool.sh"}, Dir: dir}, "here\n", "exit status 0", ""},
		{"end of stderr", proc.Command{Argv: sh("head -c 9000 /dev/zero | tr '\\0' a >&2; echo b >&2")}, "", "exit status 0",
			strings.Repeat("a", proc.StderrTail-2) + "b\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, status, err := run(t, t.Context(), tc.c)
			if out != tc.out || status.String() != tc.status || err != nil {
				t.Errorf("run(%q) = %.80q, %v, %v, want %.80q, %s, no error", tc.c.Argv, out, status, err, tc.out, tc.status)
			}
			if status.Stderr != tc.stderr {
				t.Errorf("run(%q) wrote %.80q to stderr, want %.80q", tc.c.Argv, status.Stderr, tc.stderr)
			}
			if status.Success() != (tc.status == "exit status 0") {
				t.Errorf("Success() = %v for %s", status.Success(), status)
			}
		})
	}
}

func TestStartErrors(t *testing.T) {
	gone, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("gone")
	cancel(cause)
	for _, tc := range []struct {
		name string
		ctx  context.Context
		c    proc.Command
		want error
	}{
		{"not in PATH", t.Context(), proc.Command{Argv: []string{"no-such-program-anywhere"}}, exec.ErrNotFound},
		{"no file", t.Context(), proc.Command{Argv: []string{"/no/such/program"}, Pipe: true}, fs.ErrNotExist},
		{"no folder", t.Context(), proc.Command{Argv: sh("true"), Dir: "/no/such/folder"}, fs.ErrNotExist},
		{"not executable", t.Context(), proc.Command{Argv: []string{"/etc/passwd"}}, fs.ErrPermission},
		{"cancelled", gone, proc.Command{Argv: sh("true")}, cause},
	} {
		if p, err := proc.Start(tc.ctx, tc.c); !errors.Is(err, tc.want) {
			t.Errorf("%s: Start = %v, %v, want %v", tc.name, p, err, tc.want)
		}
	}
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 3, Max: files.Max}); err != nil {
		t.Fatal(err)
	}
	_, err := proc.Start(t.Context(), proc.Command{Argv: sh("true")})
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	if failed, ok := errors.AsType[*proc.StartError](err); !ok || !failed.Busy || failed.Program != "/bin/sh" {
		t.Errorf("Start without a file to open = %v, want one that says busy", err)
	}
}

func TestOutputLimit(t *testing.T) {
	for _, tc := range []struct {
		size, limit int64
		over        bool
	}{{1000, 1000, false}, {1001, 1000, true}, {200_000, 70_000, true}} {
		c := proc.Command{Argv: sh("head -c " + strconv.FormatInt(tc.size, 10) + " /dev/zero"), MaxOutput: tc.limit}
		out, _, err := run(t, t.Context(), c)
		var over *proc.OverflowError
		if errors.As(err, &over) != tc.over {
			t.Errorf("%d bytes with limit %d: error %v, want overflow %v", tc.size, tc.limit, err, tc.over)
		}
		if int64(len(out)) != min(tc.size, tc.limit) {
			t.Errorf("%d bytes with limit %d: read %d", tc.size, tc.limit, len(out))
		}
	}
	// Nobody reads; the program is held by the full pipe until Wait finds it over the limit.
	p, err := proc.Start(t.Context(), proc.Command{Argv: sh("exec cat /dev/zero"), MaxOutput: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	var over *proc.OverflowError
	if status, err := p.Wait(); !errors.As(err, &over) || signal(status) != syscall.SIGTERM {
		t.Errorf("Wait() = %v, %v, want SIGTERM and an overflow", status, err)
	}
}

func TestPipe(t *testing.T) {
	p, err := proc.Start(t.Context(), proc.Command{Argv: sh(`while read line; do echo "got $line"; done; echo end`), Pipe: true})
	if err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(p)
	for _, line := range []string{"one", "two"} {
		if _, err := io.WriteString(p.Stdin, line+"\n"); err != nil {
			t.Fatal(err)
		}
		if got, err := out.ReadString('\n'); got != "got "+line+"\n" {
			t.Errorf("ReadString() = %q, %v, want an answer to %q", got, err, line)
		}
	}
	p.Stdin.Close()
	if got, err := out.ReadString('\n'); got != "end\n" {
		t.Errorf("ReadString() = %q, %v, want end", got, err)
	}
	if status, err := p.Wait(); !status.Success() || err != nil {
		t.Errorf("Wait() = %v, %v", status, err)
	}
	if _, err := p.Stdin.Write([]byte("x")); err == nil {
		t.Error("Write after the end succeeded, want an error")
	}
}

// fifo returns the path of a named pipe, and a function that waits until every process that has it open for writing
// is gone.
func fifo(t *testing.T) (path string, opened, gone func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "held")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	read := func() (string, error) {
		f.SetReadDeadline(time.Now().Add(10 * time.Second))
		b := make([]byte, 16)
		n, err := f.Read(b)
		return string(b[:n]), err
	}
	opened = func() {
		t.Helper()
		got, err := read()
		for end := time.Now().Add(10 * time.Second); err == io.EOF && time.Now().Before(end); got, err = read() {
			runtime.Gosched() // nobody has opened it for writing yet
		}
		if got != "up\n" {
			t.Fatalf("the program wrote %q, %v, want up", got, err)
		}
	}
	gone = func() {
		t.Helper()
		if got, err := read(); err != io.EOF {
			t.Fatalf("Read() = %q, %v, want EOF: some of the program's processes are left", got, err)
		}
	}
	return path, opened, gone
}

func TestAbortEndsTheTree(t *testing.T) {
	path, opened, gone := fifo(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	// Opened for reading and writing, so that the shell does not wait for a reader.
	p, err := proc.Start(ctx, proc.Command{Argv: sh("exec 3<>" + path + "; (sleep 1000; sleep 1000) & echo up >&3; sleep 1000")})
	if err != nil {
		t.Fatal(err)
	}
	opened()
	cause := errors.New("aborted")
	cancel(cause)
	status, err := p.Wait()
	if signal(status) != syscall.SIGTERM || err != cause {
		t.Errorf("Wait() = %v, %v, want SIGTERM and %v", status, err, cause)
	}
	gone()
}

func TestDeafProgramIsKilled(t *testing.T) {
	t.Parallel()
	path, opened, gone := fifo(t)
	ctx, cancel := context.WithCancel(t.Context())
	script := "trap '' TERM; exec 3<>" + path + "; sleep 1000 & echo up >&3; while :; do sleep 1000; done"
	p, err := proc.Start(ctx, proc.Command{Argv: sh(script)})
	if err != nil {
		t.Fatal(err)
	}
	opened()
	start := time.Now()
	cancel()
	status, err := p.Wait()
	if took := time.Since(start); signal(status) != syscall.SIGKILL || err != context.Canceled || took < proc.Grace || took > 20*time.Second {
		t.Errorf("Wait() = %v, %v after %v, want SIGKILL after %v", status, err, took, proc.Grace)
	}
	gone()
}

func TestExitEndsWhatIsLeft(t *testing.T) {
	path, opened, gone := fifo(t)
	out, status, err := run(t, t.Context(), proc.Command{Argv: sh("exec 3<>" + path + "; sleep 1000 & echo up >&3; echo done")})
	if out != "done\n" || !status.Success() || err != nil {
		t.Errorf("run = %q, %v, %v, want done", out, status, err)
	}
	opened() // what it wrote is still in the pipe
	gone()
}

func TestStrangerHoldsThePipes(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Skip("this system has no setsid")
	}
	pidFile := filepath.Join(t.TempDir(), "pid")
	script := `setsid sh -c 'echo $$ >` + pidFile + `; exec sleep 1000' & while [ ! -s ` + pidFile + ` ]; do :; done; echo done`
	start := time.Now()
	p, err := proc.Start(t.Context(), proc.Command{Argv: sh(script), Env: []string{"PATH=" + os.Getenv("PATH")}})
	if err != nil {
		t.Fatal(err)
	}
	status, err := p.Wait()
	if took := time.Since(start); !status.Success() || err != nil || took > 10*time.Second {
		t.Errorf("Wait() = %v, %v after %v", status, err, took)
	}
	if b, err := os.ReadFile(pidFile); err == nil {
		pid, _ := strconv.Atoi(string(bytes.TrimSpace(b)))
		syscall.Kill(pid, syscall.SIGKILL)
	}
}

// A reader that comes after the exit gets everything.
func TestLateReader(t *testing.T) {
	t.Parallel()
	pidFile := filepath.Join(t.TempDir(), "pid")
	p, err := proc.Start(t.Context(), proc.Command{Argv: sh("echo one; echo two; echo $$ > " + pidFile)})
	if err != nil {
		t.Fatal(err)
	}
	for gone := false; !gone; runtime.Gosched() {
		b, _ := os.ReadFile(pidFile)
		pid, err := strconv.Atoi(string(bytes.TrimSpace(b)))
		gone = err == nil && syscall.Kill(pid, 0) == syscall.ESRCH
	}
	if out, err := io.ReadAll(p); string(out) != "one\ntwo\n" || err != nil {
		t.Errorf("ReadAll() = %q, %v", out, err)
	}
	p.Wait()
}

func TestProgramsDieWithTheServer(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has a signal for the death of the parent")
	}
	for _, below := range []string{"", "1", "2"} { // what the program has started ends, too, and also with another warden
		testProgramsDieWithTheServer(t, below)
	}
}

func testProgramsDieWithTheServer(t *testing.T, below string) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	server := exec.Command(os.Args[0])
	server.Env = []string{"PROC_TEST_ROLE=server", "PROC_TEST_SOCKET=" + socket, "PROC_TEST_BELOW=" + below}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetDeadline(time.Now().Add(20 * time.Second))
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadFull(conn, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	if below == "2" { // the server has seen to it
		if _, err := l.Accept(); err != nil {
			t.Fatal(err)
		}
	}
	server.Process.Kill()
	server.Wait()
	if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("Read() = %v, want the end of the connection: the program is still there", err)
	}
}

// The death signal is tied to the thread that forked. Threads that end meanwhile must not take programs with them.
func TestProgramsOutliveThreads(t *testing.T) {
	var programs []*proc.Process
	for range 50 {
		var dying sync.WaitGroup
		for range 8 {
			dying.Go(func() {
				runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
				runtime.Gosched()
			})
		}
		p, err := proc.Start(t.Context(), proc.Command{Argv: []string{"cat"}, Pipe: true})
		if err != nil {
			t.Fatal(err)
		}
		programs = append(programs, p)
		dying.Wait()
	}
	for _, p := range programs {
		io.WriteString(p.Stdin, "still here")
		p.Stdin.Close()
		out, _ := io.ReadAll(p)
		if status, err := p.Wait(); string(out) != "still here" || !status.Success() || err != nil {
			t.Errorf("cat = %q, %v, %v", out, status, err)
		}
	}
}

func TestNoGoroutineStays(t *testing.T) {
	run(t, t.Context(), proc.Command{Argv: sh("true")}) // what belongs to the process exists then
	before := runtime.NumGoroutine()
	for i := range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		p, err := proc.Start(ctx, proc.Command{Argv: sh("cat; sleep 1000"), Pipe: i%2 == 0, Input: []byte("x")})
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		p.Wait()
	}
	// A goroutine that has closed its last channel may need a moment to be gone.
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before && time.Now().Before(end); {
		runtime.Gosched()
	}
	if after := runtime.NumGoroutine(); after > before {
		stacks := make([]byte, 1<<16)
		t.Errorf("%d goroutines before, %d after:\n%s", before, after, stacks[:runtime.Stack(stacks, true)])
	}
}

func TestEnviron(t *testing.T) {
	t.Setenv("PROC_TEST_A", "server")
	t.Setenv("PROC_TEST_B", "server")
	got := proc.Environ(map[string]string{"PROC_TEST_B": "env", "C": "x=y"}, []string{"PROC_TEST_A", "PROC_TEST_B", "PROC_TEST_UNSET"}, true)
	if want := []string{"C=x=y", "PROC_TEST_A=server", "PROC_TEST_B=env"}; !slices.Equal(got, want) {
		t.Errorf("Environ() = %q, want %q", got, want)
	}
	if got := proc.Environ(nil, nil, true); got == nil || len(got) != 0 {
		t.Errorf("Environ() = %#v, want an empty list", got)
	}
}
