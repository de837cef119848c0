package cli_test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestOneServerForEachFile names the database of a running server in other ways. A second server must not start, by
// whatever name it finds the file.
func TestOneServerForEachFile(t *testing.T) {
	t.Parallel()
	disk := t.TempDir()
	data := filepath.Join(disk, "data.db")
	s := serve(t, diskSite(t, disk))
	other := t.TempDir()
	soft, folder, hard, bound := filepath.Join(other, "soft.db"), filepath.Join(other, "folder"), filepath.Join(other, "hard.db"), filepath.Join(other, "bound.db")
	write(t, bound, "")
	for _, err := range []error{os.Symlink(data, soft), os.Symlink(disk, folder), os.Link(data, hard)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	names := map[string]string{"symlink": soft, "linked folder": filepath.Join(folder, "data.db"), "hard link": hard, "descriptor": "/proc/self/fd/9"}
	if err := syscall.Mount(data, bound, "", syscall.MS_BIND, ""); err == nil {
		names["bind mount"] = bound
		t.Cleanup(func() { syscall.Unmount(bound, syscall.MNT_DETACH) })
	}
	second := func(t *testing.T, path string) said {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "agentd.json"), fmt.Sprintf(diskConfig, path))
		write(t, filepath.Join(dir, "script.json"), diskScript)
		p := command(t, dir)
		p.cmd.Path, p.cmd.Args = "/bin/sh", []string{"sh", "-c", `exec 9<"$1"; shift; exec "$@"`, "sh", data, binary, "start", "--port", "0"}
		return p.start().wait()
	}
	for name, path := range names {
		t.Run(name, func(t *testing.T) {
			second(t, path).want(t, 1, "", "agentd: store-locked: ").want(t, 1, "", " holds the database")
		})
	}
	if _, err := os.Stat(hard + "-wal"); err == nil {
		t.Error("a second log was made beside the hard link")
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "agentd.json"), fmt.Sprintf(diskConfig, soft))
	write(t, filepath.Join(dir, "script.json"), diskScript)
	ids, _, _ := s.acknowledge(1, 1)
	spawn(t, dir, nil, nil, "runs", "list").wait().want(t, 0, ids[0], "")

	s.signal(syscall.SIGTERM)
	s.wait().want(t, 0, "", "")
	second(t, hard).want(t, 1, "", "hard.db has 2 names")
	if err := os.Remove(hard); err != nil {
		t.Fatal(err)
	}
	again := serve(t, dir) // through the symbolic link
	if status := again.status(ids[0]); status == "" {
		t.Errorf("the run %s is not in the database that the symbolic link names", ids[0])
	}
}
