package cli_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentd/server/health"
)

// diskConfig keeps the data on a disk of its own. The tool of the agent holds waits for a file.
const diskConfig = `{
	"auth": {"kind": "none"}, "storage": {"path": %q}, "server": {"rateLimit": {"enabled": false}, "shutdown": {"drainTimeoutMs": 300}},
	"providers": {"p": {"kind": "scripted", "script": "script.json"}},
	"tools": {"wait": {"kind": "exec", "description": "Waits", "command": ["sh", "-c", "while [ ! -e go ]; do sleep 0.02; done; echo waited"], "sideEffect": "read-only"},
		"pay": {"kind": "exec", "description": "Pays", "command": ["true"], "approval": "always", "approvalTerms": {"expiresMs": 15000}}},
	"agents": {
		"holds": {"kind": "llm", "provider": "p", "model": "holds", "tools": ["wait"]},
		"quick": {"kind": "llm", "provider": "p", "model": "quick"},
		"gated": {"kind": "llm", "provider": "p", "model": "gated", "tools": ["pay"]}
	}
}`

const diskScript = `{"turns": [{"when": {"model": "holds", "step": 0}, "toolCalls": [{"name": "wait", "args": {}}]},
	{"when": {"model": "gated", "step": 0}, "toolCalls": [{"name": "pay", "args": {}}]}, {"text": "done: {{lastTool}}"}]}`

// newDisk mounts a small disk.
func newDisk(t *testing.T, size string) string {
	t.Helper()
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("SKIP: a disk cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(disk, syscall.MNT_DETACH) })
	return disk
}

// diskSite is a folder with a configuration whose data are on a disk.
func diskSite(t *testing.T, disk string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "agentd.json"), fmt.Sprintf(diskConfig, filepath.Join(disk, "data.db")))
	write(t, filepath.Join(dir, "script.json"), diskScript)
	return dir
}

// acknowledge starts runs, with so much input, until one is refused; it returns those that were taken and the refusal.
func (s *listener) acknowledge(size, most int) (ids []string, status int, refusal []byte) {
	s.t.Helper()
	body := fmt.Sprintf(`{"input": %q}`, strings.Repeat("x", size))
	for range most {
		res := s.request("POST", "/agents/quick/stream", body)
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil {
			s.t.Fatal(err)
		}
		if res.StatusCode != http.StatusAccepted {
			return ids, res.StatusCode, b
		}
		var r run
		if err := json.Unmarshal(b, &r); err != nil {
			s.t.Fatal(err)
		}
		ids = append(ids, r.RunID)
	}
	return ids, 0, nil
}

// storageHealth is the status of the server, and what its check of the storage says.
func (s *listener) storageHealth() (status int, says string) {
	s.t.Helper()
	time.Sleep(health.Interval) // what was found before is not what counts
	var report struct {
		Checks struct {
			Storage struct{ Status, Message string }
		}
	}
	status = s.call("GET", "/health", "", &report)
	return status, report.Checks.Storage.Status + ": " + report.Checks.Storage.Message
}

// wantsDisk checks what a server answers that cannot write: new runs are refused, health fails and says why, what is
// there can be read.
func (s *listener) wantsDisk(status int, refusal []byte, why string, taken []string) {
	s.t.Helper()
	var f struct{ Error, Message, Hint string }
	if err := json.Unmarshal(refusal, &f); err != nil || status != 503 || f.Error != "storage-failed" || f.Hint == "" || !strings.Contains(f.Message, why) {
		s.t.Errorf("a new run = %d %s, want 503 storage-failed with a hint, and %q in its message", status, refusal, why)
	}
	if status, says := s.storageHealth(); status != 503 || !strings.HasPrefix(says, "fail: ") || !strings.Contains(says, why) {
		s.t.Errorf("GET /health = %d, storage %s; want 503 and %q", status, says, why)
	}
	var ready struct {
		Status  string
		Failing []string
	}
	if status := s.call("GET", "/health/ready", "", &ready); status != 503 || ready.Status != "failing" || !slices.Contains(ready.Failing, "storage") {
		s.t.Errorf("GET /health/ready = %d %+v, want 503, because the storage fails", status, ready)
	}
	if status := s.call("GET", "/health/live", "", nil); status != 200 {
		s.t.Errorf("GET /health/live = %d, want 200", status)
	}
	for _, id := range taken {
		if got := s.status(id); got != "running" && got != "completed" {
			s.t.Errorf("run %s is %s, want to read of it", id, got)
		}
	}
	for _, path := range []string{"/runs", "/agents", "/sessions"} {
		if status := s.call("GET", path, "", nil); status != 200 {
			s.t.Errorf("GET %s = %d, want 200", path, status)
		}
	}
}

