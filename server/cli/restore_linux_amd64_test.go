package cli_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"agentd/server/backup"
	"agentd/store"
)

// killAt runs the program in a folder and kills it before one of its system calls that give a file another name or remove one: the
// n-th, from 0, after counts has become true. It reports whether the program ended by itself.
func killAt(t *testing.T, dir string, n int, counts func() bool, args ...string) (ended bool) {
	t.Helper()
	runtime.LockOSThread() // who traces is a thread
	defer runtime.UnlockOSThread()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	pid, err := syscall.ForkExec(binary, append([]string{binary}, args...), &syscall.ProcAttr{Dir: dir, Env: []string{master},
		Files: []uintptr{null.Fd(), null.Fd(), null.Fd()}, Sys: &syscall.SysProcAttr{Ptrace: true}})
	if err != nil {
		t.Fatal(err)
	}
	const (
		ofThisThread = syscall.WALL | syscall.WNOTHREAD
		exitKill     = 1 << 20 // PTRACE_O_EXITKILL
		inCall       = syscall.SIGTRAP | 0x80
		entered      = ^uint64(37) // rax at the entry of a call: -ENOSYS
	)
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, ofThisThread, nil); err != nil {
		t.Fatal(err)
	}
	if err := syscall.PtraceSetOptions(pid, syscall.PTRACE_O_TRACECLONE|syscall.PTRACE_O_TRACESYSGOOD|exitKill); err != nil {
		t.Fatal(err)
	}
	for thread := pid; ; {
		signal := 0
		switch {
		case !status.Stopped():
		case status.StopSignal() == inCall:
			var regs syscall.PtraceRegs
			if syscall.PtraceGetRegs(thread, &regs) != nil || regs.Rax != entered {
				break
			}
			switch regs.Orig_rax {
			case syscall.SYS_RENAME, syscall.SYS_RENAMEAT, 316, syscall.SYS_UNLINK, syscall.SYS_UNLINKAT:
				if counts() {
					n--
				}
				if n < 0 {
					syscall.Kill(pid, syscall.SIGKILL) //nolint:errcheck // it is there
				}
			}
		case status.StopSignal() != syscall.SIGTRAP && status.StopSignal() != syscall.SIGSTOP:
			signal = int(status.StopSignal())
		}
		if status.Stopped() {
			syscall.PtraceSyscall(thread, signal) //nolint:errcheck // it may have ended
		}
		if thread, err = syscall.Wait4(-1, &status, ofThisThread, nil); err != nil {
			t.Fatal(err)
		}
		if thread == pid && (status.Exited() || status.Signaled()) {
			if status.Exited() && status.ExitStatus() != 0 {
				t.Errorf("%v = %d", args, status.ExitStatus())
			}
			return status.Exited()
		}
	}
}

// TestKillRestore kills a restore before it begins to exchange the files, and before each change of a name in the exchange. Until the
// journal is there, nothing has changed. From then on the server does not start, and the same command finishes. The result is whole
// each time, and the old files are kept.
func TestKillRestore(t *testing.T) {
	t.Parallel()
	from := audited(t)
	in := func(dir string, args ...string) said {
		t.Helper()
		return spawn(t, dir, nil, []string{master}, args...).wait()
	}
	runs := func(dir string, want int) {
		t.Helper()
		if list := in(dir, "runs", "list").want(t, 0, "shout", "").stdout; strings.Count(list, "shout") != want {
			t.Errorf("there are not %d runs, but\n%s", want, list)
		}
	}
	in(from, "secrets", "set", "api", "--value", "before").want(t, 0, "", "")
	s := serve(t, from)
	s.token = token(t, from)
	s.call("POST", "/agents/shout/run", `{"input": "before"}`, nil)
	in(from, "storage", "backup", "a.tar").want(t, 0, "Wrote", "")
	s.call("POST", "/agents/shout/run", `{"input": "after"}`, nil)
	s.signal(syscall.SIGKILL)
	<-s.done
	in(from, "secrets", "set", "api", "--value", "after").want(t, 0, "", "")
	files, err := filepath.Glob(filepath.Join(from, "*"))
	if err != nil {
		t.Fatal(err)
	}
	site := func() string {
		dir := t.TempDir()
		for _, path := range files {
			write(t, filepath.Join(dir, filepath.Base(path)), read(t, path))
		}
		return dir
	}
	there := func(path string) bool { _, err := os.Stat(path); return err == nil }
	whole := func(dir string) {
		t.Helper()
		in(dir, "storage", "verify").want(t, 0, "undamaged", "")
		in(dir, "secrets", "get", "api", "--reveal").want(t, 0, "before", "")
		runs(dir, 1)
		if left, err := filepath.Glob(filepath.Join(dir, "*restore*")); err != nil || len(left) > 0 {
			t.Errorf("%v is left, %v", left, err)
		}
	}

	for _, n := range []int{2, 30} { // while it unpacks and while it prepares
		dir := site()
		if killAt(t, dir, n, func() bool { return true }, "storage", "restore", "a.tar") || there(filepath.Join(dir, "data.db"+store.RestoreJournal)) {
			t.Fatalf("change %d is not before the exchange", n)
		}
		runs(dir, 2)
		in(dir, "secrets", "get", "api", "--reveal").want(t, 0, "after", "")
		in(dir, "storage", "restore", "a.tar").want(t, 0, "Restored", "")
		whole(dir)
	}
	kills := 0
	for n, ended := 1, false; !ended; n += often(1, 4) {
		dir := site()
		journal := filepath.Join(dir, "data.db"+store.RestoreJournal)
		begun := false
		ended = killAt(t, dir, n, func() bool { begun = begun || there(journal+".tmp"); return begun }, "storage", "restore", "a.tar")
		if !ended && there(journal) {
			kills++
			in(dir, "start", "--port", "0").want(t, 1, "", "restore-incomplete")
			if there(filepath.Join(dir, "audit.db"+store.RestoreJournal)) {
				in(dir, "audit", "verify").want(t, 1, "", "restore-incomplete")
			}
			in(dir, "storage", "restore", "a.tar").want(t, 0, "Finished the restore", "")
		}
		whole(dir)
		replaced := audited(t)
		for _, name := range backup.Names {
			kept, err := filepath.Glob(filepath.Join(dir, name+".bak.*"))
			if err != nil || len(kept) != 1 {
				t.Fatalf("killed before change %d: the old %s is kept as %q, %v", n, name, kept, err)
			}
			write(t, filepath.Join(replaced, name), read(t, kept[0]))
		}
		runs(replaced, 2)
		in(replaced, "storage", "verify").want(t, 0, "undamaged", "")
	}
	if t.Logf("%d kills in the exchange", kills); kills < often(8, 2) {
		t.Error("they are too few")
	}
}
