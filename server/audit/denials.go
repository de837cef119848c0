package audit

import (
	"context"
	"net/netip"
	"sync"
	"time"
)

// denialWindow is how long denied authentications of one kind are counted before they are told as one entry.
const denialWindow = time.Minute

// maxDenials is how many kinds are told apart in a window; all beyond are one. So a flood makes a few entries a minute,
// wherever it comes from.
const maxDenials = 100

// Denial is an authentication that was refused.
type Denial struct {
	Code      string     // of the fault
	IP        netip.Addr // zero: not known
	Method    string
	Target    string
	RequestID string
}

type denialKind struct {
	code   string
	prefix netip.Prefix
}

type denialCount struct {
	n           int64
	first, last int64
}

// denials counts those that came after the first of their kind.
type denials struct {
	log *Log

	mu     sync.Mutex // guards counts
	counts map[denialKind]*denialCount
}

func (d *denials) init(l *Log) { d.log, d.counts = l, map[denialKind]*denialCount{} }

// Denied records a refused authentication: the first of an address and kind at once, the others of the same minute as a
// number when that is over. Addresses are told apart as the rate limit does, IPv6 by their /64.
func (l *Log) Denied(ctx context.Context, v Denial) error {
	kind := denialKind{v.Code, prefixOf(v.IP)}
	first := l.denials.first(kind)
	if l.meter.denied(first); !first {
		return nil
	}
	m := map[string]any{"address": address(kind.prefix), "method": v.Method, "requestId": v.RequestID, "count": 1}
	return l.Note(ctx, Record{Actor: nobody, Action: AuthDenied + Action(":"+v.Code), Target: v.Target, Decision: Denied, Metadata: m})
}

var nobody = Actor{Kind: ActorSystem, ID: "unauthenticated"}

// first counts a denial and reports whether it is the first of its kind.
func (d *denials) first(kind denialKind) bool {
	now := time.Now().UnixMilli()
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.counts[kind]
	if c == nil && len(d.counts) >= maxDenials {
		kind = denialKind{code: kind.code}
		c = d.counts[kind]
	}
	if c == nil {
		d.counts[kind] = &denialCount{first: now, last: now}
		return true
	}
	c.n++
	c.last = max(c.last, now) // the clock may have been set back
	return false
}

// flush tells what was counted, and begins anew.
func (d *denials) flush() {
	d.mu.Lock()
	counts := d.counts
	d.counts = map[denialKind]*denialCount{}
	d.mu.Unlock()
	for kind, c := range counts {
		if c.n == 0 {
			continue
		}
		err := d.log.Note(context.Background(), Record{Actor: nobody, Action: AuthDenied + Action(":"+kind.code), Target: "", Decision: Denied,
			Metadata: map[string]any{"address": address(kind.prefix), "count": c.n, "fromTs": c.first, "toTs": c.last}})
		if err != nil {
			d.log.log.Error("denied authentications could not be recorded", "code", kind.code, "count", c.n, "error", err)
		}
	}
}

func prefixOf(ip netip.Addr) netip.Prefix {
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	p, _ := ip.WithZone("").Prefix(bits) // the zero address has the zero prefix
	return p
}

// address names a prefix; those that are counted together, and those that are not known, are "other".
func address(p netip.Prefix) string {
	switch {
	case !p.IsValid():
		return "other"
	case p.IsSingleIP():
		return p.Addr().String()
	}
	return p.String()
}
