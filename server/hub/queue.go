package hub

import (
	"errors"
	"sync"
)

var (
	// ErrOverflow cuts off a subscriber whose queue was full.
	ErrOverflow = errors.New("hub: subscriber too slow")
	// ErrClosed ends all subscriptions when the hub closes.
	ErrClosed = errors.New("hub: closed")
	// ErrErased ends a subscription whose subject's events have been erased.
	ErrErased = errors.New("hub: subject erased")
)

// A Delivery is an entry for one of a queue's subscriptions or, without an entry, the news that it gets no more.
type Delivery struct {
	Sub   *Sub
	Entry *Entry
}

// Batches of deliveries are shared by all queues, so that an empty queue holds no memory.
var batches = sync.Pool{New: func() any { return &batch{make([]Delivery, 0, 8)} }}

type batch struct{ all []Delivery }

// keepBatch is the capacity up to which a batch is worth keeping.
const keepBatch = 1024

// Queue holds what waits for one client, over all its subscriptions, in the order in which it was published. Its
// owner takes; publishers never wait.
type Queue struct {
	entries, bytes int
	notify         func()

	mu    sync.Mutex // guards the fields below
	batch *batch     // nil when nothing waits
	size  int        // bytes of its entries
	err   error
}

// NewQueue makes a queue for so many entries and bytes. It takes one entry of any size. When something begins to wait, a
// publisher, who holds locks, calls notify: it must not block, nor call the hub.
func NewQueue(entries, bytes int, notify func()) *Queue {
	return &Queue{entries: entries, bytes: bytes, notify: notify}
}

func (q *Queue) offer(sub *Sub, e *Entry) {
	q.mu.Lock()
	waiting := 0
	if q.batch != nil {
		waiting = len(q.batch.all)
	}
	switch {
	case q.err != nil:
		q.mu.Unlock()
		return
	case waiting >= q.entries, waiting > 0 && q.size+e.size > q.bytes:
		q.err, q.batch, q.size = ErrOverflow, nil, 0
		waiting = 0
	default:
		q.addLocked(Delivery{sub, e})
		q.size += e.size
	}
	q.mu.Unlock()
	if waiting == 0 {
		q.notify()
	}
}

// Overflowed reports whether the queue was full, so that Drain will return ErrOverflow.
func (q *Queue) Overflowed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err != nil
}

func (q *Queue) addLocked(d Delivery) {
	if q.batch == nil {
		q.batch = batches.Get().(*batch)
	}
	q.batch.all = append(q.batch.all, d)
}

// end delivers the news that a subscription gets no more, also to a full queue. The first reason counts.
func (q *Queue) end(sub *Sub, err error) {
	q.mu.Lock()
	if q.err == nil && sub.err == nil {
		sub.err = err
		q.addLocked(Delivery{Sub: sub})
	}
	q.mu.Unlock()
	q.notify()
}

// Drain takes what waits, in the order in which it was published. After ErrOverflow, all is lost and nothing comes any more.
func (q *Queue) Drain(take func(Delivery)) error {
	q.mu.Lock()
	b, err := q.batch, q.err
	q.batch, q.size = nil, 0
	q.mu.Unlock()
	if b == nil {
		return err
	}
	for _, d := range b.all {
		take(d)
	}
	if cap(b.all) <= keepBatch {
		clear(b.all)
		b.all = b.all[:0]
		batches.Put(b)
	}
	return err
}

// Sub is a subscription.
type Sub struct {
	Owner any // from Subscribe

	hub     *Hub
	subject *subject
	at      int // its place in the subject's subs; guarded by the subject's lock
	queue   *Queue
	err     error // why it gets no more; guarded by the queue's lock until that is delivered
}

// Err returns why the subscription gets no more, ErrClosed or ErrErased, once a delivery without an entry has come for it.
func (s *Sub) Err() error { return s.err }

// Close detaches the subscriber. What waits for it already stays in the queue.
func (s *Sub) Close() {
	if s.subject == nil {
		return
	}
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	s.subject.mu.Lock()
	defer s.subject.mu.Unlock()
	if subs := s.subject.subs; s.at < len(subs) && subs[s.at] == s {
		last := len(subs) - 1
		subs[s.at] = subs[last]
		subs[s.at].at = s.at
		subs[last] = nil
		s.subject.subs = subs[:last]
		s.hub.stats.Subscriptions--
	}
	if s.hub.subjects[s.subject.name] == s.subject {
		s.hub.forgetLocked(s.subject)
	}
}
