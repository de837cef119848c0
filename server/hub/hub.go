// Package hub keeps the latest events of each subject and hands new ones to bounded subscribers.
//
//	Publish --> ring of the subject --> queue of each subscriber --> Next
//
// A subject's ring holds at most so many events for so long and so many bytes; all rings together hold at most a
// number of bytes, beyond which the subjects that have been silent longest are forgotten. Publish never waits: a
// subscriber whose queue is full is cut off, and told so.
package hub

import (
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"
)

// Position orders the entries of one subject. Epoch is the number of the run, Seq that of its latest durable event,
// Sub counts the transient events since then.
type Position struct {
	Epoch int64
	Seq   int
	Sub   int
}

// After reports whether p comes after q.
func (p Position) After(q Position) bool {
	if p.Epoch != q.Epoch {
		return p.Epoch > q.Epoch
	}
	if p.Seq != q.Seq {
		return p.Seq > q.Seq
	}
	return p.Sub > q.Sub
}

// An Entry is one event on one subject. Entries are shared and never changed.
type Entry struct {
	Pos     Position
	ID      string // the event's id on this subject
	Type    string
	Payload json.RawMessage
	// Lifecycle is the status that the run has reached with this event: completed, failed, aborted or paused.
	// Empty: none.
	Lifecycle string

	at   time.Time
	size int
}

const overhead = 200 // bytes that an entry costs beside its payload

// Options bound a hub. Zero values take the defaults.
type Options struct {
	MaxEvents  int           // per subject; 1000
	TTL        time.Duration // 5 minutes
	MaxBytes   int           // per subject; 8 MiB
	TotalBytes int           // of all subjects; 64 MiB
}

// Hub is the set of all subjects. It is safe for concurrent use.
type Hub struct {
	opts Options

	mu       sync.Mutex // guards the fields below; taken before a subject's
	subjects map[string]*subject
	silent   *list.List // of *subject; the one that was published on last is in front
	bytes    int
	closed   bool
}

type subject struct {
	name string
	elem *list.Element

	mu    sync.Mutex // guards the fields below
	ring  []*Entry   // oldest first
	bytes int
	subs  map[*Sub]struct{}
}

// New makes an empty hub.
func New(o Options) *Hub {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&o.MaxEvents, 1000)
	def(&o.MaxBytes, 8<<20)
	def(&o.TotalBytes, 64<<20)
	if o.TTL == 0 {
		o.TTL = 5 * time.Minute
	}
	return &Hub{opts: o, subjects: map[string]*subject{}, silent: list.New()}
}

// Publish puts an entry on a subject. Entries of a subject must come in the order of their positions, from one
// goroutine at a time.
func (h *Hub) Publish(name string, e *Entry) {
	e.at = time.Now()
	e.size = len(e.Payload) + overhead
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return
	}
	s := h.subjectLocked(name)
	h.silent.MoveToFront(s.elem)
	s.mu.Lock()
	s.ring = append(s.ring, e)
	s.bytes += e.size
	h.bytes += e.size
	h.bytes -= s.trimLocked(&h.opts, e.at)
	h.evictLocked(s)
	h.mu.Unlock()
	for sub := range s.subs {
		sub.offer(e)
	}
	s.mu.Unlock()
}

func (h *Hub) subjectLocked(name string) *subject {
	s := h.subjects[name]
	if s == nil {
		s = &subject{name: name}
		s.elem = h.silent.PushFront(s)
		h.subjects[name] = s
	}
	return s
}

// trimLocked drops what is over the subject's bounds and returns how many bytes that freed.
func (s *subject) trimLocked(o *Options, now time.Time) (freed int) {
	drop := 0
	for drop < len(s.ring) {
		e := s.ring[drop]
		over := len(s.ring)-drop > o.MaxEvents || s.bytes-freed > o.MaxBytes && len(s.ring)-drop > 1
		if !over && now.Sub(e.at) <= o.TTL {
			break
		}
		freed += e.size
		drop++
	}
	if drop > 0 {
		clear(s.ring[:drop])
		s.ring = s.ring[drop:]
		s.bytes -= freed
	}
	return freed
}

// evictLocked forgets the subjects that have been silent longest until the total is within bounds. The subject keep,
// whose lock is held, stays.
func (h *Hub) evictLocked(keep *subject) {
	for el := h.silent.Back(); el != nil && h.bytes > h.opts.TotalBytes; {
		s := el.Value.(*subject)
		el = el.Prev()
		if s == keep {
			continue
		}
		s.mu.Lock()
		h.bytes -= s.bytes
		s.ring, s.bytes = nil, 0
		h.forgetLocked(s)
		s.mu.Unlock()
	}
}

