package triggers_test

import (
	"strings"
	"testing"
	"time"

	"agentd/triggers"
)

// TestNext has the clocks' changes by name. All times are those that the clock of the zone shows, with its offset.
func TestNext(t *testing.T) {
	for _, tt := range []struct{ text, zone, after, want string }{
		{"0 4 * * *", "Europe/Berlin", "2026-01-01T04:00:00+01:00", "2026-01-02T04:00:00+01:00 2026-01-03T04:00:00+01:00"},
		{"0 4 * * *", "Europe/Berlin", "2026-01-01T03:59:59.999+01:00", "2026-01-01T04:00:00+01:00"},
		{"0 4 * * *", "UTC", "2026-01-01T04:00:00.001Z", "2026-01-02T04:00:00Z"},

		// Berlin skips 02:00 to 03:00. Fixed times in the gap are due once at its end, with those that are due then anyway.
		{"30 2 * * *", "Europe/Berlin", "2026-03-28T03:00:00+01:00", "2026-03-29T03:00:00+02:00 2026-03-30T02:30:00+02:00"},
		{"0 2 * * *", "Europe/Berlin", "2026-03-28T03:00:00+01:00", "2026-03-29T03:00:00+02:00 2026-03-30T02:00:00+02:00"},
		{"0,15,30 2 * * *", "Europe/Berlin", "2026-03-28T03:00:00+01:00", "2026-03-29T03:00:00+02:00 2026-03-30T02:00:00+02:00"},
		{"0,30 1-3 * * *", "Europe/Berlin", "2026-03-29T01:00:00+01:00", "2026-03-29T01:30:00+01:00 2026-03-29T03:00:00+02:00 2026-03-29T03:30:00+02:00 2026-03-30T01:00:00+02:00"},
		{"30 2 29 3 *", "Europe/Berlin", "2026-03-29T03:00:00+02:00", "2027-03-29T02:30:00+02:00"},
		{"30 * * * *", "Europe/Berlin", "2026-03-29T01:00:00+01:00", "2026-03-29T01:30:00+01:00 2026-03-29T03:30:00+02:00"},
		{"*/30 2 * * *", "Europe/Berlin", "2026-03-28T03:00:00+01:00", "2026-03-30T02:00:00+02:00 2026-03-30T02:30:00+02:00"},
		{"@hourly", "Europe/Berlin", "2026-03-29T01:00:00+01:00", "2026-03-29T03:00:00+02:00 2026-03-29T04:00:00+02:00"},

		// Berlin shows 02:00 to 03:00 twice. Fixed times are due on the first pass.
		{"30 2 * * *", "Europe/Berlin", "2026-10-24T03:00:00+02:00", "2026-10-25T02:30:00+02:00 2026-10-26T02:30:00+01:00"},
		{"30 2 * * *", "Europe/Berlin", "2026-10-25T02:10:00+01:00", "2026-10-26T02:30:00+01:00"},
		{"0,30 2-3 * * *", "Europe/Berlin", "2026-10-25T02:00:00+02:00", "2026-10-25T02:30:00+02:00 2026-10-25T03:00:00+01:00 2026-10-25T03:30:00+01:00"},
		{"30 * * * *", "Europe/Berlin", "2026-10-25T01:30:00+02:00", "2026-10-25T02:30:00+02:00 2026-10-25T02:30:00+01:00 2026-10-25T03:30:00+01:00"},
		{"*/30 2 * * *", "Europe/Berlin", "2026-10-25T02:00:00+02:00", "2026-10-25T02:30:00+02:00 2026-10-25T02:00:00+01:00 2026-10-25T02:30:00+01:00 2026-10-26T02:00:00+01:00"},
		{"*/30 2 25 10 *", "Europe/Berlin", "2026-10-25T02:30:00+02:00", "2026-10-25T02:00:00+01:00 2026-10-25T02:30:00+01:00 2027-10-25T02:00:00+02:00"},

		// Havana skips midnight, and shows it twice.
		{"@daily", "America/Havana", "2026-03-07T00:00:00-05:00", "2026-03-08T01:00:00-04:00 2026-03-09T00:00:00-04:00"},
		{"@daily", "America/Havana", "2026-10-31T00:00:00-04:00", "2026-11-01T00:00:00-04:00 2026-11-02T00:00:00-05:00"},
		// Lord Howe changes by half an hour, at 02:00.
		{"15 2 * * *", "Australia/Lord_Howe", "2026-10-03T03:00:00+10:30", "2026-10-04T02:30:00+11:00 2026-10-05T02:15:00+11:00"},
		{"45 1 * * *", "Australia/Lord_Howe", "2026-04-04T02:00:00+11:00", "2026-04-05T01:45:00+11:00 2026-04-06T01:45:00+10:30"},
		// Samoa skipped December 30 of 2011.
		{"0 4 * * *", "Pacific/Apia", "2011-12-29T04:00:00-10:00", "2011-12-31T00:00:00+14:00 2011-12-31T04:00:00+14:00"},
		{"*/20 4 30 12 *", "Pacific/Apia", "2011-12-29T04:00:00-10:00", "2012-12-30T04:00:00+14:00"},
		{"0 0 * * *", "Asia/Kathmandu", "2026-01-01T00:00:00+05:45", "2026-01-02T00:00:00+05:45"},

		// The last day of a leap year.
		{"0 4 * * *", "Europe/Berlin", "2028-12-31T03:00:00+01:00", "2028-12-31T04:00:00+01:00 2029-01-01T04:00:00+01:00"},
		{"@yearly", "Europe/Berlin", "2028-12-31T12:00:00+01:00", "2029-01-01T00:00:00+01:00 2030-01-01T00:00:00+01:00"},

		// Days that match both fields.
		{"0 12 1-7 * 1", "UTC", "2026-01-01T00:00:00Z", "2026-01-05T12:00:00Z 2026-02-02T12:00:00Z 2026-03-02T12:00:00Z"},
		{"0 0 13 * FRI", "UTC", "2026-01-01T00:00:00Z", "2026-02-13T00:00:00Z 2026-03-13T00:00:00Z 2026-11-13T00:00:00Z"},
		{"0 0 */2 * 7", "UTC", "2026-01-01T00:00:00Z", "2026-01-11T00:00:00Z 2026-01-25T00:00:00Z"},
		{"0 0 31 * *", "UTC", "2026-01-31T00:00:00Z", "2026-03-31T00:00:00Z 2026-05-31T00:00:00Z"},
		{"0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z 2032-02-29T00:00:00Z"},
		{"0 0 29 2 *", "UTC", "2097-01-01T00:00:00Z", "2104-02-29T00:00:00Z"},
		{"0 0 29 2 1", "UTC", "2026-01-01T00:00:00Z", "2044-02-29T00:00:00Z 2072-02-29T00:00:00Z"},
		{"0 0 29 2 0", "America/New_York", "2072-01-01T00:00:00-05:00", "2088-02-29T00:00:00-05:00 2128-02-29T00:00:00-05:00"}, // the longest wait

		{"0 0 30 2 *", "UTC", "2026-01-01T00:00:00Z", "never"},
		{"0 0 31 4,6,9,11 *", "Europe/Berlin", "2026-01-01T00:00:00Z", "never"},
		{"* * * * *", "UTC", "9999-12-31T23:58:00Z", "9999-12-31T23:59:00Z never"},
		{"* * * * *", "Europe/Berlin", "9999-12-31T23:59:00Z", "never"},
	} {
		c, err := triggers.Parse(tt.text)
		if err != nil {
			t.Fatalf("Parse(%q) = %v", tt.text, err)
		}
		at, err := time.Parse(time.RFC3339, tt.after)
		if err != nil {
			t.Fatal(err)
		}
		z := zone(t, tt.zone)
		for want := range strings.SplitSeq(tt.want, " ") {
			due, ok := c.Next(at, z)
			got := "never"
			if ok {
				got = due.In(z).Format(time.RFC3339)
			}
			if got != want {
				t.Errorf("%q in %s: Next(%v) = %s, want %s", tt.text, tt.zone, at.In(z), got, want)
				break
			}
			at = due
		}
	}
}

