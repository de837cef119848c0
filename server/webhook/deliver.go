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

// The states of a delivery. What dies may be tried again: the zero Delivery starts afresh.
//
//	waiting --2xx--> delivered
//	waiting --failed within 3 days--> waiting, for a backoff or as long as Retry-After asks
//	waiting --failed after 3 days, or 410--> dead
const (
	Waiting   State = ""
	Delivered State = "delivered"
	Dead      State = "dead"
)

// A Delivery is how far an event is on its way to a target. The zero value has not been tried. The caller stores it.
type Delivery struct {
	State    State
	Attempts int       // that have ended
	Began    time.Time // when the first of them ended
	Due      time.Time // the next attempt comes no earlier
}

// A Target decides which attempts to reach a receiver begin. The zero value is a receiver of which nothing is known. The caller
// stores the fields; attempts in progress are in memory only, because those that a crash interrupts are made again. It is not safe
// for concurrent use.
//
// First attempts go one after the other, so that events arrive in their order unless an attempt fails. Up to [MaxRetries] retries
// go beside them, so that an event that fails holds up no other. After 10 failures in a row, any attempt is a probe: there is one
// at a time, and a wait of up to a minute before the next, or of up to an hour if the receiver asks for it. A success ends that.
type Target struct {
	Disabled bool      // the receiver answered 410; only Enable ends that
	Failures int       // in a row
	Probe    time.Time // the next probe comes no earlier

	first   bool // a first attempt is in progress
	retries int  // that are in progress
}

// A Result is what came of an attempt.
type Result struct {
	Status     int           // of the answer; 0 if there was none within [Timeout]
	RetryAfter time.Duration // that the answer asks for
}

// Begin begins an attempt at a delivery that waits, if it may begin now: End must follow then. Otherwise, wait is how long it
// cannot begin for sure; 0 means until an attempt ends or the target is enabled. The caller asks for deliveries that have not been
// tried in their order.
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

// until is how long it takes to a time, which is at most this far away: if it is farther, the clock was set back, and it is now.
func until(at time.Time, most time.Duration) time.Duration {
	if d := time.Until(at); d > 0 && d <= most {
		return d
	}
	return 0
}

// End ends an attempt that Begin began, and returns what has become of the delivery. The caller stores it and the target in one
// transaction.
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

// Enable has the target take attempts again, as if it had never failed.
func (t *Target) Enable() { t.Disabled, t.Failures, t.Probe = false, 0, time.Time{} }

// backoff is the wait after failure n, counted from 0. A random half at most is taken off, for the deliveries that failed together
// to come back apart.
func backoff(n int, most time.Duration) time.Duration {
	wait := min(firstWait<<min(n, 20), most)
	return wait - rand.N(wait/2)
}
