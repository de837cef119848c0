package audit

import (
	"context"
	"maps"
	"net/netip"
	"sync"
	"time"
)

// grantWindow is how long after an authentication of an actor from an address another one is not told: the requests
// themselves are entries.
const grantWindow = time.Hour

// maxGrants is how many pairs of actor and address are told apart; those beyond it are one, until an hour is over.
const maxGrants = 1000

// Grant is an authentication that succeeded.
type Grant struct {
	Actor     Actor
	IP        netip.Addr // zero: not known
	By        string     // what proved it: bearer or ticket
	Method    string
	Target    string
	RequestID string
}

// ByTicket is the proof that is good for one connection.
const ByTicket = "ticket"

type grantKind struct {
	actor  string
	prefix netip.Prefix
}

// grants remembers which authentications were told.
type grants struct {
	mu   sync.Mutex // guards told
	told map[grantKind]time.Time
}

// Granted records an authentication: that of an actor from an address once an hour, so that it costs a request nothing,
// and each ticket. Addresses are told apart as those of [Log.Denied] are. The entry is durable before the next that is
// appended.
func (l *Log) Granted(ctx context.Context, g Grant) error {
	kind := grantKind{g.Actor.ID, prefixOf(g.IP)}
	if g.By != ByTicket && !l.grants.first(&kind) {
		return nil
	}
	m := map[string]any{"address": address(kind.prefix), "by": g.By, "method": g.Method, "requestId": g.RequestID}
	err := l.Note(ctx, Record{Actor: g.Actor, Action: AuthGranted, Target: g.Target, Decision: Success, Metadata: m})
	if err != nil && g.By != ByTicket {
		l.grants.forget(kind)
	}
	return err
}

// first reports whether an authentication of this kind is to be told now. When there are too many, the kind becomes the
// one that they share.
func (g *grants) first(kind *grantKind) bool {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	fresh := func(k grantKind) bool {
		at, told := g.told[k]
		return told && now.Sub(at) < grantWindow
	}
	if fresh(*kind) {
		return false
	}
	if len(g.told) >= maxGrants {
		if fresh(grantKind{}) {
			return false
		}
		maps.DeleteFunc(g.told, func(k grantKind, _ time.Time) bool { return !fresh(k) })
		if len(g.told) >= maxGrants {
			*kind = grantKind{}
		}
	}
	if g.told == nil {
		g.told = map[grantKind]time.Time{}
	}
	g.told[*kind] = now
	return true
}

func (g *grants) forget(kind grantKind) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.told, kind)
}
