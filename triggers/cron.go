// Package triggers starts runs when their time has come, when something has happened outside, or when nothing happens any more.
//
// An [Engine] fires triggers. Each firing is a row of a ledger, unique by trigger and slot. The row, the run that it starts and the
// cursor of the trigger, up to which dues are accounted for, are written in one transaction, so that a crash neither loses a due nor
// fires it twice:
//
//	due, event or request --> fired    its run exists
//	                      --> queued   waits for the end of an earlier run, or for the next attempt; then fired or failed
//	                      --> skipped  an earlier run has not ended, or the queue is full
//	                      --> failed   it could not start
//	                      --> missed   nobody ran at its time, and the policy does not catch it up
//
// A [Cron] is a parsed cron text, a [Schedule] a cron text in a time zone or an interval. Both are small values that know no clock, no
// store and no goroutine: whoever asks names the time after which, or the interval in which, dues are sought.
//
// # Cron texts
//
// A text has five fields, with spaces or tabs between them: minute (0-59), hour (0-23), day of month (1-31), month (1-12 or JAN-DEC)
// and day of week (0-7 or SUN-SAT, where 0 and 7 are Sunday). A field is a list of elements with commas between them:
//
//	N        one value
//	*        all values
//	A-B      the values from A to B, where A is not greater than B
//	*/S      each S-th value, from the first of the field
//	N/S      each S-th value from N to the last of the field
//	A-B/S    each S-th value from A to B
//
// Or the text is one of @hourly, @daily, @weekly, @monthly and @yearly. [Parse] refuses everything else.
//
// All five fields must match. If the day of month and the day of week are both restricted, a day is due only if it matches both: other
// programs take either. "0 12 1-7 * 1" is noon on the first Monday of each month.
//
// # Clock changes
//
// A text whose minute and hour both start with something else than * names fixed times. It is due when the clock first shows or
// passes such a time. If clocks skip fixed times in spring, the text is due once at the end of the gap. If clocks show a fixed time
// twice in autumn, it is due on the first pass only.
//
// Other texts follow the clock: they are due whenever it shows a time that matches, twice in autumn and never in a gap.
package triggers

import (
	"math"
	"time"
)

// A Cron is a parsed cron text. The zero value is never due.
type Cron struct {
	minutes  uint64 // bit n for minute n; the other fields likewise
	hours    uint32
	days     uint32 // bits 1 to 31
	months   uint16 // bits 1 to 12
	weekdays uint8  // bits 0 (Sunday) to 6
	fixed    bool   // neither minute nor hour starts with *
}

// Next returns the first due after the given time, in UTC. It returns false if there is none up to the year 9999, as for February 30.
// Every text that is due at all is due within 40 years: a leap day can be that far from the next one on the same day of the week.
func (c Cron) Next(after time.Time, zone *time.Location) (time.Time, bool) {
	for t := clamp(after.Unix() + 1); ; {
		s := spanAt(t, zone)
		clock, ok := c.first(s.begin(t, c.fixed))
		if !ok {
			return time.Time{}, false
		}
		due := max(clock-s.offset, s.from) // a time in a gap is due at its end
		if due >= end {
			return time.Time{}, false
		}
		if due < s.to {
			return time.Unix(due, 0).UTC(), true
		}
		if s.to-t > day+minute && due-2*day > s.to {
			// The clock shows no match before this one, and what it shows again at the end of this span has been searched. So the spans
			// between need no look. Offsets differ by at most a day.
			t = due - 2*day
		} else {
			t = s.to
		}
	}
}

// Count returns the number of dues after the first time up to the second, that one included.
func (c Cron) Count(after, until time.Time, zone *time.Location) int64 {
	n := int64(0)
	for t, last := clamp(after.Unix()+1), clamp(until.Unix()+1); t < last; {
		s := spanAt(t, zone)
		next := min(last, s.to)
		from := s.begin(t, c.fixed)
		n += c.count(from, next+s.offset)
		if from < t+s.offset {
			// What a gap skipped, and what matches at its end, is one due.
			n -= max(c.count(from, t+s.offset+1)-1, 0)
		}
		t = next
	}
	return n
}

// clamp returns the instant from earliest to end that is nearest to t.
func clamp(t int64) int64 { return min(max(t, earliest), end) }

// A span is a stretch of time without a change of the clock. Instants are Unix seconds; the clock shows an instant plus the offset.
type span struct {
	from, to       int64 // to is the first instant of the next span
	before, offset int64 // before is the offset of the previous span
}

// spanAt returns the span that contains an instant.
func spanAt(t int64, zone *time.Location) span {
	at := time.Unix(t, 0).In(zone)
	_, offset := at.Zone()
	s := span{from: math.MinInt64, to: math.MaxInt64, before: int64(offset), offset: int64(offset)}
	from, to := at.ZoneBounds()
	if !from.IsZero() {
		s.from = from.Unix()
		_, before := from.Add(-time.Second).Zone()
		s.before = int64(before)
	}
	if !to.IsZero() {
		s.to = to.Unix()
		if s.to <= t {
			// Where a rule gives the changes, ZoneBounds also ends a span 365 days after the start of a year: in leap years, that is at the
			// start of December 31.
			s.to = (floor(t, day) + 1) * day
		}
	}
	return s
}

// begin returns the first time of the clock to search from an instant of s. Fixed times are due when the clock first reaches or passes
// them: at the start of a span that includes those in the gap before it, and after an overlap it excludes those that were shown already.
func (s span) begin(t int64, fixed bool) int64 {
	switch {
	case !fixed || s.from == math.MinInt64:
		return t + s.offset
	case t == s.from:
		return s.from + s.before
	}
	return max(t+s.offset, s.from+s.before)
}
