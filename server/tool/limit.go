package tool

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"agentd/server/message"
)

// maxQueued is how many calls may wait for a limit; those of one payer at most three quarters of it.
const maxQueued = 4096

// A Limit bounds the calls of a tool: how many are made at once, and how many begin in a minute. Others wait. The next to begin
// belongs to the payer that has the fewest running; among those, to the one whose latest call began first; of one payer, it is
// the oldest. The minute is a sliding one; a start of the server begins with none.
type Limit struct {
	concurrent, perMinute int

	mu      sync.Mutex // guards the fields below: a call that can begin does not wait
	running int
	payers  map[string]*payer // of the calls that run or wait
	queue   []*queued         // oldest first
	begun   []time.Time       // the latest perMinute begins: a ring
	next    int               // where the next goes in it: the oldest, once it is full
	turns   int               // begins so far
	alarm   *time.Timer       // for the end of the minute of the oldest; nil: nothing waits for it
}

type payer struct {
	name                   string
	running, waiting, turn int
}

type queued struct {
	*payer
	begin chan struct{} // closed when the call can begin
}

// NewLimit makes a limit; 0 is no bound.
func NewLimit(concurrent, perMinute int) *Limit {
	return &Limit{concurrent: concurrent, perMinute: perMinute, payers: map[string]*payer{}}
}

// Admit waits until a call of a tool may begin, and returns what is to be called when it has ended. Before it waits, it calls
// wait, which may be nil; an error of that ends it. The outcome says why the call may not begin: its context has ended, or
// too many wait. Without a limit, Admit returns at once. Execute does not admit again.
func (s *Set) Admit(ctx context.Context, name string, call Call, wait func() error) (release func(), refusal *message.Outcome) {
	e := s.byName[name]
	if e == nil || e.spec.Limit == nil {
		return func() {}, nil
	}
	l := e.spec.Limit
	q := l.enter(call.Payer)
	refuse := func(kind message.ErrorKind, text, hint string) (func(), *message.Outcome) {
		return nil, message.Fail(call.ID, name, kind, text, hint)
	}
	if q == nil {
		return refuse(message.RateLimited, "Too many calls wait for the limits of this tool. The call was not made.", "Call it again later.")
	}
	select {
	case <-q.begin:
		return func() { l.leave(q.payer) }, nil
	default:
	}
	var err error
	if wait != nil {
		err = wait()
	}
	if err == nil {
		select {
		case <-q.begin:
			return func() { l.leave(q.payer) }, nil
		case <-ctx.Done():
		}
	}
	l.cancel(q)
	return refuse(message.AbortedCall, "The call was aborted before it began.", "")
}

// enter lets a call begin or wait; nil: too many wait.
func (l *Limit) enter(name string) *queued {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.payers[name]
	if p == nil {
		p = &payer{name: name}
	}
	if len(l.queue) >= maxQueued || p.waiting >= maxQueued-maxQueued/4 {
		return nil
	}
	l.payers[name] = p
	p.waiting++
	q := &queued{p, make(chan struct{})}
	l.queue = append(l.queue, q)
	l.admitLocked()
	return q
}

// leave ends a call.
func (l *Limit) leave(p *payer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	p.running--
	l.tidyLocked(p)
	l.admitLocked()
}

// cancel ends the wait of a call, or the call if it could begin meanwhile: it has not begun, but its minute counts it.
func (l *Limit) cancel(q *queued) {
	l.mu.Lock()
	i := slices.Index(l.queue, q)
	if i >= 0 {
		l.queue = slices.Delete(l.queue, i, i+1)
		q.waiting--
		l.tidyLocked(q.payer)
	}
	l.mu.Unlock()
	if i < 0 {
		l.leave(q.payer)
	}
}

func (l *Limit) tidyLocked(p *payer) {
	if p.running+p.waiting == 0 {
		delete(l.payers, p.name)
	}
}

// admitLocked lets calls begin as long as the limits allow it.
func (l *Limit) admitLocked() {
	for len(l.queue) > 0 && (l.concurrent == 0 || l.running < l.concurrent) && l.minuteLocked() {
		i := 0
		for j, q := range l.queue {
			if best := l.queue[i]; cmp.Or(cmp.Compare(q.running, best.running), cmp.Compare(q.turn, best.turn)) < 0 {
				i = j
			}
		}
		q := l.queue[i]
		l.queue = slices.Delete(l.queue, i, i+1)
		l.running++
		l.turns++
		q.waiting--
		q.running++
		q.turn = l.turns
		if l.perMinute > 0 {
			l.countLocked()
		}
		close(q.begin)
	}
}

func (l *Limit) countLocked() {
	if len(l.begun) < l.perMinute {
		l.begun = append(l.begun, time.Now())
		return
	}
	l.begun[l.next] = time.Now()
	l.next = (l.next + 1) % l.perMinute
}

// minuteLocked reports whether a call may begin in this minute. If not, a timer looks again.
func (l *Limit) minuteLocked() bool {
	if l.perMinute == 0 || len(l.begun) < l.perMinute {
		return true
	}
	left := time.Minute - time.Since(l.begun[l.next])
	if left > 0 && l.alarm == nil {
		l.alarm = time.AfterFunc(left, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.alarm = nil
			l.admitLocked()
		})
	}
	return left <= 0
}
