package proc

import (
	"math"
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

// Numbers that package syscall has not for every architecture.
const (
	byPID       = 1    // P_PID of <sys/wait.h>
	byPidfd     = 3    // P_PIDFD
	resTasks    = 6    // RLIMIT_NPROC, but for MIPS and SPARC
	setDumpable = 4    // PR_SET_DUMPABLE
	setPipeSize = 1031 // F_SETPIPE_SZ
	addSeals    = 1033 // F_ADD_SEALS
	allSeals    = 0xf  // F_SEAL_SEAL, _SHRINK, _GROW and _WRITE
	closeRange  = 436  // SYS_CLOSE_RANGE
	rangeOnExec = 4    // CLOSE_RANGE_CLOEXEC
	maxPipe     = 1 << 20
)

// memfdCreate is SYS_MEMFD_CREATE.
var memfdCreate = map[string]uintptr{"amd64": 319, "386": 356, "arm64": 279, "arm": 385, "riscv64": 279, "loong64": 279, "ppc64le": 360, "s390x": 350}[runtime.GOARCH]

func attributes(pidfd *int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, PidFD: pidfd}
}

// wardenAttributes are those of a process that survives this one, and that signals of a terminal do not reach.
func wardenAttributes(pidfd *int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, PidFD: pidfd}
}

// awaitExit returns when the process has exited, and leaves it to be reaped. It closes pidfd, which is negative where
// the system has none. A pidfd is readable when its process has exited, so the wait takes no thread; without one it does.
func awaitExit(pid, pidfd int) {
	if pidfd >= 0 {
		syscall.SetNonblock(pidfd, true)
		f := os.NewFile(uintptr(pidfd), "pidfd")
		defer f.Close()
		if raw, err := f.SyscallConn(); err == nil {
			var failed error
			wait := func(fd uintptr) (exited bool) {
				exited, failed = waited(byPidfd, fd, syscall.WNOHANG)
				return exited || failed != nil
			}
			if raw.Read(wait) == nil && failed == nil {
				return
			}
		}
	}
	waited(byPID, uintptr(pid), 0)
}

// waited reports whether the process has exited: waitid(2) with WNOWAIT.
func waited(by int, id uintptr, options int) (bool, error) {
	for {
		var info [128]byte // a siginfo_t; all zero when no process has exited
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, uintptr(by), id, uintptr(unsafe.Pointer(&info)),
			uintptr(syscall.WEXITED|syscall.WNOWAIT|options), 0, 0)
		switch errno {
		case 0:
			return info != [128]byte{}, nil
		case syscall.EINTR:
		default:
			return false, errno
		}
	}
}

// userLimit is RLIMIT_NPROC, which does not bind root.
func userLimit() int {
	var l syscall.Rlimit
	if os.Getuid() == 0 || syscall.Getrlimit(resTasks, &l) != nil {
		return math.MaxInt32
	}
	return int(min(l.Cur, math.MaxInt32))
}

// memoryFile makes a file in memory that no process can change: memfd_create(2).
func memoryFile(content []byte) (*os.File, error) {
	name, err := syscall.BytePtrFromString("stdin")
	if err != nil || memfdCreate == 0 {
		return nil, syscall.ENOSYS
	}
	const onExecSealing, noExec = 1 | 2, 8 // MFD_CLOEXEC|MFD_ALLOW_SEALING, MFD_NOEXEC_SEAL
	fd, _, errno := syscall.Syscall(memfdCreate, uintptr(unsafe.Pointer(name)), onExecSealing|noExec, 0)
	if errno == syscall.EINVAL { // before Linux 6.3
		fd, _, errno = syscall.Syscall(memfdCreate, uintptr(unsafe.Pointer(name)), onExecSealing, 0)
	}
	if errno != 0 {
		return nil, errno
	}
	f := os.NewFile(fd, "stdin")
	if _, err = f.WriteAt(content, 0); err == nil {
		if _, _, errno = syscall.Syscall(syscall.SYS_FCNTL, fd, addSeals, allSeals); errno != 0 {
			err = errno
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// growPipe makes the pipe hold size bytes, as far as the system lets it.
func growPipe(f *os.File, size int) {
	if raw, err := f.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) {
			syscall.Syscall(syscall.SYS_FCNTL, fd, setPipeSize, uintptr(min(size, maxPipe)))
		})
	}
}

// closeInherited makes programs not inherit what this process has open: close_range(2), before Linux 5.11 one by one.
func closeInherited() {
	if _, _, errno := syscall.RawSyscall(closeRange, 3, math.MaxUint32, rangeOnExec); errno != 0 {
		closeListed("/proc/self/fd")
	}
}

// Harden keeps other programs of the same user from reading the memory and the environment of this process, and from
// attaching to it. It also takes away core dumps, and the use of debuggers except by root.
func Harden() error {
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, setDumpable, 0, 0, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// self is the program that runs, also when its file has been replaced; empty if the system does not show it.
func self() string {
	const link = "/proc/self/exe"
	if _, err := os.Stat(link); err == nil {
		return link
	}
	path, _ := os.Executable()
	return path
}
