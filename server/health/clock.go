package health

import (
	"time"

	"agentd/server/shape"
)

// What a [Clock] reports.
const (
	Step     = 10 * time.Second // a change of the system clock that is no adjustment any more
	Stepped  = time.Hour        // how long a step is reported
	Tolerant = time.Minute      // how far ahead of the clock the time of a file may be
)

// A Clock compares the system clock with the monotonic clock, and with the time at which the server's files were last
// written before it started. It is a check's own: it is not for concurrent use.
type Clock struct {
	start   time.Time // by the system clock
	written time.Time
	ahead   time.Duration // of the monotonic clock, at the latest look
	step    time.Duration // the latest; 0: none
	at      time.Duration // of that step, since the start
}

// NewClock makes a clock for a server that starts at a time of the system clock, and whose files were last written at another;
// zero: it has no files yet.
func NewClock(start, written time.Time) *Clock {
	return &Clock{start: start.Round(0), written: written}
}

// Look compares the clocks: now is the time by the system clock, elapsed the time since the start by the monotonic clock. It
// warns for an hour after a step, and while the clock shows a time before the files were written. A machine that was suspended
// looks like a step forward: the monotonic clock stands still meanwhile.
func (c *Clock) Look(now time.Time, elapsed time.Duration) Result {
	ahead := now.Round(0).Sub(c.start) - elapsed
	if by := ahead - c.ahead; by.Abs() >= Step {
		c.step, c.at = by, elapsed
	}
	if c.ahead = ahead; elapsed-c.at > Stepped {
		c.step = 0
	}
	found := Result{Status: OK, Fields: shape.Object{"stepSeconds", int64(c.step / time.Second)}}
	switch {
	case c.written.Sub(now) > Tolerant:
		found.Status, found.Message = Warn, "The database was last written at a time that has not come yet by the system clock: set the clock."
	case c.step != 0:
		found.Status, found.Message = Warn, "The system clock was set by stepSeconds, or the machine was suspended, within the last hour. Schedules follow the new time."
	}
	return found
}
