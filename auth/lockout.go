package auth

import (
	"container/list"
	"net/netip"
	"sync"
	"time"
)

const maxOffenders = 10_000

// Network is what counts as one client: an IPv4 address, or the /64 of an IPv6 address, since that is what one client
// has. The zero address has the zero prefix.
func Network(ip netip.Addr) netip.Prefix {
	ip = ip.Unmap().WithZone("") // whichever way the listener writes it
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	p, _ := ip.Prefix(bits) // the zero prefix with an error for the zero address
	return p
}

// A lockout counts failures by key and locks a key out at its threshold. The count starts anew after more than window
// without a failure, and after a lockout that has run out; a success does not reset it. Time is monotonic.
//
// It remembers at most maxOffenders keys. To make room, those whose count or lockout has run out go first, then the
// oldest count and, only where lockouts take more than half of the room, the oldest lockout. So to unlock a key, somebody
// has to get half of maxOffenders others locked out after it.
type lockout[K comparable] struct {
	threshold int
	window    time.Duration
	duration  time.Duration // of a lockout; 0: for as long as the process lives

	mu       sync.Mutex // guards the rest: each element of byKey is in counting or in locked
	byKey    map[K]*list.Element
	counting list.List // of *offender[K]; the one that failed first is in front, as in locked
	locked   list.List
}

type offender[K comparable] struct {
	key    K
	count  int
	last   time.Time // of its failures; attempts during a lockout are none
	locked bool
}

func newLockout[K comparable](threshold int, window, duration time.Duration) *lockout[K] {
	return &lockout[K]{threshold: threshold, window: window, duration: duration, byKey: map[K]*list.Element{}}
}

// check reports whether the key is locked out, and for how long; left is 0 for a lockout without an end.
func (l *lockout[K]) check(key K, now time.Time) (left time.Duration, locked bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	el := l.byKey[key]
	if el == nil {
		return 0, false
	}
	o := l.at(el)
	if !o.locked || l.over(o, now) {
		return 0, false
	}
	if l.duration == 0 {
		return 0, true
	}
	return l.duration - now.Sub(o.last), true
}

// fail counts a failure and reports whether it was the one that locks the key out.
func (l *lockout[K]) fail(key K) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now() // under the lock, so that the lists are in the order of time
	o := &offender[K]{key: key}
	if el := l.byKey[key]; el != nil {
		known := l.at(el)
		over := l.over(known, now)
		if known.locked && !over {
			return false
		}
		if !over {
			o = known
		}
		l.drop(el)
	}
	l.makeRoom(now)
	o.count++
	o.last = now
	o.locked = o.count >= l.threshold
	l.byKey[key] = l.home(o).PushBack(o)
	return o.locked
}

func (l *lockout[K]) over(o *offender[K], now time.Time) bool {
	silent := now.Sub(o.last)
	if o.locked {
		return l.duration > 0 && silent >= l.duration
	}
	return silent > l.window
}

func (l *lockout[K]) makeRoom(now time.Time) {
	if len(l.byKey) < maxOffenders {
		return
	}
	for _, in := range []*list.List{&l.counting, &l.locked} {
		for el := in.Front(); el != nil && l.over(l.at(el), now); el = in.Front() {
			l.drop(el)
		}
	}
	if len(l.byKey) < maxOffenders {
		return
	}
	if l.locked.Len() > maxOffenders/2 {
		l.drop(l.locked.Front())
		return
	}
	l.drop(l.counting.Front())
}

func (l *lockout[K]) drop(el *list.Element) {
	o := l.at(el)
	l.home(o).Remove(el)
	delete(l.byKey, o.key)
}

func (l *lockout[K]) at(el *list.Element) *offender[K] { return el.Value.(*offender[K]) }

func (l *lockout[K]) home(o *offender[K]) *list.List {
	if o.locked {
		return &l.locked
	}
	return &l.counting
}