// TestBounds asks about times at which the calendar ends.
func TestBounds(t *testing.T) {
	c, err := triggers.Parse("* * * * *")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range zones {
		z := zone(t, name)
		early, late := time.Unix(-1<<60, 0), time.Unix(1<<60, 0)
		if due, ok := c.Next(early, z); !ok || due.Year() > 1 {
			t.Errorf("in %s: Next(%d) = %v, %v, want a time of the year 1", name, early.Unix(), due, ok)
		}
		if due, ok := c.Next(late, z); ok {
			t.Errorf("in %s: Next(%d) = %v, want none", name, late.Unix(), due)
		}
		if n := c.Count(late, early, z); n != 0 {
			t.Errorf("in %s: Count of an interval whose end is before its start = %d", name, n)
		}
	}
	if n, want := c.Count(time.Unix(-1<<60, 0), time.Unix(1<<60, 0), time.UTC), int64(3652059*1440); n != want {
		t.Errorf("Count of all time = %d, want the %d minutes of the years 1 to 9999", n, want)
	}
	if due, ok := (triggers.Cron{}).Next(time.Now(), time.UTC); ok {
		t.Errorf("the zero text is due at %v", due)
	}
}

func BenchmarkNext(b *testing.B) {
	for _, bb := range []struct{ name, text, zone, after string }{
		{"minute", "* * * * *", "UTC", "2026-07-01T00:00:00Z"},
		{"daily", "0 4 * * *", "Europe/Berlin", "2026-07-01T00:00:00Z"},
		{"gap", "30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z"},
		{"overlap", "30 2 * * *", "Europe/Berlin", "2026-10-25T00:40:00Z"},
		{"yearly", "@yearly", "America/New_York", "2026-01-02T00:00:00Z"},
		{"leap", "0 0 29 2 *", "Australia/Lord_Howe", "2096-03-01T00:00:00Z"},
		{"longest", "0 0 29 2 0", "America/New_York", "2088-03-01T00:00:00Z"},
		{"never", "0 0 30 2 *", "Europe/Berlin", "2026-01-01T00:00:00Z"},
	} {
		c, err := triggers.Parse(bb.text)
		if err != nil {
			b.Fatal(err)
		}
		z := zone(b, bb.zone)
		at, _ := time.Parse(time.RFC3339, bb.after)
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.Next(at, z)
			}
		})
	}
}

func BenchmarkCountYear(b *testing.B) {
	c, _ := triggers.Parse("*/5 * * * *")
	z := zone(b, "Europe/Berlin")
	at := time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)
	for b.Loop() {
		c.Count(at, at.AddDate(1, 0, 0), z)
	}
}
