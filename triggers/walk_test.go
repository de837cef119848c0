package triggers_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentd/triggers"
)

// zones are those of the tests: with and without changes, by an hour, half an hour, two hours and a whole day, at midnight and twice a year.
var zones = []string{"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia", "Antarctica/Troll",
	"America/Havana", "Africa/Casablanca", "Europe/Dublin", "Pacific/Kwajalein", "America/Caracas", "Asia/Pyongyang"}

var all = triggers.Zones{}

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	z, err := all.Load(name)
	if err != nil {
		t.Fatalf("Load(%q) = %v", name, err)
	}
	return z
}

// walker is the rules of this package in another form: it tries each value of a field with each element, and looks at each minute.
type walker struct {
	values [5]map[int]bool
	fixed  bool
}

var elements = regexp.MustCompile(`^(\*|\w+)(-\w+)?(/\d+)?$`)

func walk(text string) walker {
	full := map[string]string{"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@weekly": "0 0 * * SUN", "@monthly": "0 0 1 * *", "@yearly": "0 0 1 JAN *"}
	if long := full[strings.Trim(text, " \t")]; long != "" {
		text = long
	}
	fields := strings.Fields(text)
	w := walker{fixed: !strings.HasPrefix(fields[0], "*") && !strings.HasPrefix(fields[1], "*")}
	lowest, highest := []int{0, 0, 1, 1, 0}, []int{59, 23, 31, 12, 6}
	for i, field := range fields {
		number := func(s string) int {
			for day := time.Sunday; i == 4 && day <= time.Saturday; day++ {
				if strings.EqualFold(s, day.String()[:3]) {
					return int(day)
				}
			}
			for month := time.January; i == 3 && month <= time.December; month++ {
				if strings.EqualFold(s, month.String()[:3]) {
					return int(month)
				}
			}
			n, err := strconv.Atoi(s)
			if err != nil {
				panic(err)
			}
			return n
		}
		w.values[i] = map[int]bool{}
		for element := range strings.SplitSeq(field, ",") {
			parts := elements.FindStringSubmatch(element)
			from, to, step := lowest[i], highest[i], 1
			if parts[1] != "*" {
				from = number(parts[1])
				if parts[3] == "" {
					to = from
				}
			}
			if parts[2] != "" {
				to = number(parts[2][1:])
			}
			if parts[3] != "" {
				step = number(parts[3][1:])
			}
			for v := range 60 {
				if v >= from && v <= to && (v-from)%step == 0 {
					w.values[i][v] = true
				}
			}
		}
	}
	w.values[4][0] = w.values[4][0] || w.values[4][7]
	return w
}

// matches reports whether a time of the clock, in UTC, matches.
func (w walker) matches(at time.Time) bool {
	return w.values[0][at.Minute()] && w.values[1][at.Hour()] && w.values[2][at.Day()] && w.values[3][int(at.Month())] && w.values[4][int(at.Weekday())]
}

// dues returns those after a whole minute up to another.
func (w walker) dues(after, until time.Time, z *time.Location) (dues []time.Time) {
	clock := func(t time.Time) int64 {
		_, offset := t.In(z).Zone()
		return t.Unix() + int64(offset)
	}
	at := after.Add(-50 * time.Hour)
	latest := clock(at) // that the clock has shown
	for ; !at.After(until); at = at.Add(time.Minute) {
		shown := clock(at)
		due := false
		if w.fixed {
			for latest < shown {
				latest += 60
				due = w.matches(time.Unix(latest, 0).UTC()) || due
			}
		} else {
			due = w.matches(time.Unix(shown, 0).UTC())
		}
		if due && at.After(after) {
			dues = append(dues, at)
		}
	}
	return dues
}

