//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package cli

import (
	"syscall"
	"unsafe"
)

// discardInput drops what was typed and is not read yet, half a line included: tty(4), TIOCFLUSH with FREAD.
func discardInput(fd uintptr) error {
	what := int32(1)
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCFLUSH, uintptr(unsafe.Pointer(&what))); errno != 0 {
		return errno
	}
	return nil
}

func selectReading(n int, set *syscall.FdSet, patience *syscall.Timeval) error {
	return syscall.Select(n, set, nil, nil, patience)
}
