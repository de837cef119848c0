package gate

import (
	"container/list"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"agentd/auth"
	"agentd/server/fault"
)

// Limits of what a limiter remembers.
const (
	maxWindows = 10_000  // addresses, or lineages of tokens
	maxStamps  = 1 << 20 // requests, over all of them
)

// Limiter bounds the requests that each address, or each lineage of tokens, makes within any period of the window's
// length: an exact sliding window. It remembers when each admitted request of the last window came; a refused one does not
// count, so a client that waits until the reset is let in. Addresses of one [auth.Network] count as one.
//
// When there are too many, those that have been silent longest are forgotten. It is safe for concurrent use.
type Limiter struct {
	window time.Duration
	limit  int
	start  time.Time

	mu      sync.Mutex      // guards the fields below
	windows map[any]*window // by network, or by lineage
	recent  *list.List      // of *window; the one that was used last is in front
	stamps  int             // room of all windows together
}

// window holds the requests of one address or lineage in the last period.
type window struct {
	key   any
	elem  *list.Element
	times []time.Duration // since the limiter's start, the oldest first
}

// NewLimiter makes a limiter.
func NewLimiter(length time.Duration, limit int) *Limiter {
	return &Limiter{window: length, limit: limit, start: time.Now(), windows: map[any]*window{}, recent: list.New()}
}

// Rate is what an address or a lineage may still do.
type Rate struct {
	Limit     int
	Remaining int
	Reset     time.Duration // until one more request is possible than now, or all are
	Refused   bool
}

// Take counts a request of an address; the zero address is one that is not known.
func (l *Limiter) Take(ip netip.Addr) Rate { return l.take(auth.Network(ip)) }

// TakeFrom counts a request of a principal; all of its lineage count as one.
func (l *Limiter) TakeFrom(p auth.Principal) Rate { return l.take(p.Lineage()) }

func (l *Limiter) take(key any) Rate {
	now := time.Since(l.start)
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.windowLocked(key)
	before := cap(w.times)
	for len(w.times) > 0 && now-w.times[0] >= l.window {
		w.times = w.times[1:]
	}
	rate := Rate{Limit: l.limit, Refused: len(w.times) >= l.limit}
	if !rate.Refused {
		w.times = append(w.times, now)
	}
	l.stamps += cap(w.times) - before
	rate.Remaining = l.limit - len(w.times)
	rate.Reset = w.times[0] + l.window - now
	return rate
}

func (l *Limiter) windowLocked(key any) *window {
	w := l.windows[key]
	if w == nil {
		w = &window{key: key}
		w.elem = l.recent.PushFront(w)
		l.windows[key] = w
	}
	l.recent.MoveToFront(w.elem)
	for len(l.windows) > maxWindows || l.stamps > maxStamps && len(l.windows) > 1 {
		old := l.recent.Remove(l.recent.Back()).(*window)
		delete(l.windows, old.key)
		l.stamps -= cap(old.times)
	}
	return w
}

// write writes a rate into the headers of an answer, and refuses where the limit is reached.
func (r Rate) write(h http.Header, whose string) error {
	seconds := strconv.FormatInt(int64((r.Reset+time.Second-1)/time.Second), 10)
	h.Set("X-RateLimit-Limit", strconv.Itoa(r.Limit))
	h.Set("X-RateLimit-Remaining", strconv.Itoa(r.Remaining))
	h.Set("X-RateLimit-Reset", seconds)
	if r.Refused {
		return fault.New(fault.RateLimited, "More than %d requests came %s.", r.Limit, whose).After(r.Reset)
	}
	return nil
}
