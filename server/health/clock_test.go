package health_test

import (
	"strings"
	"testing"
	"time"

	"agentd/server/health"
)

func TestClock(t *testing.T) {
	start := time.Date(2026, 3, 29, 1, 30, 0, 0, time.UTC)
	type look struct {
		after, ahead time.Duration // since the start by the monotonic clock, and what the system clock has more
		want         string        // the message has this; empty: it is ok
	}
	for _, tc := range []struct {
		name    string
		written time.Time
		looks   []look
	}{
		{"steady", start, []look{{0, 0, ""}, {time.Hour, 0, ""}, {1000 * time.Hour, 0, ""}}},
		{"no files", time.Time{}, []look{{0, 0, ""}}},
		{"adjusted", start, []look{{time.Hour, 9 * time.Second, ""}, {2 * time.Hour, 18 * time.Second, ""}, {3 * time.Hour, 9 * time.Second, ""}}},
		{"set forward", start, []look{{time.Minute, 10 * time.Second, "was set"}, {time.Hour, 10 * time.Second, "was set"}, {61*time.Minute + 1, 10 * time.Second, ""}}},
		{"set back", start, []look{{time.Minute, -24 * time.Hour, "has not come yet"}}},
		{"set back, and right again", start, []look{{time.Hour, -30 * time.Minute, "was set"}, {2 * time.Hour, 0, "was set"}, {3*time.Hour + 1, 0, ""}}},
		{"a step within the hour of another", start, []look{{time.Hour, time.Minute, "was set"}, {90 * time.Minute, 2 * time.Minute, "was set"},
			{2*time.Hour + 1, 2 * time.Minute, "was set"}, {151 * time.Minute, 2 * time.Minute, ""}}},
		{"files from the future", start.Add(time.Hour), []look{{0, 0, "has not come yet"}, {59 * time.Minute, 0, ""}}},
	} {
		c := health.NewClock(start, tc.written)
		for _, l := range tc.looks {
			got := c.Look(start.Add(l.after+l.ahead), l.after)
			if ok := got.Status == health.OK && got.Message == ""; ok != (l.want == "") || !ok && got.Status != health.Warn || !strings.Contains(got.Message, l.want) {
				t.Errorf("%s: Look() after %v, %v ahead = %+v, want %q", tc.name, l.after, l.ahead, got, l.want)
			}
		}
	}
}
