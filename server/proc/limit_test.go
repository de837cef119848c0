package proc_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentd/server/proc"
)

// cat is a program that runs until its stdin ends.
func cat(t *testing.T, ctx context.Context, limit *proc.Limit, payer string) (*proc.Process, error) {
	t.Helper()
	return proc.Start(ctx, proc.Command{Argv: []string{"cat"}, Pipe: true, Limit: limit, Payer: payer})
}

func mustCat(t *testing.T, limit *proc.Limit, payer string) *proc.Process {
	t.Helper()
	p, err := cat(t, t.Context(), limit, payer)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func end(p *proc.Process) {
	p.Stdin.Close()
	p.Wait()
}

func checkLoad(t *testing.T, l *proc.Limit, running, waiting int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		r, w := l.Load()
		if r == running && w == waiting {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("Load() = %d, %d, want %d, %d", r, w, running, waiting)
		}
	}
}

// A running program must not cost a thread of the server, which dies when the system gives it no further one.
func TestProgramsTakeNoThread(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has descriptors of processes")
	}
	threads := func() int {
		list, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	limit := proc.NewLimit(100)
	end(mustCat(t, limit, ""))
	before := threads()
	var programs []*proc.Process
	for i := range 100 {
		programs = append(programs, mustCat(t, limit, string(rune('a'+i%4))))
	}
	if after := threads(); after > before+10 {
		t.Errorf("%d threads with 100 programs, %d without", after, before)
	}
	for _, p := range programs {
		end(p)
	}
	checkLoad(t, limit, 0, 0)
}

func TestLimitSharesOut(t *testing.T) {
	limit := proc.NewLimit(4)
	var mu sync.Mutex // guards order
	var order []string
	var all sync.WaitGroup
	started := make(chan *proc.Process, 20)
	wait := func(payer string) {
		all.Go(func() {
			p := mustCat(t, limit, payer)
			mu.Lock()
			order = append(order, payer)
			mu.Unlock()
			started <- p
		})
	}
	var greedy []*proc.Process
	for range 3 {
		greedy = append(greedy, mustCat(t, limit, "greedy"))
	}
	for i := range 6 {
		wait("greedy") // the fourth place is not theirs
		checkLoad(t, limit, 3, i+1)
	}
	other := mustCat(t, limit, "other")
	wait("other")
	checkLoad(t, limit, 4, 7)
	end(other) // the free place is not for the greedy ones, though they wait longer
	checkLoad(t, limit, 4, 6)
	end(<-started)
	for _, p := range greedy {
		end(p)
	}
	for range 6 {
		end(<-started)
	}
	all.Wait()
	checkLoad(t, limit, 0, 0)
	if want := slices.Concat([]string{"other"}, slices.Repeat([]string{"greedy"}, 6)); !slices.Equal(order, want) {
		t.Errorf("started in the order %q, want %q", order, want)
	}
}

func TestWaitingForAPlaceEnds(t *testing.T) {
	limit := proc.NewLimit(1)
	first := mustCat(t, limit, "a")
	ctx, cancel := context.WithCancelCause(t.Context())
	failed := make(chan error)
	for range proc.MaxWaiting {
		go func() {
			_, err := cat(t, ctx, limit, "b")
			failed <- err
		}()
	}
	// One payer has only a part of the queue.
	full := 0
	for range proc.MaxWaiting / 4 {
		if err, ok := errors.AsType[*proc.StartError](<-failed); ok && err.Busy {
			full++
		}
	}
	if full != proc.MaxWaiting/4 {
		t.Errorf("%d of %d were refused because the queue is full, want a quarter", full, proc.MaxWaiting)
	}
	checkLoad(t, limit, 1, proc.MaxWaiting-full)
	cause := errors.New("aborted")
	cancel(cause)
	for range proc.MaxWaiting - full {
		if err := <-failed; !errors.Is(err, cause) {
			t.Fatalf("Start, aborted while it waits = %v, want %v", err, cause)
		}
	}
	checkLoad(t, limit, 1, 0)
	end(first)
	checkLoad(t, limit, 0, 0)
	if _, err := proc.Start(t.Context(), proc.Command{Argv: []string{"/no/such/program"}, Limit: limit}); err == nil {
		t.Error("Start(/no/such/program) succeeded")
	}
	checkLoad(t, limit, 0, 0)
}

// Descriptors that the server has inherited itself, or that were made inheritable, do not reach programs.
func TestNothingIsInherited(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "secret"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd, err := syscall.Dup(int(f.Fd())) // without close-on-exec
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	for _, c := range []proc.Command{{}, {Input: []byte("x")}, {Pipe: true, Input: []byte("x")}} {
		c.Argv = []string{"ls", "/dev/fd/"}
		p, err := proc.Start(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		out, _ := io.ReadAll(p)
		if status, err := p.Wait(); !status.Success() || err != nil || slices.Contains(strings.Fields(string(out)), strconv.Itoa(fd)) || len(strings.Fields(string(out))) > 4 {
			t.Errorf("ls /dev/fd = %q, %v, %v, want 0, 1, 2 and its own", out, status, err)
		}
	}
}

func TestFirstInputIsThereBeforeTheStart(t *testing.T) {
	for _, size := range []int{0, 1, 60 << 10, 3 << 20} {
		c := proc.Command{Argv: []string{"cat"}, Pipe: true, Input: []byte(strings.Repeat("x", size)), MaxOutput: 1 << 30}
		p, err := proc.Start(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if size <= 64<<10 && len(p.Unsent) > 0 || len(p.Unsent) > size-min(size, 64<<10) {
			t.Errorf("of %d bytes %d are not sent", size, len(p.Unsent))
		}
		go func() {
			p.Stdin.Write(p.Unsent)
			p.Stdin.Close()
		}()
		n := 0
		for buf := make([]byte, 1<<16); ; {
			m, err := p.Read(buf)
			if n += m; err != nil {
				break
			}
		}
		if p.Wait(); n != size {
			t.Errorf("the program has read %d bytes, want %d", n, size)
		}
	}
}

// wardens are the processes of this one that end its programs when it is killed.
func wardens() (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range all {
		line, _ := os.ReadFile(file)
		stat, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "stat"))
		_, rest, _ := strings.Cut(string(stat), ") ")
		if fields := strings.Fields(rest); string(line) == "agentd-warden\x00" && len(fields) > 1 && fields[1] == strconv.Itoa(os.Getpid()) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// replaceWarden ends the warden and waits for the next one, which comes with the next program at the latest.
func replaceWarden() (replaced bool) {
	first := wardens()
	if len(first) != 1 || syscall.Kill(first[0], syscall.SIGKILL) != nil {
		return false
	}
	for limit := time.Now().Add(10 * time.Second); time.Now().Before(limit); {
		if next := wardens(); len(next) == 1 && next[0] != first[0] {
			return true
		}
		if p, err := proc.Start(context.Background(), proc.Command{Argv: sh("true")}); err == nil {
			p.Wait()
		}
	}
	return false
}

func TestWardenIsReplaced(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("processes are found in /proc")
	}
	p := mustCat(t, nil, "")
	defer end(p)
	if !replaceWarden() {
		t.Fatal("no warden has come in the place of one that was killed")
	}
	proc.AgeWarden(time.Minute) // one that has lived for a while is replaced without a program that starts
	first := wardens()
	if err := syscall.Kill(first[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for limit := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		if next := wardens(); len(next) == 1 && next[0] != first[0] {
			return
		}
		if time.Now().After(limit) {
			t.Fatal("a warden that had lived was not replaced")
		}
	}
}
