package time

import "sync/atomic"

// skew is what the wall clock is ahead of the system's, in seconds.
var skew atomic.Int64

// Skew sets the wall clock ahead of the system's, or behind it. The monotonic clock, and so timers, know nothing of it.
func Skew(d Duration) { skew.Store(int64(d / Second)) }
