// Package hub keeps the latest events of each subject and hands new ones to bounded subscribers.
//
//	Publish --> ring of the subject --> queue of each subscriber --> Drain
//
// The number, the age and the bytes of a subject's events are bounded, and so are the bytes of all subjects together:
// beyond them, the hub forgets the subjects without a recent event. Publish never waits: a subscriber whose queue
// is full is cut off with an error.
package hub

import (
	"cmp"
	"container/list"
	"context"
	"encoding/json"
	"slices"
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
	return cmp.Or(cmp.Compare(p.Epoch, q.Epoch), cmp.Compare(p.Seq, q.Seq), cmp.Compare(p.Sub, q.Sub)) > 0
}

// An Entry is one event on one subject. Entries are shared and never changed.
type Entry struct {
	Pos     Position
	ID      string // the event's id on this subject
	Type    string
	Payload json.RawMessage // see Body
	Late    *Late           // makes the payload when somebody reads it; nil: Payload is there
	Owner   string          // the agent, or workflow:<id>, whose readers may see all of it; empty: every subscriber may
	// Aside says that the entry has no place in the order of the others: its run moves beside those that give the subject its
	// order. Only the epoch of its position counts. Those who were not there when it was published get it from the ring only.
	Aside bool
	// Before is how many transient events came between the previous durable event and this one. A transient event has the
	// number in its position.
	Before    int
	Lifecycle string // the status that the run reached with this event: completed, failed, aborted or paused; empty: none

	at   time.Duration // since the hub was made
	size int
	memo atomic.Pointer[any]
}

// Late is the payload of an entry that is made when the first reader wants it: most events that show all of a run have
// none. Entries of several subjects share it.
type Late struct {
	Make   func() json.RawMessage // called once at most
	Weight int                    // about how many bytes it keeps in memory, before it is made and after

	once sync.Once
	made json.RawMessage
}

// Payload returns what Make makes.
func (l *Late) Payload() json.RawMessage {
	l.once.Do(func() { l.made, l.Make = l.Make(), nil })
	return l.made
}

// Body returns the payload.
func (e *Entry) Body() json.RawMessage {
	if e.Late != nil {
		return e.Late.Payload()
	}
	return e.Payload
}

// Weight is about how many bytes the payload takes.
func (e *Entry) Weight() int {
	if e.Late != nil {
		return e.Late.Weight
	}
	return len(e.Payload)
}

// Memo returns the form in which all subscribers get the entry. The first call makes it. Concurrent calls may make more,
// but all return the same one.
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
	born time.Time

	mu       sync.Mutex // guards the fields below; taken before a subject's
	subjects map[string]*subject
	filled   *list.List // of *subject: those with entries; the one that was published on last is in front
	stats    Stats
	closed   bool
}

type subject struct {
	name string
	elem *list.Element // in the hub's list; nil while the ring is empty. Guarded by the hub's lock

	mu    sync.Mutex // guards the fields below
	ring  []*Entry   // oldest first
	bytes int
	subs  []*Sub
}

// New makes an empty hub.
func New(o Options) *Hub {
	o.MaxEvents = cmp.Or(o.MaxEvents, 1000)
	o.TTL = cmp.Or(o.TTL, 5*time.Minute)
	o.MaxBytes = cmp.Or(o.MaxBytes, 8<<20)
	o.TotalBytes = cmp.Or(o.TotalBytes, 64<<20)
	return &Hub{opts: o, born: time.Now(), subjects: map[string]*subject{}, filled: list.New()}
}

// Publish puts an entry on a subject. Entries of a subject must come in the order of their positions, from one
// goroutine at a time.
func (h *Hub) Publish(name string, e *Entry) {
	e.at = time.Since(h.born)
	e.size = e.Weight() + overhead
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return
	}
	s := h.subjectLocked(name)
	s.mu.Lock()
	if s.elem == nil {
		s.elem = h.filled.PushFront(s)
	} else {
		h.filled.MoveToFront(s.elem)
	}
	s.ring = append(s.ring, e)
	s.bytes += e.size
	h.stats.Bytes += e.size
	h.stats.Events++
	h.trimLocked(s, e.at)
	for h.stats.Bytes > h.opts.TotalBytes && h.filled.Back() != s.elem { // s is in front
		h.stats.Full = time.Now()
		oldest := h.filled.Back().Value.(*subject)
		oldest.mu.Lock()
		h.clearLocked(oldest)
		h.forgetLocked(oldest)
		oldest.mu.Unlock()
	}
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
		h.subjects[name] = s
	}
	return s
}

