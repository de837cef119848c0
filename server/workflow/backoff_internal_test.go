package workflow

import (
	"cmp"
	"math"
	"testing"
	"time"

	"agentd/server/graph"
)

// TestBackoff doubles up to its limit, and never turns into no wait at all.
func TestBackoff(t *testing.T) {
	for _, r := range []graph.Retry{{Backoff: 24 * time.Hour}, {Backoff: 24 * time.Hour, MaxBackoff: time.Minute}, {Backoff: time.Second, MaxBackoff: time.Hour}} {
		for _, attempt := range []int{1, 2, 20, 21, 1000} {
			longest, limit := int64(0), cmp.Or(r.MaxBackoff, math.MaxInt64)
			for range 100 {
				longest = max(longest, backoff(&r, attempt))
			}
			if want := min(r.Backoff, limit).Milliseconds() / 4; longest < want || longest > limit.Milliseconds() {
				t.Errorf("backoff(%v, %d) = %d at most, want %d to %d", r, attempt, longest, want, limit.Milliseconds())
			}
		}
	}
}
