package cli

import "syscall"

// discardInput drops what was typed and is not read yet, half a line included: tcflush(3) with TCIFLUSH.
func discardInput(fd uintptr) error {
	const flush = 0x540B // TCFLSH, which package syscall does not name everywhere
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, flush, syscall.TCIFLUSH); errno != 0 {
		return errno
	}
	return nil
}

func selectReading(n int, set *syscall.FdSet, patience *syscall.Timeval) error {
	_, err := syscall.Select(n, set, nil, nil, patience)
	return err
}
