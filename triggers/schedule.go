package triggers

import (
	"errors"
	"fmt"
	"hash/fnv"
	"sort"
	"time"
	_ "time/tzdata" // zones are the same on hosts that have none
)

// A Schedule says when a trigger is due: at the times of a cron text in a zone, or in an interval. It takes 48 bytes; the schedules of
// a zone share it.
type Schedule struct {
	cron  Cron
	zone  *time.Location // nil for an interval
	every int64          // milliseconds
	from  int64          // Unix milliseconds
}

// In returns the schedule of a cron text in a zone.
func (c Cron) In(zone *time.Location) Schedule { return Schedule{cron: c, zone: zone} }

// maxEvery is the longest interval.
const maxEvery = 100 * 366 * 24 * time.Hour

// Every returns a schedule that is due one period after a time, and each period from then on: a due that is late or missed does not move
// the others. Both are cut to milliseconds. The period is at least one and at most 100 years.
func Every(period time.Duration, from time.Time) (Schedule, error) {
	if period < time.Millisecond || period > maxEvery {
		return Schedule{}, fmt.Errorf("the interval %v is not between %v and %v", period, time.Millisecond, maxEvery)
	}
	return Schedule{every: period.Milliseconds(), from: from.UnixMilli()}, nil
}

// Next returns the first due after a time, in UTC, and false if there is none up to the year 9999.
func (s Schedule) Next(after time.Time) (time.Time, bool) {
	if s.zone != nil {
		return s.cron.Next(after, s.zone)
	}
	due := time.UnixMilli(s.from + (s.periods(after)+1)*s.every).UTC()
	return due, due.Unix() < end
}

// Count returns the number of dues after the first time up to the second, that one included.
func (s Schedule) Count(after, until time.Time) int64 {
	if s.zone != nil {
		return s.cron.Count(after, until, s.zone)
	}
	return max(s.periods(until)-s.periods(after), 0)
}

// periods returns how many dues an interval has up to a time.
func (s Schedule) periods(until time.Time) int64 {
	return max(floor(until.UnixMilli()-s.from, s.every), 0)
}

// Upcoming returns the first n dues after a time, or all if there are fewer.
func (s Schedule) Upcoming(after time.Time, n int) (dues []time.Time) {
	for len(dues) < n {
		due, ok := s.Next(after)
		if !ok {
			break
		}
		dues, after = append(dues, due), due
	}
	return dues
}

// Newest returns the last n dues after the first time up to the second, in order, or all if there are fewer.
func (s Schedule) Newest(after, until time.Time, n int) []time.Time {
	base := after.UnixMilli()
	// The longest wait after which no more than n are left.
	wait := sort.Search(int(max(until.UnixMilli()-base, 0)), func(ms int) bool {
		return s.Count(time.UnixMilli(base+int64(ms)), until) <= int64(n)
	})
	after = time.UnixMilli(base + int64(wait))
	return s.Upcoming(after, int(s.Count(after, until)))
}

// Zones reads time zones and remembers them, because each reading takes some kilobytes. It is not safe
// for concurrent use.
type Zones map[string]*time.Location

// Load returns the zone of an IANA name such as Europe/Berlin.
func (z Zones) Load(name string) (*time.Location, error) {
	if zone := z[name]; zone != nil {
		return zone, nil
	}
	if name == "" || name == "Local" {
		return nil, errors.New("a time zone has a name of the IANA database, such as Europe/Berlin or UTC")
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, err
	}
	z[name] = zone
	return zone, nil
}

// Jitter returns by how much the start of a trigger's firings is delayed, from 0 to most in milliseconds. It is always the same for an id,
// and triggers with the same schedule spread over the whole of it.
func Jitter(id string, most time.Duration) time.Duration {
	h := fnv.New64a()
	h.Write([]byte(id))
	return time.Duration(h.Sum64()%uint64(max(most.Milliseconds(), 0)+1)) * time.Millisecond
}
