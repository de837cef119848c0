package proc

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// wardenName is what the program is called when it runs as the warden: its first argument, which only whoever starts it
// chooses.
const wardenName = "agentd-warden"

// A process that is called so is the warden of the one that started it, whichever program that is: it gets to nothing
// else.
func init() {
	if len(os.Args) > 0 && os.Args[0] == wardenName {
		signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM) // they are for the other process
		os.WriteFile("/proc/self/comm", []byte(wardenName), 0)                          // what ps and top call it, where there is such a file
		watch(os.Stdin, func(group int) { syscall.Kill(-group, syscall.SIGKILL) })
		os.Exit(0)
	}
}

// watch reads which process groups exist until it is told no more, which is when the process that tells has ended, and
// ends those that are left. A line is +123 for a group that began, and -123 for one that is about to end.
func watch(told io.Reader, end func(group int)) {
	groups := map[int]bool{}
	for lines := bufio.NewScanner(told); lines.Scan(); {
		number, begins := strings.CutPrefix(lines.Text(), "+")
		group, err := strconv.Atoi(number)
		switch {
		case err != nil:
		case begins && group > 1:
			groups[group] = true
		case group < 0:
			delete(groups, -group)
		}
	}
	for group := range groups {
		end(group)
	}
}

// wardenPatience is how long the warden may take to read a line when very many wait in its pipe.
const wardenPatience = 100 * time.Millisecond

// The warden of this process: one further process, which ends the programs' groups when this one has been killed. The
// system does that for the programs themselves only, and not on every system.
var warden struct {
	mu     sync.Mutex // guards the fields
	groups map[int]bool
	pipe   *os.File // what it reads; nil: there is none
	cmd    *exec.Cmd
}

// station starts a warden where there is none, before a program needs it. Programs run without one where it cannot be
// started.
func station() {
	w := &warden
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pipe != nil {
		return
	}
	path, err := self()
	if err != nil {
		return
	}
	r, pipe, err := os.Pipe()
	if err != nil {
		return
	}
	defer r.Close()
	pidfd := -1
	cmd := exec.Command(path)
	cmd.Args = []string{wardenName}
	cmd.Dir = "/"
	cmd.Env = []string{"GOMAXPROCS=1"}
	cmd.Stdin = r
	cmd.SysProcAttr = wardenAttributes(&pidfd)
	if cmd.Start() != nil {
		pipe.Close()
		return
	}
	w.pipe, w.cmd = pipe, cmd
	for group := range w.groups {
		tellWarden('+', group)
	}
	go mindWarden(cmd, pidfd)
}

// mindWarden puts another warden in the place of one that has ended. One that ends at once is left until a program starts.
func mindWarden(cmd *exec.Cmd, pidfd int) {
	start := time.Now()
	awaitExit(cmd.Process.Pid, pidfd)
	w := &warden
	w.mu.Lock()
	cmd.Wait()
	w.pipe.Close()
	w.pipe = nil
	w.mu.Unlock()
	if time.Since(start) > time.Second {
		station()
	}
}

// guard tells the warden of a group.
func guard(group int) {
	w := &warden
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.groups == nil {
		w.groups = map[int]bool{}
	}
	w.groups[group] = true
	tellWarden('+', group)
}

// unguard tells the warden that a group ends. The group must not be reaped yet: afterwards its number may be another's.
func unguard(group int) {
	w := &warden
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.groups, group)
	tellWarden('-', group)
}

// tellWarden ends a warden that does not read; the next one is told of all groups. The lock is held.
func tellWarden(sign rune, group int) {
	w := &warden
	if w.pipe == nil {
		return
	}
	w.pipe.SetWriteDeadline(time.Now().Add(wardenPatience))
	if _, err := fmt.Fprintf(w.pipe, "%c%d\n", sign, group); err != nil {
		w.cmd.Process.Kill()
	}
}
