package proc

import (
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// taskLimit is how many tasks (processes and threads) the system lets this process and what it starts have, or a
// large number. What others of the same user or group have already is not taken off.
func taskLimit() int {
	limit := math.MaxInt32
	if n, ok := userTasks(); ok {
		limit = min(limit, n)
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return limit
	}
	for _, file := range pidsFiles(string(groups)) {
		if b, err := os.ReadFile(file); err == nil {
			if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil { // else it is "max"
				limit = min(limit, n)
			}
		}
	}
	return limit
}

// pidsFiles are the files that may limit a process whose /proc/PID/cgroup is given: pids.max of its control group and of
// those above, where systems commonly mount them. In a container, a group that is named there may not be visible; those
// above it then are the container's.
func pidsFiles(groups string) (files []string) {
	const root = "/sys/fs/cgroup"
	for line := range strings.Lines(groups) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) < 3 {
			continue
		}
		base := ""
		switch {
		case parts[1] == "":
			base = root
		case slices.Contains(strings.Split(parts[1], ","), "pids"):
			base = root + "/pids"
		default:
			continue
		}
		for dir := path.Clean("/" + parts[2]); ; dir = path.Dir(dir) {
			files = append(files, path.Join(base, dir, "pids.max"))
			if dir == "/" {
				break
			}
		}
	}
	return files
}

// fileLimit is how many files this process may have open.
func fileLimit() int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 1024
	}
	return int(min(uint64(l.Cur), math.MaxInt32))
}