// wantsAll checks that a server has recovered by itself, and that runs end that were under way.
func (s *listener) wantsAll(ids []string) {
	s.t.Helper()
	for _, id := range ids {
		eventually(s.t, "the end of run "+id, func() bool { return s.status(id) == "completed" })
	}
	if status, says := s.storageHealth(); status != 200 {
		s.t.Errorf("then GET /health = %d, storage %s; want 200", status, says)
	}
}

// TestFullDiskUnderServer fills the disk while a run is under way, and makes room again.
func TestFullDiskUnderServer(t *testing.T) {
	t.Parallel()
	disk := newDisk(t, "3m")
	dir := diskSite(t, disk)
	s := serve(t, dir)
	var held run
	if status := s.call("POST", "/agents/holds/stream", "", &held); status != http.StatusAccepted {
		t.Fatalf("POST holds/stream = %d", status)
	}
	ids, _, _ := s.acknowledge(10, 5)

	empty := occupy(t, disk, 0)
	more, status, refusal := s.acknowledge(1000, 1000)
	ids = append(ids, more...)
	s.wantsDisk(status, refusal, "full", ids)

	// The run that is under way cannot record what its tool said. It waits for room, and so does nobody else.
	write(t, filepath.Join(dir, "go"), "")
	eventually(t, "the run's attempt to record", func() bool { return strings.Contains(s.stderr.String(), held.RunID) })
	s.wantsDisk(status, refusal, "full", append(ids, held.RunID))
	if got := s.status(held.RunID); got != "running" {
		t.Errorf("the run that cannot be recorded is %s, want it running", got)
	}
	empty()
	begun := time.Now()
	eventually(t, "a new run", func() bool {
		again, _, _ := s.acknowledge(10, 1)
		ids = append(ids, again...)
		return len(again) == 1
	})
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("once there is room, a run is taken after %v, want within 5 s", took)
	}
	s.wantsAll(append(ids, held.RunID))
	s.signal(syscall.SIGKILL)
	s.wait()
	s = serve(t, dir)
	s.wantsAll(append(ids, held.RunID))
	s.signal(syscall.SIGTERM)
	s.wait().want(t, 0, "", "")
	t.Logf("%d runs were acknowledged", len(ids))
}

