package rest

import (
	"context"
	"slices"
	"sync"
	"time"

	"agentd/server/fault"
)

// What bodies may take of the memory at once, over all requests.
const (
	freeBody  = 4 << 10  // what a connection holds anyway: decisions are smaller, so they always get through
	smallBody = 64 << 10 // up to here a body competes with other small ones only

	smallReading, smallWorking = 8 << 20, 32 << 20
	largeReading, largeWorking = 32 << 20, 64 << 20

	// decodedSize is how many times as large as its text a body may become while it is read and taken over.
	decodedSize = 16

	// bodyPatience is how long a request waits for its share.
	bodyPatience = 10 * time.Second
	// startedTime is how long a run that was started counts as work on its body, at most, if that takes all that there is, and
	// in proportion if it takes less: the run takes its input over in that time, and then may wait for whatever it likes.
	startedTime = 2 * time.Second
)

// A budget is an amount of memory that requests share. The one that has waited longest is served first, so that small
// shares do not overtake a large one again and again.
type budget struct {
	mu    sync.Mutex // guards the fields below
	left  int64
	queue []*share // those that wait, the oldest first
}

// A share is what a request has of a budget, or waits for.
type share struct {
	of      *budget
	size    int64
	granted chan struct{} // closed when it is granted
}

// take waits for a share, which is no larger than the whole budget. A share of nil takes nothing and may be given back.
func (b *budget) take(ctx context.Context, size int64) (*share, error) {
	s := &share{of: b, size: size, granted: make(chan struct{})}
	b.mu.Lock()
	b.queue = append(b.queue, s)
	b.serveLocked()
	b.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, bodyPatience,
		fault.New(fault.Overloaded, "The requests in progress use all memory for bodies.").After(time.Second))
	defer cancel()
	select {
	case <-s.granted:
		return s, nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.queue, s); i >= 0 {
		b.queue = slices.Delete(b.queue, i, i+1)
		b.serveLocked() // those behind it may need less
		return nil, context.Cause(ctx)
	}
	return s, nil // it came at the last moment
}

func (b *budget) serveLocked() {
	for len(b.queue) > 0 && b.queue[0].size <= b.left {
		s := b.queue[0]
		b.left -= s.size
		close(s.granted)
		b.queue = slices.Delete(b.queue, 0, 1)
	}
}

// back gives a share back; the second time it does nothing.
func (s *share) back() {
	if s == nil {
		return
	}
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.left += s.size
	s.size = 0
	s.of.serveLocked()
}

// bodies are the budgets of all requests of a server. Bodies that are read and those that are worked on have different
// ones, so a request that has read its body never waits for one that still reads.
type bodies struct{ reading, working, largeReading, largeWorking budget }

func newBodies() *bodies {
	return &bodies{reading: budget{left: smallReading}, working: budget{left: smallWorking},
		largeReading: budget{left: largeReading}, largeWorking: budget{left: largeWorking}}
}

// A weight is what one request's body takes.
type weight struct {
	all              *bodies
	reading, working *share
	left             bool // to the timer of started
}

// read waits for room for a body of at most size bytes.
func (w *weight) read(ctx context.Context, size int64) (err error) {
	switch {
	case size <= freeBody:
	case size <= smallBody:
		w.reading, err = w.all.reading.take(ctx, size)
	default:
		w.reading, err = w.all.largeReading.take(ctx, min(size, largeReading))
	}
	return err
}

// work waits for the memory that a body of size bytes may take beside its text. A sole one is worked on while no other
// large one is.
func (w *weight) work(ctx context.Context, size int64, sole bool) (err error) {
	need := min(size*decodedSize, largeWorking)
	if sole {
		need = largeWorking
	}
	switch {
	case size <= freeBody:
	case size <= smallBody:
		w.working, err = w.all.working.take(ctx, size*decodedSize)
	default:
		w.working, err = w.all.largeWorking.take(ctx, need)
	}
	return err
}

// started bounds the time for which the weight of a body counts that a run was started with. If it stays, it counts for
// that time, whatever done says: nobody waits for the run.
func (w *weight) started(stays bool) {
	if w.working == nil {
		return
	}
	w.left = stays
	w.reading.back()
	time.AfterFunc(startedTime*time.Duration(w.working.size>>10)/(largeWorking>>10), w.working.back)
}

// done gives everything back that was not left to a timer.
func (w *weight) done() {
	if w.left {
		return
	}
	w.working.back()
	w.reading.back()
}
