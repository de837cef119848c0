package proc

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
)

const (
	// MaxWaiting is how many programs may wait for a place.
	MaxWaiting = 4096
	// mostPlaces is the limit where the system has none that is lower.
	mostPlaces = 256
	// ownTasks is how many tasks the server itself is given, of those that the system allows.
	ownTasks = 64
	// tasksEach is how many tasks a program is given, with all that it starts.
	tasksEach = 4
	// filesEach is how many open files of the server a program is given. It takes up to eight while it starts.
	filesEach = 16
	// spareThreads is how many threads the server makes before programs can use up the tasks of the system. Go ends the
	// process when it needs a thread and gets none.
	spareThreads = 32
)

// errFull says that too many programs wait.
var errFull = errors.New("too many programs wait for their start")

// A Limit bounds how many programs run at once. Others wait. The next to start belongs to the payer that has the fewest
// programs running; among those it is the oldest. One payer gets at most three quarters of the places, and of the queue, so
// that others need not wait until its programs end. Nil is no limit.
type Limit struct {
	places int

	mu      sync.Mutex // guards the fields below: a waiter that can have a place has one
	running int
	live    map[string]int // how many of a payer run; none is 0
	waiting []*waiter      // oldest first
}

type waiter struct {
	payer string
	turn  chan struct{} // closed when it has a place
}

// NewLimit makes a limit of so many places. For 0 it takes the least of: a quarter of the tasks that the system has left for this
// process (by its control groups and RLIMIT_NPROC) after 64 for the server; a sixteenth of the files that the process may have
// open; and 256. The rest is for threads of the server, and for what programs start themselves.
//
// NewLimit also makes the threads that the server will need when programs have used up all tasks.
func NewLimit(places int) *Limit {
	if places <= 0 {
		places = max(1, min(mostPlaces, (FreeTasks()-ownTasks)/tasksEach, fileLimit()/filesEach))
	}
	forker()
	reserveThreads(spareThreads)
	return &Limit{places: places, live: map[string]int{}}
}

// Load returns how many programs run, and how many wait.
func (l *Limit) Load() (running, waiting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.running, len(l.waiting)
}

func threeQuarters(n int) int { return max(1, n-n/4) }

// take waits for a place. The error is errFull or the cause of ctx.
func (l *Limit) take(ctx context.Context, payer string) error {
	if l == nil {
		return nil
	}
	w := &waiter{payer, make(chan struct{})}
	l.mu.Lock()
	own := 0
	for _, other := range l.waiting {
		if other.payer == payer {
			own++
		}
	}
	if !l.free(payer) && (len(l.waiting) >= MaxWaiting || own >= threeQuarters(MaxWaiting)) {
		l.mu.Unlock()
		return errFull
	}
	l.waiting = append(l.waiting, w)
	l.admit()
	l.mu.Unlock()
	select {
	case <-w.turn:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	i := slices.Index(l.waiting, w)
	if i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	l.mu.Unlock()
	if i < 0 { // its turn came at the same time
		l.give(payer)
	}
	return context.Cause(ctx)
}

// give returns a place.
func (l *Limit) give(payer string) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	if l.live[payer]--; l.live[payer] == 0 {
		delete(l.live, payer)
	}
	l.admit()
}

func (l *Limit) free(payer string) bool {
	return l.running < l.places && l.live[payer] < threeQuarters(l.places)
}

// admit gives places to those that wait, as long as the next of them can have one.
func (l *Limit) admit() {
	for len(l.waiting) > 0 {
		next := slices.MinFunc(l.waiting, func(a, b *waiter) int { return cmp.Compare(l.live[a.payer], l.live[b.payer]) })
		if !l.free(next.payer) {
			return
		}
		l.waiting = slices.DeleteFunc(l.waiting, func(w *waiter) bool { return w == next })
		l.running++
		l.live[next.payer]++
		close(next.turn)
	}
}

// reserveThreads makes Go have at least n threads. It keeps those that have nothing to do.
func reserveThreads(n int) {
	var locked, all sync.WaitGroup
	locked.Add(n)
	for range n {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			locked.Done()
			locked.Wait()
		})
	}
	all.Wait()
}
