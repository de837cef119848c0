package triggers_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"agentd/triggers"
)

func every(t testing.TB, period time.Duration, from time.Time) triggers.Schedule {
	t.Helper()
	s, err := triggers.Every(period, from)
	if err != nil {
		t.Fatalf("Every(%v, %v) = %v", period, from, err)
	}
	return s
}

func TestInterval(t *testing.T) {
	from := time.UnixMilli(1_000_000_000_123)
	s := every(t, 5*time.Minute, from)
	at := func(periods float64) time.Time { return from.Add(time.Duration(periods * float64(5*time.Minute))) }
	for _, tt := range []struct {
		after, want float64
	}{{-3, 1}, {0, 1}, {0.5, 1}, {1, 2}, {1.999, 2}, {2, 3}, {1000.5, 1001}} {
		if due, ok := s.Next(at(tt.after)); !ok || !due.Equal(at(tt.want)) || due.Location() != time.UTC {
			t.Errorf("Next of %v periods = %v, %v, want %v periods, %v", tt.after, due, ok, tt.want, at(tt.want).UTC())
		}
	}
	for _, tt := range []struct {
		after, until float64
		want         int64
	}{{-3, 0.9, 0}, {-3, 1, 1}, {0, 3, 3}, {1, 3, 2}, {0.9, 1.1, 1}, {1, 1, 0}, {3, 1, 0}, {0, 1e6, 1e6}} {
		if n := s.Count(at(tt.after), at(tt.until)); n != tt.want {
			t.Errorf("Count(%v, %v) = %d, want %d", tt.after, tt.until, n, tt.want)
		}
	}
	if got, want := s.Newest(at(0), at(1e6), 3), []time.Time{at(1e6 - 2), at(1e6 - 1), at(1e6)}; !slices.EqualFunc(got, want, time.Time.Equal) {
		t.Errorf("Newest of a million = %v, want %v", got, want)
	}
	if got, want := s.Upcoming(at(0), 2), []time.Time{at(1), at(2)}; !slices.EqualFunc(got, want, time.Time.Equal) {
		t.Errorf("Upcoming = %v, want %v", got, want)
	}
	for _, n := range []int{-1, 0} {
		if got := append(s.Upcoming(at(0), n), s.Newest(at(0), at(5), n)...); len(got) > 0 {
			t.Errorf("Upcoming and Newest of %d = %v", n, got)
		}
	}
	if due, ok := every(t, 24*time.Hour, from).Next(time.Date(9999, 12, 31, 20, 0, 0, 0, time.UTC)); ok {
		t.Errorf("Next at the end of the year 9999 = %v, want none", due)
	}
	for _, period := range []time.Duration{-time.Second, 0, time.Millisecond - 1, 100*366*24*time.Hour + 1} {
		if s, err := triggers.Every(period, from); err == nil {
			t.Errorf("Every(%v) = %v, want an error", period, s)
		}
	}
}

func TestUpcoming(t *testing.T) {
	for _, tt := range []struct {
		text string
		want []string
	}{
		{"0 0 13 * 5", []string{"2026-02-13", "2026-03-13", "2026-11-13"}},
		{"0 0 30 2 *", nil},
	} {
		c, err := triggers.Parse(tt.text)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, due := range c.In(time.UTC).Upcoming(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), 3) {
			got = append(got, due.Format(time.DateOnly))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("the next three of %q = %v, want %v", tt.text, got, tt.want)
		}
	}
}

// TestNewestOfManyYears has more dues than anything could list.
func TestNewestOfManyYears(t *testing.T) {
	c, err := triggers.Parse("* * * * *")
	if err != nil {
		t.Fatal(err)
	}
	z := zone(t, "Europe/Berlin")
	until := time.Date(2126, 1, 1, 0, 0, 30, 0, z)
	got := c.In(z).Newest(time.Unix(0, 0), until, 2)
	want := []time.Time{time.Date(2125, 12, 31, 23, 59, 0, 0, z), time.Date(2126, 1, 1, 0, 0, 0, 0, z)}
	if !slices.EqualFunc(got, want, time.Time.Equal) {
		t.Errorf("Newest = %v, want %v", got, want)
	}
}

func TestZones(t *testing.T) {
	zones := triggers.Zones{}
	for _, name := range []string{"", "Local", "Mars/Base", "../etc/passwd", "/etc/localtime", "Europe/Berlin\x00"} {
		if z, err := zones.Load(name); err == nil {
			t.Errorf("Load(%q) = %v, want an error", name, z)
		}
	}
	if len(zones) != 0 {
		t.Errorf("unknown zones are remembered: %v", zones)
	}
	first, err := zones.Load("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	if second, err := zones.Load("Europe/Berlin"); err != nil || second != first {
		t.Errorf("Load = %p, %v, want the same zone again, %p", second, err, first)
	}
}

// TestJitter expects the delays of ids that resemble each other to be spread, and to stay as they are: a trigger that has another delay
// after an update starts at another time.
func TestJitter(t *testing.T) {
	if got, want := triggers.Jitter("nightly", time.Minute), 3016*time.Millisecond; got != want {
		t.Errorf("Jitter = %v, want %v", got, want)
	}
	var tenths [10]int
	for i := range 10_000 {
		d := triggers.Jitter(fmt.Sprintf("job-%d", i), 999*time.Millisecond)
		if d < 0 || d > 999*time.Millisecond {
			t.Fatalf("Jitter = %v, want at most 999ms", d)
		}
		tenths[d/(100*time.Millisecond)]++
	}
	if slices.Min(tenths[:]) < 850 || slices.Max(tenths[:]) > 1150 {
		t.Errorf("10000 delays in tenths of the second: %v, want about 1000 each", tenths)
	}
	for _, most := range []time.Duration{-time.Hour, 0, time.Millisecond - 1} {
		if d := triggers.Jitter("a", most); d != 0 {
			t.Errorf("Jitter(%v) = %v, want 0", most, d)
		}
	}
}

// TestMemory holds 100 000 schedules, in all zones of these tests.
func TestMemory(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	known := triggers.Zones{}
	schedules := make(map[string]triggers.Schedule)
	for i := range 100_000 {
		c, err := triggers.Parse(fmt.Sprintf("%d %d * * *", i%60, i/60%24))
		if err != nil {
			t.Fatal(err)
		}
		z, err := known.Load(zones[i%len(zones)])
		if err != nil {
			t.Fatal(err)
		}
		schedules[fmt.Sprintf("trigger-%d", i)] = c.In(z)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if used := int64(after.HeapAlloc) - int64(before.HeapAlloc); used > 50<<20 {
		t.Errorf("100000 schedules take %d bytes, want at most 50 MB", used)
	} else {
		t.Logf("100000 schedules by id take %d bytes", used)
	}
	runtime.KeepAlive(schedules)
}
