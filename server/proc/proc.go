// Package proc runs a program in its own process group with a clean environment, bounded output and a certain end.
//
//	Start ── running ──┬─ the program exits ──────────────────────────────┐
//	                   └─ ctx ends, or stdout is over its limit:          ├─ SIGKILL to what is left of the group,
//	                      SIGTERM to the group, 2 s later SIGKILL ────────┘  pipes closed, reaped: Wait returns
//
// A program inherits nothing: no variable, no open file, no terminal. What it starts stays in its group unless it asks
// the system for another, and ends with it, also when the program exits by itself and leaves others behind. Pipes that
// a process outside the group holds open are closed one second after the exit.
//
// On Linux the program is killed when the server dies without having had the time to end it (`kill -9`). That is the
// program itself, not what it has started; those see their stdin end and their stdout closed.
//
// The package needs a Unix system.
package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

const (
	// Grace is the time between SIGTERM and SIGKILL.
	Grace = 2 * time.Second
	// DefaultMaxOutput is the limit of stdout where a command names none: 8 MiB.
	DefaultMaxOutput = 8 << 20
	// StderrTail is how much of the end of stderr is kept, in bytes.
	StderrTail = 4 << 10

	pipeDelay = time.Second // for pipes that outlive the process group
)

// A Command says what to run.
type Command struct {
	// Argv is the program and its arguments. A program without a slash is looked up in the PATH of the server, not in
	// that of Env; one with a slash is taken as it is, relative to Dir.
	Argv []string
	// Dir is the working folder; empty is the server's.
	Dir string
	// Env is the whole environment, as KEY=value; see [Environ].
	Env []string
	// Input is written to stdin, which is closed after it. It must not change until Wait has returned.
	Input []byte
	// Pipe leaves stdin to the caller as [Process.Stdin], instead of Input.
	Pipe bool
	// MaxOutput is how many bytes of stdout are read before the program is ended; 0 is DefaultMaxOutput.
	MaxOutput int64
}

// A Process is a running program. Somebody must call Wait.
type Process struct {
	// Stdin is the writing end of the program's stdin, for a command with Pipe, else nil. It may be closed at any time
	// and is closed at the end. A write blocks while the program does not read; SetWriteDeadline bounds that. Once the
	// program has ended, a write fails.
	Stdin *os.File

	cmd    *exec.Cmd
	ctx    context.Context // ends with a cause when the program is to be ended
	end    context.CancelCauseFunc
	out    *os.File // reading end of stdout
	left   int64    // bytes of stdout until the limit; belongs to the reader
	over   error    // the limit was passed, perhaps after the exit; belongs to the reader
	limit  int64
	stderr tail
	exited chan struct{} // closed when the program has exited, before it is reaped
	done   chan struct{} // closed when all is over
	err    error         // set before done is closed
}

// A Status says how a program ended.
type Status struct {
	Code   int            // exit status, -1 after a signal
	Signal syscall.Signal // 0 after a normal exit
	Stderr string         // the last StderrTail bytes of its stderr
}

// OK reports whether the program exited with status 0.
func (s Status) OK() bool { return s.Code == 0 && s.Signal == 0 }

// String is "exit status 3" or "signal: killed".
func (s Status) String() string {
	if s.Signal != 0 {
		return "signal: " + s.Signal.String()
	}
	return fmt.Sprintf("exit status %d", s.Code)
}

// An OverflowError says that a program wrote more than its limit to stdout.
type OverflowError struct{ Limit int64 }

func (e *OverflowError) Error() string {
	return fmt.Sprintf("the program wrote more than %d bytes", e.Limit)
}

