package proc

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// wardenName is the first argument of the warden, by which this program knows that it is one.
const wardenName = "agentd-warden"

// Every program that contains this package can be the warden of the process that started it. It then does nothing else.
func init() {
	if len(os.Args) > 0 && os.Args[0] == wardenName {
		signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM) // they are for the other process
		os.WriteFile("/proc/self/comm", []byte(wardenName), 0)                          // the name in ps and top, where there is such a file
		watch(os.Stdin, func(group int) { syscall.Kill(-group, syscall.SIGKILL) })
		os.Exit(0)
	}
}

// watch reads which process groups exist until the other process has ended, and then ends those that are left. A line is
// +123 for a group that began, and -123 for one that is about to end.
func watch(lines io.Reader, end func(group int)) {
	groups := map[int]bool{}
	for in := bufio.NewScanner(lines); in.Scan(); {
		switch group, err := strconv.ParseInt(in.Text(), 10, 32); {
		case err != nil:
		case group > 1:
			groups[int(group)] = true
		case group < 0:
			delete(groups, -int(group))
		}
	}
	for group := range groups {
		end(group)
	}
}

// wardenPatience is how long the warden may take to read a line when its pipe is full.
const wardenPatience = 100 * time.Millisecond

// The warden of this process: a second process, which ends the programs' groups when this one has been killed. The system
// ends only the programs themselves then, and not every system does.
var warden struct {
	mu      sync.Mutex   // guards the fields
	groups  map[int]bool // of all programs that run
	pipe    *os.File     // what it reads; nil: there is none
	cmd     *exec.Cmd
	started time.Time
}

// station starts a warden where there is none. Where that fails, programs run without one.
func station() {
	w := &warden
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pipe != nil {
		return
	}
	r, pipe, err := os.Pipe()
	if err != nil {
		return
	}
	defer r.Close()
	pidfd := -1
	cmd := &exec.Cmd{Path: self(), Args: []string{wardenName}, Dir: "/", Env: []string{"GOMAXPROCS=1"}, Stdin: r, SysProcAttr: wardenAttributes(&pidfd)}
	if cmd.Start() != nil {
		pipe.Close()
		return
	}
	w.pipe, w.cmd, w.started = pipe, cmd, time.Now()
	for group := range w.groups {
		writeWarden(group)
	}
	go replaceWarden(cmd, pidfd)
}

// replaceWarden waits until a warden ends and starts another one. After one that lived for less than a second, the next comes
// with the next program.
func replaceWarden(cmd *exec.Cmd, pidfd int) {
	awaitExit(cmd.Process.Pid, pidfd)
	w := &warden
	w.mu.Lock()
	cmd.Wait()
	w.pipe.Close()
	w.pipe = nil
	lived := time.Since(w.started)
	w.mu.Unlock()
	if lived > time.Second {
		station()
	}
}

// guard reports to the warden that a group has begun or, as a negative number, that it is about to end. A group that ends must
// not be reaped yet: afterwards its number may be another's.
func guard(group int) {
	w := &warden
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.groups == nil {
		w.groups = map[int]bool{}
	}
	if group > 0 {
		w.groups[group] = true
	} else {
		delete(w.groups, -group)
	}
	writeWarden(group)
}

// writeWarden writes a line to the warden, and ends a warden that does not read it. The next one gets all groups. The caller
// holds the lock.
func writeWarden(group int) {
	w := &warden
	if w.pipe == nil {
		return
	}
	w.pipe.SetWriteDeadline(time.Now().Add(wardenPatience))
	if _, err := fmt.Fprintf(w.pipe, "%+d\n", group); err != nil {
		w.cmd.Process.Kill()
	}
}