// forgetLocked removes a subject that holds nothing and that nobody watches.
func (h *Hub) forgetLocked(s *subject) {
	if len(s.ring) == 0 && len(s.subs) == 0 {
		delete(h.subjects, s.name)
		h.silent.Remove(s.elem)
	}
}

// Subscribe attaches a subscriber and returns it together with what the ring holds, oldest first: no entry is missing
// between the two and none is in both. Limit bounds the subscriber's queue; what the ring holds does not count.
// Close must be called.
func (h *Hub) Subscribe(name string, limit int) (*Sub, []*Entry) {
	sub := &Sub{hub: h, limit: limit, wake: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		sub.fail(ErrClosed)
		return sub, nil
	}
	s := h.subjectLocked(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	h.bytes -= s.trimLocked(&h.opts, time.Now())
	if s.subs == nil {
		s.subs = map[*Sub]struct{}{}
	}
	s.subs[sub] = struct{}{}
	sub.subject = s
	return sub, append([]*Entry(nil), s.ring...)
}

// Drop forgets a subject's entries and cuts off its subscribers, because what it told of is erased.
func (h *Hub) Drop(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.subjects[name]
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h.bytes -= s.bytes
	s.ring, s.bytes = nil, 0
	for sub := range s.subs {
		sub.fail(ErrClosed)
	}
	s.subs = nil
	h.forgetLocked(s)
}

// Run drops expired entries at an interval until ctx is done, then cuts off all subscribers.
func (h *Hub) Run(ctx context.Context, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			h.sweep(time.Now())
		case <-ctx.Done():
			h.close()
			return nil
		}
	}
}

func (h *Hub) sweep(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for el := h.silent.Back(); el != nil; {
		s := el.Value.(*subject)
		el = el.Prev()
		s.mu.Lock()
		h.bytes -= s.trimLocked(&h.opts, now)
		h.forgetLocked(s)
		s.mu.Unlock()
	}
}

func (h *Hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, s := range h.subjects {
		s.mu.Lock()
		for sub := range s.subs {
			sub.fail(ErrClosed)
		}
		s.mu.Unlock()
	}
}

// Stats counts what the hub holds.
type Stats struct {
	Events        int
	Bytes         int
	Subscriptions int
}

// Stats counts buffered events and subscriptions over all subjects.
func (h *Hub) Stats() Stats {
	h.mu.Lock()
	defer h.mu.Unlock()
	st := Stats{Bytes: h.bytes}
	for _, s := range h.subjects {
		s.mu.Lock()
		st.Events += len(s.ring)
		st.Subscriptions += len(s.subs)
		s.mu.Unlock()
	}
	return st
}

var (
	// ErrOverflow tells a subscriber that it was cut off because its queue was full.
	ErrOverflow = errors.New("hub: subscriber too slow")
	// ErrClosed tells a subscriber that the hub has closed or the subject was erased.
	ErrClosed = errors.New("hub: closed")
)

// Sub is a subscription. One goroutine at a time may call Next.
type Sub struct {
	hub     *Hub
	subject *subject
	limit   int
	wake    chan struct{} // holds a token while queue or err may have changed

	mu    sync.Mutex // guards the fields below
	queue []*Entry
	err   error
}

func (s *Sub) offer(e *Entry) {
	s.mu.Lock()
	switch {
	case s.err != nil:
	case len(s.queue) >= s.limit:
		s.err, s.queue = ErrOverflow, nil
	default:
		s.queue = append(s.queue, e)
	}
	s.mu.Unlock()
	s.signal()
}

func (s *Sub) fail(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
	}
	s.mu.Unlock()
	s.signal()
}

func (s *Sub) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Next returns all entries that wait, at least one, or blocks until there are some. After the last entry the error
// is ErrOverflow, ErrClosed or the cause of ctx.
func (s *Sub) Next(ctx context.Context) ([]*Entry, error) {
	for {
		s.mu.Lock()
		batch, err := s.queue, s.err
		s.queue = nil
		s.mu.Unlock()
		if len(batch) > 0 {
			return batch, nil
		}
		if err != nil {
			return nil, err
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Close detaches the subscriber.
func (s *Sub) Close() {
	if s.subject == nil {
		return
	}
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	s.subject.mu.Lock()
	defer s.subject.mu.Unlock()
	delete(s.subject.subs, s)
	if s.hub.subjects[s.subject.name] == s.subject {
		s.hub.forgetLocked(s.subject)
	}
}
