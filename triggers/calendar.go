package triggers

import (
	"math/bits"
	"time"
)

// What a clock without changes shows is counted in seconds since it showed 1970-01-01 00:00:00.
const (
	minute = 60
	day    = 24 * 60 * minute
)

// Dues are in the years 1 to 9999 of UTC. At their ends, the clocks of zones show times of other years.
const (
	earliest = -719162 * day
	end      = 2932897 * day // the first instant of the year 10000
	maxYear  = 10000
)

// first returns the first time from the given one on that matches, and false if there is none up to maxYear.
func (c Cron) first(from int64) (int64, bool) {
	if c.never() {
		return 0, false
	}
	from = -floor(-from, minute) * minute
	today := floor(from, day)
	year, month, date := time.Unix(today*day, 0).UTC().Date()
	start, days := c.month(year, month)
	if days>>date&1 != 0 {
		if at, ok := c.firstMinute(int(from-today*day) / minute); ok {
			return today*day + at, true
		}
	}
	days = days >> (date + 1) << (date + 1)
	for days == 0 {
		if later := c.months >> (month + 1); later != 0 {
			month += time.Month(1 + bits.TrailingZeros16(later))
		} else {
			year, month = year+1, time.Month(bits.TrailingZeros16(c.months))
		}
		if year > maxYear {
			return 0, false
		}
		start, days = c.month(year, month)
	}
	at, _ := c.firstMinute(0)
	return (start+int64(bits.TrailingZeros64(days))-1)*day + at, true
}

// count returns how many times match, from the first one to the one before the second.
func (c Cron) count(from, to int64) int64 {
	if from >= to || c.never() {
		return 0
	}
	first, last := floor(from, day), floor(to, day)
	// All of the days from first to last-1, less what is before from, and what is before to on the last day.
	n := c.before(last, to) - c.before(first, from)
	perDay := int64(bits.OnesCount64(c.minutes) * bits.OnesCount32(c.hours))
	for next := first; next < last; {
		year, month, date := time.Unix(next*day, 0).UTC().Date()
		start, days := c.month(year, month)
		days = days >> date << date
		if rest := last - start; rest < 31 {
			days &= 1<<(rest+1) - 1 // up to the day before last
		}
		n += perDay * int64(bits.OnesCount64(days))
		next = floor(time.Date(year, month+1, 1, 0, 0, 0, 0, time.UTC).Unix(), day)
	}
	return n
}

// month returns the number of the first day of a month since 1970-01-01, and the days that match: bit n for the nth.
func (c Cron) month(year int, month time.Month) (start int64, days uint64) {
	begin := time.Date(year, month, 1, 0, 0, 0, 0, time.UTC)
	start = floor(begin.Unix(), day)
	if c.months>>month&1 == 0 {
		return start, 0
	}
	length := floor(time.Date(year, month+1, 1, 0, 0, 0, 0, time.UTC).Unix(), day) - start
	const eachWeek = 1 | 1<<7 | 1<<14 | 1<<21 | 1<<28
	week := uint64(c.weekdays)
	week = (week>>begin.Weekday() | week<<(7-begin.Weekday())) & 127 // bit 0 for the weekday of the first
	return start, week * eachWeek << 1 & uint64(c.days) & (1<<(length+1) - 1)
}

// firstMinute returns the first time of a day, in seconds, that matches from the given minute on.
func (c Cron) firstMinute(from int) (int64, bool) {
	hour := from / 60
	if c.hours>>hour&1 != 0 {
		if m := c.minutes >> (from % 60) << (from % 60); m != 0 {
			return int64(hour*60+bits.TrailingZeros64(m)) * minute, true
		}
	}
	later := c.hours >> (hour + 1) << (hour + 1)
	return int64(bits.TrailingZeros32(later)*60+bits.TrailingZeros64(c.minutes)) * minute, later != 0
}

// before returns how many times of a day match that are before the given time on it.
func (c Cron) before(today, to int64) int64 {
	year, month, date := time.Unix(today*day, 0).UTC().Date()
	if _, days := c.month(year, month); days>>date&1 == 0 {
		return 0
	}
	past := -floor(-(to - today*day), minute) // a minute that has begun is past
	hour := past / 60
	n := bits.OnesCount32(c.hours&(1<<hour-1)) * bits.OnesCount64(c.minutes)
	if c.hours>>hour&1 != 0 {
		n += bits.OnesCount64(c.minutes & (1<<(past%60) - 1))
	}
	return int64(n)
}

// never reports whether none of the months has one of the days. If one has, it is due: each date, February 29 too, is on each day of the
// week within 40 years.
func (c Cron) never() bool {
	const february = 1 << 2
	const short = 1<<4 | 1<<6 | 1<<9 | 1<<11
	switch first := bits.TrailingZeros32(c.days); {
	case first <= 29:
		return c.months == 0
	case first == 30:
		return c.months&^february == 0
	}
	return c.months&^february&^short == 0
}

// floor returns the integer quotient that is not greater than a/b, for b > 0.
func floor(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
