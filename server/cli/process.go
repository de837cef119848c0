package cli

import (
	"context"
	"errors"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"syscall"
	"time"

	"agentd/server/fault"
)

const (
	// freeGarbage may always wait to be collected. The live heap of a server is small, so with Go's default it would be
	// collected every few megabytes: about a tenth of the processor time of a busy server.
	freeGarbage = 32 << 20
	// mostGarbage and leastGarbage are the bounds in percent of the live heap: so a large heap does not triple in size.
	mostGarbage, leastGarbage = 200, 50

	// smallMemory is the soft limit of the runtime's memory. Near it, the collector returns pages that fragments hold. If half
	// as much again as the live heap and the stacks is more, that is the limit, so that nothing is collected without end.
	smallMemory = 192 << 20
)

// TuneHeap sets, after each collection, how much garbage may wait for the next one, and the soft limit of all memory of the
// runtime. GOGC and GOMEMLIMIT in the environment go before it.
func TuneHeap() {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	percent, limit := mostGarbage, int64(smallMemory)
	debug.SetGCPercent(percent)
	debug.SetMemoryLimit(limit)
	used := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	type sign struct{ _ *byte } // of no use: the collector finds it dead, and its finalizer is called, in each cycle
	var collected func(*sign)
	collected = func(s *sign) {
		metrics.Read(used)
		next, soft := percent, limit
		if used[0].Value.Kind() == metrics.KindUint64 && used[1].Value.Kind() == metrics.KindUint64 {
			alive, stacks := used[0].Value.Uint64(), used[1].Value.Uint64()
			next = int(min(mostGarbage, max(leastGarbage, freeGarbage*100/max(1, alive))))
			soft = int64(max(smallMemory, (alive+stacks)*3/2))
		}
		if d := next - percent; d < -percent/8 || d > percent/8 { // to set it stops the world for a moment
			percent = next
			debug.SetGCPercent(percent)
		}
		if d := soft - limit; d < -limit/8 || d > limit/8 {
			limit = soft
			debug.SetMemoryLimit(limit)
		}
		runtime.SetFinalizer(s, collected)
	}
	runtime.SetFinalizer(&sign{}, collected)
}

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

// firstInherited is the first file descriptor that a service manager passes on (sd_listen_fds(3)).
const firstInherited = 3

// inherited is the listener that a service manager has opened for this process; nil when there is none.
func (c *call) inherited() (net.Listener, error) {
	if c.getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	if n := c.getenv("LISTEN_FDS"); n != "1" {
		return nil, fault.New(fault.BindFailed, "The service manager passes %.10q sockets; agentd needs exactly one.", n).
			Advise("Keep one ListenStream= in the socket unit.")
	}
	f := os.NewFile(firstInherited, "inherited socket")
	defer f.Close()
	l, err := net.FileListener(f) // a copy, which programs that this one starts do not inherit
	if err != nil {
		return nil, fault.New(fault.BindFailed, "The socket of the service manager cannot be used: %v.", err).Because(err)
	}
	return l, nil
}

// notifyPatience is how long a service manager may take to make room for a state.
const notifyPatience = 2 * time.Second

// notify sends a state of the process to the service manager, if there is one (sd_notify(3)).
func (c *call) notify(state string) error {
	path := c.getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	if strings.HasPrefix(path, "@") {
		path = "\x00" + path[1:] // of the abstract namespace
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetWriteDeadline(time.Now().Add(notifyPatience)); err != nil {
		return err
	}
	_, err = conn.Write([]byte(state))
	return err
}
