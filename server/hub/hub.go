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
	"sync"
	"sync/atomic"
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
	Owner   string // the agent whose readers may see all of it; empty: nothing of it is for some readers only
	// Before is how many transient events came between the durable event before and this one. A transient one's position
	// has the same number.
	Before int
	// Lifecycle is the status that the run has reached with this event: completed, failed, aborted or paused.
	// Empty: none.
	Lifecycle string

	at   time.Time
	size int

	memo atomic.Pointer[any]
}

// Memo returns the form in which all subscribers get the entry. The first call makes it; calls at the same time may make
// it again, but all return the same.
func (e *Entry) Memo(form func() any) any {
	if m := e.memo.Load(); m != nil {
		return *m
	}
	made := form()
	if !e.memo.CompareAndSwap(nil, &made) {
		return *e.memo.Load()
	}
	return made
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
	subs  []*Sub
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
	for _, sub := range s.subs {
		sub.queue.offer(sub, e)
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

// Subscribe attaches a subscriber with a queue of its own and returns it together with what the ring holds, oldest
// first: no entry is missing between the two and none is in both. Limit bounds the queue; what the ring holds does not
// count. Close must be called.
func (h *Hub) Subscribe(name string, limit int) (*Sub, []*Entry) {
	return h.SubscribeTo(name, NewQueue(limit, 0, nil), nil)
}

// SubscribeTo is Subscribe for a queue that several subscriptions share. The owner is what the queue's owner knows the
// subscription by.
func (h *Hub) SubscribeTo(name string, q *Queue, owner any) (*Sub, []*Entry) {
	sub := &Sub{Owner: owner, hub: h, queue: q}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		q.end(sub, ErrClosed)
		return sub, nil
	}
	s := h.subjectLocked(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	h.bytes -= s.trimLocked(&h.opts, time.Now())
	sub.subject, sub.at = s, len(s.subs)
	s.subs = append(s.subs, sub)
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
	for _, sub := range s.subs {
		sub.queue.end(sub, ErrErased)
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
		for _, sub := range s.subs {
			sub.queue.end(sub, ErrClosed)
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
