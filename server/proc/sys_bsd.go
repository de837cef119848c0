//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package proc

import "syscall"

func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// awaitExit blocks until the process has exited and leaves it to be reaped: kqueue(2) with NOTE_EXIT. Registering for
// a process that has exited already fails, which is as good.
func awaitExit(pid int) {
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
