package id_test

import (
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"agentd/server/id"
)

func TestNewHasTheFormOfVersion7(t *testing.T) {
	form := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	for range 1000 {
		if got := id.New(); !form.MatchString(got) {
			t.Fatalf("New() = %s, want a match of %v", got, form)
		}
	}
}

func TestNewHoldsTheTime(t *testing.T) {
	before := time.Now().UnixMilli()
	got := id.New()
	after := time.Now().UnixMilli()
	ms, err := strconv.ParseInt(strings.ReplaceAll(got, "-", "")[:12], 16, 64)
	// The ids of other tests may have counted a little ahead of the clock.
	if err != nil || ms < before || ms > after+1000 {
		t.Errorf("New() = %s, of time %d (%v), want %d to %d", got, ms, err, before, after)
	}
}

func TestNewRisesWithinAProcess(t *testing.T) {
	previous := ""
	for i := range 100_000 {
		got := id.New()
		if got <= previous {
			t.Fatalf("call %d: New() = %s, want it above %s", i, got, previous)
		}
		previous = got
	}
}

func TestNewIsUniqueUnderConcurrency(t *testing.T) {
	const callers, each = 8, 10_000
	made := make([][]string, callers)
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for range each {
				made[c] = append(made[c], id.New())
			}
		})
	}
	wg.Wait()
	// The varying bits before the random ones are unique by themselves, which is what makes the order total.
	seen := map[string]bool{}
	for _, ids := range made {
		for i, got := range ids {
			if seen[got[:18]] {
				t.Fatalf("New() = %s, whose time and sequence another has", got)
			}
			seen[got[:18]] = true
			if i > 0 && got <= ids[i-1] {
				t.Fatalf("New() = %s after %s in one goroutine, want it above", got, ids[i-1])
			}
		}
	}
}

func TestNewVariesInItsRandomBits(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		seen[id.New()[19:]] = true
	}
	if len(seen) != 1000 {
		t.Errorf("1000 calls of New() had %d random parts, want 1000", len(seen))
	}
}

func BenchmarkNew(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		id.New()
	}
}
