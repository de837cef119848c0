package proc

import (
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// FreeTasks is how many more tasks (processes and threads) the system allows this process and what it starts, or a large
// number.
func FreeTasks() int {
	limit := userLimit()
	if limit < manyTasks {
		limit -= tasksOf(os.Getuid())
	}
	groups, _ := os.ReadFile("/proc/self/cgroup")
	for _, file := range pidsFiles(string(groups)) {
		if n, ok := number(file); ok {
			used, _ := number(strings.TrimSuffix(file, "max") + "current")
			limit = min(limit, n-used)
		}
	}
	return limit
}

// manyTasks is a limit so high that it does not matter how many tasks are used already.
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

// tasksOf is how many tasks a user has, as far as /proc shows them.
func tasksOf(uid int) (n int) {
	tasks, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*")
	for _, task := range tasks {
		if info, err := os.Stat(task); err == nil && int(info.Sys().(*syscall.Stat_t).Uid) == uid {
			n++
		}
	}
	return n
}

// pidsFiles are the files that may limit a process whose /proc/PID/cgroup is given: pids.max of its control group and of
// those above it, where systems commonly mount them. In a container, the named group may not be visible; those above it are the
// container's.
func pidsFiles(groups string) (files []string) {
	for line := range strings.Lines(groups) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) < 3 || parts[1] != "" && !slices.Contains(strings.Split(parts[1], ","), "pids") {
			continue
		}
		root := "/sys/fs/cgroup"
		if parts[1] != "" { // cgroups version 1
			root += "/pids"
		}
		for dir := path.Clean("/" + parts[2]); ; dir = path.Dir(dir) {
			files = append(files, path.Join(root, dir, "pids.max"))
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
