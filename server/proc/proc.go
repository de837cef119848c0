// Package proc runs a program in its own process group with a clean environment, bounded output and a certain end.
//
//	Start ── a place in the Limit ── running ──┬─ the program exits ──────────────────────────────┐
//	                                           └─ ctx ends, or stdout is over its limit:          ├─ SIGKILL to what is left of
//	                                              SIGTERM to the group, 2 s later SIGKILL ────────┘  the group, pipes closed,
//	                                                                                                 reaped: Wait returns
//
// A program inherits nothing: no variable, no open file, no terminal. Its input is complete before it starts. The processes that
// it starts belong to its group unless they leave it, and end with it, also when the program exits by itself and leaves
// them behind. If a process outside the group holds a pipe open, it is closed one second after the exit.
//
// When this process is killed (`kill -9`), its programs are killed, too. On Linux the system kills the programs themselves at
// once. The warden kills their groups: a second process of the same executable, named agentd-warden, which starts with the first
// program and ends when this process has ended. A warden that is killed alone is replaced. This package does not end processes
// that have left their group (setsid, daemons); what a program starts before the warden knows of its group, if the kill falls in
// that instant; and groups whose warden is killed at the same time. A control group or a container ends those.
//
// One thread starts all programs. On Linux a running program holds no thread: its exit comes through the poller. Each start sets
// close-on-exec on all descriptors above 2 of this process, which also affects whatever else it starts.
//
// The package needs a Unix system.
package proc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
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

	pipeDelay = time.Second // after which the package closes pipes that a process outside the group holds open
)

// A Command says what to run.
type Command struct {
	// Argv is the program and its arguments. A program without a slash is looked up in the PATH of the server, not in
	// that of Env; one with a slash is relative to Dir.
	Argv []string
	// Dir is the working folder; empty is the server's.
	Dir string
	// Env is the whole environment, as KEY=value; see [Environ].
	Env []string
	// Input is what the program reads from stdin, up to its end. A file without a name holds all of it before the program
	// starts, so that the program never takes a part for the whole, also when this process is killed.
	Input []byte
	// Pipe leaves stdin open, to the caller as [Process.Stdin]. Before the program starts, it has as much of Input as a pipe
	// holds (64 KiB, on Linux mostly 1 MiB). The rest is [Process.Unsent], and may be cut when this process is killed.
	Pipe bool
	// MaxOutput is how many bytes of stdout can be read; 0 is DefaultMaxOutput. A program that writes more is ended or, with
	// Drop, continues, and Wait drops the rest of its output.
	MaxOutput int64
	Drop      bool
	// Limit bounds how many programs run at once; nil is no bound. Start waits until it has a place for the Payer.
	Limit *Limit
	Payer string
}

// A Process is a running program. Somebody must call Wait.
type Process struct {
	// Stdin is the writing end of the program's stdin, for a command with Pipe, else nil. The caller may close it at any time;
	// it is closed at the end. A write blocks while the program does not read, for which SetWriteDeadline has a bound, and fails
	// once the program has ended.
	Stdin *os.File
	// Unsent is the part of Input that the pipe did not hold. The caller writes it first.
	Unsent []byte

	cmd    *exec.Cmd
	ctx    context.Context // its end, with a cause, ends the program
	end    context.CancelCauseFunc
	out    *os.File // reading end of stdout
	left   int64    // bytes of stdout until the limit; belongs to the reader
	over   error    // the limit was passed, perhaps after the exit; belongs to the reader
	limit  int64
	drop   bool
	stderr tail
	leave  func()        // returns the place in the limit
	exited chan struct{} // closed when the program has exited, before it is reaped
	done   chan struct{} // closed when all is over
	err    error         // set before done is closed
}

// A Status says how a program ended. Its text is "exit status 3" or "signal: killed".
type Status struct {
	*os.ProcessState
	Stderr string // the last StderrTail bytes of its stderr
}

// Said is String and the stderr that hide leaves, for a message.
func (s Status) Said(hide func(string) string) string {
	if text := strings.TrimSpace(hide(s.Stderr)); text != "" {
		return s.String() + ": " + text
	}
	return s.String() + " and an empty standard error."
}

// An OverflowError says that a program wrote more than its limit to stdout.
type OverflowError struct{ Limit int64 }

func (e *OverflowError) Error() string {
	return fmt.Sprintf("the program wrote more than %d bytes", e.Limit)
}

// A StartError says that a program was not started, so nothing has happened.
type StartError struct {
	Program string
	Busy    bool  // the system or the queue for a place is full: the same command may start later
	Err     error // one of the system's, for example exec.ErrNotFound or fs.ErrNotExist, or the cause of the context
}

func (e *StartError) Error() string { return fmt.Sprintf("starting %s: %v", e.Program, e.Err) }
func (e *StartError) Unwrap() error { return e.Err }

func notStarted(c Command, err error) error {
	e := &StartError{Program: c.Argv[0], Err: err}
	for _, full := range []error{errFull, syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.ENOSPC} {
		e.Busy = e.Busy || errors.Is(err, full)
	}
	return e
}

