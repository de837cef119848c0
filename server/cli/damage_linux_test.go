package cli_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"agentd/store/storetest"
)

// TestDamagedDatabase cuts the database of a running server. The server lives, says what is wrong and fails its health
// check; so do the commands that look for damage.
func TestDamagedDatabase(t *testing.T) {
	t.Parallel()
	disk := t.TempDir()
	dir, data := diskSite(t, disk), filepath.Join(disk, "data.db")
	s := serve(t, dir)
	ids, _, _ := s.acknowledge(20_000, 100)
	s.signal(syscall.SIGTERM)
	s.wait().want(t, 0, "", "")
	spawn(t, dir, nil, nil, "storage", "verify").wait().want(t, 0, data+" is undamaged.", "")
	spawn(t, dir, nil, nil, "doctor").wait().want(t, 0, data+" is undamaged.", "")

	s = serve(t, dir)
	if err := os.Truncate(data, 32<<10); err != nil {
		t.Fatal(err)
	}
	corrupt := 0
	for _, id := range ids {
		var refusal struct{ Error, Hint string }
		if status := s.call("GET", "/runs/"+id+"/state", "", &refusal); status == 500 && refusal.Error == "storage-corrupt" && strings.Contains(refusal.Hint, "agentd storage verify") {
			corrupt++
		}
	}
	if corrupt == 0 {
		t.Error("no read of a run in what was cut off answers storage-corrupt")
	}
	if status, says := s.storageHealth(); status != 503 || !strings.HasPrefix(says, "fail: ") {
		t.Errorf("health after corrupt reads = %d %s, want 503 and fail", status, says)
	}
	spawn(t, dir, nil, nil, "storage", "verify").wait().want(t, 1, "", "restore the backup")
	spawn(t, dir, nil, nil, "doctor").wait().want(t, 1, "is damaged", "")
	s.signal(syscall.SIGKILL)
	s.wait()
}

// TestEmptiedDatabase takes away the database of a server that was killed, and leaves its log.
func TestEmptiedDatabase(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(string) error{"empty": func(p string) error { return os.Truncate(p, 0) }, "missing": os.Remove} {
		disk := t.TempDir()
		dir, data := diskSite(t, disk), filepath.Join(disk, "data.db")
		s := serve(t, dir)
		s.acknowledge(1, 1)
		s.signal(syscall.SIGKILL)
		s.wait()
		log := read(t, data+"-wal")
		if err := spoil(data); err != nil {
			t.Fatal(err)
		}
		spawn(t, dir, nil, nil, "start", "--port", "0").wait().want(t, 1, "", "agentd: storage-corrupt: The database "+data+" is missing or empty")
		if read(t, data+"-wal") != log {
			t.Errorf("a start changes the log of a database that is %s", name)
		}
	}
}

// TestPlantedSchema has somebody add a trigger to the database of a server.
func TestPlantedSchema(t *testing.T) {
	t.Parallel()
	disk := t.TempDir()
	dir, data := diskSite(t, disk), filepath.Join(disk, "data.db")
	s := serve(t, dir)
	s.acknowledge(1, 1)
	storetest.Another(t, data)("CREATE TRIGGER planted BEFORE INSERT ON run_events BEGIN SELECT raise(IGNORE); END")
	if ids, _, _ := s.acknowledge(1, 1); len(ids) != 0 {
		t.Error("a run whose events a trigger swallows is acknowledged")
	}
	if status, says := s.storageHealth(); status != 503 {
		t.Errorf("health beside a planted trigger = %d %s, want 503", status, says)
	}
	spawn(t, dir, nil, nil, "storage", "verify").wait().want(t, 1, "", "schema-changed")
	s.signal(syscall.SIGKILL)
	s.wait()
	spawn(t, dir, nil, nil, "start", "--port", "0").wait().want(t, 1, "", "agentd: schema-changed: The schema of data.db differs from the one that this version creates: the trigger planted")
}

// TestReadsFailUnderServer makes the reads of the server fail as on a medium with a bad block. The server lives and says so.
func TestReadsFailUnderServer(t *testing.T) {
	t.Parallel()
	tracer, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("SKIP: strace is not installed")
	}
	dir := diskSite(t, t.TempDir())
	s := serve(t, dir)
	ids, _, _ := s.acknowledge(20_000, 60)
	s.signal(syscall.SIGTERM)
	s.wait().want(t, 0, "", "")
	s = serve(t, dir)
	trace := exec.Command(tracer, "-qq", "-f", "-e", "trace=pread64", "-e", "inject=pread64:error=EIO", "-o", os.DevNull, "-p", fmt.Sprint(s.cmd.Process.Pid))
	if err := trace.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		trace.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it may have gone
		trace.Wait()                          //nolint:errcheck // it was ended
	}()
	eventually(t, "a read that fails", func() bool {
		for _, id := range ids {
			var refusal struct{ Error string }
			if status := s.call("GET", "/runs/"+id+"/state", "", &refusal); status == 500 && refusal.Error == "storage-corrupt" {
				return true
			}
		}
		return trace.ProcessState != nil
	})
	if status, says := s.storageHealth(); status != 503 {
		t.Errorf("health after a read that failed = %d %s, want 503", status, says)
	}
}