// Start starts a program. It is ended when ctx is done. The error is one of the system's, for example
// exec.ErrNotFound or fs.ErrNotExist, or the cause of ctx when that is done already.
func Start(ctx context.Context, c Command) (*Process, error) {
	if len(c.Argv) == 0 {
		return nil, errors.New("starting a program: the command is empty")
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	p := &Process{limit: c.MaxOutput, exited: make(chan struct{}), done: make(chan struct{})}
	if p.limit <= 0 {
		p.limit = DefaultMaxOutput
	}
	p.left = p.limit

	p.cmd = exec.Command(c.Argv[0], c.Argv[1:]...)
	p.cmd.Dir = c.Dir
	p.cmd.Env = append([]string{}, c.Env...) // nil would mean the server's
	p.cmd.SysProcAttr = attributes()
	p.cmd.Stderr = &p.stderr
	p.cmd.WaitDelay = pipeDelay

	out, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", c.Argv[0], err)
	}
	theirs := []*os.File{w}
	ours := []*os.File{out}
	p.cmd.Stdout, p.out = w, out
	if c.Pipe {
		r, in, err := os.Pipe()
		if err != nil {
			closeAll(theirs, ours)
			return nil, fmt.Errorf("starting %s: %w", c.Argv[0], err)
		}
		theirs, ours = append(theirs, r), append(ours, in)
		p.cmd.Stdin, p.Stdin = r, in
	} else if len(c.Input) > 0 {
		p.cmd.Stdin = bytes.NewReader(c.Input)
	}

	p.ctx, p.end = context.WithCancelCause(ctx)
	started := make(chan error)
	go p.mind(started)
	err = <-started
	closeAll(theirs)
	if err != nil {
		p.end(nil)
		closeAll(ours)
		return nil, fmt.Errorf("starting %s: %w", c.Argv[0], err)
	}
	return p, nil
}

func closeAll(lists ...[]*os.File) {
	for _, list := range lists {
		for _, f := range list {
			f.Close()
		}
	}
}

// mind starts the program, waits for it and cleans up after it.
//
// Linux sends the death signal when the thread that forked ends, which Go does not promise to keep. The goroutine
// therefore holds its thread until the program has exited; the thread would be spent anyway, blocked in the wait.
func (p *Process) mind(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	defer close(p.done)
	ended := make(chan struct{})
	keep := context.AfterFunc(p.ctx, func() {
		defer close(ended)
		p.terminate()
	})
	awaitExit(p.cmd.Process.Pid)
	close(p.exited)
	if !keep() {
		<-ended
		p.err = context.Cause(p.ctx)
	}
	// The program is not reaped yet, so its group is still its own. Signals later could hit a stranger's.
	p.signal(syscall.SIGKILL)
	p.out.SetReadDeadline(time.Now().Add(pipeDelay))
	p.cmd.Wait() // its errors are in ProcessState, or about pipes that others held open
	if p.Stdin != nil {
		p.Stdin.Close()
	}
	p.end(nil)
}

// terminate asks the group to end and makes it end after the grace.
func (p *Process) terminate() {
	p.signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(Grace):
		p.signal(syscall.SIGKILL)
	}
}

// signal is called only between the start and the reaping, when the group's number is certain.
func (p *Process) signal(s syscall.Signal) { syscall.Kill(-p.cmd.Process.Pid, s) }

// Read reads stdout as the program writes it. It returns io.EOF at the end of stdout, also when ctx has ended the
// program: Wait tells. Past the limit it returns an [*OverflowError] and ends the program; everything up to the limit
// has been delivered by then. Read and Wait are for one goroutine.
func (p *Process) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	// One byte more than is left tells a program that is over the limit from one that is exactly at it.
	b = b[:min(int64(len(b)), p.left+1)]
	n, err := p.out.Read(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		n, err = p.buffered(b)
	}
	if int64(n) > p.left {
		over := &OverflowError{Limit: p.limit}
		n, p.left = int(p.left), 0
		p.over = over
		p.end(over)
		return n, over
	}
	p.left -= int64(n)
	return n, err
}

// buffered reads what is in the pipe without waiting for more: the program has ended, and whoever still holds the
// pipe is none of ours.
func (p *Process) buffered(b []byte) (n int, err error) {
	raw, err := p.out.SyscallConn()
	if err != nil {
		return 0, err
	}
	err = raw.Control(func(fd uintptr) {
		n, err = syscall.Read(int(fd), b) // the descriptor does not block
	})
	if err != nil || n <= 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Wait reads and discards what is left of stdout, waits for the end and returns how it came. The error is the cause of
// the end when that was not the program's own will: the cause of ctx, or an [*OverflowError]. An exit with another
// status than 0 is not an error. Wait is to be called once; all of the program's resources are released when it
// returns.
func (p *Process) Wait() (Status, error) {
	io.Copy(io.Discard, p)
	<-p.done
	p.out.Close()
	s := Status{Code: p.cmd.ProcessState.ExitCode(), Stderr: p.stderr.String()}
	if ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		s.Signal = ws.Signal()
	}
	if p.err == nil { // a program can have exited before its last bytes were read
		return s, p.over
	}
	return s, p.err
}
