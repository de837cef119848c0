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

// FreeTasks is how many further tasks (processes and threads) the system lets this process and what it starts have now, or
// a large number.
func FreeTasks() int {
	limit := math.MaxInt32
	if n, ok := userLimit(); ok {
		limit = n
		if n < manyTasks {
			limit -= tasksOf(os.Getuid())
		}
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return limit
	}
	for _, file := range pidsFiles(string(groups)) {
		if n, ok := number(file); ok {
			used, _ := number(strings.TrimSuffix(file, "max") + "current")
			limit = min(limit, n-used)
		}
	}
	return limit
}

// manyTasks is a limit of so many that it does not matter how many of them are used already.
const manyTasks = 16 << 10

// number reads a file that holds a number, or a word such as max.
func number(file string) (int, bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	return n, err == nil
}

// tasksOf is how many tasks a user has, as far as that can be seen.
func tasksOf(uid int) (n int) {
	list, _ := os.ReadDir("/proc")
	for _, entry := range list {
		if _, err := strconv.Atoi(entry.Name()); err != nil {
			continue
		}
		info, err := entry.Info()
		if err != nil {
			continue
		}
		if status, ok := info.Sys().(*syscall.Stat_t); ok && int(status.Uid) == uid {
			tasks, _ := os.ReadDir("/proc/" + entry.Name() + "/task")
			n += len(tasks)
		}
	}
	return n
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
