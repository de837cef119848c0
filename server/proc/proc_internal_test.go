package proc

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestPidsFiles(t *testing.T) {
	for _, tc := range []struct{ groups, want string }{
		{"", ""},
		{"0::/\n", "/sys/fs/cgroup/pids.max"},
		{"0::/system.slice/agentd.service\n", "/sys/fs/cgroup/system.slice/agentd.service/pids.max /sys/fs/cgroup/system.slice/pids.max /sys/fs/cgroup/pids.max"},
		{"9:name=systemd:/\n8:cpu,pids:/docker/a:b\n1:cpu:/x\n0::/../up\n", "/sys/fs/cgroup/pids/docker/a:b/pids.max /sys/fs/cgroup/pids/docker/pids.max " +
			"/sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/up/pids.max /sys/fs/cgroup/pids.max"},
		{"nonsense\n:\n0:\n", ""},
	} {
		if got := pidsFiles(tc.groups); strings.Join(got, " ") != tc.want {
			t.Errorf("pidsFiles(%q) = %q, want %q", tc.groups, got, tc.want)
		}
	}
}

func FuzzPidsFiles(f *testing.F) {
	f.Add("8:pids:/a\n0::/../b/./c\n")
	f.Fuzz(func(t *testing.T, groups string) {
		for _, file := range pidsFiles(groups) {
			if !strings.HasPrefix(file, "/sys/fs/cgroup/") || !strings.HasSuffix(file, "/pids.max") || strings.Contains(file, "/../") {
				t.Errorf("pidsFiles(%q) has %q", groups, file)
			}
		}
	})
}

// What stands in for sealed memory on systems that have none.
func TestUnlinkedFile(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	f, err := unlinkedFile([]byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := io.ReadAll(f); string(got) != "hello" || err != nil {
		t.Errorf("ReadAll = %q, %v, want hello", got, err)
	}
	if left, err := os.ReadDir(dir); len(left) > 0 || err != nil {
		t.Errorf("the folder has %v, %v, want nothing", left, err)
	}
	t.Setenv("TMPDIR", filepath.Join(dir, "none"))
	if _, err := unlinkedFile(nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("unlinkedFile without a folder = %v, want %v", err, fs.ErrNotExist)
	}
}

func TestFreeTasks(t *testing.T) {
	if n := tasksOf(os.Getuid()); runtime.GOOS == "linux" && n < 2 {
		t.Errorf("tasksOf(%d) = %d, want this process's threads at least", os.Getuid(), n)
	}
	if n := FreeTasks(); n < 1 {
		t.Errorf("FreeTasks() = %d", n)
	}
}

// AgeWarden makes the warden look older.
func AgeWarden(by time.Duration) {
	warden.mu.Lock()
	defer warden.mu.Unlock()
	warden.started = warden.started.Add(-by)
}

func TestWatch(t *testing.T) {
	var ended []int
	watch(strings.NewReader("+100\n+200\n-100\n+300\n+300\n\n+\n+x\n+1\n+0\n+-5\n++400\n-\n+4294967297\n+50"), func(group int) { ended = append(ended, group) })
	slices.Sort(ended)
	if want := []int{50, 200, 300}; !slices.Equal(ended, want) {
		t.Errorf("watch ended %v, want %v", ended, want)
	}
}