// trimLocked drops what is over a subject's bounds.
func (h *Hub) trimLocked(s *subject, now time.Duration) {
	for n := len(s.ring); n > 0; n = len(s.ring) {
		e := s.ring[0]
		if n <= h.opts.MaxEvents && (s.bytes <= h.opts.MaxBytes || n == 1) && now-e.at <= h.opts.TTL {
			return
		}
		s.ring[0] = nil
		s.ring = s.ring[1:]
		s.bytes -= e.size
		h.stats.Bytes -= e.size
		h.stats.Events--
	}
	h.clearLocked(s)
}

// clearLocked drops all entries of a subject and takes it off the list of those that have some.
func (h *Hub) clearLocked(s *subject) {
	h.stats.Bytes -= s.bytes
	h.stats.Events -= len(s.ring)
	s.ring, s.bytes = nil, 0
	if s.elem != nil {
		h.filled.Remove(s.elem)
		s.elem = nil
	}
}

// forgetLocked removes a subject that holds nothing and that nobody watches.
func (h *Hub) forgetLocked(s *subject) {
	if len(s.ring) == 0 && len(s.subs) == 0 {
		delete(h.subjects, s.name)
	}
}

// Subscribe attaches a queue to a subject and returns the subscription together with what the ring holds, oldest first: no
// entry is missing between the two and none is in both. Several subscriptions may share a queue, whose owner finds its own
// word for each in Sub.Owner. The caller must call Close.
func (h *Hub) Subscribe(name string, q *Queue, owner any) (*Sub, []*Entry) {
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
	h.trimLocked(s, time.Since(h.born))
	sub.subject, sub.at = s, len(s.subs)
	s.subs = append(s.subs, sub)
	h.stats.Subscriptions++
	return sub, slices.Clone(s.ring)
}

// Watched reports whether a subject has a subscriber.
func (h *Hub) Watched(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.subjects[name]
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.subs) > 0
}

// Drop forgets a subject's entries and cuts off its subscribers with ErrErased.
func (h *Hub) Drop(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.subjects[name]
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h.clearLocked(s)
	for _, sub := range s.subs {
		sub.queue.end(sub, ErrErased)
	}
	h.stats.Subscriptions -= len(s.subs)
	s.subs = nil
	h.forgetLocked(s)
}

// Purge forgets a subject's entries of these runs, by their numbers. Its subscribers keep their subscriptions.
func (h *Hub) Purge(name string, runs map[int64]bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.subjects[name]
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	kept, bytes := []*Entry{}, 0 // a new ring: what was forgotten must not stay in the old one's memory
	for _, e := range s.ring {
		if !runs[e.Pos.Epoch] {
			kept, bytes = append(kept, e), bytes+e.size
		}
	}
	h.stats.Bytes += bytes - s.bytes
	h.stats.Events += len(kept) - len(s.ring)
	if s.ring, s.bytes = kept, bytes; len(kept) == 0 {
		h.clearLocked(s)
		h.forgetLocked(s)
	}
}

// Run drops expired entries at an interval until ctx is done, then cuts off all subscribers.
func (h *Hub) Run(ctx context.Context, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			h.sweep(time.Since(h.born))
		case <-ctx.Done():
			h.close()
			return nil
		}
	}
}

func (h *Hub) sweep(now time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for el := h.filled.Back(); el != nil; {
		s := el.Value.(*subject)
		el = el.Prev()
		s.mu.Lock()
		h.trimLocked(s, now)
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

// Stats are numbers over all subjects.
type Stats struct {
	Events        int
	Bytes         int
	Subscriptions int
	Full          time.Time // when a subject was last forgotten to make room; zero: never
}

// Stats counts what the hub holds.
func (h *Hub) Stats() Stats {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stats
}
