package webhook

import (
	"math/rand/v2"
	"time"
)

// How outgoing webhooks are delivered.
const (
	Timeout    = 10 * time.Second // of an attempt: an answer that comes later is none
	Lifetime   = 72 * time.Hour   // from the first attempt to the last
	MaxRetries = 4                // retries at once, of a target

	firstWait    = 5 * time.Second // before the second attempt; it doubles with each further one
	mostWait     = 6 * time.Hour   // and ends here
	mostProbe    = time.Minute     // between two probes, unless the receiver asks for more
	mostAsked    = time.Hour       // that it may ask for between two probes
	probingAfter = 10              // failures in a row
)

// State is what has become of a delivery.
type State string

// The states of a delivery. To try a dead one again, store the zero Delivery, which starts afresh.
//
//	waiting --2xx--> delivered
//	waiting --failed within 3 days--> waiting, for a backoff or as long as Retry-After asks
//	waiting --failed after 3 days, or 410--> dead
const (
	Waiting   State = ""
	Delivered State = "delivered"
	Dead      State = "dead"
)

// A Delivery is the progress of one event towards one target. The zero value is one that nobody has tried. The caller stores it.
type Delivery struct {
	State    State
	Attempts int       // attempts that have ended
	Began    time.Time // when the first of them ended
	Due      time.Time // the next attempt comes no earlier
}

// A Target decides which attempts to reach a receiver begin. The zero value has made none. The caller stores the exported fields.
// Only memory holds the attempts in progress, because a crash interrupts them and the next start makes them again. A Target is not
// safe for concurrent use.
//
// First attempts run one after the other, so that events arrive in their order unless an attempt fails. Up to [MaxRetries] retries
// run beside them, so that a failed delivery holds up no other. After 10 failures in a row, each attempt is a probe: only one runs
// at a time, and the next begins up to a minute later, or up to an hour if the receiver asks for that. A success ends the probing.
type Target struct {
	Disabled bool      // the receiver answered 410; only Enable ends that
	Failures int       // in a row
	Probe    time.Time // the next probe comes no earlier

	first   bool // a first attempt is in progress
	retries int  // retries in progress
}

// A Result is what came of an attempt. The caller follows no redirects.
type Result struct {
	Status     int           // of the answer; 0 if none came within [Timeout]
	RetryAfter time.Duration // the wait that the answer asks for
}

// Begin reports whether an attempt at a delivery begins now. If it does, the caller makes the attempt and calls End. If not, the
// caller asks again after wait; where wait is 0, after another attempt has ended or somebody has enabled the target. The caller
// asks for untried deliveries in the order of their events.
func (t *Target) Begin(d Delivery) (wait time.Duration, begun bool) {
	probing := t.Failures >= probingAfter
	wait = until(d.Due, Lifetime)
	if probing {
		wait = max(wait, until(t.Probe, mostAsked))
	}
	first := d.Attempts == 0
	switch {
	case t.Disabled || d.State != Waiting:
		return 0, false
	case wait > 0:
		return wait, false
	case probing && (t.first || t.retries > 0), first && t.first, !first && t.retries == MaxRetries:
		return 0, false
	case first:
		t.first = true
	default:
		t.retries++
	}
	return 0, true
}

// until is the time left until at, and 0 if that is past. A time farther away than most shows that somebody set the clock back, and
// counts as past.
func until(at time.Time, most time.Duration) time.Duration {
	if d := time.Until(at); d > 0 && d <= most {
		return d
	}
	return 0
}

// End records the result of an attempt that Begin reported as begun, and returns the delivery after it. The caller stores both the
// delivery and the target in one transaction.
func (t *Target) End(d Delivery, r Result) Delivery {
	now := time.Now()
	if d.Attempts == 0 {
		t.first = false
	} else {
		t.retries--
	}
	if d.Attempts == 0 || d.Began.After(now) { // after now if the clock was set back
		d.Began = now
	}
	d.Attempts++
	if r.Status >= 200 && r.Status <= 299 {
		d.State, t.Failures, t.Probe = Delivered, 0, time.Time{}
		return d
	}
	t.Failures++
	if t.Failures >= probingAfter {
		t.Probe = now.Add(max(backoff(t.Failures-probingAfter, mostProbe), min(r.RetryAfter, mostAsked)))
	}
	end := d.Began.Add(Lifetime)
	switch {
	case r.Status == 410:
		t.Disabled, d.State = true, Dead
	case !now.Before(end):
		d.State = Dead
	default:
		d.Due = now.Add(max(backoff(d.Attempts-1, mostWait), r.RetryAfter))
		if d.Due.After(end) {
			d.Due = end // the last attempt
		}
	}
	return d
}

// Enable lets attempts begin again, as if none had failed.
func (t *Target) Enable() { t.Disabled, t.Failures, t.Probe = false, 0, time.Time{} }

// backoff is the wait after failure n, counted from 0. It is shortened at random, to half at most, so that deliveries that failed
// together are not retried together.
func backoff(n int, most time.Duration) time.Duration {
	wait := min(firstWait<<min(n, 20), most)
	return wait - rand.N(wait/2)
}
