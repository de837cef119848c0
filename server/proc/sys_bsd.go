//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package proc

import (
	"math"
	"os"
	"syscall"
)

func attributes(pidfd *int) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func wardenAttributes(*int) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// userLimit is RLIMIT_NPROC, for which package syscall has no number here.
func userLimit() int { return math.MaxInt32 }

// memoryFile is for systems that have sealed files in memory.
func memoryFile([]byte) (*os.File, error) { return nil, syscall.ENOSYS }

func growPipe(*os.File, int) {}

// closeInherited makes programs not inherit what this process has open.
func closeInherited() { closeListed("/dev/fd") }

// awaitExit blocks until the process has exited and leaves it to be reaped: kqueue(2) with NOTE_EXIT. Registering for
// a process that has exited already fails, and awaitExit returns then, too.
func awaitExit(pid, _ int) {
	queue, err := syscall.Kqueue()
	if err != nil {
		return
	}
	defer syscall.Close(queue)
	var event [1]syscall.Kevent_t
	syscall.SetKevent(&event[0], pid, syscall.EVFILT_PROC, syscall.EV_ADD|syscall.EV_ONESHOT)
	event[0].Fflags = syscall.NOTE_EXIT
	for {
		n, err := syscall.Kevent(queue, event[:], event[:], nil)
		if n > 0 || err != syscall.EINTR {
			return
		}
	}
}

// Harden is for systems that let other programs of a user read the memory of this one. The others need nothing.
func Harden() error { return nil }

func self() string {
	path, _ := os.Executable()
	return path
}
