package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
)

var errInterrupted = errors.New("interrupted")

// interruptible runs fn with a context that ends with ctx or at the first SIGINT or SIGTERM. At the second it does not
// wait for fn any longer: the process is about to end.
func interruptible(ctx context.Context, fn func(context.Context) error) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	for interrupted := false; ; interrupted = true {
		select {
		case err := <-done:
			return err
		case <-signals:
			if interrupted {
				return exitCode(exitFailed)
			}
			stop(errInterrupted)
		}
	}
}

// surviveClosedPipe makes a write to a pipe that nobody reads an error, instead of the end of the process, until undo
// is called. Ignoring the signal would do so too, but programs that we start would inherit it.
func surviveClosedPipe() (undo func()) {
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	return func() { signal.Stop(pipe) }
}