// Start starts a program, once the command's limit has a place for it. The program is ended when ctx is done. The error
// is a [*StartError].
func Start(ctx context.Context, c Command) (*Process, error) {
	if ctx.Err() != nil {
		return nil, notStarted(c, context.Cause(ctx))
	}
	if err := c.Limit.take(ctx, c.Payer); err != nil {
		return nil, notStarted(c, err)
	}
	p, err := start(ctx, c)
	if err != nil {
		c.Limit.give(c.Payer)
		return nil, notStarted(c, err)
	}
	return p, nil
}

func start(ctx context.Context, c Command) (_ *Process, err error) {
	p := &Process{limit: cmp.Or(c.MaxOutput, DefaultMaxOutput), drop: c.Drop, exited: make(chan struct{}), done: make(chan struct{})}
	p.left = p.limit
	p.leave = func() { c.Limit.give(c.Payer) }

	pidfd := -1
	p.cmd = exec.Command(c.Argv[0], c.Argv[1:]...)
	p.cmd.Dir = c.Dir
	p.cmd.Env = append([]string{}, c.Env...) // nil would mean the server's
	p.cmd.SysProcAttr = attributes(&pidfd)
	p.cmd.Stderr = &p.stderr
	p.cmd.WaitDelay = pipeDelay

	var theirs, ours []*os.File
	defer func() {
		if err != nil {
			theirs = append(theirs, ours...)
		}
		for _, f := range theirs {
			f.Close()
		}
	}()
	out, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	theirs, ours = append(theirs, w), append(ours, out)
	p.cmd.Stdout, p.out = w, out
	switch {
	case c.Pipe:
		r, in, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		theirs, ours = append(theirs, r), append(ours, in)
		p.cmd.Stdin, p.Stdin = r, in
		p.Unsent = fill(in, c.Input)
	case len(c.Input) > 0:
		in, err := inputFile(c.Input)
		if err != nil {
			return nil, err
		}
		theirs = append(theirs, in)
		p.cmd.Stdin = in
	}

	onForker(func() {
		closeInherited()
		station()
		if err = p.cmd.Start(); err == nil {
			guard(p.cmd.Process.Pid)
		}
	})
	if err != nil {
		return nil, err
	}
	p.ctx, p.end = context.WithCancelCause(ctx)
	go p.mind(pidfd)
	return p, nil
}

// forker returns the channel of the thread that starts all programs of this process.
//
// Linux sends the signal of the parent's death when the thread that forked ends, so that thread must never end. It belongs to
// the process and not to a server in it, so no server waits for it.
var forker = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for do := range work {
			do()
		}
	}()
	return work
})

// onForker calls do on that thread and waits for it.
func onForker(do func()) {
	done := make(chan struct{})
	forker() <- func() {
		defer close(done)
		do()
	}
	<-done
}

// mind waits for the program and cleans up after it.
func (p *Process) mind(pidfd int) {
	defer close(p.done)
	defer p.leave()
	ended := make(chan struct{})
	keep := context.AfterFunc(p.ctx, func() {
		defer close(ended)
		p.terminate()
	})
	awaitExit(p.cmd.Process.Pid, pidfd)
	close(p.exited)
	if !keep() {
		<-ended
		p.err = context.Cause(p.ctx)
	}
	// The program is not reaped yet, so its group is still its own. Signals later could hit a stranger's.
	p.signal(syscall.SIGKILL)
	guard(-p.cmd.Process.Pid)
	p.out.SetReadDeadline(time.Now().Add(pipeDelay))
	p.cmd.Wait() // its errors are in ProcessState, or about pipes that others held open
	if p.Stdin != nil {
		p.Stdin.Close()
	}
	p.end(nil)
}

// terminate asks the group to end, and kills it after the grace.
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
// program: Wait returns the cause. Past the limit it returns an [*OverflowError] and, without Drop, ends the program; everything up to the
// limit has been delivered by then. Read and Wait are for one goroutine.
func (p *Process) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	// One byte more than is left: a program may write exactly as much as the limit.
	b = b[:min(int64(len(b)), p.left+1)]
	n, err := p.out.Read(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		n, err = p.buffered(b)
	}
	if int64(n) > p.left {
		over := &OverflowError{Limit: p.limit}
		n, p.left = int(p.left), 0
		if !p.drop {
			p.over = over
			p.end(over)
		}
		return n, over
	}
	p.left -= int64(n)
	return n, err
}

// buffered reads what is in the pipe without waiting for more: the program has ended, and a process outside its group holds
// the pipe.
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

// Wait reads and discards the rest of stdout, waits for the end and returns the status. The error is the reason why the package
// ended the program: the cause of ctx, or an [*OverflowError]. An exit with another status than 0 is not an error. The caller
// calls Wait once; it releases all resources of the program.
func (p *Process) Wait() (Status, error) {
	if p.drop {
		p.left = math.MaxInt64 - 1
	}
	io.Copy(io.Discard, p)
	<-p.done
	p.out.Close()
	s := Status{p.cmd.ProcessState, p.stderr.String()}
	if p.err == nil { // a program can have exited before its last bytes were read
		return s, p.over
	}
	return s, p.err
}
