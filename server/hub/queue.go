package hub

import (
	"context"
	"errors"
	"math"
	"sync"
)

var (
	// ErrOverflow tells a subscriber that it was cut off because its queue was full.
	ErrOverflow = errors.New("hub: subscriber too slow")
	// ErrClosed tells a subscriber that the hub has closed.
	ErrClosed = errors.New("hub: closed")
	// ErrErased tells a subscriber that what its subject told of is erased.
	ErrErased = errors.New("hub: subject erased")
)

// A Delivery is an entry for one of a queue's subscriptions or, without an entry, why it gets no more.
type Delivery struct {
	Sub   *Sub
	Entry *Entry
	Err   error
}

// Queue holds what waits for one client, over all its subscriptions, in the order in which it was published. Its
// owner takes; publishers never wait.
type Queue struct {
	entries, bytes int
	notify         func()
	wake           chan struct{} // holds a token while something may wait

	mu    sync.Mutex // guards the fields below
	items []Delivery
	spare []Delivery // taken once and given back, to be filled again
	size  int        // bytes of items
	err   error
}

// NewQueue makes a queue for so many entries and bytes; no bound of bytes when 0. One entry is taken whatever its size.
// When something begins to wait, notify is called, by a publisher who holds locks: it must not block, nor call the hub.
func NewQueue(entries, bytes int, notify func()) *Queue {
	q := &Queue{entries: entries, bytes: bytes, notify: notify, wake: make(chan struct{}, 1)}
	if bytes == 0 {
		q.bytes = math.MaxInt
	}
	return q
}

func (q *Queue) offer(sub *Sub, e *Entry) {
	q.mu.Lock()
	was := len(q.items) > 0 || q.err != nil
	switch {
	case q.err != nil:
	case len(q.items) >= q.entries, len(q.items) > 0 && q.size+e.size > q.bytes:
		q.err, q.items, q.spare, q.size = ErrOverflow, nil, nil, 0
		was = false
	default:
		if q.items == nil {
			q.items, q.spare = q.spare, nil
		}
		q.items = append(q.items, Delivery{Sub: sub, Entry: e})
		q.size += e.size
	}
	q.mu.Unlock()
	if !was {
		q.signal()
	}
}

// end tells the queue's owner that a subscription gets no more. That fits always.
func (q *Queue) end(sub *Sub, err error) {
	q.mu.Lock()
	if q.err == nil {
		q.items = append(q.items, Delivery{Sub: sub, Err: err})
	}
	q.mu.Unlock()
	q.signal()
}

func (q *Queue) signal() {
	if q.notify != nil {
		q.notify()
		return
	}
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Take returns what waits, nil when nothing does. The error is ErrOverflow: then all is lost and nothing comes any more.
func (q *Queue) Take() ([]Delivery, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.items
	q.items, q.size = nil, 0
	return items, q.err
}

// keepSpare is the capacity up to which a slice is worth keeping for an idle client.
const keepSpare = 64

// Give gives back a slice that Take returned, so that it can be filled again. Its deliveries must not be used any more.
func (q *Queue) Give(items []Delivery) {
	if cap(items) == 0 || cap(items) > keepSpare {
		return
	}
	clear(items)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.spare == nil && q.err == nil {
		q.spare = items[:0]
	}
}

// Sub is a subscription.
type Sub struct {
	Owner any // as SubscribeTo was given it

	hub     *Hub
	subject *subject
	at      int // its place in the subject's subs; guarded by the subject's lock
	queue   *Queue
	rest    error // of a subscription with a queue of its own: why nothing comes any more
}

// Next returns all entries that wait, at least one, or blocks until there are some. After the last entry the error
// is ErrOverflow, ErrClosed, ErrErased or the cause of ctx. It is for a subscription with a queue of its own; one
// goroutine at a time may call it.
func (s *Sub) Next(ctx context.Context) ([]*Entry, error) {
	for s.rest == nil {
		items, err := s.queue.Take()
		var batch []*Entry
		for _, d := range items {
			if d.Err != nil {
				err = d.Err
				break
			}
			batch = append(batch, d.Entry)
		}
		s.rest = err
		if len(batch) > 0 {
			return batch, nil
		}
		if err != nil {
			break
		}
		select {
		case <-s.queue.wake:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return nil, s.rest
}

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
	}
	if s.hub.subjects[s.subject.name] == s.subject {
		s.hub.forgetLocked(s.subject)
	}
}
