package auth

import (
	"testing"
	"time"
)

// No test from outside can revoke a token between the read of its record and the moment when it is remembered.
func TestCacheDropsWhatWasReadBeforeAnEviction(t *testing.T) {
	c, now := cache{}, time.Now()
	_, early, _ := c.get(digest{1}, now)
	c.evict("a")
	c.put(digest{1}, Principal{TokenID: "a"}, now, early)
	p, late, ok := c.get(digest{1}, now)
	if ok {
		t.Errorf("get() = %+v, want nothing of what an earlier epoch has read", p)
	}
	c.put(digest{1}, Principal{TokenID: "a"}, now, late)
	if p, _, ok := c.get(digest{1}, now); !ok || p.TokenID != "a" {
		t.Errorf("get() = %+v, %v, want what this epoch has read", p, ok)
	}
}