// check compares Next, Count and Newest with a walk.
func check(t *testing.T, text string, after time.Time, length time.Duration, z *time.Location) {
	t.Helper()
	c, err := triggers.Parse(text)
	if err != nil {
		t.Fatalf("Parse(%q) = %v", text, err)
	}
	until := after.Add(length)
	want := walk(text).dues(after, until, z)
	for at, i := after, 0; ; i++ {
		due, ok := c.Next(at, z)
		if i == len(want) {
			if ok && !due.After(until) {
				t.Errorf("%q in %v: Next(%v) = %v, want none up to %v", text, z, at, due, until)
			}
			break
		}
		if !ok || !due.Equal(want[i]) {
			t.Errorf("%q in %v: Next(%v) = %v, %v, want %v", text, z, at, due, ok, want[i])
			return
		}
		at = due
	}
	s := c.In(z)
	for _, cut := range []time.Duration{0, length / 3, length - time.Minute} {
		from := after.Add(cut)
		rest := want[slices.IndexFunc(append(want, until.Add(1)), from.Before):]
		if n := s.Count(from, until); n != int64(len(rest)) {
			t.Errorf("%q in %v: Count(%v, %v) = %d, want %d", text, z, from, until, n, len(rest))
		}
		newest := rest[max(0, len(rest)-2):]
		if got := s.Newest(from, until, 2); !slices.EqualFunc(got, newest, time.Time.Equal) {
			t.Errorf("%q in %v: Newest(%v, %v, 2) = %v, want %v", text, z, from, until, got, newest)
		}
	}
}

// near returns a minute before the next change of the clock, by up to two days, and t itself if there is none.
func near(t time.Time, z *time.Location) time.Time {
	_, end := t.In(z).ZoneBounds()
	if end.IsZero() {
		return t
	}
	return end.UTC().Truncate(time.Minute).Add(-time.Duration(t.Unix()/60%2880) * time.Minute)
}

// TestWalk compares texts and times by chance with a walk.
func TestWalk(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		text := randomText(r)
		z := zone(t, zones[r.IntN(len(zones))])
		after := time.Unix(60*(r.Int64N(100*366*1440)+5*366*1440), 0).UTC()
		if r.IntN(4) > 0 {
			after = near(after, z)
		}
		check(t, text, after, 80*time.Hour, z)
	}
}

// TestYears counts the dues of years by days and in one.
func TestYears(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		c, err := triggers.Parse(randomText(r))
		if err != nil {
			t.Fatal(err)
		}
		z := zone(t, zones[r.IntN(len(zones))])
		after := time.Unix(r.Int64N(60*366*86400), 0)
		until := after.AddDate(r.IntN(4), r.IntN(12), r.IntN(30))
		if c.Count(after, until, z) > 20_000 {
			until = after.AddDate(0, 0, 10)
		}
		walked := int64(0)
		for at := after; ; walked++ {
			due, ok := c.Next(at, z)
			if !ok || due.After(until) {
				break
			}
			at = due
		}
		if n := c.Count(after, until, z); n != walked {
			t.Errorf("%v in %v: Count(%v, %v) = %d, want %d", c, z, after, until, n, walked)
		}
	}
}

// randomText returns a text in which few minutes and hours match, most of them in the night.
func randomText(r *rand.Rand) string {
	element := func(first, last, star int) string {
		a, b := first+r.IntN(last-first+1), first+r.IntN(last-first+1)
		switch k := r.IntN(10); {
		case k < star:
			return "*"
		case k < star+2:
			return fmt.Sprintf("*/%d", 1+r.IntN(last-first+1))
		case k == 8:
			return fmt.Sprintf("%d/%d", a, 1+r.IntN(last-first+1))
		case k == 9:
			return fmt.Sprintf("%d-%d/%d", min(a, b), max(a, b), 1+r.IntN(last-first+1))
		case k == 7:
			return fmt.Sprintf("%d,%d", a, b)
		}
		return strconv.Itoa(a)
	}
	return fmt.Sprint(element(0, 59, 2), " ", element(0, 4, 3), " ", element(1, 31, 7), " ", element(1, 12, 7), " ", element(0, 6, 6))
}

func FuzzNextDue(f *testing.F) {
	for i, text := range []string{"30 2 * * *", "*/15 * * * *", "0,30 0-3 * * *", "@hourly", "@daily", "59 23 31 DEC Sun", "0 0 29 2 *", "5/7 1-5/2 */2 1-6 mon-fri", "* 0 * * 7", "0 1,2,3 * * *"} {
		f.Add(text, int64(i)*20_000_000, uint8(i), true)
		f.Add(text, int64(i)*20_000_000, uint8(i+1), false)
	}
	f.Fuzz(func(t *testing.T, text string, minutes int64, place uint8, change bool) {
		if _, err := triggers.Parse(text); err != nil {
			return
		}
		z := zone(t, zones[int(place)%len(zones)])
		// The clocks of these zones differ from UTC by whole minutes from 1975 on, so that each due is at a whole minute.
		after := time.Unix(60*(5*366*1440+int64(uint64(minutes)%(100*366*1440))), 0).UTC()
		if change {
			after = near(after, z)
		}
		check(t, text, after, 30*time.Hour, z)
	})
}