// occupy fills a disk but for so many bytes, until empty is called.
func occupy(t *testing.T, disk string, left int64) (empty func()) {
	t.Helper()
	filler, err := os.Create(filepath.Join(disk, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	for chunk := 64 << 10; chunk > 0; chunk /= 16 {
		for err = nil; err == nil; {
			_, err = filler.Write(make([]byte, chunk))
		}
	}
	size, err := filler.Seek(0, io.SeekCurrent)
	if err == nil {
		err = filler.Truncate(size - left)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := errors.Join(filler.Close(), os.Remove(filler.Name())); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTurnOnFullDisk has the turn of a queued run come, and the time of an approval be over, while the disk is full. Both
// happen once there is room.
func TestTurnOnFullDisk(t *testing.T) {
	t.Parallel()
	disk := newDisk(t, "16m")
	dir := diskSite(t, disk)
	s := serve(t, dir)
	begin := func(agent, body string) string {
		t.Helper()
		var r run
		if status := s.call("POST", "/agents/"+agent+"/stream", body, &r); status != http.StatusAccepted {
			t.Fatalf("POST %s/stream = %d", agent, status)
		}
		return r.RunID
	}
	first := begin("holds", `{"sessionId": "s"}`)
	large := begin("quick", fmt.Sprintf(`{"sessionId": "s", "onBusy": "queue", "input": %q}`, strings.Repeat("x", 2<<20)))
	gated := begin("gated", "")
	eventually(t, "the approval", func() bool { return s.status(gated) == "awaiting_approval" })
	empty := occupy(t, disk, 1<<20) // the end of the first run fits, the beginning of the other does not
	write(t, filepath.Join(dir, "go"), "")
	eventually(t, "the end of the first run", func() bool { return s.status(first) == "completed" })
	eventually(t, "the attempt to begin the other", func() bool { return strings.Contains(s.stderr.String(), large) })
	s.acknowledge(4<<10, 1000) // nothing fits any more
	if got := s.status(gated); got != "awaiting_approval" {
		t.Fatalf("the run that waits is %s before the disk was full", got)
	}
	eventually(t, "the attempt to deny", func() bool {
		s.acknowledge(4<<10, 1000) // what a checkpoint of the log gives back, runs take at once
		return strings.Contains(s.stderr.String(), "a timer could not be handled")
	})
	if got := s.status(large); got != "pending" {
		t.Errorf("the queued run is %s, want it pending", got)
	}
	empty()
	s.wantsAll([]string{large, gated})
}

// TestStopOnFullDisk stops a server that cannot write. It does not wait for room.
func TestStopOnFullDisk(t *testing.T) {
	t.Parallel()
	disk := newDisk(t, "3m")
	dir := diskSite(t, disk)
	s := serve(t, dir)
	var held run
	s.call("POST", "/agents/holds/stream", "", &held)
	ids, status, _ := s.acknowledge(100_000, 1000)
	if status != 503 {
		t.Fatalf("on a disk of 3 MiB %d runs of 100 kB were taken", len(ids))
	}
	s.acknowledge(4<<10, 1000) // the end of a run does not fit either
	write(t, filepath.Join(dir, "go"), "")
	eventually(t, "the run's attempt to record", func() bool { return strings.Contains(s.stderr.String(), held.RunID) })
	begun := time.Now()
	s.signal(syscall.SIGTERM)
	s.wait()
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("the server ended %v after SIGTERM, want it soon", took)
	}
	if err := syscall.Mount("tmpfs", disk, "tmpfs", syscall.MS_REMOUNT, "size=30m"); err != nil {
		t.Fatal(err)
	}
	s = serve(t, dir)
	s.wantsAll(append(ids, held.RunID))
}

// TestReadOnlyDisk starts the program on a disk that cannot be written.
func TestReadOnlyDisk(t *testing.T) {
	t.Parallel()
	disk := newDisk(t, "10m")
	dir := diskSite(t, disk)
	writable := func(yes bool) {
		t.Helper()
		flags := uintptr(syscall.MS_REMOUNT | syscall.MS_RDONLY)
		if yes {
			flags = syscall.MS_REMOUNT
		}
		if err := syscall.Mount("tmpfs", disk, "tmpfs", flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	refuses := func(what string, args ...string) {
		t.Helper()
		got := spawn(t, dir, nil, nil, args...).wait().want(t, 1, "", "agentd: store-unusable: ")
		if !strings.Contains(got.stderr, "read-only file system") || !strings.Contains(got.stderr, "hint: Check the path and its permissions") {
			t.Errorf("%s: stderr %s, want it to say what is wrong and what to do", what, got.stderr)
		}
	}
	writable(false)
	refuses("a new folder", "start", "--port", "0")
	writable(true)
	s := serve(t, dir)
	ids, _, _ := s.acknowledge(10, 3)
	s.wantsAll(ids)
	s.signal(syscall.SIGTERM)
	s.wait().want(t, 0, "", "")
	writable(false)
	refuses("a folder with data", "start", "--port", "0")
	refuses("a command that writes", "run", "quick", "x")
	writable(true)
	serve(t, dir).wantsAll(ids)
}

// TestWritesFailUnderServer makes every write of the server fail as on a disk that has turned read-only. (The kernel
// does not let one turn so in good order while files on it are open for writing.)
func TestWritesFailUnderServer(t *testing.T) {
	t.Parallel()
	tracer, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("SKIP: strace is not installed")
	}
	dir := diskSite(t, t.TempDir())
	s := serve(t, dir)
	ids, _, _ := s.acknowledge(10, 3)
	s.wantsAll(ids)

	trace := exec.Command(tracer, "-qq", "-f", "-e", "trace=pwrite64", "-e", "inject=pwrite64,fsync,fdatasync,ftruncate:error=EROFS", "-o", os.DevNull,
		"-p", fmt.Sprint(s.cmd.Process.Pid))
	var says buffer
	trace.Stderr = &says
	if err := trace.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() { trace.Wait(); close(gone) }()
	detach := func() {
		trace.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it may have gone
		<-gone
	}
	defer detach()
	var status int
	var refusal []byte
	eventually(t, "a failing write", func() bool {
		select {
		case <-gone:
			t.Skipf("SKIP: strace may not trace here: %s", says.String())
		default:
		}
		more, st, body := s.acknowledge(10, 1)
		ids, status, refusal = append(ids, more...), st, body
		return st != 0
	})
	s.wantsDisk(status, refusal, "The store could not write", ids)
	detach()
	eventually(t, "a new run", func() bool {
		again, _, _ := s.acknowledge(10, 1)
		ids = append(ids, again...)
		return len(again) == 1
	})
	s.wantsAll(ids)
	s.signal(syscall.SIGKILL)
	s.wait()
	serve(t, dir).wantsAll(ids)
}

// A start on a full disk says so, and what to do.
func TestStartOnAFullDisk(t *testing.T) {
	t.Parallel()
	disk := newDisk(t, "1m")
	dir := diskSite(t, disk)
	if f, err := os.Create(filepath.Join(disk, "fill")); err != nil {
		t.Fatal(err)
	} else if _, err := f.Write(make([]byte, 2<<20)); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	} else {
		f.Close()
	}
	s := spawn(t, dir, nil, nil, "start", "--port", "0").wait()
	if s.code != 1 || !strings.Contains(s.stderr, "store-unusable") || !strings.Contains(s.stderr, "Make room") {
		t.Errorf("start on a full disk: code %d, %s; want store-unusable with what to do", s.code, s.stderr)
	}
}
