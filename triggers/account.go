package triggers

import "time"

// ordinary is how late a due may be seen while the engine runs. What is later, catch-up decides.
const ordinary = time.Minute

// An account says what becomes of the dues that a trigger's cursor has not passed yet.
type account struct {
	missed                  int64 // dues that do not fire; all of them are before those that do
	firstMissed, lastMissed int64
	caughtUp                []int64 // dues that fire late, in order
	onTime                  []int64 // dues that fire, in order; more may follow
}

// maxOnTime is how many dues of one trigger are looked at together.
const maxOnTime = 100

// accountFor decides about the dues after the cursor. starting says that the engine has not run until now, none that
// nothing is caught up, because the trigger has never fired or has expired. Times are milliseconds since 1970.
func (c *compiled) accountFor(cursor, now int64, starting, none bool) (a account) {
	s, ok := c.dues(cursor)
	if !ok {
		return a
	}
	until := now - c.delay
	if c.ExpiresAt != 0 {
		until = min(until, c.ExpiresAt-1)
	}
	late := until
	if !starting {
		late = min(until, now-c.delay-ordinary.Milliseconds())
	}
	from := cursor
	if n := s.Count(at(cursor), at(late)); n > 0 {
		from = late
		allowed := 0
		switch {
		case none:
		case c.CatchUpPolicy == CatchUpLast:
			allowed = 1
		case c.CatchUpPolicy == CatchUpAll:
			allowed = c.MaxCatchUpRuns
		}
		oldest := max(cursor, now-c.window(s, late)-1)
		if allowed > 0 {
			for _, due := range s.Newest(at(oldest), at(late), allowed) {
				a.caughtUp = append(a.caughtUp, due.UnixMilli())
			}
		}
		if a.missed = n - int64(len(a.caughtUp)); a.missed > 0 {
			end := late
			if len(a.caughtUp) > 0 {
				end = a.caughtUp[0] - 1
			}
			first, _ := s.Next(at(cursor))
			last := s.Newest(at(cursor), at(end), 1)
			a.firstMissed, a.lastMissed = first.UnixMilli(), last[0].UnixMilli()
		}
	}
	for due, ok := s.Next(at(from)); ok && due.UnixMilli() <= until && len(a.onTime) < maxOnTime; due, ok = s.Next(due) {
		a.onTime = append(a.onTime, due.UnixMilli())
	}
	return a
}

// next is when the trigger has to be looked at again: the start of the first due after the cursor; 0: never.
func (c *compiled) next(cursor int64) int64 {
	s, ok := c.dues(cursor)
	if !ok {
		return 0
	}
	due, ok := s.Next(at(cursor))
	if !ok || c.ExpiresAt != 0 && due.UnixMilli() >= c.ExpiresAt {
		return 0
	}
	return due.UnixMilli() + c.delay
}

func at(ms int64) time.Time { return time.UnixMilli(ms) }
