package audit

import (
	"context"
	"net/netip"
	"sync"
	"time"
)

const (
	denialWindow = time.Minute // within it, denied authentications of one kind get two entries: the first, and the number of the others
	maxDenials   = 100         // kinds with their own entries in a window, so that a flood makes few entries; the rest share one

	grantWindow = time.Hour // within it, only the first authentication of an actor from an address has an entry
	maxGrants   = 1000      // pairs of actor and address with their own entries in a window; the rest share one
)

// A notice is a kind of event. The chain records the first of each kind.
type notice struct {
	of   string       // an actor's id, or the code of a fault
	from netip.Prefix // zero: not known, or several
}

// A tally counts the events of a kind after the first.
type tally struct {
	n           int64
	first, last time.Time
}

// notices finds the first event of each kind within a window. When there are too many kinds, others share one.
type notices struct {
	most   int
	window time.Duration // counts from its first event; 0: it lasts until take

	mu    sync.Mutex // guards the fields below
	begun time.Time
	kinds map[notice]*tally
}

// first counts an event, and reports its kind and whether it is the first of that kind. When there are too many kinds, the
// event counts as one of the kind shared.
func (n *notices) first(kind, shared notice) (notice, bool) {
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.kinds == nil || n.window > 0 && now.Sub(n.begun) >= n.window {
		n.kinds, n.begun = map[notice]*tally{}, now
	}
	if n.kinds[kind] == nil && len(n.kinds) >= n.most {
		kind = shared
	}
	t := n.kinds[kind]
	if t == nil {
		n.kinds[kind] = &tally{first: now, last: now}
		return kind, true
	}
	t.n++
	t.last = now
	return kind, false
}

func (n *notices) forget(kind notice) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.kinds, kind)
}

// take returns the counts and resets them.
func (n *notices) take() map[notice]*tally {
	n.mu.Lock()
	defer n.mu.Unlock()
	kinds := n.kinds
	n.kinds = nil
	return kinds
}

// Denial is an authentication that was refused.
type Denial struct {
	Code      string       // of the fault
	From      netip.Prefix // the network of the client; zero: not known
	Method    string
	Target    string
	RequestID string
}

var nobody = Actor{Kind: ActorSystem, ID: "unauthenticated"}

// Denied records a refused authentication. The first of each network and fault gets an entry at once. When the minute is over,
// one more entry holds the number of the others.
func (l *Log) Denied(ctx context.Context, v Denial) error {
	kind, first := l.denials.first(notice{v.Code, v.From}, notice{of: v.Code})
	entry := "shared"
	if first {
		entry = "own"
	}
	if l.opts.Metrics.AuditDenials.With(entry).Inc(); !first {
		return nil
	}
	return l.Note(ctx, denied(kind, v.Target, map[string]any{"method": v.Method, "requestId": v.RequestID, "count": 1}))
}

// countDenials records how many denials of the last minute have no entry.
func (l *Log) countDenials() {
	for kind, t := range l.denials.take() {
		if t.n == 0 {
			continue
		}
		err := l.Note(context.Background(), denied(kind, "", map[string]any{"count": t.n, "fromTs": t.first.UnixMilli(),
			"toTs": t.first.Add(t.last.Sub(t.first)).UnixMilli()})) // also when the clock was set back
		if err != nil {
			l.log.Error("failed logins could not be recorded", "code", kind.of, "count", t.n, "error", err)
		}
	}
}

func denied(kind notice, target string, facts map[string]any) Record {
	facts["address"] = address(kind.from)
	return Record{Actor: nobody, Action: AuthDenied + Action(":"+kind.of), Target: target, Decision: Denied, Metadata: facts}
}

// Grant is an authentication that succeeded.
type Grant struct {
	Actor     Actor
	From      netip.Prefix // the network of the client; zero: not known
	By        string       // what proved it: bearer or ticket
	Method    string
	Target    string
	RequestID string
}

// ByTicket marks a ticket, which is valid for one connection.
const ByTicket = "ticket"

// Granted records an authentication. A token used from a network gets one entry an hour, so that it costs a request nothing; a
// ticket gets one each time. The entry is durable before any that is appended later.
func (l *Log) Granted(ctx context.Context, g Grant) error {
	kind := notice{g.Actor.ID, g.From}
	if g.By != ByTicket {
		var first bool
		if kind, first = l.grants.first(kind, notice{}); !first {
			return nil
		}
	}
	m := map[string]any{"address": address(kind.from), "by": g.By, "method": g.Method, "requestId": g.RequestID}
	err := l.Note(ctx, Record{Actor: g.Actor, Action: AuthGranted, Target: g.Target, Decision: Success, Metadata: m})
	if err != nil && g.By != ByTicket {
		l.grants.forget(kind)
	}
	return err
}

// address names a network. Unknown networks, and those that are counted together, are "other".
func address(p netip.Prefix) string {
	switch {
	case !p.IsValid():
		return "other"
	case p.IsSingleIP():
		return p.Addr().String()
	}
	return p.String()
}
